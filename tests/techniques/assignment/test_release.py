"""trace and demote with like="release", against numbers that the released code gave."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lpkernels.experiments.workloads.models import Task, build_model
from lpkernels.techniques.assignment import (
    Assignment,
    Group,
    Op,
    Pins,
    TensorSpec,
    demote,
    group,
    trace,
    uniform,
)
from tests.loops import each, rows
from tests.support.computes import Computes
from tests.support.refusals import refuses
from tests.techniques.assignment.networks import chain, chain_batch, chain_model

RELEASE: dict[str, Any] = {"like": "release"}


def chain_groups() -> tuple[Group, ...]:
    return group(trace(chain_model(), cross_entropy, chain_batch(4), **RELEASE))


def test_the_loss_counts_as_often_as_there_are_examples() -> None:
    assert [each.numel for each in chain_groups()] == [584, 6736, 3348, 168]
    assert [op.numel for op in trace(chain_model(), cross_entropy, chain_batch(4), **RELEASE)] == [
        op.numel for op in chain(4)
    ]
    assert group(trace(chain_model(), cross_entropy, chain_batch(4)))[3].numel == 162


@rows(
    "order, ratio, low, share, bits",
    ("decreasing", 0.0, (), 0, 173376),
    ("decreasing", 0.62, (1,), 6736 / 10836, 121856),
    ("decreasing", 0.65, (1, 2), 0.930602, 95920),
    ("decreasing", 0.95, (1, 2, 0), 0.984496, 91536),
    ("decreasing", 1.0, (1, 2, 0, 3), 1, 90192),
    ("increasing", 0.01, (3,), 0.015504, 173376 - 8 * 168),
    ("increasing", 0.3, (3, 0, 2), 0.378368, 141712),
    ("increasing", 0.5, (3, 0, 2, 1), 1, 90192),
)
def test_a_chain_is_demoted_as_in_the_released_code(
    order: str, ratio: float, low: tuple[int, ...], share: float, bits: int
) -> None:
    made = demote(chain_groups(), ratio, order=order, **RELEASE)
    assert made.low_groups == low and made.like == "release"
    assert made.ratio == pytest.approx(share, abs=1e-6)
    assert made.bits == bits


@rows(
    "name, count, seed, first",
    ("resnet18", 22, 123, "16 10 9 15 14 4 7 12"),
    ("resnet18", 22, 456, "6 15 8 4 20 10 2 0"),
    ("resnet18", 22, 789, "19 0 10 7 11 6 2 13"),
    ("squeezenet", 27, 123, "4 6 11 9 7 14 20 21"),
    ("mobilenetv2", 57, 123, "19 25 47 32 29 11 50 52"),
    ("shufflenetv2", 58, 123, "20 53 28 25 30 11 51 40"),
)
def test_random_orders_are_those_of_the_released_code(
    name: str, count: int, seed: int, first: str
) -> None:
    model = build_model(f"lee-{name}", Task("images", (3, 8, 8), 10), width=10)
    groups = group(
        trace(model, cross_entropy, (torch.zeros(2, 3, 8, 8), torch.arange(2)), **RELEASE)
    )
    assert len(groups) == count
    made = demote(groups[::-1], 1.0, order="random", seed=seed, **RELEASE)
    assert " ".join(map(str, made.low_groups[:8])) == first
    assert sorted(made.low_groups) == list(range(count))


def equal_groups(count: int) -> list[Group]:
    specs = [TensorSpec(f"t{i}.Y", "activation", 1, i) for i in range(count)]
    return [Group(spec.group, (spec,), "release") for spec in specs]


@rows("count, taken, more", (5, 2, 3), (12, 6, 6), (14, 7, 7), (7, 6, 6))
def test_shares_are_added_as_floats(count: int, taken: int, more: int) -> None:
    groups, ratio = equal_groups(count), taken / count
    share, added = 0.0, 0
    while share < ratio:
        share, added = share + 1 / count, added + 1
    assert len(demote(groups, ratio, **RELEASE).low_groups) == added
    # The default compares integers with the exact value of the ratio.
    assert len(demote(groups, ratio).low_groups) == more != added
    assert len(demote(groups, 1.0, **RELEASE).low_groups) == count


@each(
    "split",
    [
        lambda x: x.chunk(2, 1), lambda x: torch.split(x, 3, dim=1), lambda x: x.split([3, 3], 1),
        lambda x: torch.tensor_split(x, 2, dim=1),
    ],
)  # fmt: skip
def test_parts_of_a_split_are_results(split: Any) -> None:
    def forward(_: Computes, x: Tensor) -> Tensor:
        left, right = split(x.relu())
        return left.flatten(1) * right.flatten(1)

    batch = torch.randn(4, 6), None
    for like, reads in (("release", 2), (None, 1)):
        ops = trace(Computes(forward), lambda y, _: y.sum(), batch, like=like)
        product = ops[-2]
        assert product.operation == "mul" and len(product.inputs) == reads
        parts = [op for op in ops if op.name in product.inputs]
        if like == "release":
            assert {op.numel for op in parts} == {12} and all(op.known for op in parts)
            assert [op.inputs for op in parts] == [("relu",)] * 2
        else:
            assert [op.name for op in parts] == ["relu"]


def test_the_groups_of_shufflenet_differ_by_the_halves_and_the_loss_alone() -> None:
    model = build_model("lee-shufflenetv2", Task("images", (3, 8, 8), 10), width=10)
    batch = torch.zeros(2, 3, 8, 8), torch.arange(2)
    release, plain = (
        group(trace(model, cross_entropy, batch, like=like)) for like in ("release", None)
    )
    assert len(release) == len(plain)
    added = [t for each in release for t in each.tensors if "chunk" in t.key]
    # Thirteen units split, each into two results with their gradients.
    assert len(added) == 13 * 4
    homes = {t.key: t.group for each in release for t in each.tensors}
    assert all(homes[t.key] == t.group for each in plain for t in each.tensors)
    more = sum(each.numel for each in release) - sum(each.numel for each in plain)
    assert more == sum(t.numel for t in added) + 2


def test_a_file_says_which_trace_it_is_of(tmp_path: Path) -> None:
    for like in ("release", None):
        ops = trace(chain_model(), cross_entropy, chain_batch(4), like=like)
        made = uniform(ops)
        made.save(tmp_path / "a.json")
        assert ('"like"' in (tmp_path / "a.json").read_text()) == (like == "release")
        found = Assignment.load(tmp_path / "a.json", group(ops))
        assert found == made and found.like == like


def test_ops_of_two_traces_do_not_go_together() -> None:
    ops = [Op("a", False, ()), Op("b", False, ("a",), like="release")]
    with pytest.raises(ValueError, match="group: 'b' has like='release' and the Op before None"):
        group(ops)
    with pytest.raises(ValueError, match="Op 'a': like must be None or \"release\", got 1"):
        Op("a", False, (), like=1)
    with pytest.raises(ValueError, match="trace: like must be None or \"release\", got 'paper'"):
        trace(chain_model(), cross_entropy, chain_batch(4), like="paper")


GROUPS = equal_groups(3)
test_what_the_released_code_has_not_is_refused = refuses(
    demote,
    [
        ((GROUPS,), {"bits": 30}, ValueError, "at random, got bits; leave it out"),
        ((GROUPS, 0.5), {"pins": Pins(high="t0.Y")}, ValueError, "got pins; leave it out"),
        ((group(chain()), 0.5), {}, ValueError, "needs groups of such a trace; give group"),
        ((GROUPS, 0.5), {"like": "paper"}, ValueError, 'demote: like must be None or "release"'),
    ],
    like="release",
)  # fmt: skip
