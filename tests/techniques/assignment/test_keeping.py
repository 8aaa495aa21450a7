"""kept_memory: by hand, and against the memory that a step keeps."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lpkernels.experiments.workloads.models import Task, build_model
from lpkernels.techniques.assignment import Formats, Kept, Memory, Op, Pins, demote, group
from lpkernels.techniques.assignment import kept_memory as kept
from tests.techniques.assignment.networks import chain, chain_model
from tests.techniques.assignment.running.runs import memories


def keeping(op: Op, *keys: str, numbers: dict[str, int], others: int = 0) -> Op:
    """The Op with the tensors of these keys kept, and so many bytes of its own."""
    kept = [Kept((key,), numbers.setdefault(key, len(numbers)), SIZES[key]) for key in keys]
    if others:
        kept.append(Kept((), numbers.setdefault(op.name, len(numbers)), others))
    return replace(op, keeps=tuple(kept))


SIZES = {each.key: each.numel for found in group(chain()) for each in found.tensors}
# The mean and deviation of 4 and of 8 channels and the weight of the loss stay in float32.
CHAIN = {
    "conv1": (("in.Y", "conv1.weight.P"), 0), "bn1": (("conv1.Y", "bn1.weight.P"), 4 * 2 * 4),
    "relu1": (("relu1.Y",), 0), "conv2": (("relu1.Y", "conv2.weight.P"), 0),
    "bn2": (("conv2.Y", "bn2.weight.P"), 4 * 2 * 8), "relu2": (("relu2.Y",), 0),
    "pool": (("relu2.Y",), 0), "fc": (("pool.Y", "fc.weight.P"), 0),
    "log_softmax": (("log_softmax.Y",), 0), "nll": (("log_softmax.Y",), 4),
}  # fmt: skip


def test_the_chain_by_hand():
    # The chain keeps the input, conv1, relu1, conv2, relu2 (which the pool reads as well), pool and
    # log_softmax, and the weights of the convolutions, the scales of the norms and the matrix; two
    # bytes each.
    numbers: dict[str, int] = {}
    ops = chain()[:1]
    for op in chain()[1:]:
        keys, others = CHAIN[op.name]
        ops.append(keeping(op, *keys, numbers=numbers, others=others))
    groups = group(ops)
    whole = 4 * (2 * 4 + 2 * 8 + 1)
    results = 256 + 1024 + 1024 + 512 + 512 + 32 + 40
    codes = results + 36 + 4 + 288 + 8 + 80
    assert kept(ops, demote(groups, 0.0)) == Memory(2 * codes, whole)
    assert kept(ops, demote(groups, 1.0)) == Memory(codes, whole)
    # Group 1 holds conv1, relu1, the scale of the first norm and the second convolution's weight.
    first = 1024 + 1024 + 4 + 288
    assert kept(ops, demote(groups, 0.6)) == Memory(2 * codes - first, whole)
    full = demote(groups, 0.0, formats=Formats.same("fp32"))
    assert kept(ops, full) == Memory(0, whole + 4 * results)


def test_codes_fill_whole_bytes_in_the_narrowest_of_several_formats():
    ops = [Op("in", False, (), {}, 3), Op("fc", True, ("in",), {"weight": 9, "bias": 3}, 3)]
    ops[1] = replace(ops[1], keeps=(Kept(("in.Y",), 0, 3), Kept(("fc.weight.P",), 1, 9)))
    made = demote(group(ops), 0.0, formats=Formats.same("e2m2none_sat"))
    # 3 elements of 5 bits take 2 bytes, 9 take 6.
    assert kept(ops, made) == Memory(2 + 6, 0)
    ops = [Op("in", False, (), {}, 8), Op("fc", True, ("in",), {"weight": 4}, 8, keeps=())]
    zeros = [ops[0], replace(ops[1], keeps=(Kept(("in.Y", "fc.weight.P"), 0, 8),))]
    for low, packed in ((), 16), ("in.Y", 8), ("*.P", 8):
        assert kept(zeros, demote(group(ops), 0.0, pins=Pins(low=low))).packed == packed


def test_operations_that_do_not_say_are_named():
    ops = chain()
    made = demote(group(ops), 0.5)
    found = kept(ops, made)
    assert found == Memory(0, 0, tuple(op.name for op in ops[1:]))
    assert str(found).endswith("0 others, without conv1, bn1, relu1, conv2, bn2, relu2, pool, fc, "
                               "log_softmax, nll")  # fmt: skip
    assert str(Memory(5292, 100)) == "5,292 bytes of codes and 100 others"
    with pytest.raises(ValueError, match="it is of another batch"):
        kept(chain(loss_numel=4), made)


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


# These networks have many layers, and each is traced at every ratio.
SLOW = ("squeezenet", "shufflenetv2", "mobilenetv2")
IMAGES, SMALL = (3, 32, 32), (3, 16, 16)


def network(name: str, shape: tuple[int, ...], width: int) -> Any:
    kinds: Any = {1: "vectors", 2: "signals", 3: "images"}
    task = Task(kinds[len(shape)], shape, 10)
    return lambda: build_model(name, task, width=width), shape


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "chain": (chain_model, (1, 8, 8)), "resnet18": network("resnet18", IMAGES, 4),
    **{name: network(name, IMAGES, 8) for name in SLOW},
    **{name: network(name, SMALL, 8) for name in ("resnet8", "cnn3", "cnn3_plain")},
    "mlp3": network("mlp3", (20,), 32), "signals": network("cnn3", (1, 40), 8),
    "pooled": (pooled, SMALL), "smooth": (smooth, (20,)), "encoder": (encoder, (10, 12)),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in NETWORKS]
)
def test_it_is_what_a_step_keeps_and_a_lower_budget_never_keeps_more(name: str):
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    model, batch = build(), (torch.randn(2, *shape), torch.arange(2))
    found = memories(model, cross_entropy, batch, 0.0, 0.25, 0.5, 0.75, 1.0)
    column = [memory.bytes for memory in found]
    assert column == sorted(column, reverse=True)
    assert column[-1] < 0.75 * column[0]
