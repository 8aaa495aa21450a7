"""Groups, formats, files and rules of assignments as plain data; pins; the Promoter."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import lpkernels as lp
from lpkernels.techniques.assignment import (
    Assignment,
    Formats,
    Op,
    Pins,
    Promoter,
    TensorSpec,
    demote,
    group,
    operator_based,
    uniform,
)
from lpkernels.techniques.assignment.graph import Group
from tests.techniques.assignment.networks import chain, ops_from

# The loss is counted as in the paper's code; the numbers of its rule are known for that count.
CHAIN = chain(loss_numel=4)
GROUPS = group(CHAIN)


def tensors(*sizes: int) -> tuple[Group, ...]:
    """Groups of one activation each."""
    return tuple(
        Group(i, (TensorSpec(f"t{i}.Y", "activation", size, i),)) for i, size in enumerate(sizes)
    )


def test_ratios_and_sizes_are_compared_exactly():
    # The float 0.1 is above a tenth, so one of ten elements does not reach it; it does reach the
    # fraction. The float 0.3 is below three tenths.
    ten = tensors(*[1] * 10)
    counts = [len(demote(ten, ratio).low_groups) for ratio in (0.1, Fraction(1, 10), 0.3)]
    assert counts == [2, 1, 3]
    # Floats do not tell these sizes apart.
    huge = tensors(2**60, 2**60 + 1)
    assert demote(huge, 0.5, order="increasing").low_groups == (0, 1)
    assert demote(huge, 0.5).low_groups == (1,)


def test_random_order_is_the_seeds_own():
    groups = tensors(*range(1, 9))
    orders = [demote(groups, 1.0, order="random", seed=seed).low_groups for seed in (123, 456, 789)]
    assert len(set(orders)) == 3
    assert demote(groups, 1.0, order="random", seed=123).low_groups == orders[0]
    # Python promises the numbers of random(), so these are the same everywhere.
    assert orders[0] == (5, 0, 1, 3, 7, 2, 6, 4)


def test_operations_that_are_not_known_are_named_beside_the_ratio() -> None:
    ops = [
        Op("in", False, (), {}, 4),
        Op("gru", False, ("in",), {"weight": 6}, 4, "gru", known=False),
        Op("fc", True, ("gru",), {"weight": 8}, 2),
    ]
    assignment = demote(group(ops), 0.5)
    assert assignment.unknown == ("gru",)
    assert str(assignment).splitlines()[-1] == "without what is computed inside gru"
    assert demote(group(ops[:1]), 0.5).unknown == ()


def test_operator_based_lowers_what_enters_inner_gemms():
    assignment = operator_based(CHAIN)
    assert assignment.low == {"relu1.Y", "conv2.weight.P", "conv2.weight.GP", "conv2.GY"}
    assert assignment.low_numel == 2112
    assert assignment.ratio == pytest.approx(0.194906, abs=5e-7)
    assert assignment.bits == 158784
    assert assignment.bit_ratio == pytest.approx(0.168328, abs=5e-7)
    assert assignment.low_groups == ()


def test_the_operands_of_the_last_gemm_stay_high():
    # Linear layers follow the input: the first is fed by it, and the last one is the last GEMM.
    assignment = operator_based(ops_from("in, a* in w, b* a w, c* b w, d* c w"))
    # d's input c stays high with its gradient, and d's weight with it.
    assert assignment.low == {"b.Y", "b.w.P", "b.w.GP", "b.GY", "c.w.P", "c.w.GP"}
    # A result with one GEMM among its readers is low.
    inner = "in, first* in w, relu first, inner* relu w, add relu inner"
    assignment = operator_based(ops_from(f"{inner}, more* add w, norm more, last* norm w"))
    assert {"relu.Y", "add.Y", "inner.GY", "more.GY", "more.w.P"} <= assignment.low
    assert not assignment.low & {"inner.Y", "relu.GY", "add.GY", "norm.Y", "more.Y", "last.w.P"}


def test_uniform_is_all_low() -> None:
    low = uniform(CHAIN)
    assert (low.ratio, low.bits, low.low_groups) == (1.0, 90192, (0, 1, 2, 3))


@pytest.mark.parametrize("make", [uniform, operator_based])
def test_unknown_operations_stay_high_and_pins_hold(make) -> None:
    def low(ops: list[Op], **options: Any) -> tuple[set[str], set[str]]:
        keys = make(ops, **options).low
        return keys, {key for key in keys if key.startswith("conv2")}

    assert low(CHAIN)[1]
    assert not low([replace(op, known=op.name != "conv2") for op in CHAIN])[1]
    keys, second = low(CHAIN, pins=Pins(high="conv2.*", low=["in.Y", "fc.weight.*"]))
    assert {"in.Y", "fc.weight.P", "fc.weight.GP"} <= keys and not second


LOW = demote(GROUPS, 0.6)


def test_the_papers_trace():
    promoter = Promoter(LOW, threshold=0.01)
    for _ in range(7):
        assert promoter.update({"bn1.Y": 0.0, "relu1.Y": 0.0}) == ()
    # This is step 7. The input is high already, whatever its ratio.
    measured = {"bn1.Y": 0.02, "relu1.Y": 0.009, "conv2.weight.P": 0.0, "conv1.Y": 0.01}
    assert promoter.update({**measured, "in.Y": 0.5}) == ("conv1.Y", "bn1.Y")
    now = promoter.assignment
    assert {"conv1.GY", "bn1.GY", "relu1.Y"} <= now.low
    assert now.ratio == pytest.approx(0.432632, abs=5e-7)
    assert now.bits == 138240
    assert promoter.promotions == [(7, "conv1.Y", 0.01), (7, "bn1.Y", 0.02)]
    # Later ratios of a tensor that is high never matter, and the tensor never goes back.
    assert promoter.update({**measured, "relu1.Y": 0.0}) == ()
    assert promoter.assignment.low == now.low
    # The assignment that training started with is unchanged.
    assert LOW.low_numel == 6736


@pytest.mark.parametrize("promoter, overflow, promoted", [
    # A kind with one format stays.
    (Promoter(demote(GROUPS, 1.0, formats=Formats(weight="fp16"))), {"conv2.weight.P": 1.0}, ()),
    (Promoter(operator_based(chain())), {"relu1.Y": 0.5, "relu2.Y": 0.5}, ("relu1.Y",)),
], ids=["one format", "operators"])  # fmt: skip
def test_a_kind_with_one_format_is_not_promoted_and_a_low_operand_is(
    promoter: Promoter, overflow: dict, promoted: tuple
):
    assert promoter.update(overflow) == promoted


@pytest.mark.parametrize("measured, match", [
    ({"conv9.Y": 0.1}, "no tensor has the key 'conv9.Y'; keys are such as 'in.Y'"),
    ({"bn1.Y": 1.5}, "overflow of 'bn1.Y' must be from 0 to 1, got 1.5"),
])  # fmt: skip
def test_wrong_ratios_change_nothing(measured: dict, match: str):
    promoter = Promoter(LOW)
    with pytest.raises(ValueError, match=match):
        promoter.update({"conv1.Y": 1.0, **measured})
    assert promoter.assignment == LOW
    assert promoter.promotions == []


def test_the_chain_has_10830_elements_and_gradients_are_with_their_tensors():
    groups = group(chain())
    assert [home.index for home in groups] == list(range(4))
    assert [home.numel for home in groups] == [584, 6736, 3348, 162]
    # The paper's code counts the loss once a sample.
    assert [home.numel for home in group(chain(loss_numel=4))] == [584, 6736, 3348, 168]
    tensors = {t.key: t for home in groups for t in home.tensors}
    assert len(tensors) == 2 * (11 + 8)
    for values, gradients in (("bn1.Y", "bn1.GY"), ("bn1.bias.P", "bn1.bias.GP")):
        value, gradient = tensors[values], tensors[gradients]
        assert (value.group, value.numel) == (gradient.group, gradient.numel)
        kinds = {"activation": "grad_activation", "weight": "grad_weight"}
        assert gradient.kind == kinds[value.kind]


PAPER = Formats()
CHAIN_GROUPS = group(chain())
ASSIGNMENT = demote(
    CHAIN_GROUPS, 0.4, formats=Formats(weight=("bf16", "fp8_e5m2:stochastic")),
    pins=Pins(high="in.*", low=["fc.*"]),
)  # fmt: skip


def test_an_assignment_comes_back(tmp_path: Path):
    path = tmp_path / "a.json"
    ASSIGNMENT.save(path)
    assert Assignment.load(path, CHAIN_GROUPS) == ASSIGNMENT
    promoted = ASSIGNMENT.promoted(["conv2.Y", "relu1.Y"])
    promoted.save(str(path))
    assert Assignment.load(path) == promoted
    # Each tensor takes one line.
    assert len(path.read_text().splitlines()) == 7 + len(ASSIGNMENT.tensors)


def test_tensors_have_the_formats_of_their_precision():
    assert str(ASSIGNMENT.format_of("conv2.weight.P")) == "e5m2:stochastic"
    assert str(ASSIGNMENT.format_of("conv1.weight.P")) == "e8m7"
    assert ASSIGNMENT.is_low("relu1.Y")
    assert not ASSIGNMENT.is_low("in.Y")
    for call in (ASSIGNMENT.format_of, lambda key: ASSIGNMENT.promoted([key])):
        with pytest.raises(ValueError, match=r"no tensor has the key 'relu9\.Y'"):
            call("relu9.Y")


def chain_with(**fields: Callable[[Op], Any]) -> list[Op]:
    return [replace(op, **{name: of(op) for name, of in fields.items()}) for op in chain()]


@pytest.mark.parametrize("ops, match", [
    (chain()[:-1], "it is of another model: the model lacks 'nll.GY', 'nll.Y'; trace"),
    (chain_with(name=lambda op: f"x{op.name}", inputs=lambda op: ()),
     "it lacks 'xbn1.GY', 'xbn1.Y', 'xbn1.bias.GP' and 35 more and the model lacks 'bn1.GY'"),
    (chain_with(numel=lambda op: 2 * op.numel),
     "it is of another batch: 22 tensors have other sizes; 'in.Y' has 256 elements in it "
     "and 512 in the model"),
    (chain_with(params=lambda op: dict.fromkeys(op.params, 9)),
     "it is of another model: 16 tensors have other sizes; 'conv1.weight.P' has 36 elements"),
])  # fmt: skip
def test_an_assignment_of_something_else_is_refused(tmp_path: Path, ops: list[Op], match: str):
    ASSIGNMENT.save(tmp_path / "a.json")
    with pytest.raises(ValueError, match=match):
        Assignment.load(tmp_path / "a.json", group(ops))


@pytest.mark.parametrize("text, match", [
    ("no json", "expected the JSON of .lpkernels assignment"),
    ('{"what": "lpkernels assignment", "schema": 9}',
     "expected schema 2, got 9"),
    ('{"what": "lpkernels assignment", "schema": 2}', "a field is missing .*: 'tensors'"),
])  # fmt: skip
def test_other_files_are_refused(tmp_path: Path, text: str, match: str):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=match):
        Assignment.load(path)


def test_the_formats_are_the_papers() -> None:
    """Their ranges are in tests/numbers/test_formats.py."""
    names = {
        "weight": ("fp_6_9_0", "fp_4_3_4"),
        "activation": ("fp_6_9_0", "fp_4_3_4"),
        "grad_activation": ("fp_6_9_0_backward", "fp_5_2_0_backward"),
        "grad_weight": ("fp_6_9_0_backward", "fp_6_9_0_backward"),
    }
    for kind, pair in names.items():
        assert getattr(PAPER, kind) == tuple(lp.Quantizer(fmt, "nearest_away") for fmt in pair)


def test_any_format_may_be_taken_for_a_kind():
    formats = Formats(weight=("fp16", "affine4"), activation=lp.FixedFormat(8, 4))
    assert str(formats.of("weight", True)) == "affine4"
    assert formats.activation.low == formats.activation.high
    assert formats.grad_weight == PAPER.grad_weight
    assert Formats.same("bf16", "fp8_e5m2:stochastic").grad_weight.low.is_stochastic
