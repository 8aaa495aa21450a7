"""The memory kept for backward: codes, one set for each tensor, and the same bits as without
codes."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lpkernels as lp
from lpkernels.experiments.workloads.models import Task, build_model
from lpkernels.techniques.assignment import Formats, assign
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.computes import Computes
from tests.techniques.assignment.networks import chain_batch, chain_model, demoted
from tests.techniques.assignment.running.runs import assigned_of, chained, gradients, same


def image_batch(examples: int = 4) -> tuple[Tensor, Tensor]:
    torch.manual_seed(5)
    return torch.randn(examples, 3, 32, 32), torch.arange(examples) % 4


def pooled(m: Any, x: Tensor) -> Tensor:
    y = torch.max_pool2d(torch.sigmoid(m.conv(x)), 2)
    return m.head(m.dropout(torch.tanh(y).mul(y).flatten(1)))


def attending(m: Any, x: Tensor) -> Tensor:
    q = m.proj(x).unflatten(-1, (2, 4)).transpose(1, 2)
    y = nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.3, is_causal=True)
    return m.head(nn.functional.gelu(y.transpose(1, 2).flatten(-2))).mean(1)


NETWORKS: dict[str, Any] = {
    "chain": lambda: (chain_model(), chain_batch()),
    "pooled": lambda: (
        Computes(pooled, conv=nn.Conv2d(3, 4, 3), head=nn.Linear(900, 4), dropout=nn.Dropout(0.3)),
        image_batch(),
    ),
    "attending": lambda: (
        Computes(attending, proj=nn.Linear(8, 8), head=nn.Linear(8, 4)),
        (torch.randn(4, 6, 8), torch.arange(4)),
    ),
    "residual": lambda: (build_model("resnet8", Task("images", (3, 32, 32), 10)), image_batch(2)),
}


@each("converted, name", [False, True], NETWORKS)
def test_packing_changes_no_bit_and_saves_memory(name: str, converted: bool) -> None:
    torch.manual_seed(6)
    model, batch = NETWORKS[name]()
    if converted:
        lp.convert(model, lp.Recipe(fprop="e6m9", dgrad="e6m9", wgrad="e6m9"))
    packed, whole = (assigned_of(model, batch, 0.6, pack=pack) for pack in (True, False))
    one, other = gradients(packed, batch), gradients(whole, batch)
    assert_bit_equal(one[0], other[0])
    same(one[1], other[1])
    # An element takes sixteen bits at most in place of 32; statistics and masks stay whole.
    assert packed.memory().bytes < 0.6 * whole.memory().bytes


def test_the_chain_keeps_each_tensor_once_in_its_bits():
    assigned, batch = chained()
    made = assigned.assignment
    assigned(*batch)
    memory = assigned.memory()
    # Convolutions keep input and weight, norms input and scale, ReLU its result, the pool its
    # input, the linear layer input and weight, the loss the logarithms.
    kept = "input.Y 0.weight.P 0.Y 1.weight.P 2.Y 3.weight.P 3.Y 4.weight.P 5.Y 6.Y 8.weight.P"
    keys = [*kept.split(), "loss.log_softmax.Y"]
    bits = sum(made.formats.bits(made.tensors[key], key in made.low) for key in keys)
    assert memory.packed == bits // 8
    # The mean and deviation of each channel and the number of examples are kept whole.
    assert memory.whole == 2 * (4 + 8) * 4 + 4
    assert memory.bits == 8 * memory.bytes


def test_the_memory_of_a_step_really_falls():
    torch.manual_seed(6)
    model, batch = build_model("resnet8", Task("images", (3, 32, 32), 10)), image_batch(16)
    held = {}
    for pack in (True, False):
        assigned = assigned_of(model, batch, 1.0, pack=pack)
        assigned(*batch)
        # The bytes that torch allocates in a forward pass and has not freed while its graph lives.
        with torch.profiler.profile(profile_memory=True) as profile:
            value = assigned(*batch)
        held[pack] = sum(event.self_cpu_memory_usage for event in profile.key_averages())
        del value
    assert held[True] < 0.3 * held[False]


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


@each("low", ["affine8", "fp32", "fp8_e4m3", "fixed8_f4"])
def test_formats_of_all_kinds_are_kept(low: str) -> None:
    formats = Formats(activation=("fp32", low)) if low != "fp32" else Formats.same("fp32")
    torch.manual_seed(6)
    model, batch = chain_model(), chain_batch()
    made = demoted(model, batch, formats=formats)
    one, other = (
        gradients(assign(model, cross_entropy, made, pack=pack, promote=None), batch)
        for pack in (True, False)
    )
    same(one[1], other[1])
