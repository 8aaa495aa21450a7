"""Scales and codes against the arrays that other libraries made (tests/data/scaled_formats)."""

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from lpkernels.arithmetic import Quantizer
from lpkernels.formats import E4M3FN, BlockFormat, FixedFormat, parse_format
from lpkernels.reference import quantize as reference
from lpkernels.reference.blocks import element_of
from lpkernels.reference.packing import encode
from lpkernels.reference.scaled import Scaled
from lpkernels.reference.values import widen
from tests.compare import assert_bit_equal

VECTORS = Path(__file__).parents[1] / "data" / "scaled_formats" / "vectors.npz"


@lru_cache
def arrays() -> dict[str, NDArray]:
    with np.load(VECTORS) as file:
        return dict(file)


class Case(NamedTuple):
    """One input in one format; key begins the names of the arrays."""

    key: str
    input: str
    fmt: str


def given(name: str) -> NDArray[np.float32]:
    """An input, or rows and columns of one, by the text of the slice."""
    name, _, cut = name.partition("[")
    x = arrays()[name]
    slices = (slice(*(int(i) if i else None for i in p.split(":"))) for p in cut[:-1].split(","))
    return x[tuple(slices)] if cut else x


def of(case: Case, amax: float | None = None) -> Scaled:
    return reference.scaled(given(case.input), Quantizer(case.fmt), amax=amax)


def codes_of(q: Scaled, fmt: str) -> NDArray[np.uint8]:
    """One code a byte, the sign on top; integers in two's complement of eight bits."""
    parsed = parse_format(fmt)
    assert isinstance(parsed, BlockFormat)
    if isinstance(parsed.element, FixedFormat):
        return q.values.astype(np.int8).view(np.uint8)
    return encode(widen(q.values), element_of(parsed))[0].astype(np.uint8)


def powers(s: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The bytes of e8m0."""
    bits = np.ascontiguousarray(s).view(np.uint32)
    return np.where(np.isnan(s), 255, np.where(s < 2.0**-126, 0, bits >> 23)).astype(np.uint8)


def fp8(s: NDArray[np.float32]) -> NDArray[np.uint8]:
    return encode(widen(s), E4M3FN)[0].astype(np.uint8)


def assert_same(
    case: Case, scale: NDArray | None = None, code: NDArray | None = None, zero: int = -1
) -> Scaled:
    """Scales and codes are the recorded ones, or those given. zero: the code that -0 has here, and
    the original has not."""
    q, recorded = of(case), arrays()
    scale = recorded[case.key + "scale"] if scale is None else scale
    code = recorded[case.key + "code"] if code is None else code
    ours = fp8(q.scale) if scale.dtype == np.uint8 else q.scale
    assert_bit_equal(np.ascontiguousarray(ours).reshape(scale.shape), scale, case.key)
    codes = codes_of(q, case.fmt).reshape(code.shape)
    assert_bit_equal(np.where(codes == zero, 0, codes), np.where(code == zero, 0, code), case.key)
    return q


@pytest.mark.parametrize("element", ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"])
@pytest.mark.parametrize("input", ["x", "xs"])
def test_mx_of_torchao(element: str, input: str) -> None:
    for mode, rule in {"floor": "", "ceil": "_ceil", "even": "_even", "rceil": "_up"}.items():
        case = Case(f"ao_mx/{input}/{element}/{mode}/", input, f"block32_{element}{rule}_torchao")
        q, want = of(case), arrays()[f"ao_mx/{input}/{element}/{mode}/scale"]
        # An infinity has a large scale there; here its block is NaN.
        infinite = (np.isinf(given(input)).reshape(len(want), -1, 32)).any(-1).reshape(want.shape)
        assert (powers(q.scale).reshape(want.shape)[infinite] == 255).all()
        assert_bit_equal(powers(q.scale).reshape(want.shape)[~infinite], want[~infinite], case.key)
        # The codes of scale 0 are wrong there; a NaN block has codes 0 here, and its own there.
        fine = np.repeat((want != 0) & (want != 255) & ~infinite, 32, axis=-1)
        code = arrays()[case.key + "code"]
        assert_bit_equal(codes_of(q, case.fmt).reshape(code.shape)[fine], code[fine], case.key)


@pytest.mark.parametrize("tensor_scale", ["one", "two"])
@pytest.mark.parametrize("input, rows", [("x", "x[10:]"), ("xwide", "x[:9]")])
def test_nvfp4_of_torchao(tensor_scale: str, input: str, rows: str) -> None:
    t = "_t" * (tensor_scale == "two")
    case = Case(f"ao_nvfp4/{input}/{tensor_scale}/", rows, f"block16_e2m1_se4m3fn{t}_torchao")
    q = assert_same(case)
    assert not t or q.tensor_scale == arrays()[case.key + "tensor"]


@pytest.mark.parametrize("rule", [("", ""), ("_pow2", "_se8m0_up")])
@pytest.mark.parametrize("element", ["e4m3", "e5m2"])
@pytest.mark.parametrize(
    "whole, name", [("tensor", "tensor"), ("row", "row"), ("col", "row_axis0")]
)
def test_fp8_of_torchao(whole: str, name: str, element: str, rule: tuple[str, str]) -> None:
    key = f"ao_fp8/x/{element}/{whole}{rule[0]}/"
    # It keeps the number that encoding multiplies by.
    scale = np.float32(1) / arrays()[key + "encode"]
    assert_same(Case(key, "x[10:]", f"{name}_{element}{rule[1]}_torchao"), scale)


PLAIN = [
    Case("ao_block/w/1x128/", "w[:128,:256]", "block128_e4m3_sfp32_torchao"),
    Case("ao_block/w/128x128/", "w[:128,:256]", "tile128x128_e4m3_sfp32_torchao"),
    Case("ao_int8/x/row/", "x[10:]", "row_int8_torchao"),
    Case("ao_int/x/int4_g32_sym/", "x[10:]", "block32_int4_sfp32_to7.5_torchao"),
    Case("ao_int/x/int8_row_sym/", "x[10:]", "row_int8_to127.5_torchao"),
    Case("dg/w/1x128/", "w", "block128_e4m3_sfp32_deepgemm"),
    Case("dg/w/1x128_ue8m0/", "w", "block128_e4m3_up_deepgemm"),
    Case("dg/w/128x1/", "w[:128]", "block128_axis0_e4m3_sfp32_deepgemm"),
    Case("dg/w/128x1_ue8m0/", "w[:128]", "block128_axis0_e4m3_up_deepgemm"),
    Case("dg/w/128x128/", "w", "tile128x128_e4m3_sfp32_deepgemm"),
    Case("dg/w/128x128_ue8m0/", "w", "tile128x128_e4m3_up_deepgemm"),
    Case("dg/x/fp4_1x32/", "x[10:]", "block32_e2m1_sfp32_deepgemm"),
    Case("dg/x/fp4_1x32_ue8m0/", "x[10:]", "block32_e2m1_up_deepgemm"),
]


@pytest.mark.parametrize("case", PLAIN)
def test_blocks_and_integers_of_torchao_and_deepgemm(case: Case) -> None:
    assert_same(case)


@pytest.mark.parametrize("element", ["e4m3", "e5m2"])
def test_blocks_of_transformer_engine(element: str) -> None:
    for size, name in (("1x128", "block128"), ("128x128", "tile128x128")):
        for suffix, scale in (("", "_sfp32"), ("_pow2", "_up")):
            key = f"te_block/w/{element}/{size}{suffix}/"
            assert_same(Case(key, "w", f"{name}_{element}{scale}_te"), zero=128)
    # Its scale of a tensor is that of a tile which is the tensor.
    case = Case(f"te_block/w/{element}/128x128/", "w[:128,:128]", f"tensor_{element}_te")
    tile, code = (arrays()[case.key + what] for what in ("scale", "code"))
    assert_same(case, tile[:1, :1], code[:128, :128], zero=128)


@pytest.mark.parametrize("input, rows", [("x", "x[10:26]"), ("xwide", "x[:9]")])
def test_nvfp4_of_transformer_engine(input: str, rows: str) -> None:
    case = Case(f"te_nvfp4/{input}/1x16/", rows, "nvfp4_te")
    assert assert_same(case, zero=8).tensor_scale == np.abs(given(rows)).max() / np.float32(2688)
    # It repeats the scale of a tile for each row.
    case = Case("te_nvfp4/w/16x16/", "w[:,:256]", "nvfp4_2d_te")
    assert_same(case, arrays()[case.key + "scale"][::16], zero=8)


MICROXCALING = {
    **{"fp8_e4m3": "e4m3", "fp8_e5m2": "e5m2", "fp6_e2m3": "e2m3", "fp6_e3m2": "e3m2"},
    **{"fp4_e2m1": "e2m1", "int8": "int8f6", "int4": "int4f2"},
}


@pytest.mark.parametrize("element", MICROXCALING)
@pytest.mark.parametrize("input, mode", [("x", "even"), ("xs", "even"), ("x", "nearest")])
def test_microxcaling(element: str, input: str, mode: str) -> None:
    fmt, key = f"block32_{MICROXCALING[element]}", f"mx/{input}/{element}/{mode}/value"
    rounding = "nearest_even" if mode == "even" else "nearest_away"
    got, want = reference.quantize(given(input), Quantizer(fmt, rounding)), arrays()[key]
    # It has no -0, and other NaNs.
    assert_bit_equal(
        np.where(np.isnan(got), 0, got) + 0, np.where(np.isnan(want), 0, want) + 0, key
    )
    assert (np.isnan(got) == np.isnan(want)).all()


@pytest.mark.parametrize("element", ["fp4_e2m1", "fp8_e4m3", "fp6_e2m3", "fp6_e3m2"])
def test_even_scales_of_quark(element: str) -> None:
    want = arrays()[f"quark/even/{element.removesuffix('_e2m1')}/scale"]
    s = reference.scaled(given("x"), Quantizer(f"block32_{MICROXCALING[element]}_even")).scale
    # Where the rounded maximum leaves float32, it takes the largest scale.
    capped = want == np.float32(2.0**127)
    assert capped.sum() == 4
    assert_bit_equal(s[~capped], want[~capped], element)
