"""The fields of an Accumulator for tensor cores as they are: operands, least_exponent, interleaved.

They align a block by the sum of its operands' exponents, as matrix units do: docs/contract.md,
"Blocks aligned by their operands".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from lpkernels.arithmetic.integers import InAccumulator
from lpkernels.formats import FloatFormat, Format, FormatLike, as_format, format_from_ints
from lpkernels.formats.checks import checked_int

if TYPE_CHECKING:
    from lpkernels.arithmetic._accumulator import Accumulator

Given: TypeAlias = FormatLike | Sequence[FormatLike] | None

# Two operands have exponents of -298 or more and 254 or less together: beyond, nothing changes.
_LARGEST_EXPONENT = 300


def checked_formats(given: Given) -> tuple[FloatFormat, FloatFormat] | None:
    """The pair (left, right) of one format, of two, or of a text "left,right"."""
    if given is None:
        return None
    each = tuple(given.split(",")) if isinstance(given, str) else given
    each = (each,) if isinstance(each, Format) else each
    if not isinstance(each, Sequence):
        raise TypeError(
            f"Accumulator: operands must be a format, its name, or two of them, got {given!r} "
            f"({type(given).__name__})"
        )
    if len(each) not in (1, 2):
        raise ValueError(
            f"Accumulator: operands={given!r}: expected a format, or two: (left, right), for "
            "example operands=('e5m2', 'e4m3fn')"
        )
    left, right = _float_format(each[0]), _float_format(each[-1])
    return left, right


def _float_format(fmt: FormatLike) -> FloatFormat:
    parsed = as_format(fmt)
    if not isinstance(parsed, FloatFormat):
        raise ValueError(
            f"Accumulator: operands={parsed} has no exponents to align by; use a FloatFormat, for "
            "example operands='e4m3fn'"
        )
    return parsed


def checked_least_exponent(value: int | None) -> int | None:
    if value is None:
        return None
    return checked_int(
        "Accumulator", "least_exponent", value, -_LARGEST_EXPONENT, _LARGEST_EXPONENT
    )


def check_combination(acc: Accumulator) -> None:
    """Raises: ValueError: the fields do not go together, or not with the others."""
    if acc.operands is None:
        _needs_operands("least_exponent", acc.least_exponent, None)
        _needs_operands("interleaved", acc.interleaved, 1)
        return
    given = formats_text(acc.operands)
    if acc.block is None:
        raise ValueError(
            f"Accumulator: operands={given} align the products of a block; pass block and "
            "aligned_bits too, for example block=16, aligned_bits=25, or drop operands"
        )
    if acc.product is not None:
        raise ValueError(
            f"Accumulator: operands={given} have exact products, got product="
            f"{acc.product}; drop one of them"
        )
    if not isinstance(acc.fmt, FloatFormat):
        raise ValueError(
            f"Accumulator: operands={given} align the running sum by its exponent, got fmt="
            f"{acc.fmt}; use a FloatFormat"
        )
    if acc.interleaved > 1:
        _check_interleaved(acc, acc.block)


def _needs_operands(name: str, value: int | None, default: int | None) -> None:
    if value != default:
        raise ValueError(
            f"Accumulator: {name}={value} needs operands, the formats of the factors; pass "
            f"operands='fp16', say, or drop {name}"
        )


def _check_interleaved(acc: Accumulator, block: int) -> None:
    if block % 2:
        raise ValueError(
            f"Accumulator: interleaved={acc.interleaved} deals positions out in pairs, got block="
            f"{block}; use an even block"
        )
    run = acc.interleaved * block
    if not isinstance(acc.chunk, int) or acc.chunk % run:
        raise ValueError(
            f"Accumulator: interleaved={acc.interleaved} with block={block} needs chunk, a "
            f"multiple of {run}, got chunk={acc.chunk}; pass chunk={run}, say"
        )


def formats_text(operands: tuple[FloatFormat, FloatFormat]) -> str:
    """Both formats as `checked_formats` reads them."""
    left, right = map(str, operands)
    return left if left == right else f"{left},{right}"


def integers(acc: Accumulator) -> tuple[int, ...]:
    """The integers behind the ones that every accumulator has; none without operands."""
    if acc.operands is None:
        return ()
    left, right = acc.operands
    least = acc.least_exponent
    return (*left.to_ints(), *right.to_ints(), int(least is not None), least or 0, acc.interleaved)


def exchanged(ints: tuple[int, ...]) -> tuple[int, ...]:
    """The integers of an accumulator after `Accumulator.exchanged`."""
    at = InAccumulator
    rest = ints[at.HAS_LEAST_EXPONENT :]
    return (*ints[: at.PLAIN], *ints[at.RIGHT], *ints[at.LEFT], *rest)


def from_integers(ints: tuple[int, ...]) -> dict[str, Any]:
    """The arguments of an Accumulator, read from all of its integers."""
    at = InAccumulator
    if len(ints) == at.PLAIN:
        return {}
    return {
        "operands": (format_from_ints(ints[at.LEFT]), format_from_ints(ints[at.RIGHT])),
        "least_exponent": ints[at.LEAST_EXPONENT] if ints[at.HAS_LEAST_EXPONENT] else None,
        "interleaved": ints[at.INTERLEAVED],
    }
