"""Groups of targets, set together: the base of PrecisionScheduler and PFQ."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lpkernels.arithmetic import Accumulator
from lpkernels.formats import Format
from lpkernels.techniques.cpt.schedule import width
from lpkernels.techniques.cpt.targets import (
    Accumulators,
    Formats,
    Target,
    accumulator_table,
    format_table,
)
from lpkernels.techniques.cpt.tracks import Precision, Tracks
from lpkernels.techniques.state import Stateful


@dataclass(frozen=True, eq=False)
class TargetGroup:
    """Targets with the same schedules; name: their glob, or ""."""

    name: str
    targets: Sequence[Target]
    tracks: Tracks


class PrecisionSetter(Stateful):
    """Sets the precision of target groups, and remembers the last setting."""

    def __init__(
        self,
        groups: Sequence[TargetGroup],
        *,
        eval_bits: int | None,
        formats: Formats | None,
        accumulators: Accumulators,
    ) -> None:
        label = type(self).__name__
        self.eval_bits = None if eval_bits is None else width("eval_bits", eval_bits)
        self._groups = list(groups)
        self._formats = self._format_table(formats)
        self._accumulators = self._accumulator_table(accumulators)
        for group in self._groups:
            if group.tracks.forward is not None and not any(t.rounds for t in group.targets):
                raise ValueError(
                    f"{label}: no target{f' of {group.name!r}' if group.name else ''} rounds its "
                    "operands, so that there are no bits to set; give the layers such a recipe"
                )
            asked = [*group.tracks.every_width(), _at_bits(group, self.eval_bits)]
            for target in group.targets:
                target.check(label, asked, self._formats, self._accumulators)
        self._now: list[Precision] = []
        # One entry for each open block of `at` and `as_trained`; None stands for `_now`.
        self._blocks: list[list[Precision] | None] = []

    def _format_table(self, formats: Formats | None) -> dict[int, Format] | None:
        if formats is None:
            return None
        forward = {self.eval_bits} - {None}
        for group in self._groups:
            for name, schedule in group.tracks.items():
                # The backward pass may have a rule of its own; a pattern gives its widths too.
                if name in ("forward", "weight") or (
                    name == "backward" and isinstance(formats, str) and "{bits}" in formats
                ):
                    forward |= set(schedule.widths())
        return format_table(formats, {bits for bits in forward if bits is not None})

    def _accumulator_table(self, accumulators: Accumulators) -> Mapping[int, Accumulator]:
        schedules = [group.tracks.accumulator for group in self._groups]
        widths = {bits for each in schedules if each is not None for bits in each.widths()}
        return accumulator_table(accumulators, widths)

    def _move(self, precisions: list[Precision]) -> None:
        """Sets the precision of training from now on; blocks that are open keep theirs."""
        self._now = precisions
        self._set()

    def _set(self) -> None:
        """Sets all targets to the precision that holds now."""
        block = self._blocks[-1] if self._blocks else None
        precisions = self._now if block is None else block
        for group, precision in zip(self._groups, precisions, strict=True):
            for target in group.targets:
                target.set(precision, self._formats, self._accumulators)

    @contextmanager
    def _block(self, precisions: list[Precision] | None) -> Iterator[None]:
        self._blocks.append(precisions)
        try:
            self._set()
            yield
        finally:
            self._blocks.pop()
            self._set()

    @property
    def precisions(self) -> list[Precision]:
        """The precision of each target group now: groups of `layers` first, then the others."""
        return list(self._now)

    def get_last_bits(self) -> list[tuple[int | None, int | None]]:
        """(forward, backward) of each group, as get_last_lr of a learning rate's scheduler."""
        return [(precision.forward, precision.backward) for precision in self._now]

    def cost(self, kind: str = "bitops") -> float:
        """The mean cost of the steps so far relative to float32, "bitops" or "accumulator"."""
        raise NotImplementedError(f"{type(self).__name__} must define cost")

    @contextmanager
    def at(self, bits: int | None = None) -> Iterator[None]:
        """The forward pass at fixed bits inside the block, as before after it.

        bits: None is eval_bits, and where that is None each group's own highest. The backward
        pass stays as it is; an accumulator that is scheduled is at its highest.

        Raises: ValueError: bits that the table of formats lacks or a target does not take; all
            targets are as before then.
        """
        chosen = self.eval_bits if bits is None else width("bits", bits)
        if chosen is not None and self._formats is not None and chosen not in self._formats:
            raise ValueError(
                f"at: expected bits that the table of formats has, got {chosen}; it has "
                f"{', '.join(map(str, sorted(self._formats)))}"
            )
        with self._block([self._fixed(group, chosen) for group in self._groups]):
            yield

    @contextmanager
    def as_trained(self) -> Iterator[None]:
        """Inside the block the bits are those of the last training step, also within a block of
        `at`."""
        with self._block(None):
            yield

    def _fixed(self, group: TargetGroup, bits: int | None) -> Precision:
        now = self._now[self._groups.index(group)]
        return _at_bits(group, bits)._replace(backward=now.backward)


def _at_bits(group: TargetGroup, bits: int | None) -> Precision:
    """The highest precision of a group, its forward pass at `bits` unless that is None."""
    highest = group.tracks.highest
    if bits is None or highest.forward is None:
        return highest
    return highest._replace(forward=bits, weight=None if highest.weight is None else bits)
