"""The memory kept for backward: codes, one set for each tensor; the same bits as without codes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lpkernels as lp
from lpkernels.experiments.workloads.models import Task, build_model
from lpkernels.techniques.assignment import Formats, assign
from tests.compare import assert_bit_equal
from tests.support.autograd import Computes
from tests.techniques.assignment.lee_networks import squeezenet
from tests.techniques.assignment.networks import chain_batch, chain_model, demoted
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


def kept_codes(model: nn.Module, batch: Any, ratio: float, **options: Any) -> int:
    """The bytes of codes that a step keeps."""
    assignment = demoted(model, batch, ratio, **options)
    assigned = assign(model, cross_entropy, assignment, promote=None)
    assigned(*batch).backward()
    return assigned.memory().packed


def test_the_chain_by_hand():
    # The chain keeps the input, conv1, relu1, conv2, relu2 (which the pool reads as well), pool and
    # log_softmax, and the weights of the convolutions, the scales of the norms and the matrix; two
    # bytes each, or one.
    codes = 256 + 1024 + 1024 + 512 + 512 + 32 + 40 + 36 + 4 + 288 + 8 + 80
    # Group 1 holds conv1, relu1, the scale of the first norm and the second convolution's weight.
    first = 1024 + 1024 + 4 + 288
    chains = {0.0: 2 * codes, 0.6: 2 * codes - first, 1.0: codes}
    for ratio, packed in chains.items():
        assigned, batch = chained(ratio)
        assigned(*batch)
        # A step keeps of the norms also the mean and the deviation of each channel, and of the loss
        # the number of examples.
        assert assigned.memory() == (packed, 2 * (4 + 8) * 4 + 4)


def test_codes_fill_whole_bytes_and_data_need_no_matrix_backward():
    # 3 elements of 5 bits take 2 bytes, and 9 take 6: kept are the input, the first result, the
    # logarithms of the softmax and the second matrix. The first one has no gradient to pass on.
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    batch = torch.ones(1, 3), torch.zeros(1, dtype=torch.int64)
    assert kept_codes(model, batch, 0.0, formats=Formats.same("e2m2none_sat")) == 2 + 2 + 2 + 6


#: Networks, and the bytes of codes at the ratios 0, 0.5 and 1. Commit 2f055aed computed them by a
#: formula: a product keeps its operands and its weight, ReLU, softmax and their like keep their
#: result, and other operations their inputs and their scale, each tensor once at its width.
KEPT: dict[str, tuple[Any, list[int]]] = {
    "pooled": (PACKED["pooled"], [82424, 53624, 41212]),
    "resnet18": (lambda: built("resnet18", 4, *IMAGES), [393944, 301628, 196972]),
    "squeezenet": (
        lambda: (squeezenet(10, 10), (torch.randn(2, *IMAGES), torch.arange(2))),
        [500584, 368944, 250292],
    ),
    "mlp3": (lambda: built("mlp3", 32, 20), [5240, 3064, 2620]),
    "signals": (lambda: built("cnn3", 8, 1, 40), [3480, 2360, 1740]),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_step_keeps_the_codes_that_its_operations_read_in_backward(name: str) -> None:
    torch.manual_seed(0)
    build, expected = KEPT[name]
    model, batch = build()
    assert [kept_codes(model, batch, ratio) for ratio in (0.0, 0.5, 1.0)] == expected
