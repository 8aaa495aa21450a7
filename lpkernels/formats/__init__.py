"""Number formats: plain, frozen descriptions without torch.

FloatFormat, FixedFormat and TableFormat hold a fixed set of values; AffineFormat and BlockFormat
take their scale from the tensor. ``str(fmt)`` is a name that :func:`parse_format` reads back.
Constants are upper case (``FP8_E4M3``), names in text lower case (``"fp8_e4m3"``).
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

from lpkernels.formats._fixed import FixedFormat
from lpkernels.formats._float import FloatFormat
from lpkernels.formats._named import (
    BF16,
    E4M3,
    E4M3FN,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    FP4_E2M1,
    FP6_E2M3,
    FP6_E3M2,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
    NAMED,
    TF32,
    parse_float_name,
)
from lpkernels.formats._scaled import ALIASES, INTEGER_ELEMENT
from lpkernels.formats._scaled import parse as parse_block
from lpkernels.formats._table import (
    TableFormat,
    known_tables,
    named_table,
    table_of_handle,
    table_of_name,
    table_of_parts,
)
from lpkernels.formats._tensor import AffineFormat, BlockFormat
from lpkernels.formats.elsewhere import (
    KINDS,
    Dtype,
    name_here,
    nearest,
    of_another_kind,
    unless_dtype,
)
from lpkernels.formats.integers import AFFINE, BLOCK, FIXED, FLOAT, KIND, TABLE

__all__ = [
    "ALIASES",
    "BF16",
    "E4M3",
    "E4M3FN",
    "E4M3FNUZ",
    "E5M2",
    "E5M2FNUZ",
    "FP4_E2M1",
    "FP6_E2M3",
    "FP6_E3M2",
    "FP8_E4M3",
    "FP8_E5M2",
    "FP16",
    "FP32",
    "NAMED",
    "TF32",
    "AffineFormat",
    "BlockFormat",
    "FixedFormat",
    "FloatFormat",
    "Format",
    "FormatLike",
    "Number",
    "TableFormat",
    "parse_format",
]

#: The formats with a fixed set of values, to which a value is rounded by itself.
Number = FloatFormat | FixedFormat | TableFormat
Format = FloatFormat | FixedFormat | TableFormat | AffineFormat | BlockFormat
#: A format, its name, or a torch.dtype whose values are the format's.
FormatLike: TypeAlias = Format | str | Dtype

_FIXED_NAME = re.compile(r"(u?)fixed(\d+)_f(-?\d+)(_wrap)?")
_AFFINE_NAME = re.compile(r"affine(\d+)(_sym)?(?:_axis(-?\d+))?")
# The longest names are those of tiles with two float formats, about 140 characters.
_LONGEST = 160
# A name of each kind.
_EXAMPLES = (
    "bf16", "fp8_e4m3", "e5m10", "fixed8_f4", "affine8", "block32_fp8_e4m3", "nvfp4", "posit8es1",
)  # fmt: skip


def parse_format(name: str) -> Format:
    """The format of a name: the inverse of ``str(fmt)``, for every format that can be made.

    ``e<E>m<M>[fn|none|fnuz][_b<bias>][_nosub][_inf|_sat|_nan]`` is a FloatFormat (without "fn",
    "none" or "fnuz" always the IEEE one), as are ``p3109_k<k>p<p>{se|sf|ue|uf}`` with the same
    endings ("sf" is the fnuz format) and the aliases of :data:`NAMED`, with these endings too
    ("fp8_e4m3_sat"). The others are
    ``[u]fixed<word>_f<frac>[_wrap]``, ``affine<bits>[_sym][_axis<axis>]`` and the names of
    :class:`BlockFormat`, with the aliases of :data:`ALIASES` such as "mxfp8" and "nvfp4". Tables
    are ``posit<n>es<es>``, ``supernormal_e<E>m<M>_<low>_<high>``, ``log<bits>s<steps>``, ``nf4``,
    as an element of blocks ``linear4``, and the name of every :class:`TableFormat` made in this
    process: another process knows it once the table is made there, or read from a pickle.

    Raises:  TypeError: not a str.  ValueError: no such format; the message lists near names.

    >>> lp.parse_format("fp8_e5m2").max
    57344.0
    >>> lp.parse_format("e4m3fn") == lp.FloatFormat(4, 3, specials="fn")
    True
    >>> print(lp.parse_format("mxfp8"))
    block32_e4m3
    """
    if not isinstance(name, str):
        raise TypeError(
            f"parse_format: the name must be a str such as 'e4m3fn', got {name!r} "
            f"({type(name).__name__})"
        )
    if len(name) > _LONGEST:
        raise ValueError(
            f"parse_format: no name has more than {_LONGEST} characters, got {len(name)}, which "
            f"begin with {name[:20]!r}{of_another_kind(name)}"
        )
    return _parse(name)


@lru_cache(maxsize=1024)
def _parse(name: str) -> Format:
    try:
        fmt = _by_grammar(name) or table_of_name(name)
    except ValueError as error:
        if other := of_another_kind(name):
            raise ValueError(f"parse_format: {name!r} is no format{other}") from error
        raise
    if fmt is not None:
        return fmt
    advice = name_here(name)
    if not advice and (other := of_another_kind(name)):
        raise ValueError(f"parse_format: unknown format {name!r}{other}")
    tables = [table.name for table in known_tables().values()]
    candidates = [*NAMED, *_EXAMPLES, *ALIASES, *tables]
    near = nearest(name, candidates, "`lpkernels formats` lists all")
    advice = advice or f"; expected one of {near}."
    raise ValueError(
        f"parse_format: unknown format {name!r}{advice} docs/formats.md says how others are made; "
        "a table's name is known once its TableFormat is"
    )


def _by_grammar(name: str) -> Format | None:
    """The format of a name that means the same in every process; None if it is no such name."""
    if fmt := parse_float_name(name):
        return fmt
    if match := _FIXED_NAME.fullmatch(name):
        unsigned, word, frac, wrap = match.groups()
        overflow = "wrap" if wrap else "saturate"
        return FixedFormat(int(word), int(frac), signed=not unsigned, overflow=overflow)
    if match := _AFFINE_NAME.fullmatch(name):
        bits, symmetric, axis = match.groups()
        return AffineFormat(
            int(bits), symmetric=bool(symmetric), axis=None if axis is None else int(axis)
        )
    if table := named_table(name):
        return table
    if arguments := parse_block(name):
        return BlockFormat(**arguments)
    return None


def check_table_name(table: TableFormat) -> None:
    """Checks that no other format has the name of `table`.

    Raises:  ValueError: the table's name means another format.
    """
    try:
        other = _by_grammar(table.name)
        meaning = "" if other in (None, table) else f"the name of {other!r}"
    except ValueError as error:
        meaning = f"of the form of other names ({error})"
    if INTEGER_ELEMENT.fullmatch(table.name):
        meaning = "an integer element of block formats"
    if KINDS["accumulator"](table.name):
        meaning = "read otherwise in the texts of accumulators"
    if meaning:
        raise ValueError(f"TableFormat: the name {table.name!r} is {meaning}; choose another name")


def as_format(fmt: FormatLike) -> Format:
    """``fmt`` itself, the format of that name, or the format with a torch.dtype's values.

    torch.float8_e5m2 has infinities; torch.float8_e4m3fn has none: values that are too large become
    NaN, where torch 2.13's own conversion saturates.

    Raises:  TypeError: none of these, or a dtype whose values are no format's.
        ValueError: an unknown name; a table without zero.
    """
    fmt = unless_dtype(fmt)
    if isinstance(fmt, str):
        fmt = parse_format(fmt)
    if isinstance(fmt, TableFormat) and not fmt.has_zero:
        raise ValueError(
            f"{fmt} has no zero, so it is an element of blocks with a float32 scale alone; use "
            f"'block128_{fmt}_sfp32'"
        )
    if isinstance(fmt, Format):
        return fmt
    example = "; for example 'e4m3fn' or FloatFormat(4, 3, specials='fn')"
    raise TypeError(
        f"expected a format, its name or a torch.dtype, got {fmt!s} ({type(fmt).__name__})"
        f"{of_another_kind(fmt) or example}"
    )


_FROM_INTS: dict[int, Callable[[tuple[int, ...]], Format]] = {
    FLOAT: FloatFormat.from_ints,
    FIXED: FixedFormat.from_ints,
    AFFINE: AffineFormat.from_ints,
    BLOCK: BlockFormat.from_ints,
    TABLE: TableFormat.from_ints,
}


@lru_cache(maxsize=1024)
def format_from_ints(ints: tuple[int, ...]) -> Format:
    """The format of the integers `ints` that ``fmt.to_ints()`` gives.

    Raises:  ValueError: the integers describe no format.
    """
    kind = ints[KIND] if ints else None
    if kind not in _FROM_INTS or len(ints) not in ((16, 24) if kind == BLOCK else (8,)):
        raise ValueError(
            f"format_from_ints: expected the 8, 16 or 24 integers of a format's to_ints(), got "
            f"{ints}"
        )
    return _FROM_INTS[kind](ints)
