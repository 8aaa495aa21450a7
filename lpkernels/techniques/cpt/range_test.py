"""The precision range test: which bits a training can start from, and which are enough."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from lpkernels.techniques._table import aligned
from lpkernels.techniques.cpt import _checks
from lpkernels.techniques.cpt.snapshot import Snapshot

MODES = ("within", "continue")


@dataclass(frozen=True)
class Level:
    """The result of training at one precision.

    accuracy: of each step.  first, last: its mean over the first and the last window.
    passed: whether last exceeds first by more than the threshold.
    """

    bits: int
    accuracy: tuple[float, ...]
    first: float
    last: float
    passed: bool


@dataclass(frozen=True)
class PrecisionRange:
    """The result of a precision range test; ``str`` of it is a table.

    bits: (lowest, highest), as PrecisionScheduler takes them.
    trace: every candidate, ascending; threshold and window: by which it was judged.
    """

    bits: tuple[int, int]
    trace: tuple[Level, ...]
    threshold: float
    window: int

    def __str__(self) -> str:
        rows = [("bits", "first window", "last window", "rise", ""), *map(self._row, self.trace)]
        low, high = self.bits
        return "\n".join(
            [
                *aligned(rows, (4,)),
                f"from {low} to {high} bits, by windows of {self.window} steps and a threshold of "
                f"{self.threshold:g}",
            ]
        )

    def _row(self, level: Level) -> tuple[str, ...]:
        says = [] if level.passed else ["does not rise"]
        bounds = zip(("lowest", "highest"), self.bits, strict=True)
        says += [name for name, bits in bounds if bits == level.bits]
        means = (level.first, level.last, level.last - level.first)
        return (str(level.bits), *(f"{mean:.4f}" for mean in means), ", ".join(says))


class NoPrecisionPassed(RuntimeError):
    """No candidate's accuracy rose by more than the threshold; `trace` has all levels."""

    def __init__(self, message: str, trace: tuple[Level, ...]) -> None:
        super().__init__(message)
        self.trace = trace


def precision_range_test(
    step_fn: Callable[[], float],
    set_bits: Callable[[int], object],
    *,
    candidates: Iterable[int] = range(2, 9),
    window: int = 50,
    steps_per_level: int = 200,
    threshold: float = 0.01,
    restore: Iterable[Any] = (),
    mode: str = "within",
) -> PrecisionRange:
    """Finds the bounds of a precision schedule by training for a little at each precision.

    The lowest bound is the first candidate at which the training accuracy rises: its mean over the
    last window exceeds that over the first by more than the threshold. The highest bound is the
    first candidate above it whose mean over the last window is within the threshold of the next
    candidate's; if there is none, it is the last candidate.

    Afterwards, after an error too, the things in restore and the random states of torch, numpy and
    Python are as before, to the bit: parameters, all buffers, gradients, modes, precisions of
    modules, states and settings of optimizers. Whatever else set_bits changes is not put back: a
    scheduler's next step() sets its own bits.

    Args:
        step_fn: makes one training step and returns its accuracy, between 0 and 1. A loss becomes
            such a number as ``math.exp(-loss)``: if it is a cross-entropy, that is the geometric
            mean of the probabilities that the model gives to the right classes.
        set_bits: sets the precision.
        candidates: bits to try, ascending.
        window: steps over which accuracies are averaged.
        steps_per_level: steps at each candidate; at least the window.
        threshold: by which the accuracy must rise.
        restore: the model, the optimizer, and whatever else has a state_dict and is changed.
        mode: "within": each candidate starts from the same state. "continue": where the one before
            it ended.
    Returns: the bounds and the trace of all candidates.
    Raises:
        TypeError, ValueError: a wrong argument; nothing is run then. An accuracy that is not
            between 0 and 1, at the step that returns it.
        NoPrecisionPassed: no candidate's accuracy rose.
    Reference: Fu et al. 2021, arXiv 2101.09868, describes a test of this kind and bounds found by
        it, not the numbers: window, steps and threshold are ours, and so is the rule for the
        highest.
    """
    _checks.function("step_fn", step_fn, "step_fn() -> accuracy")
    _checks.function("set_bits", set_bits, "set_bits(bits)")
    levels = _candidates(candidates)
    _checks.whole("window", window, 1)
    _checks.whole("steps_per_level", steps_per_level, 1)
    if steps_per_level < window:
        raise ValueError(
            f"steps_per_level: expected at least window={window}, got {steps_per_level}"
        )
    limit = _checks.share("threshold", threshold)
    _checks.choice("mode", mode, MODES)
    start = Snapshot(restore)
    trace: list[Level] = []
    try:
        for bits in levels:
            if mode == "within":
                start.restore()
            set_bits(bits)
            accuracy = tuple(_accuracy(step_fn(), bits) for _ in range(steps_per_level))
            trace.append(_level(bits, accuracy, window, limit))
    finally:
        start.restore()
    return PrecisionRange(_bounds(tuple(trace), limit), tuple(trace), limit, window)


def _candidates(candidates: Iterable[int]) -> list[int]:
    levels = [_checks.width("candidates", bits) for bits in candidates]
    if not levels or levels != sorted(set(levels)):
        raise ValueError(f"candidates: expected ascending bits such as range(2, 9), got {levels}")
    return levels


def _accuracy(value: float, bits: int) -> float:
    accuracy = float(value)
    if not 0 <= accuracy <= 1:
        raise ValueError(
            f"step_fn: expected accuracies between 0 and 1, got {accuracy:.6g} at {bits} bits; "
            "divide percents by 100, and return math.exp(-loss) for a loss"
        )
    return accuracy


def _level(bits: int, accuracy: tuple[float, ...], window: int, threshold: float) -> Level:
    first, last = fmean(accuracy[:window]), fmean(accuracy[-window:])
    return Level(bits, accuracy, first, last, last - first > threshold)


def _bounds(trace: tuple[Level, ...], threshold: float) -> tuple[int, int]:
    lowest = next((index for index, level in enumerate(trace) if level.passed), None)
    if lowest is None:
        rises = ", ".join(f"{x.bits} bits: {x.first:.4g} to {x.last:.4g}" for x in trace)
        raise NoPrecisionPassed(
            f"precision_range_test: at no candidate the accuracy rose by more than {threshold} "
            f"({rises}); give more steps_per_level or a lower threshold",
            trace,
        )
    above = trace[lowest + 1 :]
    enough = (a.bits for a, b in pairwise(above) if abs(a.last - b.last) <= threshold)
    return trace[lowest].bits, next(enough, trace[-1].bits)
