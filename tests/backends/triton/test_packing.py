"""pack and unpack against the reference: every format, every width, and values that have no
code."""

import itertools
import re

import numpy as np
import pytest
import torch
from torch import Tensor

from lpkernels.arithmetic import Quantizer
from lpkernels.backends import _reference
from lpkernels.backends.triton import BACKEND
from lpkernels.backends.triton.elementwise import block, packing
from lpkernels.formats import BlockFormat, FloatFormat
from tests.cases import ROUND_FORMATS
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.element_bits import assert_codes, quantized
from tests.support.elements import (
    END_FORMATS,
    WIDTHS,
    Format,
    codable,
    float32_values,
    tensor_values,
)

BLOCK_FORMATS = [
    BlockFormat("e4m3", 32),
    BlockFormat("e2m1", 5, axis=0),
    BlockFormat("e2m3", 7, axis=1),
    BlockFormat("e5m2", 1),
    BlockFormat(FloatFormat(1, 3, specials="none"), 3, axis=1),
]


def rounded(x: Tensor, fmt: Format | BlockFormat) -> Tensor:
    return quantized(x, Quantizer(fmt))


def check(x: Tensor, fmt: Format | BlockFormat, device: str) -> None:
    """Codes and values, or the error, are the reference's."""
    ints = fmt.to_ints()
    try:
        _reference.BACKEND.pack(x, ints)
    except ValueError as error:
        place = [int(i) for i in re.findall(r"\d+", re.search(r"index (\(.*?\))", str(error))[1])]
        index = int(np.ravel_multi_index(place, x.shape))
        value = re.escape(str(x.view(-1)[index].item()))
        match = rf"element {index} \(in row-major order\) is {value}, for which the format has no"
        with pytest.raises(ValueError, match=match):
            BACKEND.pack(x.to(device), ints)
        return
    assert_codes(BACKEND, x, fmt, device)


@each("fmt", [*ROUND_FORMATS, *END_FORMATS[::2], *WIDTHS[::2]])
def test_codes_match_reference(fmt: Format, device: str, monkeypatch) -> None:
    monkeypatch.setattr(packing, "_WORDS", 256)
    for count in (7, 300):
        check(codable(fmt, count), fmt, device)


@each("fmt", [f for f in ROUND_FORMATS if f.bits <= 10])
def test_every_code_unpacks_as_the_reference(fmt: Format, device: str) -> None:
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 256, (500 * fmt.bits,), dtype=torch.uint8, generator=generator)
    want = _reference.BACKEND.unpack(codes, fmt.to_ints(), (4000,))
    assert_bit_equal(BACKEND.unpack(codes.to(device), fmt.to_ints(), [4000]), want)


@each("fmt", [*ROUND_FORMATS[::3], *END_FORMATS[::3]])
def test_refuses_what_the_reference_refuses(fmt: Format, device: str, monkeypatch) -> None:
    """Each value without a code is refused alone, and of several the first is reported by its
    index, across programs."""
    monkeypatch.setattr(packing, "_WORDS", 4)
    good = codable(fmt, 1)
    for value in [*torch.from_numpy(float32_values(fmt, 2))[:2], torch.tensor(float("nan"))]:
        check(torch.cat([good.repeat(20), value.view(1), good, value.view(1)]), fmt, device)


@each("fmt, elements", itertools.product(BLOCK_FORMATS, [8, 1024]))
def test_blocks_match_reference(fmt: BlockFormat, elements: int, device: str, monkeypatch) -> None:
    """There are short last blocks, blocks of NaN, and values to which the scale of their block
    leaves no code."""
    monkeypatch.setattr(block, "_ELEMENTS", elements)
    for shape in ((1, 1, 1), (2, 5, 33 if elements > 8 else 9), (0, 3, 2)):
        x = tensor_values(shape, "special")
        check(rounded(x, fmt), fmt, device)
        check(x, fmt, device)
        check(torch.full(shape, float("nan")), fmt, device)
        check(rounded(x.nan_to_num(1.0, -2.0, -3.0), fmt) * 2.0**-126, fmt, device)


def test_pack_takes_any_strides(device: str) -> None:
    for fmt in (FloatFormat(4, 3), BLOCK_FORMATS[0], BLOCK_FORMATS[1]):
        x = rounded(torch.randn(6, 5, 4), fmt).permute(2, 0, 1)
        x = rounded(x, fmt).transpose(0, 1).contiguous().transpose(0, 1)
        assert not x.is_contiguous()
        codes = BACKEND.pack(x.to(device), fmt.to_ints())
        assert_bit_equal(codes, _reference.BACKEND.pack(x, fmt.to_ints()))
        wide = torch.stack([codes, codes], 1)[:, 0]
        values = BACKEND.unpack(wide, fmt.to_ints(), list(x.shape))
        assert_bit_equal(values, x.contiguous())
