"""From a width to the format that has it, by a table or a pattern; the same for accumulators."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lpkernels.arithmetic import Accumulator, as_accumulator
from lpkernels.formats import Format, as_format

#: Widths to formats: a table, a text with {bits} in it such as "fixed{bits}_f4", or a name of
#: TABLES.
Formats = Mapping[int, Format | str] | str
#: Mantissa bits to accumulators: a table, a text with {bits} in it, or a function.
Accumulators = Mapping[int, Accumulator | str] | Callable[[int], Accumulator | str] | str

#: Tables by name. float: of each width a format without codes for infinity, as wide in range as
#: its neighbours; 4, 6 and 8 bits are the types of OCP MX and E4M3.
TABLES: Mapping[str, Mapping[int, str]] = {
    "float": {
        3: "e2m0_sat",
        4: "fp4_e2m1",
        5: "e2m2_sat",
        6: "fp6_e3m2",
        7: "e3m3_sat",
        8: "e4m3fn_sat",
    },
}


def format_table(formats: Formats, widths: Iterable[int]) -> dict[int, Format]:
    """The format of each width, the table's own others included.

    Raises:
        TypeError: neither a table nor a text.
        ValueError: a width that the table lacks, a text without {bits}, an unknown format.
    """
    widths = sorted(set(widths))
    if isinstance(formats, str) and formats not in TABLES:
        pattern = _pattern("formats", formats, f"a name ({', '.join(TABLES)})")
        return {bits: as_format(pattern.format(bits=bits)) for bits in widths}
    table: Any = TABLES[formats] if isinstance(formats, str) else formats
    if not isinstance(table, Mapping):
        raise TypeError(
            f"formats: expected a mapping {{bits: format}} or a text, got {type(table).__name__}"
        )
    _complete("formats", table, widths)
    return {int(bits): as_format(fmt) for bits, fmt in table.items()}


def accumulator_table(accumulators: Accumulators, widths: Iterable[int]) -> dict[int, Accumulator]:
    """The accumulator of each number of mantissa bits; errors as of `format_table`."""
    widths = sorted(set(widths))
    if isinstance(accumulators, str):
        pattern = _pattern("accumulators", accumulators, "a mapping or a function")
        return {bits: as_accumulator(pattern.format(bits=bits)) for bits in widths}
    if isinstance(accumulators, Mapping):
        _complete("accumulators", accumulators, widths)
        return {bits: as_accumulator(accumulators[bits]) for bits in widths}
    if not callable(accumulators):
        raise TypeError(
            "accumulators: expected a text such as 'e8m{bits}', a mapping or a function of the "
            f"bits, got {type(accumulators).__name__}"
        )
    return {bits: as_accumulator(accumulators(bits)) for bits in widths}


def _pattern(label: str, text: str, other: str) -> str:
    if "{bits}" not in text or text.count("{") > 1:
        raise ValueError(
            f"{label}: expected a text with {{bits}} in it once, such as 'e8m{{bits}}', or "
            f"{other}, got {text!r}"
        )
    return text


def _complete(label: str, table: Mapping[int, Any], widths: list[int]) -> None:
    missing = [bits for bits in widths if bits not in table]
    if missing:
        raise ValueError(
            f"{label}: the table lacks {', '.join(map(str, missing))} of the scheduled bits, got "
            f"{', '.join(map(str, sorted(table)))}; add the missing widths"
        )
