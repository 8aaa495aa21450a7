"""kept_memory: by hand, and against the codes that a step keeps."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lpkernels.experiments.workloads.models import Task, build_model
from lpkernels.techniques.assignment import Formats, Op, assign, demote, group, trace
from lpkernels.techniques.assignment import kept_memory as kept
from tests.loops import each
from tests.techniques.assignment.networks import chain, chain_model


def named_chain() -> list[Op]:
    """The chain; its convolutions and norms have the names of their operations."""
    kinds = {"conv1": "conv2d", "conv2": "conv2d", "bn1": "batch_norm", "bn2": "batch_norm"}
    return [
        Op(op.name, op.is_gemm, op.inputs, op.params, op.numel, kinds.get(op.name, op.operation))
        for op in chain()
    ]


def test_the_chain_by_hand():
    # The chain keeps the input, conv1, relu1, conv2, relu2 (which the pool reads as well), pool and
    # log_softmax, and the weights of the convolutions, the scales of the norms and the matrix; two
    # bytes each.
    ops = named_chain()
    groups = group(ops)
    results = 256 + 1024 + 1024 + 512 + 512 + 32 + 40
    codes = results + 36 + 4 + 288 + 8 + 80
    assert kept(ops, demote(groups, 0.0)) == 2 * codes
    assert kept(ops, demote(groups, 1.0)) == codes
    # Group 1 holds conv1, relu1, the scale of the first norm and the second convolution's weight.
    first = 1024 + 1024 + 4 + 288
    assert kept(ops, demote(groups, 0.6)) == 2 * codes - first
    full = demote(groups, 0.0, formats=Formats.same("fp32"))
    assert kept(ops, full) == 4 * results
    with pytest.raises(ValueError, match="it is of another batch"):
        kept(chain(loss_numel=4), full)


def test_codes_fill_whole_bytes_and_data_need_no_matrix_backward():
    ops = [
        Op("in", False, (), {}, 3),
        Op("fc", True, ("in",), {"weight": 9, "bias": 3}, 3, "linear"),
    ]
    ops.append(Op("last", True, ("fc",), {"weight": 9}, 3, "linear"))
    made = demote(group(ops), 0.0, formats=Formats.same("e2m2none_sat"))
    # 3 elements of 5 bits take 2 bytes, 9 take 6. The first matrix has no gradient to pass on.
    assert kept(ops, made) == 2 + 2 + 6


def pooled() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(inplace=True), nn.AvgPool2d(2), nn.Dropout(0.5), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


IMAGES, SMALL = (3, 32, 32), (3, 16, 16)


def network(name: str, shape: tuple[int, ...], width: int) -> Any:
    kinds: Any = {1: "vectors", 2: "signals", 3: "images"}
    task = Task(kinds[len(shape)], shape, 10)
    return lambda: build_model(name, task, width=width), shape


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "chain": (chain_model, (1, 8, 8)), "pooled": (pooled, SMALL),
    "resnet18": network("resnet18", IMAGES, 4), "squeezenet": network("squeezenet", IMAGES, 8),
    "mlp3": network("mlp3", (20,), 32), "signals": network("cnn3", (1, 40), 8),
}  # fmt: skip


@each("name", NETWORKS)
def test_it_is_the_codes_that_a_step_keeps(name: str):
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    model, batch = build(), (torch.randn(2, *shape), torch.arange(2))
    ops = trace(model, cross_entropy, batch)
    for ratio in (0.0, 0.5, 1.0):
        made = demote(group(ops), ratio)
        assigned = assign(model, cross_entropy, made, promote=None)
        assigned(*batch).backward()
        assert kept(ops, made) == assigned.memory().packed, ratio
