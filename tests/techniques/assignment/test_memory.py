"""The memory kept for backward: codes, one set for each tensor; the same bits as without codes; and
`kept_memory`, by hand and against the codes that a step keeps."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lpkernels as lp
from lpkernels.experiments.workloads.models import Task, build_model
from lpkernels.techniques.assignment import Formats, Op, assign, demote, group, trace
from lpkernels.techniques.assignment import kept_memory as kept
from tests.compare import assert_bit_equal
from tests.support.autograd import Computes
from tests.techniques.assignment.networks import chain, chain_batch, chain_model, demoted
from tests.techniques.assignment.runs import assigned_of, chained, gradients, same

IMAGES = (3, 32, 32)


def image_batch(examples: int = 4) -> tuple[Tensor, Tensor]:
    torch.manual_seed(5)
    return torch.randn(examples, *IMAGES), torch.arange(examples) % 4


def pooled(m: Any, x: Tensor) -> Tensor:
    y = torch.max_pool2d(torch.sigmoid(m.conv(x)), 2)
    return m.head(m.dropout(torch.tanh(y).mul(y).flatten(1)))


def attending(m: Any, x: Tensor) -> Tensor:
    q = m.proj(x).unflatten(-1, (2, 4)).transpose(1, 2)
    y = nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.3, is_causal=True)
    return m.head(nn.functional.gelu(y.transpose(1, 2).flatten(-2))).mean(1)


def built(name: str, width: int | None, *shape: int) -> Any:
    kinds: Any = {1: "vectors", 2: "signals", 3: "images"}
    size = {} if width is None else {"width": width}
    return build_model(name, Task(kinds[len(shape)], shape, 10), **size), (
        torch.randn(2, *shape), torch.arange(2),
    )  # fmt: skip


PACKED: dict[str, Any] = {
    "chain": lambda: (chain_model(), chain_batch()),
    "pooled": lambda: (
        Computes(pooled, conv=nn.Conv2d(3, 4, 3), head=nn.Linear(900, 4), dropout=nn.Dropout(0.3)),
        image_batch(),
    ),
    "attending": lambda: (
        Computes(attending, proj=nn.Linear(8, 8), head=nn.Linear(8, 4)),
        (torch.randn(4, 6, 8), torch.arange(4)),
    ),
    "residual": lambda: built("resnet8", None, *IMAGES),
}  # fmt: skip


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("converted", [False, True])
def test_packing_changes_no_bit_and_saves_memory(name: str, converted: bool) -> None:
    torch.manual_seed(6)
    model, batch = PACKED[name]()
    if converted:
        lp.convert(model, lp.Recipe(fprop="e6m9", dgrad="e6m9", wgrad="e6m9"))
    packed, whole = (assigned_of(model, batch, 0.6, pack=pack) for pack in (True, False))
    first, second = gradients(packed, batch), gradients(whole, batch)
    assert_bit_equal(first[0], second[0])
    same(first[1], second[1])
    # An element takes sixteen bits at most in place of 32; statistics and masks stay whole.
    assert packed.memory().bytes < 0.6 * whole.memory().bytes


def test_the_memory_of_a_step_really_falls():
    torch.manual_seed(6)
    model, batch = built("resnet8", None, *IMAGES)[0], image_batch(16)
    allocated = {}
    for pack in (True, False):
        assigned = assigned_of(model, batch, 1.0, pack=pack)
        assigned(*batch)
        # The bytes that torch allocates in a forward pass and has not freed while its graph lives.
        with torch.profiler.profile(profile_memory=True) as profile:
            value = assigned(*batch)
        allocated[pack] = sum(event.self_cpu_memory_usage for event in profile.key_averages())
        del value
    assert allocated[True] < 0.3 * allocated[False]


def test_memory_is_given_back_with_the_graph():
    assigned, batch = chained()
    for backward in (True, False):
        value = assigned(*batch)
        if backward:
            value.backward()
        del value
        assigned.step()
        assert (assigned._meter.packed, assigned._meter.whole) == (0, 0)
        assert assigned.memory().bytes > 0
        assert assigned.memory().bytes == 0
    # Without gradients nothing is kept.
    with torch.no_grad():
        assert not assigned(*batch).requires_grad
    assert assigned.memory().bytes == 0


@pytest.mark.parametrize("low", ["affine8", "fp32", "fp8_e4m3", "fixed8_f4"])
def test_formats_of_all_kinds_are_kept(low: str) -> None:
    formats = Formats(activation=("fp32", low)) if low != "fp32" else Formats.same("fp32")
    torch.manual_seed(6)
    model, batch = chain_model(), chain_batch()
    assignment = demoted(model, batch, formats=formats)
    first, second = (
        gradients(assign(model, cross_entropy, assignment, pack=pack, promote=None), batch)
        for pack in (True, False)
    )
    same(first[1], second[1])


def test_the_chain_by_hand():
    # The chain keeps the input, conv1, relu1, conv2, relu2 (which the pool reads as well), pool and
    # log_softmax, and the weights of the convolutions, the scales of the norms and the matrix; two
    # bytes each.
    kinds = {"conv1": "conv2d", "conv2": "conv2d", "bn1": "batch_norm", "bn2": "batch_norm"}
    ops = [replace(op, operation=kinds.get(op.name, op.operation)) for op in chain()]
    groups = group(ops)
    results = 256 + 1024 + 1024 + 512 + 512 + 32 + 40
    codes = results + 36 + 4 + 288 + 8 + 80
    assert kept(ops, demote(groups, 0.0)) == 2 * codes
    assert kept(ops, demote(groups, 1.0)) == codes
    # Group 1 holds conv1, relu1, the scale of the first norm and the second convolution's weight.
    first = 1024 + 1024 + 4 + 288
    assert kept(ops, demote(groups, 0.6)) == 2 * codes - first
    # A step keeps these codes; of the norms also the mean and the deviation of each channel, and of
    # the loss the number of examples.
    assigned, batch = chained()
    assigned(*batch)
    assert assigned.memory() == (2 * codes - first, 2 * (4 + 8) * 4 + 4)
    full = demote(groups, 0.0, formats=Formats.same("fp32"))
    assert kept(ops, full) == 4 * results
    with pytest.raises(ValueError, match="it is of another batch"):
        kept(chain(loss_numel=4), full)


def test_codes_fill_whole_bytes_and_data_need_no_matrix_backward():
    ops = [
        Op("in", False, (), {}, 3),
        Op("fc", True, ("in",), {"weight": 9, "bias": 3}, 3, "linear"),
        Op("last", True, ("fc",), {"weight": 9}, 3, "linear"),
    ]
    assignment = demote(group(ops), 0.0, formats=Formats.same("e2m2none_sat"))
    # 3 elements of 5 bits take 2 bytes, 9 take 6. The first matrix has no gradient to pass on.
    assert kept(ops, assignment) == 2 + 2 + 6


KEPT: dict[str, Any] = {
    "chain": PACKED["chain"],
    "pooled": PACKED["pooled"],
    "resnet18": lambda: built("resnet18", 4, *IMAGES),
    "squeezenet": lambda: built("lee-squeezenet", 10, *IMAGES),
    "mlp3": lambda: built("mlp3", 32, 20),
    "signals": lambda: built("cnn3", 8, 1, 40),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept_memory_is_that_of_the_codes_that_a_step_keeps(name: str):
    torch.manual_seed(0)
    model, batch = KEPT[name]()
    ops = trace(model, cross_entropy, batch)
    for ratio in (0.0, 0.5, 1.0):
        assignment = demote(group(ops), ratio)
        assigned = assign(model, cross_entropy, assignment, promote=None)
        assigned(*batch).backward()
        assert kept(ops, assignment) == assigned.memory().packed, ratio
