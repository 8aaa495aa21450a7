"""operator_based, uniform and amp_like."""

from dataclasses import replace
from typing import Any

import pytest

from lpkernels.techniques.assignment import Formats, Op, Pins, amp_like, operator_based, uniform
from tests.loops import each
from tests.techniques.assignment.networks import chain, ops_from

CHAIN = chain(loss_numel=4)


def test_operator_based_lowers_what_enters_inner_gemms():
    made = operator_based(CHAIN)
    assert made.low == {"relu1.Y", "conv2.weight.P", "conv2.weight.GP", "conv2.GY"}
    assert made.low_numel == 2112
    assert made.ratio == pytest.approx(0.194906, abs=5e-7)
    assert made.bits == 158784
    assert made.bit_ratio == pytest.approx(0.168328, abs=5e-7)
    assert made.low_groups == ()


def test_what_the_last_group_reads_stays_high():
    # Linear layers follow the input: the first is fed by it, and the last one is the last GEMM.
    made = operator_based(ops_from("in, a* in w, b* a w, c* b w, d* c w"))
    # d's input c stays high with its gradient, and d's weight with it.
    assert made.low == {"b.Y", "b.w.P", "b.w.GP", "b.GY", "c.w.P", "c.w.GP"}
    # A result with one GEMM among its readers is low.
    inner = "in, first* in w, relu first, inner* relu w, add relu inner"
    made = operator_based(ops_from(f"{inner}, more* add w, norm more, last* norm w"))
    assert {"relu.Y", "add.Y", "inner.GY", "more.GY", "more.w.P"} <= made.low
    assert not made.low & {"inner.Y", "relu.GY", "add.GY", "norm.Y", "more.Y", "last.w.P"}


def test_uniform_is_all_low_or_all_high():
    low, high = uniform(CHAIN), uniform(CHAIN, "high")
    assert (low.ratio, low.bits, low.low_groups) == (1.0, 90192, (0, 1, 2, 3))
    assert (high.ratio, high.bits, high.low_groups) == (0.0, 173376, ())
    fp32 = uniform(CHAIN, "high", formats=Formats.same("fp32"))
    assert fp32.bits == 32 * 10836
    with pytest.raises(ValueError, match="precision must be 'low' or 'high', got 'fp8'"):
        uniform(CHAIN, "fp8")  # type: ignore[arg-type]


def test_amp_like_lowers_activations_too_and_keeps_norms_and_losses_high():
    made = amp_like(CHAIN)
    more = {"conv2.Y", "relu1.GY", "relu2.Y", "relu2.GY"}
    assert made.low == operator_based(CHAIN).low | more
    assert not any(key.startswith(("bn", "nll", "log_softmax", "pool")) for key in made.low)


@each("make", [uniform, operator_based, amp_like])
def test_unknown_operations_stay_high_and_pins_hold(make) -> None:
    def low(ops: list[Op], **options: Any) -> tuple[set[str], set[str]]:
        found = make(ops, **options).low
        return found, {key for key in found if key.startswith("conv2")}

    assert low(CHAIN)[1]
    assert not low([replace(op, known=op.name != "conv2") for op in CHAIN])[1]
    found, second = low(CHAIN, pins=Pins(high="conv2.*", low=["in.Y", "fc.weight.*"]))
    assert {"in.Y", "fc.weight.P", "fc.weight.GP"} <= found and not second


def test_tied_tensors_that_differ_are_high():
    made = operator_based(CHAIN, pins=Pins(tied="relu*.Y"))
    assert operator_based(CHAIN).low - made.low == {"relu1.Y"}
    kept = operator_based(CHAIN, pins=Pins(tied="conv2.weight.*"))
    assert kept.low == operator_based(CHAIN).low
