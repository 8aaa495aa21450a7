"""Scales and codes against the arrays that other libraries made (tests/data/scaled_formats)."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpkernels.arithmetic import Quantizer
from lpkernels.formats import E4M3FN, BlockFormat, FixedFormat, parse_format
from lpkernels.reference import quantize as reference
from lpkernels.reference.blocks import element_of
from lpkernels.reference.packing import encode
from lpkernels.reference.scaled import Scaled
from lpkernels.reference.values import widen
from tests.compare import assert_bit_equal
from tests.loops import each

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


def same(case: Case, what: str, got: NDArray, wanted: NDArray | None = None) -> None:
    want = arrays()[case.key + what] if wanted is None else wanted
    assert_bit_equal(np.ascontiguousarray(got).reshape(want.shape), want, f"{case.key}{what}")


MODES = {"floor": "", "ceil": "_ceil", "even": "_even", "rceil": "_up"}


@each("element", ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"])
@each("input", ["x", "xs"])
def test_mx_of_torchao(element: str, input: str) -> None:
    for mode, rule in MODES.items():
        case = Case(f"ao_mx/{input}/{element}/{mode}/", input, f"block32_{element}{rule}_torchao")
        q, want = of(case), arrays()[f"ao_mx/{input}/{element}/{mode}/scale"]
        # An infinity has a large scale there; here its block is NaN.
        infinite = (np.isinf(given(input)).reshape(len(want), -1, 32)).any(-1).reshape(want.shape)
        assert (powers(q.scale).reshape(want.shape)[infinite] == 255).all()
        same(case, "scale", np.where(infinite, want, powers(q.scale).reshape(want.shape)))
        # The codes of scale 0 are wrong there; a NaN block has codes 0 here, and its own there.
        left_out = np.repeat((want == 0) | (want == 255) | infinite, 32, axis=-1)
        codes = codes_of(q, case.fmt)
        same(case, "code", np.where(left_out, arrays()[case.key + "code"], codes))


@each("tensor_scale", ["one", "two"])
@each("input, rows", [("x", "x[10:]"), ("xwide", "x[:9]")])
def test_nvfp4_of_torchao(tensor_scale: str, input: str, rows: str) -> None:
    t = "_t" * (tensor_scale == "two")
    case = Case(f"ao_nvfp4/{input}/{tensor_scale}/", rows, f"block16_e2m1_se4m3fn{t}_torchao")
    q = of(case)
    same(case, "scale", fp8(q.scale))
    same(case, "code", codes_of(q, case.fmt))
    if t:
        same(case, "tensor", q.tensor_scale)


def fp8_cases() -> Iterator[Case]:
    for element in ("e4m3", "e5m2"):
        for whole, name in (("tensor", "tensor"), ("row", "row"), ("col", "row_axis0")):
            for suffix, rule in (("", ""), ("_pow2", "_se8m0_up")):
                fmt = f"{name}_{element}{rule}_torchao"
                yield Case(f"ao_fp8/x/{element}/{whole}{suffix}/", "x[10:]", fmt)


@each("case", list(fp8_cases()))
def test_fp8_of_torchao(case: Case) -> None:
    q = of(case)
    # It keeps the number that encoding multiplies by.
    same(case, "scale", q.scale, np.float32(1) / arrays()[case.key + "encode"])
    same(case, "code", codes_of(q, case.fmt))


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


@each("case", PLAIN)
def test_blocks_and_integers_of_torchao_and_deepgemm(case: Case) -> None:
    q = of(case)
    same(case, "scale", q.scale)
    same(case, "code", codes_of(q, case.fmt))


def te_cases() -> Iterator[Case]:
    for element in ("e4m3", "e5m2"):
        for size, name in (("1x128", "block128"), ("128x128", "tile128x128")):
            for suffix, scale in (("", "_sfp32"), ("_pow2", "_up")):
                fmt = f"{name}_{element}{scale}_te"
                yield Case(f"te_block/w/{element}/{size}{suffix}/", "w", fmt)


def same_codes_of_transformer_engine(
    case: Case, codes: NDArray[np.uint8], bits: int, want: NDArray[np.uint8] | None = None
) -> None:
    """Its Python references turn -0 into +0."""
    both = (codes, arrays()[case.key + "code"] if want is None else want)
    same(case, "code", *(np.where(part == 1 << bits - 1, np.uint8(0), part) for part in both))


@each("case", list(te_cases()))
def test_blocks_of_transformer_engine(case: Case) -> None:
    q = of(case)
    same(case, "scale", q.scale)
    same_codes_of_transformer_engine(case, codes_of(q, case.fmt), 8)


@each("element", ["e4m3", "e5m2"])
def test_a_tensor_of_one_tile_of_transformer_engine(element: str) -> None:
    """Its scale of a tensor is that of a tile which is the tensor."""
    case = Case(f"te_block/w/{element}/128x128/", "w[:128,:128]", f"tensor_{element}_te")
    q, scale, code = of(case), *(arrays()[case.key + what] for what in ("scale", "code"))
    same(case, "scale", q.scale, scale[:1, :1])
    same_codes_of_transformer_engine(case, codes_of(q, case.fmt), 8, code[:128, :128])


@each("input, rows", [("x", "x[10:26]"), ("xwide", "x[:9]")])
def test_nvfp4_of_transformer_engine(input: str, rows: str) -> None:
    case = Case(f"te_nvfp4/{input}/1x16/", rows, "nvfp4_te")
    q = of(case)
    same(case, "scale", fp8(q.scale))
    same_codes_of_transformer_engine(case, codes_of(q, case.fmt), 4)
    amax = np.abs(given(rows)).max()
    assert_bit_equal(q.tensor_scale, np.asarray(amax / np.float32(2688)), case.key)


def test_nvfp4_in_tiles_of_transformer_engine() -> None:
    case = Case("te_nvfp4/w/16x16/", "w[:,:256]", "nvfp4_2d_te")
    q = of(case)
    # It repeats the scale of a tile for each row.
    same(case, "scale", np.repeat(fp8(q.scale), 16, axis=0))
    same_codes_of_transformer_engine(case, codes_of(q, case.fmt), 4)


MICROXCALING = {
    **{"fp8_e4m3": "e4m3", "fp8_e5m2": "e5m2", "fp6_e2m3": "e2m3", "fp6_e3m2": "e3m2"},
    **{"fp4_e2m1": "e2m1", "int8": "int8f6", "int4": "int4f2"},
}


@each("element", MICROXCALING)
@each("input, mode", [("x", "even"), ("xs", "even"), ("x", "nearest")])
def test_microxcaling(element: str, input: str, mode: str) -> None:
    fmt, key = f"block32_{MICROXCALING[element]}", f"mx/{input}/{element}/{mode}/value"
    rounding = "nearest_even" if mode == "even" else "nearest_away"
    got, want = reference.quantize(given(input), Quantizer(fmt, rounding)), arrays()[key]
    # It has no -0, and other NaNs.
    assert_bit_equal(
        np.where(np.isnan(got), 0, got) + 0, np.where(np.isnan(want), 0, want) + 0, key
    )
    assert (np.isnan(got) == np.isnan(want)).all()


@each("element", ["fp4_e2m1", "fp8_e4m3", "fp6_e2m3", "fp6_e3m2"])
def test_even_scales_of_quark(element: str) -> None:
    want = arrays()[f"quark/even/{element.removesuffix('_e2m1')}/scale"]
    s = reference.scaled(given("x"), Quantizer(f"block32_{MICROXCALING[element]}_even")).scale
    # Where the rounded maximum leaves float32, it takes the largest scale.
    capped = want == np.float32(2.0**127)
    assert capped.sum() == 4
    assert_bit_equal(s[~capped], want[~capped], element)
