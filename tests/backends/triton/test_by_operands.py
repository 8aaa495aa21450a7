"""Blocks aligned by their operands, and sums that start elsewhere than at zero, compared with the
reference to the bit."""

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends import Fused
from lpkernels.backends.triton.exact import units
from tests.backends.triton.sums import beside_reference, pass_beside
from tests.cases import ConvCase
from tests.loops import each
from tests.support.operand_cases import (
    CONVOLVED,
    MODES,
    SHORT_MODES,
    STARTED,
    UNIT_ACCUMULATORS,
    rows,
    short_rows,
    tensor,
)
from tests.support.operand_draws import accumulators
from tests.support.products import PASSES, tensors_of

#: Convolutions with absent taps, with groups, and with phases of dgrad that leave positions out.
CASES = {
    "groups": ConvCase((2, 4, 5), (2, 2, 3), (1,), (1,), (1,), 2),
    "strides": ConvCase((1, 2, 5), (3, 2, 4), (2,), (2,), (1,)),
}


@each("acc", UNIT_ACCUMULATORS.values())
def test_units(acc: Accumulator, device: str) -> None:
    beside_reference(rows(2, 37, 1), rows(1, 37, 2).T, acc, device)


@each("acc", MODES)
def test_modes(acc: Accumulator, device: str) -> None:
    beside_reference(rows(2, 21, 3), rows(1, 21, 4).T, acc, device)


@each("acc", SHORT_MODES)
def test_modes_in_float32(acc: Accumulator, device: str) -> None:
    beside_reference(short_rows(3, 21, 3), short_rows(2, 21, 4).T, acc, device)


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(accumulators(), st.integers(0, 19), st.integers(0, 2**32))
def test_any_accumulator(device: str, acc: Accumulator, length: int, seed: int) -> None:
    initial = rows(1, 3, seed + 2) if seed % 2 else None
    beside_reference(
        rows(1, length, seed), rows(1, length, seed + 1)[1:].T, acc, device, initial=initial
    )


@each("acc, length", itertools.product(STARTED, [0, 21]))
def test_sums_start_at_initial(acc: Accumulator, length: int, device: str) -> None:
    initial = rows(1, 5, 7)
    initial[0] = torch.tensor([1e30, -1e30, 1e-30, 0.3, -0.0])
    a, b = rows(1, length, 5), tensor((length, 5), "short", torch.Generator().manual_seed(6))
    beside_reference(a, b, acc, device, initial=initial)


def test_initial_of_batches_and_rounded_results(device: str) -> None:
    # Rows across and along tiles, steps of any length.
    generator = torch.Generator().manual_seed(8)
    fused = Fused(Quantizer("e4m3").to_ints(), (), Quantizer("e5m2").to_ints())
    for m, n in ((2, 9), (9, 2)):
        a, b = (tensor(s, "short", generator) for s in ((3, m, 9), (3, 9, n)))
        initial = tensor((3, n, m), "cancelling", generator).mT
        beside_reference(a, b, UNIT_ACCUMULATORS["ada_e4m3"], device, initial=initial, fused=fused)


@each("case, name, acc", itertools.product(CASES.values(), PASSES, CONVOLVED))
def test_passes_of_convolutions(case: ConvCase, name: str, acc: Accumulator, device: str) -> None:
    pass_beside(name, case, tensors_of(case), acc, device)


# --- float32 ---

FP8 = UNIT_ACCUMULATORS["h100_e4m3"]


def test_fp8_needs_no_float64(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    kernel = units.by_operands_kernel

    class Kernel:
        def __getitem__(self, grid):
            def launch(*args, **told):
                # Without the facts of its operands a kernel would run whatever they hold.
                made.append((told["SINGLE"], args[2] is not None))
                return kernel[grid](*args, **told)

            return launch

    monkeypatch.setattr(units, "by_operands_kernel", Kernel())
    short = tensor((5, 40), "short", torch.Generator().manual_seed(9))
    beside_reference(short, short.T, FP8, device)
    assert made == [(True, True), (False, True)]
    made.clear()
    beside_reference(short, short.T, UNIT_ACCUMULATORS["h100_fp16"], device)
    assert made == [(False, False)]


@each("exponent", [37, 38, 39, 40, 41, 60])
def test_larger_operands_are_summed_in_float64(exponent: int, device: str) -> None:
    # A certificate of 40 products ends at 2^(2 * 40 + ..).
    x = tensor((3, 40), "short", torch.Generator().manual_seed(9)) * 2.0**exponent
    beside_reference(x, x.T, FP8, device)


def fits(acc: Accumulator, k: int = 64, initial: Tensor | None = None) -> bool:
    x = torch.zeros(1)
    sums = units.Sums(x, *[x] * 7, False, None, None, None, (1, 1, 1, k), initial)
    return units.single_fits(acc, sums)


def test_which_sums_fit_into_float32() -> None:
    named = {name for name, acc in UNIT_ACCUMULATORS.items() if fits(acc)}
    assert named == {
        "ada_e4m3", "ada_e4m3_fp16", "ada_e5m2", "ada_e5m2_fp16", "h100_e4m3", "h100_e5m2",
        "hopper_fp8",
    }  # fmt: skip
    block = {"block": 32, "aligned_bits": 13}
    assert fits(Accumulator("fp16", **block, operands="fp16"))
    # Twice as many products, a place more; exponents below those of float32, and a bound for them.
    assert fits(Accumulator("fp16", block=255, aligned_bits=14, operands="fp16"))
    assert not fits(Accumulator("fp16", block=256, aligned_bits=14, operands="fp16"))
    assert not fits(Accumulator("fp16", **block, operands="bf16"))
    assert fits(Accumulator("fp16", **block, operands="bf16", least_exponent=-126))
    assert not fits(Accumulator("fp16", **block, operands="bf16", least_exponent=-127))
    assert not fits(Accumulator("fp16", **block, operands="fp16", least_exponent=1))
    assert not fits(Accumulator("e8m0_b140", **block, operands="fp16"))
    assert fits(Accumulator("e2m6_b1", **block, operands="fp16"))
    assert not fits(Accumulator("e2m6_b0", **block, operands="fp16"))
    # Sums that start anywhere, or whose roundings add up.
    assert not fits(FP8, initial=torch.zeros(1))
    promoted = UNIT_ACCUMULATORS["hopper_fp8"]
    assert fits(promoted, initial=torch.zeros(1))
    upward = Accumulator("e8m4", "toward_positive", **block, operands="fp16")
    assert fits(upward, k=16) and not fits(upward, k=17)
