"""Kernels that round and count against the reference: instruction sets, modes, sizes, threads."""

from collections.abc import Iterable
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from lpkernels.arithmetic import Quantizer
from lpkernels.backends import BINS, COUNTS, cpu
from lpkernels.formats import AffineFormat, parse_format
from lpkernels.rounding import ROUNDINGS
from tests.cases import DETERMINISTIC, ROUND_FORMATS
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.cpu_products import REFERENCE
from tests.support.elements import (
    END_FORMATS,
    KINDS,
    SEED,
    SITE,
    TENSOR_FORMATS,
    float32_values,
    quantizers,
    tensor_values,
)
from tests.support.processor import Threads

# One value, less than a vector, spans of 1024 and a remainder, several pieces of a thread.
SIZES = (1, 5, 1023, 1025, 2**16 + 77)


def counted(
    backend: object,
    x: Tensor,
    quantizer: Quantizer,
    limits: Tensor | None = None,
    *,
    written: bool = True,
    length: int = COUNTS + BINS,
) -> tuple[Tensor, Tensor]:
    """Values, NaN where they are not written, and what is added to ``length`` counts."""
    out, counts = torch.empty(x.shape), torch.full((length,), 7, dtype=torch.int64)
    call = (x, quantizer.to_ints(), torch.tensor(SEED), 0, SITE, out if written else None)
    backend.quantize_counting(*call, counts, limits)
    return out, counts - 7


def check(
    ways: Iterable[str], x: Tensor, quantizer: Quantizer, limits: Tensor | None = None
) -> None:
    """Values and counts of the cpu backend are the reference's, with a histogram and without one,
    with the values written and not written."""
    call = (x, quantizer, limits)
    name = f"{quantizer} {quantizer.random_bits} {x.dtype} {tuple(x.shape)}"
    want, want_counts = counted(REFERENCE, *call)
    for way in ways:
        for written, length in product((False, True), (COUNTS, COUNTS + BINS)):
            got, counts = counted(cpu.BACKEND, *call, written=written, length=length)
            assert counts.tolist() == want_counts[:length].tolist(), f"{way} {name}"
            if written:
                assert_bit_equal(got, want, f"{way} {name}")


@each("fmt", [*ROUND_FORMATS, *END_FORMATS])
def test_float32_counts_match_the_reference(fmt, isas):
    x = torch.from_numpy(float32_values(fmt, 20))
    for quantizer in quantizers(fmt):
        check(isas, x, quantizer)


@each("dtype", [torch.float16, torch.bfloat16, torch.float64])
@each("name", ["e4m3", "fp8_e4m3", "e5m0", "fixed8_f4_wrap"])
def test_other_dtypes_match_the_reference(name, dtype, isas):
    """All 65536 patterns of the 16-bit types; wide and narrow values of float64."""
    if dtype == torch.float64:
        exponents = torch.linspace(-1070, 1020, 3000, dtype=torch.float64)
        x = torch.randn(3000, dtype=torch.float64) * torch.exp2(exponents)
    else:
        x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    fmt = parse_format(name)
    for rounding in ROUNDINGS:
        check(isas, x, Quantizer(fmt, rounding))


@each("fmt", TENSOR_FORMATS)
def test_affine_and_block_counts_match_the_reference(fmt, isas):
    shapes = [(1, 1, 1), (2, 3, 33), (3, 70, 5), (5, 2, 130), (2, 40, 1)]
    dtypes = [torch.float32, torch.bfloat16, torch.float64]
    modes = ["stochastic", *DETERMINISTIC]
    for i, (shape, kind) in enumerate(product(shapes, KINDS)):
        x = tensor_values(shape, kind).to(dtypes[i % len(dtypes)])
        check(isas, x, Quantizer(fmt, modes[i % len(modes)]))


@each("fmt", [f for f in TENSOR_FORMATS if isinstance(f, AffineFormat)])
def test_given_ranges_match_the_reference(fmt, isas):
    shapes = [(2, 3, 33), (70, 3, 5), (5, 2, 130), (1, 1, 3001)]
    for shape, kind, rounding in product(shapes, KINDS, ("nearest_even", "stochastic")):
        x = tensor_values(shape, kind)
        slices = 1 if fmt.axis is None else x.shape[fmt.axis]
        limits = torch.sort(torch.randn(2, slices, dtype=torch.float64), dim=0)[0]
        limits[:, -1] = 0.5 if slices > 1 else limits[:, -1]
        limits[:, 1:2] = float("nan")
        check(isas, x, Quantizer(fmt, rounding), limits.contiguous())


@each("size", SIZES)
@each("quantizer", [Quantizer("e5m2"), Quantizer("e4m3", "stochastic"), Quantizer("fixed8_f4")])
def test_sizes_and_threads_do_not_matter(quantizer, size, isas, threads: Threads):
    x = torch.randn(size) * torch.exp2(torch.randint(-30, 30, (size,)).float())
    want, want_counts = counted(REFERENCE, x, quantizer)
    for isa in isas:
        for count in threads:
            got, got_counts = counted(cpu.BACKEND, x, quantizer)
            assert_bit_equal(got, want, f"{isa} {count}")
            assert torch.equal(got_counts, want_counts)


def test_streamed_results_count_alike(isas, monkeypatch):
    monkeypatch.setattr(cpu, "STREAM_BYTES", 0)
    check(isas, torch.randn(2**17 + 33), Quantizer("e4m3"))


def test_nothing_to_do_is_refused():
    x = torch.randn(4)
    call = (x, Quantizer("e5m2").to_ints(), None, 0, SITE)
    with pytest.raises(ValueError, match="written or counted"):
        cpu.BACKEND.quantize_counting(*call, None, None, None)


def test_the_counts_of_numpy_agree():
    """The oracle uses nothing of this package: it is what numpy's float16 makes of float32
    values."""
    x = torch.randn(5000) * torch.exp2(torch.randint(-30, 20, (5000,)).float())
    values = x.numpy()
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    counts = counted(cpu.BACKEND, x, Quantizer("fp16"))[1]
    assert counts[0] == np.isinf(half).sum()
    assert counts[1] == ((half == 0) & (values != 0)).sum()
    exponents = values.view(np.uint32) >> 23 & 0xFF
    assert counts[4:].tolist() == np.bincount(exponents, minlength=256).tolist()
