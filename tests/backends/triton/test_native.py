"""Native chunks by tl.dot: outer additions, bias and result to the bit, where chunks are exact."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends import Fused
from lpkernels.backends.planning.triton_tiers import single_outer
from lpkernels.backends.triton import _native as native
from lpkernels.formats import parse_format
from tests.backends.triton.sums import beside_reference, pass_beside
from tests.cases import ConvCase, hard_values
from tests.loops import each
from tests.support.products import PASSES, sums_in_float32, tensors_of

#: Sums of 64 products of its values are exact in float32 in any order.
NARROW = "fp6_e2m3"
#: Outer accumulators: rounded in float32, saturating, with NaN beyond max, and not in float32.
OUTER = (
    "outer=e6m9", "outer=e4m3_sat", "outer=e4m3fn", "outer=bf16", "outer=fixed12_f4",
    "toward_negative:outer=e6m9", "stochastic:outer=e5m7",
)  # fmt: skip
SHAPES = ((20, 35, 33), (1, 0, 2), (2, 7, 9, 5))


def native_chunks(chunk: int, options: str) -> Accumulator:
    return lp.accumulator(f"native_chunk{chunk}:{options}")


def narrow(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return lp.quantize(torch.randn(*shape, generator=generator), NARROW, backend="reference")


@each("shape, options", itertools.product(SHAPES, OUTER))
def test_a_product_has_the_bits_of_exact_chunks(shape, options, device):
    acc = native_chunks(16, options)
    *batch, m, k, n = shape
    a, b, bias = narrow(*batch, m, k), narrow(*batch, k, n), narrow(n)
    beside_reference(a, b, acc, device, bias=bias, like=sums_in_float32(acc))


@each("fmt", [NARROW, "bf16", "e4m3fn", None])
def test_operands_are_rounded_as_they_are_read(fmt, device):
    acc = native_chunks(4, "outer=e5m4")
    quantizer = Quantizer(fmt).to_ints() if fmt else ()
    fused = Fused(quantizer, quantizer, Quantizer("e5m2").to_ints())
    # Multiples of 2^-3 below 4, whose sums are exact however wide they stay.
    a, b = (torch.randint(-31, 32, (9, 9)).float() / 8 for _ in range(2))
    beside_reference(a, b, acc, device, fused=fused, like=sums_in_float32(acc))


@each(
    "left, right, expected",
    [
        ("e5m2", "e4m3fn", "FLOAT16"),
        ("e4m3fn", "bf16", "BFLOAT16"),
        ("e5m10", "e8m7", "FLOAT32"),
        ("e5m2", "", "FLOAT32"),
        ("e5m2", "fixed8_f4", "FLOAT32"),
        ("tf32", "e5m2", "FLOAT32"),
    ],
)
def test_tensor_cores_take_half_precision_that_holds_the_formats(left, right, expected):
    ints = [Quantizer(fmt).to_ints() if fmt else () for fmt in (left, right)]
    assert native.dot_type(*ints) == getattr(native, expected)


@each("name", ["e6m9", "e4m3fn", "e3m2_sat", "e5m21"])
def test_any_two_float32_are_added_with_one_rounding(name, device):
    acc = native_chunks(1, f"outer={name}")
    assert single_outer(acc.to_ints())
    with np.errstate(over="ignore", invalid="ignore"):
        values = hard_values(parse_format(name), 20).astype(np.float32)
    near = np.concatenate([values, np.nextafter(values, 0), np.nextafter(values, np.float32(9e9))])
    wide = torch.from_numpy(np.random.default_rng(3).permutation(near))
    a = wide[: wide.numel() // 3 * 3].view(-1, 3)
    beside_reference(a, torch.ones(3, 1), acc, device, like=sums_in_float32(acc))


def test_other_outer_formats_are_rounded_in_float64():
    for name in ("e8m7", "e5m22", "fp32", "e6m9_nosub", "fixed8_f4"):
        assert not single_outer(native_chunks(1, f"outer={name}").to_ints()), name


@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions(device, stride):
    case = ConvCase((2, 4, 6, 5), (6, 2, 3, 3), (stride, stride), (1, 1), (1, 1), 2)
    tensors = tensors_of(case, lambda shape: narrow(*shape))
    acc = native_chunks(8, "outer=e6m9")
    for name in PASSES:
        pass_beside(name, case, tensors, acc, device, like=sums_in_float32(acc))
