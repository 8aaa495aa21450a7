"""kept_memory: by hand, and against what a step keeps."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lpkernels.experiments.workloads.models import Task, build_model
from lpkernels.techniques.assignment import (
    Formats,
    Kept,
    Memory,
    Op,
    Pins,
    assign,
    demote,
    group,
    kept_memory,
    trace,
)
from tests.techniques.assignment.networks import chain, chain_model

RATIOS = (0.0, 0.25, 0.5, 0.75, 1.0)


def keeping(op: Op, *keys: str, numbers: dict[str, int], others: int = 0) -> Op:
    """The Op with the tensors of these keys kept, and so many bytes of its own."""
    kept = [Kept((key,), numbers.setdefault(key, len(numbers)), SIZES[key]) for key in keys]
    if others:
        kept.append(Kept((), numbers.setdefault(op.name, len(numbers)), others))
    return replace(op, keeps=tuple(kept))


SIZES = {each.key: each.numel for found in group(chain()) for each in found.tensors}
# The mean and deviation of 4 and of 8 channels and the weight of the loss stay in float32.
CHAIN = {
    "conv1": (("in.Y", "conv1.weight.P"), 0),
    "bn1": (("conv1.Y", "bn1.weight.P"), 4 * 2 * 4),
    "relu1": (("relu1.Y",), 0),
    "conv2": (("relu1.Y", "conv2.weight.P"), 0),
    "bn2": (("conv2.Y", "bn2.weight.P"), 4 * 2 * 8),
    "relu2": (("relu2.Y",), 0),
    "pool": (("relu2.Y",), 0),
    "fc": (("pool.Y", "fc.weight.P"), 0),
    "log_softmax": (("log_softmax.Y",), 0),
    "nll": (("log_softmax.Y",), 4),
}


def test_the_chain_by_hand():
    # The chain keeps the input, conv1, relu1, conv2, relu2 (which the pool reads as well), pool and
    # log_softmax: 256 + 1024 + 1024 + 512 + 512 + 32 + 40 results, and the weights of the
    # convolutions, the scales of the norms and the matrix: 36 + 4 + 288 + 8 + 80; two bytes each.
    numbers: dict[str, int] = {}
    ops = chain()[:1]
    for op in chain()[1:]:
        keys, others = CHAIN[op.name]
        ops.append(keeping(op, *keys, numbers=numbers, others=others))
    groups = group(ops)
    whole = 4 * (2 * 4 + 2 * 8 + 1)
    kept = 256 + 1024 + 1024 + 512 + 512 + 32 + 40 + 36 + 4 + 288 + 8 + 80
    assert kept_memory(ops, demote(groups, 0.0)) == Memory(2 * kept, whole)
    assert kept_memory(ops, demote(groups, 1.0)) == Memory(kept, whole)
    # Group 1 holds conv1, relu1, the scale of the first norm and the second convolution's weight.
    first = 1024 + 1024 + 4 + 288
    assert kept_memory(ops, demote(groups, 0.6)) == Memory(2 * kept - first, whole)
    full = demote(groups, 0.0, formats=Formats.same("fp32"))
    results = 256 + 1024 + 1024 + 512 + 512 + 32 + 40
    assert kept_memory(ops, full) == Memory(0, whole + 4 * results)


def test_codes_of_five_bits_fill_whole_bytes():
    ops = [Op("in", False, (), {}, 3), Op("fc", True, ("in",), {"weight": 9, "bias": 3}, 3)]
    ops[1] = replace(ops[1], keeps=(Kept(("in.Y",), 0, 3), Kept(("fc.weight.P",), 1, 9)))
    made = demote(group(ops), 0.0, formats=Formats.same("e2m2none_sat"))
    # 3 elements of 5 bits take 2 bytes, 9 take 6.
    assert kept_memory(ops, made) == Memory(2 + 6, 0)


def test_values_in_several_formats_have_the_narrowest():
    ops = [Op("in", False, (), {}, 8), Op("fc", True, ("in",), {"weight": 4}, 8, keeps=())]
    zeros = replace(ops[1], keeps=(Kept(("in.Y", "fc.weight.P"), 0, 8),))
    groups = group(ops)
    for low in ("in.Y", "*.P"):
        made = demote(groups, 0.0, pins=Pins(low=low))
        assert kept_memory([ops[0], zeros], made).packed == 8
    assert kept_memory([ops[0], zeros], demote(groups, 0.0)).packed == 16


def test_operations_that_do_not_say_are_named():
    ops = chain()
    found = kept_memory(ops, demote(group(ops), 0.5))
    assert found == Memory(0, 0, tuple(op.name for op in ops[1:]))
    assert str(found).endswith("0 others, without conv1, bn1, relu1, conv2, bn2, relu2, pool, fc, "
                               "log_softmax, nll")  # fmt: skip
    assert str(Memory(5292, 100)) == "5,292 bytes of codes and 100 others"


def test_an_assignment_of_another_network_is_refused():
    with pytest.raises(ValueError, match="it is of another batch"):
        kept_memory(chain(loss_numel=4), demote(group(chain()), 0.5))


def network(name: str, shape: tuple[int, ...], width: int) -> nn.Module:
    kinds: Any = {1: "vectors", 2: "signals", 3: "images"}
    return build_model(name, Task(kinds[len(shape)], shape, 10), width=width)


def pooled() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(inplace=True), nn.AvgPool2d(2), nn.Dropout(0.5), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


def smooth() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(20, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.Tanh(),
        nn.LayerNorm(64), nn.SiLU(), nn.Linear(64, 10),
    )  # fmt: skip


def encoder() -> nn.Sequential:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.Sequential(nn.Linear(12, 16), layer, nn.Flatten(), nn.Linear(160, 10))


IMAGES, SMALL = (3, 32, 32), (3, 16, 16)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "chain": (chain_model, (1, 8, 8)),
    "resnet18": (lambda: network("resnet18", IMAGES, 4), IMAGES),
    "squeezenet": (lambda: network("squeezenet", IMAGES, 8), IMAGES),
    "shufflenetv2": (lambda: network("shufflenetv2", IMAGES, 8), IMAGES),
    "mobilenetv2": (lambda: network("mobilenetv2", IMAGES, 8), IMAGES),
    "resnet8": (lambda: network("resnet8", SMALL, 8), SMALL),
    "cnn3": (lambda: network("cnn3", SMALL, 8), SMALL),
    "cnn3_plain": (lambda: network("cnn3_plain", SMALL, 8), SMALL),
    "mlp3": (lambda: network("mlp3", (20,), 32), (20,)),
    "signals": (lambda: network("cnn3", (1, 40), 8), (1, 40)),
    "pooled": (pooled, SMALL),
    "smooth": (smooth, (20,)),
    "encoder": (encoder, (10, 12)),
}


# These networks have many layers, and each is traced at every ratio.
_SLOW = ("shufflenetv2", "mobilenetv2", "squeezenet")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in _SLOW else n for n in NETWORKS],
)
def test_it_is_what_a_step_keeps_and_a_lower_budget_never_keeps_more(name: str):
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    model, batch = build(), (torch.randn(2, *shape), torch.arange(2))
    ops = trace(model, cross_entropy, batch)
    kept = []
    for ratio in RATIOS:
        made = demote(group(ops), ratio)
        with assign(model, cross_entropy, made, promote=None) as assigned:
            assigned(*batch).backward()
            kept.append(assigned.memory())
        assert kept_memory(ops, made) == kept[-1], ratio
    column = [memory.bytes for memory in kept]
    assert column == sorted(column, reverse=True)
    assert column[-1] < 0.75 * column[0]
