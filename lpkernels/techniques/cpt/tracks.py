"""The tracks of a schedule (forward, backward, weights, accumulators), and the cost of a step.

A cost is a count of the bits that are multiplied or added: a model, no measurement.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from lpkernels.arithmetic import Accumulator, as_accumulator
from lpkernels.arithmetic.precisions import MOST_AFFINE_BITS
from lpkernels.formats import (
    FixedFormat,
    TableFormat,
)
from lpkernels.techniques.cpt.schedule import Schedule, width

KINDS = ("bitops", "accumulator")

# A float32 operand has 32 bits; a step has three products: fprop, dgrad and wgrad.
_FP32 = 3 * 32**2
# The significand of float32, its hidden bit included.
_FP32_SIGNIFICAND = 24


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


def bitops(forward_bits: int, backward_bits: int, *, weight_bits: int | None = None) -> float:
    """The multiplied bits of a training step, relative to one in float32.

    (b^2 + 2 b g) / (3 * 32^2) with b forward and g backward bits: fprop multiplies b by b bits,
    dgrad and wgrad b by g. Weights with bits of their own w count as w in fprop and dgrad.

    Layers in float32 and additions are not counted. It counts multiply-accumulate bits: no
    speed-up of a GPU follows from it.

    Args:
        forward_bits, backward_bits: b and g, 1 to 32.
        weight_bits: w; None: b.

    Raises: TypeError, ValueError: no int, or other than 1 to 32.
    Reference: the code of Fu et al. 2021, arXiv 2101.09868. Differs: more than 16 bits count as
        32, since nothing is rounded there; the code counts them as they are.
    """
    given = {"forward_bits": forward_bits, "backward_bits": backward_bits}
    given["weight_bits"] = forward_bits if weight_bits is None else weight_bits
    checked = (width(f"bitops: {name}", bits) for name, bits in given.items())
    b, g, w = (32 if bits > MOST_AFFINE_BITS else bits for bits in checked)
    return (w * b + w * g + b * g) / _FP32


def adder_bits(accumulator: Accumulator | str) -> float:
    """The significand bits that one addition of an accumulator handles, relative to float32's 24.

    Args: accumulator: an Accumulator or its name.

    The inner sums' format alone counts, not an outer one; a fixed-point format counts its word, a
    table its code.
    """
    return _adder_bits(as_accumulator(accumulator))


@lru_cache
def _adder_bits(accumulator: Accumulator) -> float:
    fmt = accumulator.fmt
    if isinstance(fmt, FixedFormat):
        return fmt.word_bits / _FP32_SIGNIFICAND
    if isinstance(fmt, TableFormat):
        return fmt.bits / _FP32_SIGNIFICAND
    return (fmt.man_bits + 1) / _FP32_SIGNIFICAND


def saving(cost: float, static: float) -> float:
    """The share that a schedule of mean cost `cost` saves against a constant cost `static`, in the
    same unit; below 0 where it costs more.
    """
    return 1 - cost / static


def occupancy(plan: np.ndarray) -> Mapping[int, float]:
    """The share of the steps of a `plan`, (steps,) int64, at each of its bits, ascending."""
    found, counts = np.unique(plan, return_counts=True)
    return {int(b): int(n) / len(plan) for b, n in zip(found, counts, strict=True)}


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
