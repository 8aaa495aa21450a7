"""Runs with like="release" against the released code's rules in plain autograd, to the bit."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lpkernels.experiments.workloads.models import Task, build_model
from lpkernels.techniques.assignment import Assignment, assign, demote, group, trace
from lpkernels.techniques.loss_scaling import LossScaler
from tests.compare import assert_bit_equal
from tests.techniques.assignment.running import released_reference
from tests.techniques.assignment.running.released_reference import Key, ReleasedRun
from tests.techniques.assignment.running.runs import seen_by

RELEASE: dict[str, Any] = {"like": "release"}
STEPS, BATCH = 30, 8
# The name, the size of the images, the learning rate and the first scale.
RUNS = [
    ("resnet18", 8, 0.1, 2.0**16), ("squeezenet", 16, 0.1, 2.0**16),
    ("shufflenetv2", 8, 0.01, 2.0**14),
]  # fmt: skip


def network(name: str, size: int) -> tuple[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    """A network and batches for it that meet the limits of the formats without NaN. As the first
    weights are tiny and the images large, the gradient of these weights overflows at the first
    scale, and the first convolution is promoted. Norms have small scales, so some activations are
    rounded to 0."""
    torch.manual_seed(0)
    model = build_model(f"lee-{name}", Task("images", (3, size, size), 10), width=10)
    with torch.no_grad():
        model.stem.weight.mul_(1.5e-7)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.mul_(2**-6)
    shape = (BATCH, 3, size, size)
    batches = [(2e6 * torch.randn(shape), torch.randint(10, (BATCH,))) for _ in range(4)]
    return model, batches


def keys(made: Assignment) -> dict[str, Key]:
    """The reference's keys, by ours: results are numbered in the order in which they are made."""
    names = [key.removesuffix(".Y") for key in made.tensors if key.endswith(".Y")]
    numbers = {name: number for number, name in enumerate(names)}
    found = {}
    for key in made.tensors:
        name, _, kind = key.rpartition(".")
        found[key] = (kind, numbers[name] if kind in ("Y", "GY") else name)
    return found


def flat(tensors: Iterable[torch.Tensor | None]) -> torch.Tensor:
    return torch.cat([x.detach().flatten() for x in tensors if x is not None])


@pytest.mark.parametrize("name, size, lr, scale", RUNS)
def test_every_bit_of_a_run_is_that_of_the_released_code(
    name: str, size: int, lr: float, scale: float
) -> None:
    model, batches = network(name, size)
    expected = ReleasedRun(
        getattr(released_reference, name), dict(model.named_parameters()), batches[0], ratio=0.6,
        lr=lr, scale=scale, interval=20,
    )  # fmt: skip
    groups = group(trace(model, cross_entropy, batches[0], **RELEASE))
    made = demote(groups, 0.6, **RELEASE)
    assert list(made.low_groups) == expected.lowered
    as_theirs = keys(made)
    sizes = {as_theirs[t.key]: (t.group, t.numel) for t in made.tensors.values()}
    assert sizes == expected.groups
    assert {as_theirs[key] for key in made.low} == expected.low

    assigned = assign(model, cross_entropy, made, **RELEASE)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
    scaler = LossScaler(init_scale=scale, growth_interval=20)
    skips = promotions = 0
    for step in range(STEPS):
        x, target = batches[step % len(batches)]
        loss, gradients, promoted, skipped = expected.step(x, target)
        optimizer.zero_grad()
        value = assigned(x, target)
        scaler.scale(value).backward()
        assert_bit_equal(value.detach(), loss, f"loss of step {step}")
        found = flat(p.grad for p in model.parameters())
        assert_bit_equal(found, flat(gradients.values()), f"gradients of step {step}")
        assert not found.isnan().any(), step
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == expected.scale
        masters = flat(expected.masters.values())
        assert_bit_equal(flat(model.parameters()), masters, f"parameters after step {step}")
        assert {as_theirs[key] for key in assigned.step()} == set(promoted)
        skips, promotions = skips + skipped, promotions + len(promoted)
    assert skips and promotions
    assert {as_theirs[key] for key in assigned.assignment.low} == expected.low


def test_relus_gradient_looks_at_the_result_before_rounding() -> None:
    model, batches = network("resnet18", 8)
    ops = trace(model, cross_entropy, batches[0], **RELEASE)
    # Results that ReLU reads are in high precision, so that it meets values which it rounds to 0.
    high = [op.name for op in ops if op.operation in ("batch_norm", "add", "input")]
    promoted = [f"{name}.Y" for name in (*high, "stem")] + ["stem.weight.P"]
    made = demote(group(ops), 1, **RELEASE).promoted(promoted)
    parameters = dict(model.named_parameters())
    expected = ReleasedRun(
        released_reference.resnet18, parameters, batches[0], ratio=1, scale=1024.0
    )  # fmt: skip
    as_theirs = keys(made)
    expected.low = {as_theirs[key] for key in made.low}
    loss, gradients, _, _ = expected.step(*batches[0])
    assigned = assign(model, cross_entropy, made, **RELEASE)
    seen = seen_by(assigned)
    value = assigned(*batches[0])
    (value * 1024.0).backward()
    relus = [(x, y) for key, x, y in seen if key.endswith("relu.Y")]
    assert any(((x > 0) & (y == 0)).any() for x, y in relus)
    assert_bit_equal(value.detach(), loss, "loss")
    found = flat(p.grad for p in model.parameters())
    assert_bit_equal(found, flat(gradients.values()), "gradients")
