"""TableFormat: any finite set of values, with a code for each; and the tables of this process."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpkernels.formats.checks import checked_choice, checked_int, set_fields
from lpkernels.formats.elsewhere import nearest
from lpkernels.formats.integers import TABLE, InTable

_NAME = re.compile("[a-z0-9_]{1,64}")
# How the names of `named_tables` begin; that module is imported when one of them is used.
_NAMED_TABLE = re.compile("posit|supernormal|log|nf4|linear4")

# 2^16 values have 17 bits with a code for NaN behind them.
_MOST_CODE_BITS = 17
_MOST_VALUES = 2**16
# A double of 53 bits that was made odd compares with 52 bits as the exact number does.
_BOUNDARY_BITS = 52
# The only table without 0: an element of blocks, for the second moments of Adam.
_WITHOUT_ZERO = "linear4"
# Kernels take smaller values of float64 for one another.
_LEAST_BOUNDARY = 2.0**-300

_BY_NAME: dict[str, TableFormat] = {}
_BY_HANDLE: dict[int, TableFormat] = {}


class TableTensors(NamedTuple):
    """A table as kernels read it: n values, and n - 1 gaps between neighbours.

    values: float64, ascending, each a float32 number; zero is +0. boundaries: float64 of at most 52
    significant bits, one for each gap, from its lower to its upper value. lower_is_even: bool, for
    each gap, whether its lower value counts as even. codes: int32, one for each value. decoded:
    float64, 2^bits of them, the value of every code: NaN where a code has none.
    """

    values: NDArray[np.float64]
    boundaries: NDArray[np.float64]
    lower_is_even: NDArray[np.bool_]
    codes: NDArray[np.int32]
    decoded: NDArray[np.float64]


class TableFormat:
    """Any finite set of values, each with a code: posits, logarithms, NF4, or your own.

    A value of the table stays. Between two neighbours nearest_even and nearest_away compare with
    the gap's boundary, by default the exact midpoint; the other modes look at values alone
    (docs/contract.md, "Fixed, table, block and affine formats"). A finite value beyond an end takes
    the end in every mode, and counts as an overflow. Zero is always +0, NaN stays NaN.

    A table is known in its process by its name, which `parse_format` reads, and to kernels by its
    handle, a hash of name, values, boundaries and codes. Two tables are equal where these are. A
    pickle carries the values. A code that no value has unpacks to NaN.

    Args:
        values:     2 to 2^16 numbers, rounded to float32 (nearest even), then strictly ascending
                    and finite, one of them 0.
        name:       of the characters a-z, 0-9 and _, at most 64, and not one that `parse_format`
                    reads as another format.
        infinity:   None: an infinite value takes the end, "nan": it becomes NaN.
        boundaries: one number for each pair of neighbours, from the lower to the upper of them, of
                    at most 52 significant bits (midpoints too); a boundary on 0 sends all but 0
                    away from it. A boundary that is not 0 has a magnitude of 2^-300 or more.
        codes:      a whole number for each value, below 2^17; default 0, 1, ... in ascending order.
        nan_code:   the code of NaN, which has none by default and then cannot be packed.

    Raises:
        TypeError: an argument has the wrong type.  ValueError: values that are not as above, the
        message names them; a name that is taken.

    >>> powers = lp.TableFormat([-2, -1, 0, 1, 2], "small_powers")
    >>> lp.quantize(torch.tensor([-7.0, 0.6, 1.2]), powers)
    tensor([-2.,  1.,  1.])
    """

    name: str
    bits: int
    infinity: str | None
    nan_code: int | None
    handle: int
    _tensors: TableTensors
    _ints: tuple[int, ...]

    def __init__(
        self,
        values: Iterable[float],
        name: str,
        *,
        infinity: str | None = None,
        boundaries: Iterable[float] | None = None,
        codes: Iterable[int] | None = None,
        nan_code: int | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"TableFormat: name must be a str, got {name!r}")
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"TableFormat: a name has 1 to 64 of the characters a-z, 0-9 and _, got {name!r}"
            )
        label = f"TableFormat {name!r}"
        if infinity is not None:
            checked_choice(label, "infinity (None: the end)", infinity, ("nan",))
        float32 = _checked_values(label, values)
        numbers = _checked_codes(label, codes, float32)
        if nan_code is not None:
            nan_code = checked_int(label, "nan_code", nan_code, 0, 2**_MOST_CODE_BITS - 1)
            if nan_code in numbers:
                at = float(float32[numbers == nan_code][0])
                raise ValueError(f"{label}: nan_code {nan_code} is the code of the value {at!r}")
        if boundaries is None:
            between = _midpoints(label, float32)
        else:
            between = _checked_boundaries(label, boundaries, float32)
        bits = max(1, int(numbers.max()).bit_length(), (nan_code or 0).bit_length())
        decoded = np.full(2**bits, np.nan)
        decoded[numbers] = float32
        odd = numbers & 1
        lower_is_even = np.where(odd[:-1] == odd[1:], float32[:-1] >= 0, odd[:-1] == 0)
        tensors = TableTensors(float32, between, lower_is_even, numbers, decoded)
        for array in tensors:
            array.setflags(write=False)
        handle = _handle(name, infinity, nan_code, tensors)
        of_nan = -1 if nan_code is None else nan_code
        ints = (TABLE, handle, bits, len(float32), int(infinity == "nan"), of_nan, 0, 0)
        set_fields(
            self, name=name, bits=bits, infinity=infinity, nan_code=nan_code, handle=handle,
            _tensors=tensors, _ints=ints,
        )  # fmt: skip
        self._check()
        _register(self)

    def _check(self) -> None:
        """Raises: ValueError: a table without 0, or one with the name of another format."""
        from lpkernels.formats import check_table_name

        if not self.has_zero and self.name != _WITHOUT_ZERO:
            ends = f"{self.min!r} .. {self.max!r}"
            raise ValueError(f"TableFormat {self.name!r}: none of the values {ends} is 0; add it")
        check_table_name(self)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a TableFormat does not change: cannot set {name!r} of {self.name}")

    def __eq__(self, other: object) -> bool:
        return self.handle == other.handle if isinstance(other, TableFormat) else NotImplemented

    def __hash__(self) -> int:
        return self.handle

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<TableFormat {self.name}: {len(self.values())} values {self.min} .. {self.max}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return table_of_parts, self.parts()

    def parts(self) -> tuple[str, str | None, int | None, bytes, bytes, bytes]:
        """Plain values: `table_of_parts` makes the table from them in another process."""
        return self.name, self.infinity, self.nan_code, *_raw(self._tensors)

    @property
    def max(self) -> float:
        """The largest value."""
        return float(self._tensors.values[-1])

    @property
    def min(self) -> float:
        """The least value: 0 where none is negative."""
        return float(self._tensors.values[0])

    @property
    def has_zero(self) -> bool:
        """Whether 0 is a value: of every table but `named_tables.linear4`, an element of blocks."""
        return 0.0 in self._tensors.values

    @property
    def boundary_bits(self) -> int:
        """The most significant bits that a boundary has."""
        significands = np.abs(np.ldexp(np.frexp(self._tensors.boundaries)[0], 53)).astype(np.int64)
        lowest = significands & -significands
        return max(0, 54 - int(np.frexp(lowest[lowest > 0].astype(float))[1].min(initial=54)))

    def values(self) -> NDArray[np.float64]:
        """Every value once, ascending, as float64."""
        return self._tensors.values.copy()

    def tensors(self) -> TableTensors:
        """Values, boundaries and codes as kernels read them; the arrays cannot be written to."""
        return self._tensors

    def fits_in(self, exp_bits: int, man_bits: int) -> bool:
        """Whether the IEEE format of these widths holds every value of this one, exactly."""
        return _fits(self, exp_bits, man_bits)

    def to_ints(self) -> tuple[int, ...]:
        """Eight integers (`integers.InTable`), which only a process with this table reads."""
        return self._ints

    @staticmethod
    def from_ints(ints: tuple[int, ...]) -> TableFormat:
        """The table of `to_ints`.  Raises ValueError: none was made in this process."""
        return table_of_handle(ints[InTable.HANDLE])


def table_of_parts(
    name: str,
    infinity: str | None,
    nan_code: int | None,
    values: bytes,
    boundaries: bytes,
    codes: bytes,
) -> TableFormat:
    """The table of `TableFormat.parts`, known in this process from now on.

    Args:
        name, infinity, nan_code: as of TableFormat.
        values, boundaries: float64, little endian.
        codes: int32, little endian.

    Raises:  ValueError: another format has its name here.
    """
    table = TableFormat(
        np.frombuffer(values, "<f8"), name, infinity=infinity, nan_code=nan_code,
        boundaries=np.frombuffer(boundaries, "<f8"), codes=np.frombuffer(codes, "<i4"),
    )  # fmt: skip
    return table_of_handle(table.handle)


class NamedTable(TableFormat):
    """A table of `named_tables`, as which `parse_format` reads its name."""

    def _check(self) -> None:
        pass


def _register(table: TableFormat) -> None:
    holder = _BY_NAME.setdefault(table.name, table)
    if holder != table:
        raise ValueError(
            f"TableFormat: {table.name!r} is the name of another table in this process, "
            f"{holder!r}; choose another name"
        )
    _BY_HANDLE[table.handle] = holder


def named_table(name: str) -> TableFormat | None:
    """The table of `named_tables` with this name; None if it has another form."""
    if not _NAMED_TABLE.match(name):
        return None
    from lpkernels.formats import named_tables

    return named_tables.parse(name)


def table_of_name(name: str) -> TableFormat | None:
    """The table that was made with this name, if one was."""
    return _BY_NAME.get(name)


def table_of_handle(handle: int) -> TableFormat:
    """The table with this handle.

    Raises:  ValueError: none was made in this process.
    """
    if handle in _BY_HANDLE:
        return _BY_HANDLE[handle]
    names = nearest(handle, _BY_NAME) or "none"
    raise ValueError(
        f"no table with the handle {handle} was made in this process: make the format first, with "
        "lp.TableFormat or lp.parse_format and its name, before the exported program or the record "
        f"is used (known: {names})"
    )


def known_tables() -> Mapping[int, TableFormat]:
    """All tables that were made in this process, by their handles."""
    return _BY_HANDLE


def _raw(tensors: TableTensors) -> tuple[bytes, bytes, bytes]:
    """Values, boundaries and codes, little endian."""
    values, boundaries, _, codes, _ = tensors
    arrays = values.astype("<f8"), boundaries.astype("<f8"), codes.astype("<i4")
    return arrays[0].tobytes(), arrays[1].tobytes(), arrays[2].tobytes()


def _handle(name: str, infinity: str | None, nan_code: int | None, tensors: TableTensors) -> int:
    """62 bits of a hash, the same on every machine; never 0."""
    text = f"{name} {infinity} {nan_code} ".encode()
    digest = hashlib.sha256(b"".join((text, *_raw(tensors)))).digest()
    return int.from_bytes(digest[:8], "little") >> 2 or 1


@lru_cache(maxsize=64)
def _fits(fmt: TableFormat, exp_bits: int, man_bits: int) -> bool:
    values = fmt.values()
    emin, emax = 2 - 2 ** (exp_bits - 1), 2 ** (exp_bits - 1) - 1
    exponent = np.frexp(values)[1] - 1
    units = np.ldexp(values, man_bits - np.maximum(exponent, emin))
    return bool((units == np.rint(units)).all() and exponent.max() <= emax)


def _numbers(label: str, what: str, numbers: Iterable[Any], dtype: type) -> NDArray[Any]:
    """A dimension of numbers.  Raises TypeError."""
    try:
        array = np.asarray(numbers if hasattr(numbers, "__array__") else list(numbers))
    except (TypeError, ValueError):
        array = np.empty((), object)
    kinds = "iu" if dtype is np.int64 else "iuf"
    if array.ndim != 1 or (array.dtype.kind not in kinds and array.size):
        kind = "whole numbers" if dtype is np.int64 else "numbers"
        raise TypeError(
            f"{label}: {what} must be {kind} in one dimension, got {numbers!r:.80} "
            f"({type(numbers).__name__})"
        )
    return array.astype(dtype)


def _checked_values(label: str, values: Iterable[float]) -> NDArray[np.float64]:
    numbers = _numbers(label, "values", values, np.float64)
    if not 2 <= len(numbers) <= _MOST_VALUES:
        raise ValueError(f"{label}: a table has 2 to {_MOST_VALUES} values, got {len(numbers)}")
    float32 = _float32_values(numbers)
    for wrong in numbers[~np.isfinite(float32)][:1].tolist():
        raise ValueError(
            f"{label}: the value {wrong!r} is not finite as a float32, in which values travel; "
            "leave it away, and see infinity and nan_code"
        )
    for at in np.flatnonzero(np.diff(float32) <= 0)[:1]:
        first, other = numbers[at : at + 2].tolist()
        raise ValueError(
            f"{label}: the values {first!r} and {other!r} are not ascending as float32, in which "
            "values travel; sort them, each once"
        )
    return float32


def _float32_values(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """x rounded to float32 (nearest even), as float64, zero as +0; infinite beyond float32.

    All steps are float64's: a process that flushes denormals gets the same values.
    """
    exponent = np.maximum(np.frexp(np.where(np.isfinite(x), x, 0.0))[1], -125)
    unit = np.ldexp(1.0, exponent - 24)
    with np.errstate(invalid="ignore"):
        rounded = np.rint(x / unit) * unit + 0.0
    return np.where(np.abs(rounded) >= 2.0**128, np.copysign(np.inf, rounded), rounded)


def _checked_codes(
    label: str, codes: Iterable[int] | None, values: NDArray[np.float64]
) -> NDArray[np.int32]:
    if codes is None:
        return np.arange(len(values), dtype=np.int32)
    numbers = _numbers(label, "codes", codes, np.int64)
    if len(numbers) != len(values):
        raise ValueError(
            f"{label}: every value has one code, got {len(numbers)} codes for {len(values)} values"
        )
    ordered = np.sort(numbers)
    repeated = np.append(ordered[1:] == ordered[:-1], False)
    for wrong in ordered[repeated | (ordered < 0) | (ordered >= 2**_MOST_CODE_BITS)][:1].tolist():
        raise ValueError(
            f"{label}: codes are different numbers in 0..{2**_MOST_CODE_BITS - 1}, got {wrong}, or "
            "more than once; use each code once"
        )
    return numbers.astype(np.int32)


def _midpoints(label: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(a + b) / 2 of neighbours a < b, exact."""
    a, b = values[:-1], values[1:]
    total = a + b
    part = total - a
    exact = (a - (total - part)) + (b - part) == 0
    _check_bits(label, total, values, exact)
    return total / 2


def _check_bits(
    label: str, numbers: NDArray[np.float64], values: NDArray[np.float64], exact: Any = True
) -> None:
    """Raises: ValueError: a boundary has more than 52 significant bits."""
    # The last of the 53 bits of a double.
    places = np.flatnonzero(~(exact & (numbers.view(np.int64) & 1 == 0)))
    if len(places):
        low, high = values[places[0] : places[0] + 2].tolist()
        raise ValueError(
            f"{label}: the boundary between the values {low!r} and {high!r} has more than "
            f"{_BOUNDARY_BITS} significant bits; give boundaries with fewer"
        )


def _checked_boundaries(
    label: str, boundaries: Iterable[float], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    floats = _numbers(label, "boundaries", boundaries, np.float64) + 0.0
    if len(floats) != len(values) - 1:
        raise ValueError(
            f"{label}: {len(values)} values have {len(values) - 1} boundaries, got {len(floats)}"
        )
    _check_bits(label, floats, values)
    tiny = (floats != 0) & (np.abs(floats) < _LEAST_BOUNDARY)
    outside = ~((values[:-1] <= floats) & (floats <= values[1:]))
    for at in np.flatnonzero(outside | tiny)[:1]:
        low, high = float(values[at]), float(values[at + 1])
        problem = "is not from one to the other" if outside[at] else "is neither 0 nor above 2^-300"
        raise ValueError(
            f"{label}: the boundary {float(floats[at])!r} between the values {low!r} and {high!r} "
            f"{problem}"
        )
    return floats
