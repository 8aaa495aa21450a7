"""Kernels that round and count, and affine formats in given ranges, against the reference."""

from itertools import product

import pytest
import torch
from torch import Tensor

from lpkernels.arithmetic import Quantizer
from lpkernels.backends import BINS, COUNTS, _reference
from lpkernels.backends.triton import BACKEND
from lpkernels.backends.triton.elementwise import affine, block, counting, quantize
from lpkernels.backends.triton.rounding.rule import rule_of
from lpkernels.formats import AffineFormat, BlockFormat, FloatFormat, parse_format
from lpkernels.rounding import ROUNDINGS
from tests.backends.triton.ahead_of_time import EVERY, compiled
from tests.cases import DETERMINISTIC, ROUND_FORMATS, ids
from tests.compare import assert_bit_equal
from tests.support.elements import (
    END_FORMATS,
    KINDS,
    SEED,
    SITE,
    TENSOR_FORMATS,
    float32_values,
    tensor_values,
)

SHAPES = [(1, 1, 1), (2, 13, 3), (3, 2, 66), (2, 40, 1)]
MODES = ["stochastic", "nearest_even", *DETERMINISTIC[1:]]
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.float16]


def counted(
    backend: object,
    x: Tensor,
    quantizer: Quantizer,
    limits: Tensor | None = None,
    bins: int = BINS,
    written: bool = True,
) -> tuple[Tensor | None, Tensor]:
    out = torch.empty(x.shape, device=x.device) if written else None
    counts = torch.full((COUNTS + bins,), 3, dtype=torch.int64, device=x.device)
    ends = None if limits is None else limits.to(x.device)
    call = (x, quantizer.to_ints(), torch.tensor(SEED), 0, SITE)
    backend.quantize_counting(*call, out, counts, ends)
    return out, counts - 3


def check(
    x: Tensor,
    quantizer: Quantizer,
    device: str,
    limits: Tensor | None = None,
    name: str = "",
) -> None:
    name = f"{quantizer} {quantizer.random_bits} {x.dtype} {tuple(x.shape)} {name}"
    want, want_counts = counted(_reference.BACKEND, x, quantizer, limits)
    got, got_counts = counted(BACKEND, x.to(device), quantizer, limits)
    assert_bit_equal(got, want, name)
    assert got_counts.tolist() == want_counts.tolist(), name
    _, alone = counted(BACKEND, x.to(device), quantizer, limits, bins=0, written=False)
    assert alone.tolist() == want_counts[:COUNTS].tolist(), name


@pytest.mark.parametrize("fmt", [*ROUND_FORMATS, *END_FORMATS], ids=ids)
def test_counts_match_the_reference(fmt, device, monkeypatch):
    monkeypatch.setattr(counting, "_BLOCK", 1 << 13)
    x = torch.from_numpy(float32_values(fmt, 3))
    turn = [*ROUND_FORMATS, *END_FORMATS].index(fmt)
    for i, rounding in enumerate(ROUNDINGS):
        check(x.to(DTYPES[(turn + i) % len(DTYPES)]), Quantizer(fmt, rounding), device)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["e4m3", "fp8_e4m3", "fixed8_f4_wrap"])
def test_16_bit_patterns_match_the_reference(name, dtype, device, monkeypatch):
    monkeypatch.setattr(counting, "_BLOCK", 1 << 16)
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    for rounding in ("nearest_even", "stochastic", "toward_positive"):
        check(x, Quantizer(parse_format(name), rounding), device)


@pytest.mark.parametrize("fmt", TENSOR_FORMATS, ids=ids)
def test_affine_and_block_counts_match_the_reference(fmt, device):
    combinations = list(enumerate(product(SHAPES, KINDS)))
    for i, (shape, kind) in combinations[TENSOR_FORMATS.index(fmt) % 5 :: 5]:
        x = tensor_values(shape, kind).to(DTYPES[i // 2 % len(DTYPES)])
        check(x, Quantizer(fmt, MODES[i % len(MODES)]), device, name=kind)


@pytest.mark.parametrize("fmt", [f for f in TENSOR_FORMATS if isinstance(f, AffineFormat)], ids=ids)
def test_given_ranges_match_the_reference(fmt, device):
    for shape, kind in zip(SHAPES[1:], ("wide", "special", "normal"), strict=True):
        x = tensor_values(shape, kind)
        slices = 1 if fmt.axis is None else x.shape[fmt.axis]
        limits = torch.sort(torch.randn(2, slices, dtype=torch.float64), dim=0)[0]
        limits[:, 1:2] = float("nan")
        check(x, Quantizer(fmt, MODES[len(kind) % 3]), device, limits.contiguous(), kind)
        out = torch.empty(shape, device=device)
        call = (x.to(device), Quantizer(fmt).to_ints(), None, 0, SITE, out, None)
        BACKEND.quantize_counting(*call, limits.contiguous().to(device))
        want = counted(_reference.BACKEND, x, Quantizer(fmt), limits.contiguous())[0]
        assert_bit_equal(out, want)


@pytest.mark.parametrize("fmt", [AffineFormat(4, axis=1), BlockFormat("e4m3", 7), "e5m2"], ids=str)
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


@EVERY
@pytest.mark.parametrize("histogram", [False, True], ids=["counts", "histogram"])
def test_the_kernel_compiles(target, histogram):
    rule, numbers = rule_of(FloatFormat(5, 2).to_ints(), 0)
    endless_rule, endless = counting.unbounded(rule, numbers)
    for written in (False, True):
        wanted = counting.Wanted(written, True, histogram)
        compiled(
            counting.count_kernel, target, x_ptr=torch.float32,
            out_ptr=torch.float32 if wanted.values else None, counts_ptr=torch.int64,
            count=1 << 20, N=numbers, U=endless, seed_ptr=None, role=0, site=4, R=rule,
            RU=endless_rule, BY=quantize.BY_FLOAT32.value, W=wanted, BLOCK=1024,
        )  # fmt: skip
