"""What a schedule changes, and the schedule of each: forward, backward, weights, accumulators."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from lpkernels.arithmetic import Accumulator
from lpkernels.techniques.cpt.cost import adder_bits, bitops
from lpkernels.techniques.cpt.schedule import Schedule

KINDS = ("bitops", "accumulator")


class Precision(NamedTuple):
    """Bits of one step; None is not scheduled.

    forward: operands of fprop.  backward: the incoming gradient.  weight: weights, where they
    differ from forward.  accumulator: mantissa bits of the sums.
    """

    forward: int | None
    backward: int | None
    weight: int | None = None
    accumulator: int | None = None


@dataclass(frozen=True)
class Tracks:
    """The schedules of one group of targets; None is not scheduled."""

    forward: Schedule | None
    backward: Schedule | None
    weight: Schedule | None = None
    accumulator: Schedule | None = None

    def items(self) -> Iterator[tuple[str, Schedule]]:
        """The schedules that there are, by name."""
        for name in Precision._fields:
            schedule = getattr(self, name)
            if schedule is not None:
                yield name, schedule

    def check(self, total: int) -> None:
        """Raises ValueError unless `total` steps hold every schedule."""
        for _, schedule in self.items():
            schedule.check(total)

    def at(self, step: int, total: int) -> Precision:
        return Precision(**{**_NOTHING, **{n: s.bits_at(step, total) for n, s in self.items()}})

    @property
    def highest(self) -> Precision:
        return Precision(**{**_NOTHING, **{n: s.highest for n, s in self.items()}})

    def every_width(self) -> Iterator[Precision]:
        """Precisions in which each schedule takes each of its widths, the others at the highest."""
        for name, schedule in self.items():
            for bits in schedule.widths():
                yield self.highest._replace(**{name: bits})

    def to_dict(self) -> dict[str, Any]:
        """Plain values that tell two sets of schedules apart."""
        return {name: schedule.to_dict() for name, schedule in self.items()}


_NOTHING: Mapping[str, Any] = dict.fromkeys(Precision._fields)


@lru_cache(maxsize=1 << 12)
def cost_of(precision: Precision) -> float:
    """bitops of a precision."""
    assert precision.forward is not None and precision.backward is not None
    return bitops(precision.forward, precision.backward, weight_bits=precision.weight)


def costs(
    tracks: Tracks, total: int, kind: str, accumulators: Mapping[int, Accumulator]
) -> np.ndarray:
    """The cost of each of `total` steps, and, as one more, of a step after them: float64."""
    if kind == "accumulator":
        assert tracks.accumulator is not None
        bits = np.append(tracks.accumulator.plan(total), tracks.accumulator.highest)
        return np.array([adder_bits(accumulators[int(b)]) for b in bits])
    # Python's ints: the costs of precisions are kept, and go into states of plain values.
    plans = {name: schedule.plan(total).tolist() for name, schedule in tracks.items()}
    plans.pop("accumulator", None)
    rows = zip(*plans.values(), strict=True)
    steps = [Precision(**{**_NOTHING, **dict(zip(plans, row, strict=True))}) for row in rows]
    highest = tracks.highest._replace(accumulator=None)
    return np.array([cost_of(step) for step in [*steps, highest]])
