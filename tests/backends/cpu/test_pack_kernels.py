"""pack and unpack on every instruction set against the reference: every format, every width."""

import pytest
import torch

from lpkernels.backends import _reference, cpu
from lpkernels.formats import FloatFormat
from tests.cases import ROUND_FORMATS, ids
from tests.compare import assert_bit_equal
from tests.support.elements import END_FORMATS, WIDTHS, Format, codable, float32_values
from tests.support.processor import isa

__all__ = ["isa"]

pytestmark = pytest.mark.skipif(
    not cpu.BACKEND.available(), reason=f"cpu backend: {cpu.BACKEND.why_not()}"
)


@pytest.mark.parametrize("fmt", [*ROUND_FORMATS, *END_FORMATS, *WIDTHS], ids=ids)
def test_codes_match_reference(fmt: Format, isa: str) -> None:
    ints = fmt.to_ints()
    for count in (1, 7, 33, 1500):
        x = codable(fmt, count)
        codes = cpu.BACKEND.pack(x, ints)
        assert_bit_equal(codes, _reference.BACKEND.pack(x, ints), f"{count} codes")
        assert_bit_equal(cpu.BACKEND.unpack(codes, ints, [count]), x, f"{count} values")


@pytest.mark.parametrize("fmt", [f for f in ROUND_FORMATS if f.bits <= 16], ids=ids)
def test_every_code_unpacks_as_the_reference(fmt: Format, isa: str) -> None:
    ints, count = fmt.to_ints(), 2**fmt.bits
    codes = torch.zeros((count * fmt.bits + 7) // 8, dtype=torch.uint8)
    for bit in range(fmt.bits):
        index = torch.arange(count)
        at = index * fmt.bits + bit
        values = ((index >> bit & 1) << (at % 8)).to(torch.uint8)
        codes.index_add_(0, at // 8, values)
    want = _reference.BACKEND.unpack(codes, ints, [count])
    assert_bit_equal(cpu.BACKEND.unpack(codes, ints, [count]), want)


@pytest.mark.parametrize("fmt", [*ROUND_FORMATS, *END_FORMATS], ids=ids)
def test_refuses_what_the_reference_refuses(fmt: Format, isa: str) -> None:
    """Each value without a code is refused alone, and of several the first is reported by its
    index."""
    ints = fmt.to_ints()
    good = codable(fmt, 1)
    for value in torch.from_numpy(float32_values(fmt, 3))[:40]:
        x = torch.cat([good.repeat(20), value.view(1)])
        try:
            want = _reference.BACKEND.pack(x, ints)
        except ValueError:
            with pytest.raises(ValueError, match=r"element 20 \(in row-major order\)"):
                cpu.BACKEND.pack(x, ints)
        else:
            assert_bit_equal(cpu.BACKEND.pack(x, ints), want)


@pytest.mark.parametrize("threads", [1, 3])
def test_large_tensors(threads: int) -> None:
    """The tensors have several pieces (65536 values in pack.cpp), and the first value without a
    code is reported."""
    fmt = FloatFormat(3, 2)
    x = codable(fmt, 3 * 65536 + 5)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        codes = cpu.BACKEND.pack(x, fmt.to_ints())
        assert_bit_equal(codes, _reference.BACKEND.pack(x, fmt.to_ints()))
        assert_bit_equal(cpu.BACKEND.unpack(codes, fmt.to_ints(), list(x.shape)), x)
        x[[70001, 190000]] = 1.03
        with pytest.raises(ValueError, match="element 70001"):
            cpu.BACKEND.pack(x, fmt.to_ints())
    finally:
        torch.set_num_threads(before)
