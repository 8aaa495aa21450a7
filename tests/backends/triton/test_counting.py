"""Kernels that round and count, and affine formats in given ranges, against the reference."""

from functools import partial
from itertools import product

import torch

from lpkernels.arithmetic import Quantizer
from lpkernels.backends import _reference
from lpkernels.backends.triton import BACKEND
from lpkernels.backends.triton.elementwise import affine, block, counting
from lpkernels.formats import AffineFormat, BlockFormat, parse_format
from lpkernels.rounding import ROUNDINGS
from tests.cases import DETERMINISTIC, ROUND_FORMATS
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.element_bits import assert_counted, ranges
from tests.support.elements import (
    END_FORMATS,
    KINDS,
    SITE,
    TENSOR_FORMATS,
    float32_values,
    tensor_values,
)

SHAPES = [(1, 1, 1), (2, 13, 3), (3, 2, 66), (2, 40, 1)]
MODES = ["stochastic", "nearest_even", *DETERMINISTIC[1:]]
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.float16]


check = partial(assert_counted, BACKEND)


@each("fmt", [*ROUND_FORMATS, *END_FORMATS])
def test_counts_match_the_reference(fmt, device, monkeypatch):
    monkeypatch.setattr(counting, "_BLOCK", 1 << 13)
    x = torch.from_numpy(float32_values(fmt, 3))
    turn = [*ROUND_FORMATS, *END_FORMATS].index(fmt)
    # Every mode meets every kind of format, and every format three modes in the interpreter.
    for i in range(len(ROUNDINGS)) if device == "cuda" else (turn, turn + 2, turn + 4):
        rounding = ROUNDINGS[i % len(ROUNDINGS)]
        check(x.to(DTYPES[(turn + i) % len(DTYPES)]), Quantizer(fmt, rounding), device)


@each(
    "name, dtype",
    [
        ("e4m3", torch.float16),
        ("fp8_e4m3", torch.bfloat16),
        ("fixed8_f4_wrap", torch.float16),
        ("e4m3", torch.bfloat16),
    ],
)
def test_16_bit_patterns_match_the_reference(name, dtype, device, monkeypatch):
    monkeypatch.setattr(counting, "_BLOCK", 1 << 16)
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    for rounding in ("nearest_even", "stochastic", "toward_positive"):
        check(x, Quantizer(parse_format(name), rounding), device)


@each("fmt", TENSOR_FORMATS)
def test_affine_and_block_counts_match_the_reference(fmt, device):
    combinations = list(enumerate(product(SHAPES, KINDS)))
    for i, (shape, kind) in combinations[TENSOR_FORMATS.index(fmt) % 5 :: 5]:
        x = tensor_values(shape, kind).to(DTYPES[i // 2 % len(DTYPES)])
        check(x, Quantizer(fmt, MODES[i % len(MODES)]), device, name=kind)


@each("fmt", [f for f in TENSOR_FORMATS if isinstance(f, AffineFormat)])
def test_given_ranges_match_the_reference(fmt, device):
    for shape, kind in zip(SHAPES[1:], ("wide", "special", "normal"), strict=True):
        x = tensor_values(shape, kind)
        limits = ranges(x, fmt)
        check(x, Quantizer(fmt, MODES[len(kind) % 3]), device, limits, kind)
        want, out = torch.empty(shape), torch.empty(shape, device=device)
        call = (Quantizer(fmt).to_ints(), None, 0, SITE)
        BACKEND.quantize_counting(x.to(device), *call, out, None, limits.to(device))
        _reference.BACKEND.quantize_counting(x, *call, want, None, limits)
        assert_bit_equal(out, want)


@each("fmt", [AffineFormat(4, axis=1), BlockFormat("e4m3", 7), "e5m2"])
def test_tiles_leave_no_trace(fmt, device, monkeypatch):
    monkeypatch.setattr(affine, "_RANGE_TILE", 16)
    monkeypatch.setattr(affine, "_LINE_TILE", 8)
    monkeypatch.setattr(affine, "_COLUMNS", 4)
    monkeypatch.setattr(block, "_ELEMENTS", 8)
    monkeypatch.setattr(counting, "_BLOCK", 16)
    fmt = parse_format(fmt) if isinstance(fmt, str) else fmt
    x = tensor_values((2, 4, 6), "special")
    check(x, Quantizer(fmt, "stochastic", random_bits=8), device)
    check(x.transpose(0, 2)[:, ::2], Quantizer(fmt), device)
