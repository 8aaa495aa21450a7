"""The histogram's kernels (csrc/cpu/elementwise/exponent_bins.h) and counting to nearest even
without rounding: spans of 4096 words, units of 16 vectors, windows of 32 exponents, and what lies
outside of them."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from lpkernels.arithmetic import Quantizer
from lpkernels.backends import BINS, COUNTS, cpu
from lpkernels.formats import parse_format
from lpkernels.rng import SITE_QUANTIZE
from tests.loops import each
from tests.support.cpu_products import REFERENCE
from tests.support.processor import Threads

SPAN = 4096
#: Lengths around a vector, a unit of either width, a span, what a unit's levels hold and a thread's
#: piece.
LENGTHS = (7, 9, 127, 129, 255, 257, 4095, 4097, 32639, 32641, 65279, 65281, 2**16 + 4097)


def check(ways: Iterable[str], x: Tensor, fmt: str = "fp16") -> None:
    """The counts of x alone and while it is rounded are the counts of the reference."""
    call = (x, Quantizer(parse_format(fmt)).to_ints(), None, 0, SITE_QUANTIZE)
    want = torch.zeros(COUNTS + BINS, dtype=torch.int64)
    REFERENCE.quantize_counting(*call, None, want, None)
    for way in ways:
        for out in (None, torch.empty(x.shape)):
            got = torch.zeros(COUNTS + BINS, dtype=torch.int64)
            cpu.BACKEND.quantize_counting(*call, out, got, None)
            assert got.tolist() == want.tolist(), way


def with_fields(fields: np.ndarray, seed: int = 0) -> Tensor:
    """Words with these exponent fields, either sign and any digits."""
    random = np.random.default_rng(seed)
    digits = random.integers(0, 2**23, fields.shape, dtype=np.uint32)
    signs = random.integers(0, 2, fields.shape, dtype=np.uint32) << 31
    words = signs | fields.astype(np.uint32) << 23 | digits
    return torch.from_numpy(words.view(np.float32))


def drawn(low: int, high: int, count: int) -> np.ndarray:
    """Random fields from low to high, with both ends among them."""
    fields = np.random.default_rng(count).integers(low, high + 1, count)
    fields[[0, -1]] = low, high
    return fields


@each("count", LENGTHS)
def test_every_length_is_counted_whole(count, isas):
    check(isas, with_fields(drawn(100, 120, count)))


@each("field", [0, 1, 31, 32, 127, 223, 224, 254, 255])
def test_one_exponent_in_all_lanes_of_a_piece(field, isas):
    """65536 values of one bin carry through every level of the adders."""
    check(isas, with_fields(np.full(2**16 + 5, field)))


@each("low", [1, 2, 100, 223, 224])
@each("width", [31, 32, 33, 34])
def test_windows_to_their_ends(low, width, isas):
    """The window holds as many exponents as a lane has bits, and one more, up to the largest
    field."""
    check(isas, with_fields(drawn(low, min(low + width - 1, 255), SPAN)))


@each("value", [0.0, -0.0, float("nan"), float("-inf"), 1e-45, 1e-38])
def test_one_value_alone(value, isas):
    check(isas, torch.full((2 * SPAN + 3,), value))


@each("value", [float("nan"), float("inf"), 1e-40, 1e30, 0.0])
@each("every", [1000, 17, 16, 15, 2])
def test_values_outside_of_the_window(every, value, isas):
    """A few such values are counted where they are; many of them move the window, or end it until
    they are gone."""
    x = with_fields(drawn(100, 115, 3 * SPAN))
    x[SPAN : 2 * SPAN : every] = value
    check(isas, x)
    check(isas, torch.cat([torch.zeros(SPAN), x.flip(0)]))


def test_windows_that_move_from_span_to_span(isas):
    lows = (100, 110, 60, 200, 1, 224, 0)
    check(isas, with_fields(np.concatenate([drawn(low, low + 20, SPAN) for low in lows])))


def test_all_exponents_in_every_span(isas):
    check(isas, with_fields(drawn(0, 255, 5 * SPAN + 100)))


@each("fmt", ["fp16", "fp32", "bf16", "e4m3fn", "e5m0", "e8m0", "e4m3fn_sat"])
def test_ends_of_a_format_to_the_last_digit(fmt, isas):
    """Values that vanish, values that overflow and their neighbours in either direction have a span
    of their own."""
    of = parse_format(fmt)
    ends = [of.min_subnormal / 2, of.min_subnormal, of.min_normal, of.max, of.max * 2, 2.0**-126]
    with np.errstate(over="ignore", under="ignore"):
        at = np.array(ends, dtype=np.float32).view(np.int32)
        ties = np.array([of.max + 2.0 ** (of.emax - of.man_bits - 1)], dtype=np.float32)
    words = np.concatenate([at, ties.view(np.int32)])
    near = np.unique(np.clip((words[:, None] + np.arange(-3, 4)).ravel(), 0, 0x7F7FFFFF))
    for end in near.astype(np.int32).view(np.float32):
        x = torch.ones(300)
        x[7], x[290] = float(end), -float(end)
        check(isas, x, fmt)


@each("dtype", [torch.float16, torch.bfloat16])
def test_spans_of_the_narrow_types(dtype, isas):
    for count in (15, 1023, 1025, 5000):
        check(isas, (torch.randn(count) * 2.0**-12).to(dtype))


def test_no_bin_is_lost_to_threads(threads: Threads):
    x = with_fields(drawn(90, 130, 5 * 2**16 + 1))
    check(threads, x)
