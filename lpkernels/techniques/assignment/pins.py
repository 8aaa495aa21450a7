"""Tensors whose precision is not for the demotion to choose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from lpkernels.formats.checks import set_fields
from lpkernels.techniques.assignment.grouping import Group, regroup

Globs = str | Iterable[str]

# An error names this many keys.
_NAMED_KEYS = 4


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
class Held:
    """Keys that are held: `high` holds those of operations that are not known too."""

    high: frozenset[str]
    low: frozenset[str]

    @property
    def keys(self) -> frozenset[str]:
        return self.high | self.low


def held(groups: Sequence[Group], pins: Pins) -> Held:
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
                f"pins: tied tensors are held low in part ({_some(together & low)}) and high in "
                f"part ({_some(together & (high | unknown))}); tie them or hold them"
            )
        for chosen in (high, low):
            if together & chosen:
                chosen |= together
        if together & unknown:
            high |= together
    return Held(frozenset(high | unknown), frozenset(low))


def tie(groups: Sequence[Group], pins: Pins) -> tuple[Group, ...]:
    """The groups, where the tensors that a glob ties are in the group of the first of them.

    A group of which nothing is left is gone; the others keep their index.

    Raises: ValueError: a glob that matches nothing.
    """
    home = {tensor.key: tensor.group for group in groups for tensor in group.tensors}
    for together in ties(pins, list(home)):
        first = min(home[key] for key in together)
        home |= dict.fromkeys(together, first)
    return regroup(replace(t, group=home[t.key]) for group in groups for t in group.tensors)


def ties(pins: Pins, keys: Sequence[str]) -> list[frozenset[str]]:
    """The sets of tied tensors, no two of which share a tensor: globs that share one make one set.

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
            f"pins: {what}={glob!r} matches no tensor; there are {len(keys)}, such as {_some(keys)}"
        )
    return found


def _check_apart(function: str, high: set[str], low: set[str], text: str) -> None:
    both = high & low
    if both:
        raise ValueError(f"{function}: {_some(both)} would be held {text}; hold it once")


def _some(keys: Iterable[str]) -> str:
    named = sorted(keys)
    more = ", ..." if len(named) > _NAMED_KEYS else ""
    return ", ".join(repr(key) for key in named[:_NAMED_KEYS]) + more


def _globs(what: str, given: Globs) -> tuple[str, ...]:
    globs = (given,) if isinstance(given, str) else tuple(given)
    for glob in globs:
        if not isinstance(glob, str):
            raise TypeError(f"Pins: {what} must be globs of keys, got {glob!r}")
    return globs


#: No tensor is pinned.
NONE = Pins()
