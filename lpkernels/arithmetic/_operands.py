"""The fields of an Accumulator for tensor cores as they are: operands, least_exponent, group, and
interleaved.

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

# 256 products of e2m1 codes are below 256 * 36, and two scales below 4 times the product of their
# binades: the sum of a block is below 2^53 units of 2^-37 of it.
_MAX_GROUPED_BITS = 37
# Exponents of factors and of their scales, added, stay in the range of float64.
_MAX_SCALED_OPERAND = 8

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
        _needs_operands("group", acc.group, None)
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
    if acc.group is not None:
        _check_group(acc, acc.group, acc.block)


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


def _check_group(acc: Accumulator, group: int, block: int) -> None:
    given = f"Accumulator: group={group}"
    if acc.chunk is not None:
        raise ValueError(
            f"{given} brings scales into every block, and chunk={acc.chunk} sums without them; "
            "drop one of them"
        )
    if acc.rounding == "stochastic":
        raise ValueError(f"{given} draws no random bits, got rounding='stochastic'; use another")
    if block % group:
        raise ValueError(f"{given} must divide the block, got block={block}; use block={group}")
    assert acc.operands is not None and acc.aligned_bits is not None
    if any(fmt.bits > _MAX_SCALED_OPERAND for fmt in acc.operands):
        raise ValueError(
            f"{given} is for codes of {_MAX_SCALED_OPERAND} bits or fewer, got operands="
            f"{formats_text(acc.operands)}; use those of a block format, for example 'e4m3fn'"
        )
    narrow = all((fmt.exp_bits, fmt.man_bits, fmt.bias) == (2, 1, 1) for fmt in acc.operands)
    if group > 1 and not (narrow and acc.aligned_bits <= _MAX_GROUPED_BITS):
        raise ValueError(
            f"{given} sums its products exactly, which is for operands='fp4_e2m1', aligned_bits up "
            f"to {_MAX_GROUPED_BITS}, got operands={formats_text(acc.operands)}, aligned_bits="
            f"{acc.aligned_bits}; use group=1, whose products are aligned one by one"
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
    """The integers `ints` of an accumulator, as they are after `Accumulator.exchanged`."""
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
