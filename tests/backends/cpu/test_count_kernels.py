"""Kernels that round and count against the reference: instruction sets, modes, sizes, threads; and
the histogram's kernels (csrc/cpu/elementwise/exponent_bins.h) with counting to nearest even without
rounding: spans of 4096 words, units of 16 vectors, windows of 32 exponents, and what lies outside.
"""

from collections.abc import Iterable
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.arithmetic import Quantizer
from lpkernels.backends import BINS, COUNTS, cpu
from lpkernels.formats import parse_format
from tests.support.elements import assert_counted
from tests.support.processor import Isas, Threads

#: With a histogram and without one, with the values written and not written.
check = partial(
    assert_counted, cpu.BACKEND, ways=tuple(product((COUNTS, COUNTS + BINS), (False, True)))
)


# One value, less than a vector, spans of 1024 and a remainder, several pieces of a thread.
@pytest.mark.parametrize("size", [1, 5, 1023, 1025, 2**16 + 77])
@pytest.mark.parametrize("name", ["e5m2", "e4m3:stochastic", "fixed8_f4"])
def test_sizes_threads_and_streams_do_not_matter(name, size, isas, threads: Threads, monkeypatch):
    quantizer = Quantizer.parse(name)
    x = torch.randn(size) * torch.exp2(torch.randint(-30, 30, (size,)).float())
    for isa in isas:
        check(x, quantizer, name=isa, on=threads)
    monkeypatch.setattr(cpu.BACKEND, "stream_bytes", 0)
    check(x, quantizer, on=isas)


def test_the_counts_of_numpy_agree() -> None:
    """The oracle is numpy's own float16 of float32 values."""
    x = torch.randn(5000) * torch.exp2(torch.randint(-30, 20, (5000,)).float())
    values = x.numpy()
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    counts = torch.zeros(COUNTS + BINS, dtype=torch.int64)
    lp.quantize(x, "fp16", counts=counts, backend="cpu")
    assert counts[0] == np.isinf(half).sum()
    assert counts[1] == ((half == 0) & (values != 0)).sum()
    exponents = values.view(np.uint32) >> 23 & 0xFF
    assert counts[4:].tolist() == np.bincount(exponents, minlength=256).tolist()


SPAN = 4096
#: Lengths around a vector, a unit of either width, a span, what a unit's levels hold and a thread's
#: piece.
LENGTHS = (7, 9, 127, 129, 255, 257, 4095, 4097, 32639, 32641, 65279, 65281, 2**16 + 4097)


def check_bins(on: Iterable[str], x: Tensor, fmt: str = "fp16") -> None:
    """The counts of x alone and while it is rounded are the counts of the reference."""
    both = ((COUNTS + BINS, False), (COUNTS + BINS, True))
    assert_counted(cpu.BACKEND, x, Quantizer(fmt), ways=both, on=on)


def with_fields(fields: np.ndarray) -> Tensor:
    """Words with these exponent fields, either sign and any digits."""
    random = np.random.default_rng(0)
    digits = random.integers(0, 2**23, fields.shape, dtype=np.uint32)
    signs = random.integers(0, 2, fields.shape, dtype=np.uint32) << 31
    words = signs | fields.astype(np.uint32) << 23 | digits
    return torch.from_numpy(words.view(np.float32))


def drawn(low: int, high: int, count: int) -> np.ndarray:
    """Random fields from low to high, with both ends among them."""
    fields = np.random.default_rng(count).integers(low, high + 1, count)
    fields[[0, -1]] = low, high
    return fields


@pytest.mark.parametrize("count", LENGTHS)
def test_every_length_is_counted_whole(count: int, isas: Isas) -> None:
    check_bins(isas, with_fields(drawn(100, 120, count)))


@pytest.mark.parametrize("field", [0, 1, 31, 32, 127, 223, 224, 254, 255])
def test_one_exponent_in_all_lanes_of_a_piece(field: int, isas: Isas) -> None:
    """65536 values of one bin carry through every level of the adders."""
    check_bins(isas, with_fields(np.full(2**16 + 5, field)))


@pytest.mark.parametrize("low", [1, 2, 100, 223, 224])
@pytest.mark.parametrize("width", [31, 32, 33, 34])
def test_windows_to_their_ends(low: int, width: int, isas: Isas) -> None:
    """A window holds as many exponents as a lane has bits; here are one less and more."""
    check_bins(isas, with_fields(drawn(low, min(low + width - 1, 255), SPAN)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e-40, 1e-38, 1e30, 0.0, -0.0])
@pytest.mark.parametrize("every", [1000, 17, 16, 15, 2, 1])
def test_values_outside_of_the_window(every: int, value: float, isas: Isas) -> None:
    """A few such values are counted where they are; many move the window, or end it."""
    x = with_fields(drawn(100, 115, 3 * SPAN))
    x[SPAN : 2 * SPAN : every] = value
    check_bins(isas, x)
    check_bins(isas, torch.cat([torch.zeros(SPAN), x.flip(0)]))


def test_windows_that_move_from_span_to_span_and_all_exponents_in_each(isas, threads) -> None:
    lows = (100, 110, 60, 200, 1, 224, 0)
    check_bins(isas, with_fields(np.concatenate([drawn(low, low + 20, SPAN) for low in lows])))
    check_bins(isas, with_fields(drawn(0, 255, 5 * SPAN + 100)))
    check_bins(threads, with_fields(drawn(90, 130, 5 * 2**16 + 1)))


@pytest.mark.parametrize("fmt", ["fp16", "fp32", "bf16", "e4m3fn", "e5m0", "e8m0", "e4m3fn_sat"])
def test_ends_of_a_format_to_the_last_digit(fmt: str, isas: Isas) -> None:
    """Values that vanish or overflow, and their neighbours, have a span of their own."""
    of = parse_format(fmt)
    tie = of.max + 2.0 ** (of.emax - of.man_bits - 1)
    ends = [of.min_subnormal / 2, of.min_subnormal, of.min_normal, of.max, of.max * 2, tie]
    with np.errstate(over="ignore", under="ignore"):
        words = np.array([*ends, 2.0**-126], dtype=np.float32).view(np.int32)
    near = np.unique(np.clip((words[:, None] + np.arange(-3, 4)).ravel(), 0, 0x7F7FFFFF))
    for end in near.astype(np.int32).view(np.float32):
        x = torch.ones(300)
        x[7], x[290] = float(end), -float(end)
        check_bins(isas, x, fmt)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_spans_of_the_narrow_types(dtype: torch.dtype, isas: Isas) -> None:
    for count in (15, 1023, 1025, 5000):
        check_bins(isas, (torch.randn(count) * 2.0**-12).to(dtype))
