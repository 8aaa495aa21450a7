"""The grammar of block format names, their aliases, and the steps that other programs define."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import TYPE_CHECKING, Any

import numpy as np

from lpkernels.formats._fixed import FixedFormat
from lpkernels.formats._float import FloatFormat
from lpkernels.formats._named import E4M3FN, FP4_E2M1, FP32, OCP_ELEMENTS, parse_float_name
from lpkernels.formats._table import TableFormat, named_table, table_of_name
from lpkernels.formats.elsewhere import nearest
from lpkernels.formats.integers import CANDIDATES, FIXED, FLOAT, KIND, RULES, STEPS, TABLE, is_mx

if TYPE_CHECKING:
    from lpkernels.formats._tensor import BlockFormat

_MX = {
    "mxfp8": "e4m3",
    "mxfp8_e4m3": "e4m3",
    "mxfp8_e5m2": "e5m2",
    "mxfp6_e3m2": "e3m2",
    "mxfp6_e2m3": "e2m3",
    "mxfp4": "e2m1",
    "mxint8": "int8f6",
}
#: The names by which block formats are known elsewhere, and their names here. "mxfp8" is OCP's
#: format, whose scale is rounded down; training programs round it up: "mxfp8_up".
ALIASES: dict[str, str] = {
    **{
        mx + suffix: f"block32_{element}{suffix}"
        for mx, element in _MX.items()
        for suffix in ("", "_up", "_ceil", "_even")
    },
    **{
        f"nvfp4{which}{steps}": f"{size}_e2m1_se4m3fn_t{steps}"
        for which, size, programs in (
            ("", "block16", ("", "_te", "_torchao")),
            ("_2d", "tile16x16", ("", "_te")),
        )
        for steps in programs
    },
    **{
        f"nvfp4_{which}{steps}": f"{size}_e2m1_se4m3fn_{behind}{steps}"
        for which, size, behind in (
            ("46", "block16", "t256_to4or6mae"),
            ("46_mse", "block16", "t256_to4or6mse"),
            ("46_2d", "tile16x16", "t256_to4or6mae"),
            ("46_2d_mse", "tile16x16", "t256_to4or6mse"),
            ("row", "block16", "trow"),
            ("46_row", "block16", "trow256_to4or6mae"),
            ("46_row_mse", "block16", "trow256_to4or6mse"),
        )
        for steps in ("", "_te")
    },
    "nvfp4_one": "block16_e2m1_se4m3fn",
    "fp8_tensor": "tensor_e4m3",
    "fp8_row": "row_e4m3",
    "fp8_e5m2_tensor": "tensor_e5m2",
    "fp8_1x128": "block128_e4m3_sfp32",
    "fp8_128x128": "tile128x128_e4m3_sfp32",
    "fp8_1x128_pow2": "block128_e4m3_up",
    "fp8_128x128_pow2": "tile128x128_e4m3_up",
    "int8_row": "row_int8",
    "int8_tensor": "tensor_int8",
    "int4_g32": "block32_int4_sfp32",
    "int4_g128": "block128_int4_sfp32",
}

_SIZE = r"block(?P<count>\d+)|tile(?P<rows>\d+)x(?P<columns>\d+)|(?P<whole>row|tensor)"
_AXIS = r"k|axis(?P<axis>-?\d+)"
# How the name of a scale begins behind its "s"; "sat" is the suffix of a float format. The last
# word of this form begins the scale, as the name of an element may have one too.
_SCALE = r"_s(?:e\d|(?:p3109|(?:fp|bf|tf|dlfloat)\d*)(?=_|$))"
_NAME = re.compile(
    rf"(?:{_SIZE})(?:_(?P<along>{_AXIS}))?_(?P<element>.+?)"
    rf"(?:(?!.+{_SCALE})(?={_SCALE})_s(?P<scale>.+?))?"
    rf"(?:_(?P<rule>{'|'.join(RULES)}))?"
    r"(?:_(?P<tensor_scale>t(?:row)?)(?P<scale_target>\d[^_]*)?)?(?:_to(?P<target>\d[^_]*))?"
    rf"(?:_(?P<steps>{'|'.join(STEPS)}))?"
)
# A name whose axis stands behind the element, or behind an alias.
_AXIS_BEHIND = re.compile(rf"(?P<name>.+)_(?P<along>{_AXIS})")
INTEGER_ELEMENT = re.compile(r"int(\d+)(?:f(-?\d+))?")


Element = FloatFormat | FixedFormat | TableFormat
_ELEMENTS: dict[int, type[Element]] = {FLOAT: FloatFormat, FIXED: FixedFormat, TABLE: TableFormat}


def element_from_ints(ints: tuple[int, ...]) -> Element:
    """The element with these eight integers.  Raises ValueError: there is none."""
    if ints[KIND] not in _ELEMENTS:
        raise ValueError(f"format_from_ints: no element of blocks has these integers: {ints}")
    return _ELEMENTS[ints[KIND]].from_ints(ints)


def largest(element: Element) -> float:
    """The largest magnitude of an element's values."""
    return max(element.max, -element.min) if isinstance(element, TableFormat) else element.max


def name(fmt: BlockFormat) -> str:
    """The text of a block format; `parse` reads it."""
    size = fmt.block_size
    if isinstance(size, tuple):
        words = [f"tile{size[0]}x{size[1]}"]
    else:
        words = [size if isinstance(size, str) else f"block{size}"]
    if fmt.axis != -1:
        words.append("k" if fmt.axis == "k" else f"axis{fmt.axis}")
    words.append(_element_name(fmt.element))
    if fmt.scale != ("fp32" if isinstance(size, str) else "e8m0"):
        words.append(f"s{scale_name(fmt.scale)}")
    if fmt.rule != ("floor" if fmt.scale == "e8m0" else "nearest"):
        words.append(fmt.rule)
    if fmt.tensor_scale:
        row = "row" if fmt.tensor_scale == "row" else ""
        words.append(f"t{row}{_number(fmt.scale_target).removesuffix('.0')}")
    if fmt.target is not None:
        words.append(f"to{fmt.target if isinstance(fmt.target, str) else _number(fmt.target)}")
    if fmt.steps != "exact":
        words.append(fmt.steps)
    return "_".join(words)


def _number(x: float | None) -> str:
    """The shortest decimal of a float32; "" of None."""
    return "" if x is None else str(np.float32(x))


def parse(text: str) -> dict[str, Any] | None:
    """The arguments of the block format of that name, an alias or not; None: of another grammar.

    Raises:  ValueError: the axis stands behind the element, or a target is no number.
    """
    if behind := _AXIS_BEHIND.fullmatch(text):
        size, _, tail = ALIASES.get(behind["name"], behind["name"]).partition("_")
        if tail and re.fullmatch(_SIZE, size):
            raise ValueError(
                f"parse_format: the axis stands behind the size: {text!r} is "
                f"'{size}_{behind['along']}_{tail}'"
            )
    words = _NAME.fullmatch(ALIASES.get(text, text))
    if words is None:
        return None
    tile = words["rows"] and (int(words["rows"]), int(words["columns"]))
    arguments: dict[str, Any] = {
        "block_size": words["whole"] or tile or int(words["count"]),
        "axis": int(words["axis"]) if words["axis"] else words["along"],
        "tensor_scale": {"t": True, "trow": "row"}.get(words["tensor_scale"]),
        **{field: words[field] for field in ("element", "scale", "rule", "steps")},
        "scale_target": words["scale_target"] and _read(words["scale_target"], "t", text),
        "target": words["target"],
    }
    if words["target"] and words["target"] not in CANDIDATES:
        arguments["target"] = _read(words["target"], "to", text)
    return {field: value for field, value in arguments.items() if value is not None}


def _read(number: str, before: str, text: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise ValueError(
            f"parse_format: cannot read the target '{before}{number}' in {text!r}; write a number, "
            "as in 'to7.5' or 't256', or 'to4or6mae' or 'to4or6mse'"
        ) from None


def parse_element(name: str) -> Element:
    """The element of a name.  Raises ValueError: there is none."""
    fmt: Element | None = OCP_ELEMENTS.get(name) or parse_float_name(name)
    fmt = fmt or named_table(name) or table_of_name(name)
    if fmt is None and (integer := INTEGER_ELEMENT.fullmatch(name)):
        fmt = FixedFormat(int(integer[1]), int(integer[2] or 0))
    if fmt is None:
        names = [*OCP_ELEMENTS, "int8", "int4"]
        raise ValueError(
            f"BlockFormat: unknown element {name!r}; expected the name of a float format or a "
            f"table, or one of {nearest(name, names, 'docs/formats.md lists all')}"
        )
    return fmt


def _element_name(element: Element) -> str:
    if isinstance(element, FixedFormat):
        return f"int{element.word_bits}" + (f"f{element.frac_bits}" if element.frac_bits else "")
    for short, fmt in OCP_ELEMENTS.items():
        if element == fmt:
            return short
    return _ieee_name(element.name, OCP_ELEMENTS)


def _ieee_name(name: str, elements: Container[str]) -> str:
    """The name of a float format beside other formats that are called so here: the bare name of an
    IEEE format would read back as the other."""
    return f"{name}ieee" if name in elements else name


def parse_scale(scale: object) -> str | FloatFormat:
    """A scale as a BlockFormat keeps it.

    Raises:  TypeError: no format.  ValueError: an unknown name.
    """
    advice = "use 'e8m0', 'fp32' or a FloatFormat such as 'e4m3fn'"
    if isinstance(scale, str):
        if scale in ("e8m0", "fp32"):
            return scale
        fmt = OCP_ELEMENTS.get(scale) or parse_float_name(scale)
        if fmt is None:
            raise ValueError(f"BlockFormat: unknown scale {scale!r}; {advice}")
        scale = fmt
    if not isinstance(scale, FloatFormat):
        raise TypeError(
            f"BlockFormat: a scale is no {type(scale).__name__}, got {scale!r}; {advice}"
        )
    return "fp32" if scale == FP32 else scale


def scale_name(scale: str | FloatFormat) -> str:
    """The name of a scale in a format's; `parse_scale` reads it."""
    if isinstance(scale, str):
        return scale
    return _ieee_name(scale.name, ("e8m0", *OCP_ELEMENTS))


# A quotient of float32 numbers, rounded to float64, lies on the same side of such a boundary.
_MOST_BOUNDARY_BITS = 28


def check_table(fmt: BlockFormat, table: TableFormat) -> None:
    """Raises: ValueError: a block format that its table cannot be the element of."""
    if fmt.scale != "fp32":
        raise ValueError(
            f"BlockFormat: the table {table.name} takes scale='fp32', got {scale_name(fmt.scale)}"
        )
    if table.boundary_bits > _MOST_BOUNDARY_BITS:
        raise ValueError(
            f"BlockFormat: boundaries of a table have at most {_MOST_BOUNDARY_BITS} significant "
            f"bits in blocks, those of {table.name} have {table.boundary_bits}; give it boundaries "
            "with fewer"
        )
    try:
        read = parse(name(fmt)) or {}
    except ValueError:
        read = {}
    if read.get("element") != table.name:
        raise ValueError(
            f"BlockFormat: the name {table.name!r} of a table ends as the names of block formats "
            f"do, so that {name(fmt)!r} is read as another format; choose another name"
        )


#: The formats whose scales and codes other programs define, by the programs' names.
_DEFINED = {
    "te": "TransformerEngine has nvfp4 (blocks of 16, or tiles of 16 x 16 without rows, with "
    "tensor_scale; with two candidates and scale_target=256 too) and e4m3 or e5m2 with "
    "scale='fp32', or with 'e8m0' and rule='up'",
    "torchao": "torchao has nvfp4 (blocks of 16), e4m3 or e5m2 with scale='fp32', or with 'e8m0' "
    "and rule='up', OCP's elements in blocks of 32 with 'e8m0', and int<b> with 'fp32'",
    "deepgemm": "DeepGEMM has e4m3, and e2m1 in blocks of 32, each with scale='fp32', or with "
    "'e8m0' and rule='up'",
}


def steps_problem(fmt: BlockFormat) -> str | None:
    """Why the program that defines the format's steps has no such format."""
    if fmt.steps == "exact":
        return None
    half = isinstance(fmt.element, FixedFormat) and fmt.element.max + fmt.element.quantum / 2
    if fmt.steps != "te" and (fmt.has_candidates or fmt.tensor_scale == "row" or fmt.scale_target):
        return (
            f"{name(fmt)} is not defined here: torchao's codes of two candidates are those of "
            "steps='te', and DeepGEMM has neither candidates nor a scale a row; use steps='te'"
        )
    numbers = fmt.target is not None and not fmt.has_candidates
    if numbers and not (fmt.steps == "torchao" and fmt.target == half):
        return (
            f"steps={fmt.steps!r} has no target but the one of torchao's integers, half a step "
            f"beyond the largest; got {fmt.target}; use steps='exact'"
        )
    if _is_defined(fmt):
        return None
    return f"steps={fmt.steps!r} is not defined here: {_DEFINED[fmt.steps]}"


def _is_defined(fmt: BlockFormat) -> bool:
    element, size = fmt.element, fmt.block_size
    # A float32 scale, or its power of two, is a quotient: not OCP's blocks.
    quotient = isinstance(fmt.scale, str) and (
        fmt.rule == ("nearest" if fmt.scale == "fp32" else "up")
    )
    fp8 = quotient and element in (OCP_ELEMENTS["e4m3"], OCP_ELEMENTS["e5m2"])
    nvfp4 = element == FP4_E2M1 and fmt.scale == E4M3FN and fmt.rule == "nearest"
    if fmt.steps == "deepgemm":
        return quotient and (element == E4M3FN or (element == FP4_E2M1 and size == 32))
    if fmt.steps == "te":
        bounds = (None, 256.0) if fmt.has_candidates else (None,)
        nvfp4 = nvfp4 and bool(fmt.tensor_scale) and fmt.scale_target in bounds
        return fp8 or (nvfp4 and size in (16, (16, 16)))
    if isinstance(element, FixedFormat):
        return fmt.scale == "fp32" and fmt.rule == "nearest" and element.frac_bits == 0
    if is_mx(fmt.to_ints()):
        return element in OCP_ELEMENTS.values()
    return fp8 or (nvfp4 and size == 16)
