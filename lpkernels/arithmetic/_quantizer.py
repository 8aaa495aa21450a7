"""Quantizer: how a whole tensor is rounded."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lpkernels.arithmetic.hadamard import (
    HADAMARD_SIZES,
    TE,
    check_transform,
    transform_from_int,
    transform_to_int,
)
from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.arithmetic.text import (
    PlainValues,
    checked_text,
    options_of,
    read_options,
    whole,
    written_options,
)
from lpkernels.formats import (
    BlockFormat,
    Format,
    FormatLike,
    as_format,
    format_from_ints,
    parse_format,
)
from lpkernels.formats.checks import checked_int, set_fields
from lpkernels.formats.elsewhere import KINDS, of_another_kind, unless_dtype
from lpkernels.formats.integers import BLOCK, KIND, STEPS, InBlock, has_candidates, takes_scales
from lpkernels.rng import RNGS, check_rng
from lpkernels.rounding import MAX_RANDOM_BITS, ROUNDINGS, check_rounding

# The modes of the programs whose steps a BlockFormat may take.
_OF_PROGRAMS = ("nearest_even", "stochastic")


@dataclass(frozen=True, init=False)
class Quantizer(PlainValues):
    """Rounding of whole tensors: a format, a rounding mode, the random bits of "stochastic", and a
    Hadamard transform before them.

    Text form: ``<format>[:<rounding>][:bits=<random_bits>][:philox][:rht<hadamard>[=<signs>]]``,
    which :meth:`parse` reads.

    Args:
        fmt:         any format, or its name.
        rounding:    one of ``rounding.ROUNDINGS``.
        random_bits: 1..32, None means 32.
        rng:         "fast" or "philox".
        hadamard:    None, or the number of values along the summed dimension of a product, 16, 32,
                     64 or 128, which are transformed together before they are rounded
                     (docs/contract.md). It is for the operands of recipes' products alone, because
                     only the product undoes it.
        signs:       "te" (TransformerEngine's fixed 16 signs, for 16 alone), or a seed from 0 to
                     2^32 - 1: bit i of the package's draws is the sign of value i
                     (`arithmetic.hadamard.signs_of`).

    Attributes:
        is_stochastic: whether it draws random bits.
        is_scaled:     whether the format is a BlockFormat, or a transform comes before it.
        fuses:         whether a product can apply it itself, to an operand or its result. A pass of
                       their own is needed by stochastic quantizers, since a draw depends on the
                       element's position in its tensor, by formats with scales and by transforms.

    Raises:
        TypeError, ValueError: no such format, rounding, rng, hadamard or signs, random_bits or a
            seed out of range, "te" for another size than 16, a seed without hadamard; a
            BlockFormat with other steps than "exact" and a rounding that is neither nearest_even
            nor stochastic, or with two candidates a block and another one than nearest_even.

    >>> print(lp.Quantizer("e5m2", "stochastic", random_bits=8))
    e5m2:stochastic:bits=8
    >>> lp.Quantizer.parse("e4m3fn_sat:toward_zero").rounding
    'toward_zero'
    """

    fmt: Format
    rounding: str
    random_bits: int | None
    rng: str
    hadamard: int | None
    signs: str | int
    if TYPE_CHECKING:
        is_stochastic: bool
        # Size and signs of the transform, if there is one.
        transform: tuple[int, str | int] | None
        is_scaled: bool
        fuses: bool
        _ints: tuple[int, ...]

    def __init__(
        self,
        fmt: FormatLike,
        rounding: str = "nearest_even",
        *,
        random_bits: int | None = None,
        rng: str = "fast",
        hadamard: int | None = None,
        signs: str | int = TE,
    ) -> None:
        if hadamard is not None:
            hadamard, signs = check_transform("Quantizer", hadamard, signs)
        elif signs != TE:
            raise ValueError(
                f"Quantizer: signs are those of a transform, got signs={signs!r} and no hadamard; "
                f"give hadamard, one of {HADAMARD_SIZES}, too"
            )
        if random_bits is not None:
            random_bits = checked_int("Quantizer", "random_bits", random_bits, 1, MAX_RANDOM_BITS)
        fmt = as_format(fmt)
        check_mode("Quantizer", fmt.to_ints(), check_rounding(rounding, "Quantizer"))
        draws, scales = rounding == "stochastic", takes_scales(fmt.to_ints())
        codes = (
            ROUNDINGS.index(rounding),
            MAX_RANDOM_BITS if random_bits is None else random_bits,
            RNGS.index(check_rng(rng, "Quantizer")),
            transform_to_int(hadamard, signs),
        )
        set_fields(
            self,
            fmt=fmt,
            rounding=rounding,
            random_bits=random_bits,
            rng=rng,
            hadamard=hadamard,
            signs=signs,
            is_stochastic=draws,
            transform=None if hadamard is None else (hadamard, signs),
            is_scaled=isinstance(fmt, BlockFormat) or hadamard is not None,
            fuses=not (draws or scales or hadamard),
            _ints=fmt.to_ints() + codes,
        )

    @staticmethod
    def parse(text: str) -> "Quantizer":
        """The Quantizer of a text form: ``Quantizer.parse(str(q)) == q``.

        Raises:  TypeError: not a str.  ValueError: an unknown name, or text of another form.
        """
        return _parse_quantizer(checked_text("Quantizer.parse", text, "'<format>[:<rounding>]'"))

    def __str__(self) -> str:
        parts = [str(self.fmt), *written_options(self, _OPTIONS)]
        if self.hadamard is not None:
            parts.append(f"rht{self.hadamard}" + ("" if self.signs == TE else f"={self.signs}"))
        return ":".join(parts)

    def to_ints(self) -> tuple[int, ...]:
        """The format's 8, 16 or 24 integers, then rounding, random_bits (32 for None), rng, and
        `arithmetic.hadamard.transform_to_int` of the transform, 0 for none."""
        return self._ints


def check_mode(owner: str, fmt: tuple[int, ...], rounding: str) -> None:
    """Checks that a format has a rounding mode.

    Args:
        owner: begins the error.
        fmt: the integers of the format.
        rounding: the mode.

    Raises:  ValueError: a format with the steps of another program, which rounds otherwise, or one
        with two candidates a block.
    """
    if has_candidates(fmt) and rounding != "nearest_even":
        raise ValueError(
            f"{owner}: {format_from_ints(fmt)} chooses the nearer of two candidates, so its "
            f"rounding is nearest_even, got {rounding!r}: the choice between two draws is biased "
            "(the mean of 512 draws is off by 0.021 of the norm, 4 times as much as without bias); "
            "use target=4 instead, whose codes never saturate"
        )
    if fmt[KIND] != BLOCK or fmt[InBlock.STEPS] == 0 or rounding in _OF_PROGRAMS:
        return
    raise ValueError(
        f"{owner}: the rounding of {format_from_ints(fmt)} is {' or '.join(_OF_PROGRAMS)}, as "
        f"{STEPS[fmt[InBlock.STEPS]]} has them, got {rounding!r}; use steps='exact'"
    )


@lru_cache(maxsize=1024)
def quantizer_from_ints(ints: tuple[int, ...]) -> Quantizer:
    """The Quantizer of the integers `ints` of its ``to_ints()``; random_bits comes back a number.

    Raises:  ValueError: the integers describe no Quantizer.
    """
    if len(ints) not in (12, 20, 28):
        raise ValueError(
            "quantizer_from_ints: expected the 12, 20 or 28 integers of Quantizer.to_ints(), "
            f"got {ints}"
        )
    rounding, random_bits, rng = ints[InQuantizer.RULE]
    fmt = format_from_ints(ints[InQuantizer.FORMAT])
    hadamard, signs = transform_from_int(ints[InQuantizer.HADAMARD])
    return Quantizer(
        fmt, ROUNDINGS[rounding], random_bits=random_bits, rng=RNGS[rng], hadamard=hadamard,
        signs=signs,
    )  # fmt: skip


def as_quantizer(quantizer: Quantizer | FormatLike) -> Quantizer:
    """`quantizer` itself if it is one, else that of a format or torch.dtype (nearest_even) or text.

    Raises:  TypeError: something else, or a dtype whose values are no format's.
        ValueError: an unknown name in the text, or a Quantizer with a Hadamard transform.
    """
    plain = any_quantizer(quantizer)
    if plain.hadamard is not None:
        raise ValueError(
            f"expected a Quantizer without a Hadamard transform, got {str(plain)!r}; a transform "
            "is for operands in recipes' products only, where the other operand has it too, so "
            "leave hadamard away here"
        )
    return plain


def any_quantizer(quantizer: Quantizer | FormatLike) -> Quantizer:
    """`as_quantizer`, which also takes a Quantizer with a Hadamard transform."""
    quantizer = unless_dtype(quantizer)
    if isinstance(quantizer, Quantizer):
        return quantizer
    if isinstance(quantizer, Format):
        return Quantizer(quantizer)
    if isinstance(quantizer, str):
        return Quantizer.parse(quantizer)
    advice = of_another_kind(quantizer, "quantizer") or "; for example 'e5m2:stochastic'"
    raise TypeError(
        "expected a Quantizer, a format or text '<format>[:<rounding>]', got "
        f"{quantizer!s} ({type(quantizer).__name__}){advice}"
    )


def _quantizer_kind(value: object) -> str:
    """What `KINDS` says of a Quantizer."""
    where = "for input, weight and the other tensors of a Recipe"
    return f"a Quantizer, {where}" if isinstance(value, Quantizer) else ""


KINDS["quantizer"] = _quantizer_kind


@lru_cache(maxsize=1024)
def _parse_quantizer(text: str) -> Quantizer:
    name, *parts = text.split(":")
    transforms = [part for part in parts if part.startswith(_TRANSFORM)]
    fields = read_options(text, [part for part in parts if part not in transforms], _OPTIONS)
    if len(transforms) > 1:
        raise ValueError(f"{text!r} gives its {_TRANSFORM} twice; write it once")
    for part in transforms:
        size, equals, seed = part.removeprefix(_TRANSFORM).partition("=")
        try:
            fields |= {"hadamard": whole(size), **({"signs": whole(seed)} if equals else {})}
        except ValueError as error:
            raise ValueError(
                f"cannot read {part!r} in {text!r}; expected 'rht16', or 'rht<size>=<seed>' with "
                f"a size of {HADAMARD_SIZES}"
            ) from error
    return Quantizer(parse_format(name), **fields)


#: What the texts of a Quantizer and of an Accumulator share.
ROUNDING_OPTIONS: dict[str, dict[str, Any]] = {
    "rounding": {"alone": lambda word: word not in RNGS, "shown": "a rounding"},
    "rng": {"alone": RNGS.__contains__, "shown": "'philox'"},
    "random_bits": {"name": "bits", "read": whole},
}
# One part of a text, "rht32=7", gives hadamard and signs.
_TRANSFORM = "rht"
_OPTIONS = options_of(Quantizer, **ROUNDING_OPTIONS, hadamard=None, signs=None)
