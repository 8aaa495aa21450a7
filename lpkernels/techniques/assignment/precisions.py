"""The formats of "high" and "low" precision, and the tensors that no rule may move between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import NamedTuple

from lpkernels.arithmetic import Quantizer, as_quantizer
from lpkernels.formats import Format
from lpkernels.formats.checks import set_fields
from lpkernels.techniques.assignment.operations import Group, Kind, TensorSpec, regroup

Rounding = Quantizer | Format | str
Globs = str | Iterable[str]

# An error names this many keys.
_NAMED = 3
# The paper's formats of weights and activations.
_VALUES = ("fp_6_9_0:nearest_away", "fp_4_3_4:nearest_away")


class Pair(NamedTuple):
    """How a tensor is rounded in high and in low precision."""

    high: Quantizer
    low: Quantizer


@dataclass(frozen=True, init=False)
class Formats:
    """High and low precision of each kind of tensor.

    Without arguments these are the paper's formats: 16 bits (6 of exponent, 9 of mantissa) or 8
    (weights and activations have 4 and 3, gradients of activations 5 and 2), rounded to nearest,
    ties away from zero. Weights and activations saturate; gradients overflow to infinity, which a
    loss scaler sees. Gradients of weights keep 16 bits in low precision too.

    Source: Lee, Sharma, Aiken 2023 (arXiv 2301.13464), formats as in their released code; those of
        8 bits are of Sun et al. 2019 (HFP8).

    Args:
        weight, activation, grad_activation, grad_weight: (high, low), each a Quantizer, a format
            or text such as "fp8_e5m2:stochastic"; one alone is both. Rounding is to nearest even
            where none is said.
    Raises:
        TypeError, ValueError: no format, one whose bits depend on the shape (BlockFormat), or a
            low one of more bits than the high one.
    """

    weight: Pair
    activation: Pair
    grad_activation: Pair
    grad_weight: Pair

    def __init__(
        self,
        *,
        weight: Rounding | Iterable[Rounding] = _VALUES,
        activation: Rounding | Iterable[Rounding] = _VALUES,
        grad_activation: Rounding | Iterable[Rounding] = (
            "fp_6_9_0_backward:nearest_away",
            "fp_5_2_0_backward:nearest_away",
        ),
        grad_weight: Rounding | Iterable[Rounding] = "fp_6_9_0_backward:nearest_away",
    ) -> None:
        set_fields(
            self,
            weight=_pair("weight", weight),
            activation=_pair("activation", activation),
            grad_activation=_pair("grad_activation", grad_activation),
            grad_weight=_pair("grad_weight", grad_weight),
        )

    @classmethod
    def same(cls, high: Rounding, low: Rounding | None = None) -> Formats:
        """The same two formats for all kinds; without `low`, high precision alone, as
        Formats.same("fp32")."""
        pair = (high, high if low is None else low)
        return cls(weight=pair, activation=pair, grad_activation=pair, grad_weight=pair)

    def of(self, kind: Kind, low: bool) -> Quantizer:
        """How a tensor of that kind is rounded."""
        pair: Pair = getattr(self, kind)
        return pair.low if low else pair.high

    def bits(self, tensor: TensorSpec, low: bool) -> int:
        """Bits of the whole tensor."""
        return tensor.numel * _bits(self.of(tensor.kind, low))


def _bits(quantizer: Quantizer) -> int:
    return int(quantizer.fmt.bits)


def _pair(kind: str, given: Rounding | Iterable[Rounding]) -> Pair:
    both = [given, given] if isinstance(given, Rounding) else list(given)
    if len(both) != 2:
        raise ValueError(f"Formats: {kind} must be (high, low), got {len(both)} of them")
    try:
        pair = Pair(*(as_quantizer(each) for each in both))
    except (TypeError, ValueError) as error:
        raise type(error)(f"Formats: {kind}: {error}") from error
    for quantizer in pair:
        if not isinstance(quantizer.fmt.bits, int):
            raise ValueError(
                f"Formats: {kind}: the bits of {quantizer} depend on the tensor's shape; take a "
                "format whose codes have one width"
            )
    if _bits(pair.low) > _bits(pair.high):
        raise ValueError(
            f"Formats: {kind}: low precision {pair.low} has {_bits(pair.low)} bits, more than the "
            f"{_bits(pair.high)} of {pair.high}; give (high, low)"
        )
    return pair


#: The paper's formats.
PAPER = Formats()


@dataclass(frozen=True, init=False)
class Pins:
    """Tensors held in a precision or tied together, by globs of their keys ("conv1.*", "*.GY").

    Args:
        high: stay in high precision.
        low: are in low precision from the start, whatever the budget, and never promoted.
        tied: each glob ties all tensors that it matches: they join the group of the first of them,
            so that they are demoted together, and where one is promoted all are.
    Raises: TypeError: no text.
    """

    high: tuple[str, ...]
    low: tuple[str, ...]
    tied: tuple[str, ...]

    def __init__(self, *, high: Globs = (), low: Globs = (), tied: Globs = ()) -> None:
        set_fields(
            self, high=_globs("high", high), low=_globs("low", low), tied=_globs("tied", tied)
        )


@dataclass(frozen=True)
class PinnedKeys:
    """Keys that are held; `high` includes the keys of operations that are not known."""

    high: frozenset[str]
    low: frozenset[str]

    @property
    def keys(self) -> frozenset[str]:
        return self.high | self.low


def held(groups: Sequence[Group], pins: Pins) -> PinnedKeys:
    """The keys that stay as they are.

    Raises: ValueError: a glob that matches nothing, a tensor that is to be high and low, or low
        though nobody knows its operation.
    """
    tensors = [tensor for group in groups for tensor in group.tensors]
    keys = [tensor.key for tensor in tensors]
    high, low = (
        {key for glob in globs for key in matching(what, glob, keys)}
        for what, globs in (("high", pins.high), ("low", pins.low))
    )
    _check_apart("pins", high, low, "high and low")
    unknown = {tensor.key for tensor in tensors if not tensor.known}
    _check_apart("pins", unknown, low, "low, and of an operation that is not known,")
    for together in ties(pins, keys):
        if together & low and together & (high | unknown):
            raise ValueError(
                f"pins: tied tensors are held low in part ({named(together & low)}) and high in "
                f"part ({named(together & (high | unknown))}); tie them or hold them"
            )
        for chosen in (high, low):
            if together & chosen:
                chosen |= together
        if together & unknown:
            high |= together
    return PinnedKeys(frozenset(high | unknown), frozenset(low))


def tie(groups: Sequence[Group], pins: Pins) -> tuple[Group, ...]:
    """The groups, where the tensors that a glob ties are in the group of the first of them.

    A group that is left without a tensor is gone; the others keep their index.

    Raises: ValueError: a glob that matches nothing.
    """
    home = {tensor.key: tensor.group for group in groups for tensor in group.tensors}
    for together in ties(pins, list(home)):
        first = min(home[key] for key in together)
        home |= dict.fromkeys(together, first)
    tensors = (replace(t, group=home[t.key]) for group in groups for t in group.tensors)
    return regroup(tensors)


def ties(pins: Pins, keys: Sequence[str]) -> list[frozenset[str]]:
    """The sets of tied tensors; globs that match a common tensor make one set, so sets share none.

    Raises: ValueError: a glob that matches nothing.
    """
    found: list[frozenset[str]] = []
    for glob in pins.tied:
        together = frozenset(matching("tied", glob, keys))
        touched = [tied for tied in found if tied & together]
        found = [tied for tied in found if tied not in touched]
        found.append(together.union(*touched))
    return found


def matching(what: str, glob: str, keys: Sequence[str]) -> list[str]:
    """The keys that the glob matches.

    Raises: ValueError: there are none.
    """
    found = [key for key in keys if fnmatchcase(key, glob)]
    if not found:
        raise ValueError(
            f"pins: {what}={glob!r} matches no tensor; there are {len(keys)}, such as {named(keys)}"
        )
    return found


def _check_apart(function: str, high: set[str], low: set[str], text: str) -> None:
    both = high & low
    if both:
        raise ValueError(f"{function}: {named(both)} would be held {text}; hold it once")


def named(keys: Iterable[str]) -> str:
    """The first of some keys, as errors name them."""
    found = sorted(keys)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(map(repr, found[:_NAMED])) + more


def _globs(what: str, given: Globs) -> tuple[str, ...]:
    globs = (given,) if isinstance(given, str) else tuple(given)
    for glob in globs:
        if not isinstance(glob, str):
            raise TypeError(f"Pins: {what} must be globs of keys, got {glob!r}")
    return globs


#: No tensor is pinned.
NONE = Pins()
