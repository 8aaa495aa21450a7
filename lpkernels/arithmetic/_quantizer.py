"""Quantizer: how a whole tensor is rounded."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.arithmetic.text import (
    PlainValues,
    checked_text,
    options_of,
    read_options,
    whole,
    written_options,
)
from lpkernels.formats import Format, FormatLike, as_format, format_from_ints, parse_format
from lpkernels.formats.checks import checked_int, set_fields
from lpkernels.formats.elsewhere import unless_dtype
from lpkernels.formats.integers import BLOCK, KIND, STEPS, InBlock, takes_scales
from lpkernels.rng import RNGS, check_rng
from lpkernels.rounding import MAX_RANDOM_BITS, ROUNDINGS, check_rounding

# The modes of the programs whose steps a BlockFormat may take.
_OF_PROGRAMS = ("nearest_even", "stochastic")


@dataclass(frozen=True, init=False)
class Quantizer(PlainValues):
    """Rounding of whole tensors: a format, a rounding mode, and the random bits of "stochastic".

    Text form: ``<format>[:<rounding>][:bits=<random_bits>][:philox]``, which :meth:`parse` reads.

    Args:
        fmt:         any format, or its name.
        rounding:    one of ``rounding.ROUNDINGS``.
        random_bits: 1..32, None means 32.
        rng:         "fast" or "philox".

    Attributes:
        is_stochastic: whether it draws random bits.
        fuses:         whether a product can apply it itself, to an operand or its result. A pass of
                       their own is needed by stochastic quantizers, since a draw depends on the
                       element's position in its tensor, and by formats with scales.

    Raises:
        TypeError, ValueError: no such format, rounding or rng, random_bits out of range; a
        BlockFormat with other steps than "exact" and a rounding that is neither nearest_even nor
        stochastic.
    """

    fmt: Format
    rounding: str
    random_bits: int | None
    rng: str
    if TYPE_CHECKING:
        is_stochastic: bool
        fuses: bool
        _ints: tuple[int, ...]

    def __init__(
        self,
        fmt: FormatLike,
        rounding: str = "nearest_even",
        *,
        random_bits: int | None = None,
        rng: str = "fast",
    ) -> None:
        if random_bits is not None:
            random_bits = checked_int("Quantizer", "random_bits", random_bits, 1, MAX_RANDOM_BITS)
        fmt = as_format(fmt)
        check_mode("Quantizer", fmt.to_ints(), check_rounding(rounding, "Quantizer"))
        set_fields(
            self,
            fmt=fmt,
            rounding=rounding,
            random_bits=random_bits,
            rng=check_rng(rng, "Quantizer"),
        )
        self._learn()

    def _learn(self) -> None:
        """Computes once what every rounding asks."""
        draws, ints = self.rounding == "stochastic", self._integers()
        fuses = not (draws or takes_scales(ints))
        set_fields(self, is_stochastic=draws, fuses=fuses, _ints=ints)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A pickle may lack the computed attributes: they are computed anew."""
        vars(self).update(state)
        self._learn()

    @staticmethod
    def parse(text: str) -> "Quantizer":
        """The Quantizer of a text form: ``Quantizer.parse(str(q)) == q``.

        Raises:  TypeError: not a str.  ValueError: an unknown name, or text of another form.
        """
        return _parse_quantizer(checked_text("Quantizer.parse", text, "'<format>[:<rounding>]'"))

    def __str__(self) -> str:
        return ":".join([str(self.fmt), *written_options(self, _OPTIONS)])

    def to_ints(self) -> tuple[int, ...]:
        """The format's 8, 16 or 24 integers, then rounding, random_bits (32 for None), rng, 0."""
        return self._ints

    def _integers(self) -> tuple[int, ...]:
        random_bits = MAX_RANDOM_BITS if self.random_bits is None else self.random_bits
        codes = (ROUNDINGS.index(self.rounding), random_bits, RNGS.index(self.rng), 0)
        return self.fmt.to_ints() + codes


def check_mode(owner: str, fmt: tuple[int, ...], rounding: str) -> None:
    """Raises: ValueError: a format with the steps of another program, which rounds otherwise."""
    if fmt[KIND] != BLOCK or fmt[InBlock.STEPS] == 0 or rounding in _OF_PROGRAMS:
        return
    raise ValueError(
        f"{owner}: the rounding of {format_from_ints(fmt)} is {' or '.join(_OF_PROGRAMS)}, as "
        f"{STEPS[fmt[InBlock.STEPS]]} has them, got {rounding!r}; use steps='exact'"
    )


@lru_cache(maxsize=1024)
def quantizer_from_ints(ints: tuple[int, ...]) -> Quantizer:
    """The Quantizer of ``to_ints()``; random_bits comes back as a number.

    Raises:  ValueError: the integers describe no Quantizer.
    """
    if len(ints) not in (12, 20, 28):
        raise ValueError(
            "quantizer_from_ints: expected the 12, 20 or 28 integers of Quantizer.to_ints(), "
            f"got {ints}"
        )
    rounding, random_bits, rng = ints[InQuantizer.RULE]
    fmt = format_from_ints(ints[InQuantizer.FORMAT])
    return Quantizer(fmt, ROUNDINGS[rounding], random_bits=random_bits, rng=RNGS[rng])


def as_quantizer(quantizer: Quantizer | FormatLike) -> Quantizer:
    """A Quantizer itself, or the one of a format or torch.dtype (nearest_even) or of a text form.

    Raises:  TypeError: something else, or a dtype whose values are no format's.
        ValueError: an unknown name in the text.
    """
    quantizer = unless_dtype(quantizer)
    if isinstance(quantizer, Quantizer):
        return quantizer
    if isinstance(quantizer, Format):
        return Quantizer(quantizer)
    if isinstance(quantizer, str):
        return Quantizer.parse(quantizer)
    raise TypeError(
        f"expected a Quantizer, a format or text '<format>[:<rounding>]', got {quantizer!r} "
        f"({type(quantizer).__name__}); for example 'e5m2:stochastic'"
    )


@lru_cache(maxsize=1024)
def _parse_quantizer(text: str) -> Quantizer:
    name, *parts = text.split(":")
    given = read_options(text, parts, _OPTIONS)
    return Quantizer(parse_format(name), **given)


#: What the texts of a Quantizer and of an Accumulator share.
ROUNDING_OPTIONS: dict[str, dict[str, Any]] = {
    "rounding": {"alone": lambda word: word not in RNGS, "shown": "a rounding"},
    "rng": {"alone": RNGS.__contains__, "shown": "'philox'"},
    "random_bits": {"name": "bits", "read": whole},
}
_OPTIONS = options_of(Quantizer, **ROUNDING_OPTIONS)
