"""The formats around a parameter, from settings as a user gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeAlias

from lpkernels.arithmetic import Quantizer, as_quantizer
from lpkernels.formats import FP32, AffineFormat, BlockFormat, FixedFormat, FloatFormat, Format

FormatLike: TypeAlias = Format | Quantizer | str
StateLike: TypeAlias = FormatLike | Mapping[str, FormatLike]

FLOAT32 = Quantizer(FP32)
FLOAT32_NAME = "fp32"


@dataclass(frozen=True)
class Formats:
    """The formats around a parameter; `MasterWeights` says what each means.

    states: formats of the optimizer's states, by name; states of other names have `state`.
    names: what the user calls formats; other formats have their own names.
    """

    weight: Quantizer
    master: Quantizer = FLOAT32
    state: Quantizer = FLOAT32
    states: Mapping[str, Quantizer] = field(default_factory=dict)
    grad: Quantizer | None = None
    compensation: Quantizer | None = None
    split: bool = False
    names: Mapping[Format, str] = field(default_factory=dict, compare=False)

    @staticmethod
    def of(values: Mapping[str, Any], base: Formats | None = None, where: str = "") -> Formats:
        """`base` with settings as the user gives them.

        Raises: TypeError, ValueError: there is no such setting or format, or formats do not go
            together.
        """
        known = [each.name for each in fields(Formats) if each.name not in ("states", "names")]
        strange = sorted(set(values) - set(known))
        if strange:
            raise ValueError(
                f"MasterWeights: {where or 'expected'} {', '.join(known)}, got {', '.join(strange)}"
            )
        given: dict[str, Any] = {}
        names = {} if base is None else dict(base.names)

        def read(label: str, value: Any) -> Quantizer:
            quantizer = _quantizer(label, value)
            if isinstance(value, str):
                names.setdefault(quantizer.fmt, value.partition(":")[0])
            return quantizer

        for name, value in values.items():
            label = f"MasterWeights: {where + ' ' if where else ''}{name}"
            if name == "split":
                given[name] = _flag(label, value)
            elif name == "state" and isinstance(value, Mapping):
                states = {str(k): read(f"{label} {k}", v) for k, v in value.items()}
                given |= {"state": FLOAT32, "states": states}
            elif name in ("grad", "compensation") and value is None:
                given[name] = None
            else:
                given[name] = read(label, value)
                if name == "state":
                    given["states"] = {}
        given["names"] = names
        formats = Formats(**given) if base is None else replace(base, **given)
        formats._check(where)
        return formats

    def _check(self, where: str) -> None:
        kept = {"master": self.master, "state": self.state, **self.states}
        if self.compensation is not None:
            kept["compensation"] = self.compensation
        at = f"MasterWeights: {where + ' ' if where else ''}"
        for name, quantizer in kept.items():
            if isinstance(quantizer.fmt, AffineFormat):
                raise ValueError(
                    f"{at}{name}: {quantizer.fmt} cannot be kept as codes, whose range is in the "
                    "tensor; use a FixedFormat or a BlockFormat"
                )
        if self.split:
            self._check_split(at)

    def _check_split(self, at: str) -> None:
        if self.master != FLOAT32 or self.compensation is not None:
            raise ValueError(
                f"{at}split: the master is the working copy and the bits that are missing to fp32; "
                f"expected master='fp32' and no compensation, got master={str(self.master)!r}, "
                f"compensation={str(self.compensation)!r}"
            )
        if remainder_format(self.weight) is None:
            raise ValueError(
                f"{at}split: fp32 is the working copy and a few bits only if that is fp32 without "
                "its last bits: weight must be an e8m<1..22> such as bf16, of overflow infinity "
                f"and with subnormals; got {self.weight}"
            )

    def name_of(self, fmt: Format) -> str:
        """The name by which the user gave the format first, else its own."""
        return {FP32: FLOAT32_NAME, **self.names}.get(fmt, str(fmt))

    def of_state(self, name: str) -> Quantizer:
        """The format of the optimizer's state of this name."""
        return self.states.get(name, FLOAT32 if self.states else self.state)

    @cached_property
    def working_is_master(self) -> bool:
        """Whether the working copy holds every bit of the master: both have one format, whose
        values never move when they are rounded to it again."""
        same = self.weight.fmt == self.master.fmt and not self.split
        return same and isinstance(self.weight.fmt, FloatFormat | FixedFormat)

    @cached_property
    def draws(self) -> bool:
        """Whether anything is rounded stochastically."""
        return any(quantizer.is_stochastic for quantizer in self._quantizers())

    def _quantizers(self) -> Iterator[Quantizer]:
        yield from (self.weight, self.master, self.state, *self.states.values())
        yield from (q for q in (self.grad, self.compensation) if q is not None)

    @property
    def take_anything(self) -> bool:
        """Whether every value that is kept has a code, infinities and NaN too."""
        kept = [self.master, self.state, *self.states.values()]
        kept += [] if self.compensation is None else [self.compensation]
        return all(has_every_code(quantizer.fmt) for quantizer in kept)

    def texts(self) -> dict[str, Any]:
        """Plain values, as state_dict holds them."""
        return {
            "weight": str(self.weight),
            "master": str(self.master),
            "state": str(self.state),
            "states": {name: str(quantizer) for name, quantizer in self.states.items()},
            "grad": None if self.grad is None else str(self.grad),
            "compensation": None if self.compensation is None else str(self.compensation),
            "split": self.split,
        }


def remainder_format(weight: Quantizer) -> FixedFormat | None:
    """The format of the differences between the codes of a float32 value and of the same value
    rounded to `weight`; None where these integers take more than the few bits that `weight` lacks.

    Where r bits are dropped, rounding toward zero leaves 0 .. 2^r - 1 and nearest_away leaves
    -2^(r-1) .. 2^(r-1) - 1: r bits. One bit more is needed by nearest_even, which takes ties from
    both sides, and by all other modes, which take values from twice as far.
    """
    fmt = weight.fmt
    if not isinstance(fmt, FloatFormat) or not 0 < fmt.man_bits < 23:
        return None
    if fmt != FloatFormat(8, fmt.man_bits):
        return None
    dropped = 23 - fmt.man_bits
    if weight.rounding == "toward_zero":
        return FixedFormat(dropped, 0, signed=False)
    return FixedFormat(dropped if weight.rounding == "nearest_away" else dropped + 1, 0)


def has_every_code(fmt: Format) -> bool:
    """Whether every value that rounding makes has a code, infinities and NaN too."""
    if isinstance(fmt, FloatFormat):
        return fmt.specials == "fn" or (fmt.specials == "ieee" and fmt.man_bits > 0)
    return isinstance(fmt, BlockFormat)


def _quantizer(label: str, value: Any) -> Quantizer:
    try:
        return as_quantizer(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{label}: {error}") from error


def _flag(label: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{label} must be True or False, got {value!r}")
    return value
