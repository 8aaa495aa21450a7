"""Dense codes: known bytes, every code of small formats, round trips, and values without a code."""

import math

import numpy as np
import pytest

from lpkernels.arithmetic import Quantizer
from lpkernels.formats import BlockFormat, FixedFormat, FloatFormat, TableFormat, parse_format
from lpkernels.reference import twin
from lpkernels.reference.packing import decode, encode
from tests.cases import EVERY_FORMAT, hard_values
from tests.compare import assert_bit_equal


def f32(values: object) -> np.ndarray:
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize(
    "fmt, values, want",
    [
        # e2m1: 0.5 = 0001, -6 = 1111, 1 = 0010; least significant bits first.
        ("fp4_e2m1", [0.5, -6.0, 1.0], [0xF1, 0x02]),
        # e2m2 (5 bits): 1 = 00100, -1 = 10100, 1.25 = 00101.
        ("e2m2", [1.0, -1.0, 1.25], [0b10000100, 0b00010110]),
        ("fp16", [1.0, -0.0], [0x00, 0x3C, 0x00, 0x80]),
        ("fp32", [math.nan, -math.inf], [0, 0, 0xC0, 0x7F, 0, 0, 0x80, 0xFF]),
        ("e4m3fn", [math.nan, 448.0], [0x7F, 0x7E]),
        ("e5m2", [math.nan, math.inf], [0x7E, 0x7C]),
        ("fixed6_f2", [-0.25, 1.0, -8.0], [0b00111111, 0b00000001, 0b10]),
        ("ufixed4_f0", [15.0, 1.0], [0x1F]),
        ("fixed8_f4", [-0.0], [0]),
        # The scale bytes stand for 2^(127 - 127) and, in the short block, 2^(125 - 127); the
        # elements are 1, 6 and 6.
        ("block2_e2m1", [1.0, 6.0, 1.5], [127, 0x72, 125, 0x07]),
        ("block2_e2m1", [math.nan, math.nan], [255, 0]),
        ("block2_e2m1", [0.0, -0.0], [0, 0x80]),
        ("e5m2", [], []),
    ],
)
def test_pack_lays_codes_out_densely(fmt: str, values: list, want: list) -> None:
    codes = twin.pack(f32(values), parse_format(fmt))
    assert codes.dtype == np.uint8
    assert codes.tolist() == want


@pytest.mark.parametrize("fmt", [fmt for fmt in EVERY_FORMAT if fmt.bits <= 10])
def test_every_code_has_its_value(fmt: FloatFormat | FixedFormat) -> None:
    codes = np.arange(2**fmt.bits, dtype=np.uint32)
    values = decode(codes, fmt)
    finite = np.unique(values[np.isfinite(values)])
    assert finite.tolist() == fmt.values().tolist()
    again, known = encode(values, fmt)
    one_code = ~np.isnan(values)
    if isinstance(fmt, FloatFormat) and not fmt.subnormals:
        one_code &= (values != 0) | (codes & (2 ** (fmt.bits - 1) - 1) == 0)
    # NaN has no code in some tables, and unused codes are NaN.
    assert known[one_code | (not isinstance(fmt, TableFormat))].all()
    assert (again[one_code] == codes[one_code]).all()


@pytest.mark.parametrize("fmt", EVERY_FORMAT)
def test_unpack_inverts_pack(fmt: FloatFormat | FixedFormat) -> None:
    x = twin.quantize(hard_values(fmt, count=20), Quantizer(fmt))
    reserved = isinstance(fmt, FloatFormat) and fmt.specials != "none"
    if not (reserved and fmt.man_bits):
        x = x[np.isfinite(x)]
    x = x[: len(x) // 6 * 6].reshape(2, -1, 3)
    codes = twin.pack(x, fmt)
    assert codes.size == math.ceil(x.size * fmt.bits / 8)
    assert_bit_equal(twin.unpack(codes, fmt, x.shape), x)


@pytest.mark.parametrize("element", ["e4m3", "e2m1", "e1m3none", "e3m0none_b9"])
@pytest.mark.parametrize("size", [1, 3, 32])
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_unpack_inverts_pack_of_blocks(element, size, axis, rng):
    fmt = BlockFormat(element, size, axis=axis)
    x = rng.standard_normal((4, 5, 7)) * 2.0 ** rng.integers(-160, 127, (4, 5, 7))
    x[1, 2, 3], x[2, 2, 2], x[3] = np.nan, 1e-300, 0.0
    for rounding in ("nearest_even", "toward_positive"):
        values = twin.quantize(x, Quantizer(fmt, rounding))
        codes = twin.pack(values, fmt)
        assert_bit_equal(twin.unpack(codes, fmt, values.shape), values)


def test_blocks_follow_each_other_in_row_major_order() -> None:
    x = f32([[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12], [13, 14, 1]])
    blocks = [[1, 4], [2, 5], [3, 6], [7, 10], [8, 11], [9, 12], [13], [14], [1]]
    one = BlockFormat("e4m3", 2)
    want = np.concatenate([twin.pack(f32(block), one) for block in blocks])
    assert twin.pack(x, BlockFormat("e4m3", 2, axis=0)).tolist() == want.tolist()


@pytest.mark.parametrize("fmt, value", [
    ("e5m2", 1.1), ("e5m2", 2.0**-17), ("e5m2_nosub", 2.0**-16), ("e5m2", 65536.0),
    ("e4m3fn", 480.0), ("e4m3fn", math.inf), ("fp4_e2m1", math.nan), ("fp4_e2m1", -math.inf),
    ("e4m0", math.nan), ("fixed8_f4", 8.0), ("fixed8_f4", 0.01), ("ufixed8_f4", -1.0),
    ("fixed8_f4", math.nan), ("block4_e2m1", 0.1), ("block4_e2m1", math.inf),
    ("block4_e2m1", math.nan),
])  # fmt: skip
def test_pack_names_a_value_without_a_code(fmt: str, value: float) -> None:
    x = f32([[1.0, 4.0], [value, 1.0]])
    parsed = parse_format(fmt)
    where = r"\(1, 0\)"
    if isinstance(parsed, BlockFormat):
        x, where = x.reshape(1, 4), r"\(0, 2\)"
    message = (
        rf"pack: {parsed} has no code for {float(np.float32(value))!r} at index {where}; round"
    )
    with pytest.raises(ValueError, match=message):
        twin.pack(x, parsed)


def test_unpack_gives_one_nan() -> None:
    fmt = parse_format("e5m2")
    values = twin.unpack(np.array([0x7D, 0x7F, 0xFD, 0xFF], np.uint8), fmt, (4,))
    assert values.view(np.uint32).tolist() == [0x7FC00000] * 4
