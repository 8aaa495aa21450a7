"""pack and unpack on every instruction set against the reference: every format, every width."""

import pytest
import torch

from lpkernels.backends import cpu
from lpkernels.formats import FloatFormat
from tests.backends.cpu_products import REFERENCE, assert_same
from tests.cases import EVERY_FORMAT
from tests.compare import assert_bit_equal
from tests.support.elements import END_FORMATS, WIDTHS, Format, codable, float32_values
from tests.support.processor import Isas, Threads


@pytest.mark.parametrize("fmt", [*EVERY_FORMAT, *END_FORMATS, *WIDTHS], ids=str)
def test_codes_match_reference(fmt: Format, isas: Isas) -> None:
    ints, values = fmt.to_ints(), codable(fmt, 1500)
    for count in (1, 7, 33, 1500):
        codes = assert_same(isas, "pack", values[:count], ints, name=count)
        back = assert_same(isas, "unpack", codes, ints, [count], name=count)
        assert_bit_equal(back, values[:count], f"{count} values")


@pytest.mark.parametrize("fmt", [f for f in EVERY_FORMAT if f.bits <= 16], ids=str)
def test_every_code_unpacks_as_the_reference(fmt: Format, isas: Isas) -> None:
    ints, count = fmt.to_ints(), 2**fmt.bits
    codes = torch.zeros((count * fmt.bits + 7) // 8, dtype=torch.uint8)
    for bit in range(fmt.bits):
        index = torch.arange(count)
        at = index * fmt.bits + bit
        values = ((index >> bit & 1) << (at % 8)).to(torch.uint8)
        codes.index_add_(0, at // 8, values)
    assert_same(isas, "unpack", codes, ints, [count])


@pytest.mark.parametrize("fmt", [*EVERY_FORMAT, *END_FORMATS], ids=str)
def test_refuses_what_the_reference_refuses(fmt: Format, isas: Isas) -> None:
    """A value without a code is refused by its index."""
    ints = fmt.to_ints()
    good = codable(fmt, 1)
    for value in torch.from_numpy(float32_values(fmt, 3))[:40]:
        x = torch.cat([good.repeat(20), value.view(1)])
        try:
            REFERENCE.pack(x, ints)
        except ValueError:
            for _ in isas:
                with pytest.raises(ValueError, match=r"element 20 \(in row-major order\)"):
                    cpu.BACKEND.pack(x, ints)
        else:
            assert_same(isas, "pack", x, ints)


def test_large_tensors(threads: Threads) -> None:
    """There are several pieces (65536 values in pack.cpp); the first refusal is reported."""
    fmt = FloatFormat(3, 2)
    x, ints = codable(fmt, 3 * 65536 + 5), fmt.to_ints()
    codes = assert_same(threads, "pack", x, ints)
    assert_bit_equal(assert_same(threads, "unpack", codes, ints, list(x.shape)), x)
    x[[70001, 190000]] = 1.03
    for _ in threads:
        with pytest.raises(ValueError, match="element 70001"):
            cpu.BACKEND.pack(x, ints)
