"""TableFormat: any finite set of values, with a code for each; and the tables of this process."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpkernels.formats.checks import checked_choice, checked_int, set_fields
from lpkernels.formats.elsewhere import nearest
from lpkernels.formats.integers import TABLE

_NAME = re.compile("[a-z0-9_]{1,64}")
# How the names of `named_tables` begin; that module is imported when one of them is used.
_NAMED_TABLE = re.compile("posit|supernormal|log|nf4|linear4")

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
    the gap's boundary, by default the exact midpoint: on it the first takes the even code, the
    second the value farther from zero. Directed modes and to_odd (the odd code) look at values
    alone. Where the codes of two neighbours are both even or both odd, the value nearer zero counts
    as even. Stochastic rounding takes f = fl(fl(|x| - |a|) / fl(|b| - |a|)) in float64, a the
    neighbour nearer zero, as the fraction of the contract's rule. A finite value beyond an end
    takes the end in every mode, and counts as an overflow. Zero is always +0, NaN stays NaN.

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
        boundaries: Iterable[float | Fraction] | None = None,
        codes: Iterable[int] | None = None,
        nan_code: int | None = None,
    ) -> None:
        self._make(values, _checked_name(name), infinity, boundaries, codes, nan_code)
        if not self.has_zero:
            ends = f"{self.min!r} .. {self.max!r}"
            raise ValueError(f"TableFormat {name!r}: none of the values {ends} is 0; add it")
        _check_and_register(self)

    def _make(
        self,
        values: Iterable[float],
        name: str,
        infinity: str | None,
        boundaries: Iterable[float | Fraction] | None,
        codes: Iterable[int] | None,
        nan_code: int | None,
    ) -> None:
        from lpkernels.formats import _table_checks as checks

        label = f"TableFormat {name!r}"
        if infinity is not None:
            checked_choice(label, "infinity (None: the end)", infinity, ("nan",))
        kept = checks.checked_values(label, values)
        numbers = checks.checked_codes(label, codes, kept)
        if nan_code is not None:
            nan_code = checked_int(label, "nan_code", nan_code, 0, 2**checks.MOST_CODE_BITS - 1)
            if nan_code in numbers:
                at = float(kept[numbers == nan_code][0])
                raise ValueError(f"{label}: nan_code {nan_code} is the code of the value {at!r}")
        if boundaries is None:
            between = checks.midpoints(label, kept)
        else:
            between = checks.checked_boundaries(label, boundaries, kept)
        bits = max(1, int(numbers.max()).bit_length(), (nan_code or 0).bit_length())
        decoded = np.full(2**bits, np.nan)
        decoded[numbers] = kept
        odd = numbers & 1
        lower_is_even = np.where(odd[:-1] == odd[1:], kept[:-1] >= 0, odd[:-1] == 0)
        tensors = TableTensors(kept, between, lower_is_even, numbers, decoded)
        for each in tensors:
            each.setflags(write=False)
        handle = _handle(name, infinity, nan_code, tensors)
        of_nan = -1 if nan_code is None else nan_code
        ints = (TABLE, handle, bits, len(kept), int(infinity == "nan"), of_nan, 0, 0)
        set_fields(
            self, name=name, bits=bits, infinity=infinity, nan_code=nan_code, handle=handle,
            _tensors=tensors, _ints=ints,
        )  # fmt: skip

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

    def __copy__(self) -> TableFormat:
        return self

    def __deepcopy__(self, memo: object) -> TableFormat:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return table_of_parts, self.parts()

    def parts(self) -> tuple[str, str | None, int | None, bytes, bytes, bytes]:
        """Plain values: `table_of_parts` makes the table from them in another process."""
        values, boundaries, _, codes, _ = self._tensors
        raw = (values.astype("<f8"), boundaries.astype("<f8"), codes.astype("<i4"))
        one, two, three = (part.tobytes() for part in raw)
        return self.name, self.infinity, self.nan_code, one, two, three

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
        """Eight integers: TABLE, the handle, bits, how many values there are, 1 where an infinity
        becomes NaN, nan_code or -1, 0, 0. Only a process that has made the table reads them."""
        return self._ints


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
    parts = (np.frombuffer(values, "<f8"), np.frombuffer(boundaries, "<f8"))
    made = object.__new__(TableFormat)
    made._make(
        parts[0], _checked_name(name), infinity, parts[1], np.frombuffer(codes, "<i4"), nan_code
    )
    return _check_and_register(made)


def unchecked(
    values: Iterable[float],
    boundaries: Iterable[float | Fraction] | None,
    codes: Iterable[int] | None,
    name: str,
    infinity: str | None = None,
    nan_code: int | None = None,
) -> TableFormat:
    """The table of a name that `parse_format` may read as this very table; it may lack a zero.

    Raises:  as TableFormat does.
    """
    made = object.__new__(TableFormat)
    made._make(values, _checked_name(name), infinity, boundaries, codes, nan_code)
    return _register(made)


def _check_and_register(made: TableFormat) -> TableFormat:
    from lpkernels.formats import check_table_name

    check_table_name(made)
    return _register(made)


def _register(made: TableFormat) -> TableFormat:
    known = _BY_NAME.setdefault(made.name, made)
    if known != made:
        raise ValueError(
            f"TableFormat: {made.name!r} is the name of another table in this process, {known!r}; "
            "choose another name"
        )
    _BY_HANDLE[made.handle] = known
    return known


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
    known = nearest(handle, _BY_NAME) or "none"
    raise ValueError(
        f"no table with the handle {handle} was made in this process: make the format first, with "
        "lp.TableFormat or lp.parse_format and its name, before the exported program or the record "
        f"is used (known: {known})"
    )


def known_tables() -> Mapping[int, TableFormat]:
    """All tables that were made in this process, by their handles."""
    return _BY_HANDLE


def table_names() -> list[str]:
    """The names of all tables that were made in this process."""
    return list(_BY_NAME)


def _handle(name: str, infinity: str | None, nan_code: int | None, tensors: TableTensors) -> int:
    """62 bits of a hash, the same on every machine; never 0."""
    digest = hashlib.sha256(f"{name} {infinity} {nan_code} ".encode())
    digest.update(tensors.values.astype("<f8").tobytes())
    digest.update(tensors.boundaries.astype("<f8").tobytes())
    digest.update(tensors.codes.astype("<i4").tobytes())
    return int.from_bytes(digest.digest()[:8], "little") >> 2 or 1


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"TableFormat: name must be a str, got {name!r} ({type(name).__name__})")
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"TableFormat: a name has 1 to 64 of the characters a-z, 0-9 and _, got {name!r}"
        )
    return name


@lru_cache(maxsize=64)
def _fits(fmt: TableFormat, exp_bits: int, man_bits: int) -> bool:
    values = fmt.values()
    emin, emax = 2 - 2 ** (exp_bits - 1), 2 ** (exp_bits - 1) - 1
    exponent = np.frexp(values)[1] - 1
    units = np.ldexp(values, man_bits - np.maximum(exponent, emin))
    return bool((units == np.rint(units)).all() and exponent.max() <= emax)
