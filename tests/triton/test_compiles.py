"""Kernels that round or code tensors compile for every target, without contraction or flushing."""

from typing import Any

import pytest
import torch

from lpkernels.backends.triton import _accumulate, _affine, _block, _packing
from lpkernels.backends.triton._codes import codec_of
from lpkernels.backends.triton._quantize import way
from lpkernels.backends.triton._rule import rule_of
from lpkernels.formats import parse_format
from tests.triton.ahead_of_time import TARGETS, compiled

FLOAT, LONG, BYTE, WORD = torch.float32, torch.int64, torch.uint8, torch.int32


def check(kernel: Any, target: str, **arguments: Any) -> None:
    result = compiled(kernel, target, **arguments)
    text = result.asm.get("ptx") or result.asm["amdgcn"]
    # AMD's division is made of fused operations, and exact.
    assert not any(word in text for word in (".ftz", "fma.rn")), kernel.__name__


def mode_of(fmt: tuple[int, ...], mode: int) -> tuple[Any, Any]:
    return rule_of(fmt, mode, 32, 0)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sizes", [[1, 1, 70000], [3, 40, 5]], ids=["long", "short"])
def test_affine(sizes: list[int], target: str, compiler) -> None:
    matrices, counts, _, constants = _affine.tiles(sizes, 1024)
    places = dict(zip(("rows", "row_tiles", "column_tiles"), counts, strict=True))
    common = {"M": matrices, "ends_ptr": LONG, **places, **constants}
    for x_type in (FLOAT, torch.float64, torch.bfloat16):
        check(_affine.range_kernel, target, x_ptr=x_type, **common)
    rule, numbers = mode_of(_affine._INTEGERS, 6)
    for symmetric in (False, True):
        check(
            _affine.line_kernel, target, x_ptr=FLOAT, out_ptr=FLOAT, top=255.0, N=numbers,
            seed_ptr=LONG, role=0, site=4, R=rule, SYMMETRIC=symmetric, **common,
        )  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["block32_e4m3", "block7_axis0_e2m1"])
def test_blocks(name: str, target: str, compiler) -> None:
    fmt = parse_format(name).to_ints()
    element = _block.element_of(fmt)
    lines, counts, _, constants = _block.tiles(torch.Size((64, 4000)), fmt)
    places = dict(zip(("total", "per_line", "chunks"), counts, strict=True))
    common = {"L": lines, **places, **constants}
    codec = codec_of(element)
    for mode, x_type in ((0, FLOAT), (6, torch.float16), (6, torch.float64)):
        rule, numbers = mode_of(element, mode)
        check(
            _block.quantize_blocks_kernel, target, x_ptr=x_type, out_ptr=FLOAT, N=numbers,
            seed_ptr=LONG, role=0, site=4, R=rule, BY=way(element, x_type, FLOAT), FAR=False,
            **common,
        )  # fmt: skip
    check(
        _packing.pack_blocks_kernel, target, x_ptr=FLOAT, words_ptr=WORD, missing_ptr=LONG,
        N=numbers, F=codec, **common,
    )  # fmt: skip
    check(
        _packing.unpack_blocks_kernel, target, codes_ptr=BYTE, out_ptr=FLOAT, bytes=4000, F=codec,
        **common,
    )  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["fp4_e2m1", "fp32", "fixed24_f10"])
def test_codes(name: str, target: str, compiler) -> None:
    codec = codec_of(parse_format(name).to_ints())
    common = {"count": 4000, "F": codec}
    check(
        _packing.pack_kernel, target, x_ptr=FLOAT, words_ptr=WORD, missing_ptr=LONG, WORDS=512,
        **common,
    )  # fmt: skip
    check(
        _packing.unpack_kernel, target, codes_ptr=BYTE, out_ptr=FLOAT, total=4000, VALUES=1024,
        **common,
    )  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "mode"), [("e6m9", 0), ("fixed9_f4_wrap", 6), ("e5m2_nosub", 4)])
def test_accumulate(name: str, mode: int, target: str, compiler) -> None:
    rule, numbers = mode_of(parse_format(name).to_ints(), mode)
    check(
        _accumulate.accumulate_kernel, target, total_ptr=FLOAT, addend_ptr=FLOAT, rows=64,
        cols=256, row_stride=256, col_stride=1, column_tiles=2, first_row=0, first_col=0, k=3,
        N=numbers, seed_ptr=LONG, role=0, site=2, R=rule, ROWS=8, COLUMNS=128,
    )  # fmt: skip
