"""Native chunks by tl.dot: outer additions, bias and result to the bit, where chunks are exact; and
the blocks aligned by operands that float32 has room for."""

import numpy as np
import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.backends import Fused
from lpkernels.backends.planning.triton_tiers import single_outer
from lpkernels.backends.triton import _native as native
from lpkernels.backends.triton.exact import by_operands
from tests.backends.triton.sums import beside_reference, pass_beside
from tests.cases import ConvCase, hard_values
from tests.support.products import PASSES, UNIT_ACCUMULATORS, sums_in_float32, tensor, tensors_of

#: Sums of 64 products of its values are exact in float32 in any order.
NARROW = "fp6_e2m3"
#: Outer accumulators: rounded in float32, saturating, with NaN beyond max, and not in float32.
OUTER = (
    "outer=e6m9", "outer=e4m3_sat", "outer=e4m3fn", "outer=bf16", "outer=fixed12_f4",
    "toward_negative:outer=e6m9", "stochastic:outer=e5m7",
)  # fmt: skip


def native_chunks(chunk: int, options: str) -> lp.Accumulator:
    return lp.accumulator(f"native_chunk{chunk}:{options}")


def narrow(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return lp.quantize(torch.randn(*shape, generator=generator), NARROW, backend="reference")


@pytest.mark.parametrize("shape", ((20, 35, 33), (1, 0, 2), (2, 7, 9, 5)), ids=str)
@pytest.mark.parametrize("options", OUTER, ids=str)
def test_a_product_has_the_bits_of_exact_chunks(shape, options, device):
    acc = native_chunks(16, options)
    *batch, m, k, n = shape
    a, b, bias = narrow(*batch, m, k), narrow(*batch, k, n), narrow(n)
    beside_reference(a, b, acc, device, bias=bias, like=sums_in_float32(acc))


@pytest.mark.parametrize("fmt", [NARROW, "bf16", "e4m3fn", None], ids=str)
def test_operands_are_rounded_as_they_are_read(fmt, device):
    acc = native_chunks(4, "outer=e5m4")
    quantizer = lp.Quantizer(fmt).to_ints() if fmt else ()
    fused = Fused(quantizer, quantizer, lp.Quantizer("e5m2").to_ints())
    # Multiples of 2^-3 below 4, whose sums are exact however wide they stay.
    a, b = (torch.randint(-31, 32, (9, 9)).float() / 8 for _ in range(2))
    beside_reference(a, b, acc, device, fused=fused, like=sums_in_float32(acc))


@pytest.mark.parametrize(
    "left, right, expected",
    [("e5m2", "e4m3fn", "FLOAT16"), ("e4m3fn", "bf16", "BFLOAT16"), ("e5m10", "e8m7", "FLOAT32"),
    ("e5m2", "", "FLOAT32"), ("e5m2", "fixed8_f4", "FLOAT32"), ("tf32", "e5m2", "FLOAT32")],
)  # fmt: skip
def test_tensor_cores_take_half_precision_that_holds_the_formats(left, right, expected):
    ints = [lp.Quantizer(fmt).to_ints() if fmt else () for fmt in (left, right)]
    names = {getattr(native, name): name for name in ("FLOAT32", "FLOAT16", "BFLOAT16")}
    assert names[native.dot_type(*ints)] == expected


@pytest.mark.parametrize("name", ["e6m9", "e4m3fn", "e3m2_sat", "e5m21"], ids=str)
def test_any_two_float32_are_added_with_one_rounding(name, device):
    acc = native_chunks(1, f"outer={name}")
    assert single_outer(acc.to_ints())
    with np.errstate(over="ignore", invalid="ignore"):
        values = hard_values(lp.parse_format(name), 20).astype(np.float32)
    near = np.concatenate([values, np.nextafter(values, 0), np.nextafter(values, np.float32(9e9))])
    wide = torch.from_numpy(np.random.default_rng(3).permutation(near))
    a = wide[: wide.numel() // 3 * 3].view(-1, 3)
    beside_reference(a, torch.ones(3, 1), acc, device, like=sums_in_float32(acc))


@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions(device, stride):
    case = ConvCase((2, 4, 6, 5), (6, 2, 3, 3), (stride, stride), (1, 1), (1, 1), 2)
    tensors = tensors_of(case, lambda shape: narrow(*shape))
    acc = native_chunks(8, "outer=e6m9")
    for name in PASSES:
        pass_beside(name, case, tensors, acc, device, like=sums_in_float32(acc))


FP8 = UNIT_ACCUMULATORS["h100_e4m3"]


def test_fp8_needs_no_float64(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    summed = []
    kernel = by_operands.by_operands_kernel

    class Kernel:
        def __getitem__(self, grid):
            def launch(*args, **told):
                # Without the facts of its operands a kernel would run whatever they hold.
                summed.append(
                    (told["SINGLE"], args[kernel.arg_names.index("left_facts")] is not None)
                )
                return kernel[grid](*args, **told)

            return launch

    monkeypatch.setattr(by_operands, "by_operands_kernel", Kernel())
    short = tensor((5, 40), "short", torch.Generator().manual_seed(9))
    beside_reference(short, short.T, FP8, device)
    assert summed == [(True, True), (False, True)]
    summed.clear()
    beside_reference(short, short.T, UNIT_ACCUMULATORS["h100_fp16"], device)
    assert summed == [(False, False)]


@pytest.mark.parametrize("exponent", [0, 37, 38, 39, 40, 41, 60], ids=str)
def test_larger_operands_are_summed_in_float64(exponent: int, device: str) -> None:
    # 40 products of 2^exponent squared: where the certificate of float32 ends.
    x = tensor((3, 40), "short", torch.Generator().manual_seed(9)) * 2.0**exponent
    beside_reference(x, x.T, FP8, device)


def fits(acc: lp.Accumulator, k: int = 64, initial: Tensor | None = None) -> bool:
    x = torch.zeros(1)
    sums = by_operands.Sums(x, *[x] * 7, False, None, None, None, (1, 1, 1, k), initial)
    return by_operands.single_fits(acc, sums)


def test_which_sums_fit_into_float32() -> None:
    named = {n for n, acc in UNIT_ACCUMULATORS.items() if not acc.has_core and fits(acc)}
    assert named == {
        "ada_e4m3", "ada_e4m3_fp16", "ada_e5m2", "ada_e5m2_fp16", "h100_e4m3", "h100_e5m2",
        "hopper_fp8",
    }  # fmt: skip
    block = {"block": 32, "aligned_bits": 13}
    assert fits(lp.Accumulator("fp16", **block, operands="fp16"))
    # Twice as many products, a place more; exponents below those of float32, and a bound for them.
    assert fits(lp.Accumulator("fp16", block=255, aligned_bits=14, operands="fp16"))
    assert not fits(lp.Accumulator("fp16", block=256, aligned_bits=14, operands="fp16"))
    assert not fits(lp.Accumulator("fp16", **block, operands="bf16"))
    assert fits(lp.Accumulator("fp16", **block, operands="bf16", least_exponent=-126))
    assert not fits(lp.Accumulator("fp16", **block, operands="bf16", least_exponent=-127))
    assert not fits(lp.Accumulator("fp16", **block, operands="fp16", least_exponent=1))
    assert not fits(lp.Accumulator("e8m0_b140", **block, operands="fp16"))
    assert fits(lp.Accumulator("e2m6_b1", **block, operands="fp16"))
    assert not fits(lp.Accumulator("e2m6_b0", **block, operands="fp16"))
    # Sums that start anywhere, or whose roundings add up.
    assert not fits(FP8, initial=torch.zeros(1))
    promoted = UNIT_ACCUMULATORS["hopper_fp8"]
    assert fits(promoted, initial=torch.zeros(1))
    upward = lp.Accumulator("e8m4", "toward_positive", **block, operands="fp16")
    assert fits(upward, k=16) and not fits(upward, k=17)
