"""Blocks aligned by their operands: the sums that float32 has room for."""

import pytest
import torch
from torch import Tensor

from lpkernels.arithmetic import Accumulator
from lpkernels.backends.triton.exact import units
from tests.backends.triton.sums import beside_reference
from tests.support.operand_cases import UNIT_ACCUMULATORS, tensor

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
