"""Products of codes whose scales enter the outer sum: exact sums of segments, and the rule."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lpkernels.arithmetic import Accumulator, Quantizer, as_accumulator
from lpkernels.formats import BlockFormat
from lpkernels.reference import exact, twin
from lpkernels.reference.exact import Output, Real
from lpkernels.reference.matmul import Scales
from lpkernels.reference.values import narrow
from lpkernels.rng import SITE_OUTER
from tests.compare import assert_bit_equal

ACCUMULATORS = (
    "fp32_chunkscale",
    "fp32_chunkscale:scale_order=left",
    "fp32_chunkscale:scale_order=right",
    "e6m9_chunkscale",
    "e5m7_chunkscale:outer=fp32",
    "e6m9_chunkscale:stochastic:outer_rounding=nearest_even",
    "e6m9_chunkscale:outer_rounding=stochastic",
    "e8m13_chunkscale:toward_zero:outer=fp32:outer_rounding=nearest_even:block=32:aligned_bits=13"
    ":operands=e4m3fn",
    "fp32_chunkscale:order=pairwise",
    "e6m5_chunkscale:order=compensated",
    "e5m4_chunkscale:block=3:aligned_bits=9",
    "e5m9_chunkscale:product=e5m3",
    "posit8es1_chunkscale:outer=posit11es2",
)
# Formats of left and right operand; where lengths differ, both cut the sum.
FORMATS = (
    ("nvfp4", "nvfp4"),
    ("mxfp8_up", "nvfp4"),
    ("block8_e4m3_sfp32", "tile4x8_e4m3_sfp32"),
    ("block5_e4m3_sfp32", "block8_e4m3"),
    ("block8_nf4_sfp32", "block8_e4m3"),
)

F32 = NDArray[np.float32]


def operand(x: F32, name: str) -> tuple[F32, F32, int]:
    """Codes of rows along k, the scales of every row, and their length along k."""
    fmt = Quantizer.parse(name).fmt
    assert isinstance(fmt, BlockFormat)
    q = twin.scaled(x, Quantizer(fmt))
    size, scale = fmt.block_size, q.scale
    if isinstance(size, tuple):
        scale, size = np.repeat(scale, size[0], axis=-2)[..., : x.shape[-2], :], size[1]
    assert isinstance(size, int)
    return q.values, scale, size


def scaled_product(a: F32, b: F32, left: str, right: str) -> tuple[F32, F32, Scales]:
    """The codes of a (..., M, K) and of b (N, K), as (..., M, K) and (K, N), and their scales."""
    codes, scale, size = operand(a, left)
    others, other_scale, other_size = operand(b, right)
    scales = Scales(scale, other_scale, size, other_size, float32="sfp32" in left + right)
    return codes, np.ascontiguousarray(others.T), scales


def scaled_sum(c: float, s: float, t: float, order: str | None) -> Real:
    """c s t; order: which two factors are rounded to float32 first."""
    with np.errstate(all="ignore"):
        if order == "product":
            return exact.product(c, float(np.float32(s) * np.float32(t)))
        if order is not None:
            first, second = (s, t) if order == "left" else (t, s)
            return exact.product(float(np.float32(c) * np.float32(first)), second)
    # The scales of a product without an order have few bits together.
    return exact.product(c, s * t)


def by_segments(
    a: F32, b: F32, scales: Scales, acc: Accumulator, seed: int = 0, start: F32 | None = None
) -> F32:
    """One product a (M, K) @ b (K, N): exact sums of the stretches in which no scale changes."""
    out = np.zeros((len(a), b.shape[1]))
    sizes = [size or len(b) for size in (scales.left_size, scales.right_size)]
    cuts = [k for k in range(len(b)) if 0 in (k % sizes[0], k % sizes[1])]
    for m, n in np.ndindex(out.shape):
        cell = Output(acc, seed, m, n)
        total = 0.0 if start is None else cell.initial(float(start[m, n]))
        pairs = zip(a[m].tolist(), b[:, n].tolist(), strict=True)
        terms = [(k, exact.summand(*pair, acc)) for k, pair in enumerate(pairs)]
        for number, k in enumerate(cuts):
            c = cell.sum(terms[k : [*cuts, len(b)][number + 1]])
            s = float(scales.left[m, k // sizes[0]]), float(scales.right[n, k // sizes[1]])
            addend = scaled_sum(c, *s, acc.scale_order if scales.float32 else None)
            total = cell.add_outermost(total, addend, SITE_OUTER, number)
        out[m, n] = total
    return narrow(out)


@pytest.mark.parametrize("text", ACCUMULATORS)
@pytest.mark.parametrize("left,right", FORMATS)
def test_the_twin_is_exact(text: str, left: str, right: str) -> None:
    acc = as_accumulator(text)
    rng = np.random.default_rng(len(text))
    shape = (2, 3, 40)
    a = np.ldexp(rng.standard_normal(shape), rng.integers(-6, 6, shape)).astype(np.float32)
    b = rng.standard_normal((2, 40)).astype(np.float32)
    codes, others, scales = scaled_product(a, b, left, right)
    start = rng.standard_normal((3, 2)).astype(np.float32)
    got = twin.matmul_scaled(codes, others, scales, acc, seed=7, initial=start)
    # The rows of a batch draw as the rows of one matrix.
    rows = scales._replace(left=scales.left.reshape(6, -1))
    want = by_segments(codes.reshape(6, 40), others, rows, acc, 7, np.tile(start, (2, 1)))
    assert_bit_equal(got.reshape(6, 2), want)


@pytest.mark.parametrize("length", [16, 100, 1024])
@pytest.mark.parametrize("left,right", FORMATS)
def test_long_sums_are_exact(length: int, left: str, right: str) -> None:
    """With a block of zeros in each row, and a row that holds an infinity, whose scale is NaN."""
    rng = np.random.default_rng(length)
    a, b = (rng.standard_normal((n, length)).astype(np.float32) for n in (2, 1))
    a[:, 32:64] = b[:, :32] = 0
    b[0, -3:] = 1
    a[1, length // 2] = np.inf
    codes, others, scales = scaled_product(a, b, left, right)
    for text in ACCUMULATORS[:3]:
        got = twin.matmul_scaled(codes, others, scales, as_accumulator(text))
        want = by_segments(codes, others, scales, as_accumulator(text))
        assert_bit_equal(got, want, text)
        assert np.isfinite(got[0]).all() and np.isnan(got[1]).all()


def test_transformer_engines_product_of_nvfp4() -> None:
    """Its Python reference adds each segment in float32 and multiplies by both tensor scales."""
    with np.load(Path(__file__).parents[1] / "data/scaled_formats/gemm.npz") as recorded:
        a, b, y = (recorded[name] for name in "aby")
    codes, others, scales = scaled_product(a, b, "nvfp4_te", "nvfp4_te")
    outer = twin.matmul_scaled(codes, others, scales, as_accumulator("fp32_chunkscale"))
    left, right = (twin.scaled(x, Quantizer.parse("nvfp4_te")).tensor_scale for x in (a, b))
    assert_bit_equal(outer * (left * right), y)
