"""quantize for affine and block formats against the reference, to the bit."""

from functools import partial
from itertools import product

import torch

from lpkernels.arithmetic import Quantizer
from lpkernels.backends.triton import BACKEND
from lpkernels.backends.triton.elementwise import affine, block
from lpkernels.formats import AffineFormat, BlockFormat, FloatFormat
from tests.cases import DETERMINISTIC
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.element_bits import assert_quantized, quantized
from tests.support.elements import (
    KINDS,
    SITE,
    TENSOR_FORMATS,
    tensor_values,
)

FORMATS = [
    *TENSOR_FORMATS,
    AffineFormat(1),
    AffineFormat(16, axis=1),
    BlockFormat("fp8_e4m3", 32, axis=0),
    BlockFormat(FloatFormat(1, 3, specials="none"), 1),
    # The steps lie far above those of a mantissa, so no 32-bit rule takes this format.
    BlockFormat(FloatFormat(4, 3, specials="none", bias=-112), 8),
]
SHAPES = [(1, 1, 1), (2, 70, 3), (3, 2, 66), (2, 40, 1)]
MODES = ["stochastic", "nearest_even", *DETERMINISTIC[1:]]
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.float16]


check = partial(assert_quantized, BACKEND)


@each("fmt", FORMATS)
def test_matches_reference(fmt: AffineFormat | BlockFormat, device: str) -> None:
    """Every shape meets every kind of values; formats take turns with the combinations."""
    combinations = list(enumerate(product(SHAPES, KINDS)))
    for i, (shape, kind) in combinations[FORMATS.index(fmt) % 2 :: 2]:
        x = tensor_values(shape, kind).to(DTYPES[i // 2 % len(DTYPES)])
        quantizer = Quantizer(fmt, MODES[i % len(MODES)])
        check(x, quantizer, device, kind)


@each("fmt", FORMATS)
def test_tiles_leave_no_trace(fmt: AffineFormat | BlockFormat, device: str, monkeypatch) -> None:
    """Slices and blocks are spread over many programs, and parts of a block come one after the
    other."""
    monkeypatch.setattr(affine, "_RANGE_TILE", 16)
    monkeypatch.setattr(affine, "_LINE_TILE", 8)
    monkeypatch.setattr(affine, "_COLUMNS", 4)
    monkeypatch.setattr(block, "_ELEMENTS", 8)
    x = tensor_values((2, 6, 9), "special")
    check(x, Quantizer(fmt, "stochastic", random_bits=8), device)
    check(x.transpose(0, 2), Quantizer(fmt), device)


@each("fmt", [FORMATS[0], FORMATS[2], FORMATS[5], FORMATS[6]])
def test_any_strides_and_sizes(fmt: AffineFormat | BlockFormat, device: str) -> None:
    base = tensor_values((4, 6, 10), "wide")
    for x in (base.transpose(0, 1), base[:, ::2], base[:, :1].expand(4, 6, 10), base[:, :0]):
        check(x, Quantizer(fmt), device)
        out = torch.empty(x.shape[::-1], device=device).permute(2, 1, 0)
        BACKEND.quantize(x.to(device), Quantizer(fmt).to_ints(), None, 0, SITE, out)
        assert_bit_equal(out.contiguous(), quantized(x, Quantizer(fmt)))


@each("fmt", ["e4m3", "e7m0_b-1"])
def test_float64_beyond_float32_shares_a_scale(fmt: str, device: str) -> None:
    """A block holds magnitudes that only float64 has, large and tiny, beside ordinary ones."""
    values = [2.0**1000, 1.0, 2.0**100, -(2.0**80), 2.0**-1060, -0.0, 1e-320, -3.0]
    x = torch.tensor(values, dtype=torch.float64).repeat(2, 1)
    x[1, :4] = torch.tensor([2.0**-140, -(2.0**-300), 2.0**-149, 2.0**-600], dtype=torch.float64)
    for rounding in MODES:
        check(x, Quantizer(BlockFormat(fmt, 4), rounding), device, rounding)
        check(x, Quantizer("affine8", rounding), device, rounding)
