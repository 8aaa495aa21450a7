"""The precision range test: which bits a training can start from, and which are enough."""

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import nn

from lpkernels._table import Tabular, TextTable
from lpkernels.nn.observing.tracing import left_as_found
from lpkernels.techniques import checks
from lpkernels.techniques.cpt.schedule import width

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
class PrecisionRange(Tabular):
    """The result of a precision range test; ``str`` of it is a table.

    bits: (lowest, highest), as PrecisionScheduler takes them.
    trace: every candidate, ascending. threshold, window: the arguments by which candidates were
        judged.
    """

    bits: tuple[int, int]
    trace: tuple[Level, ...]
    threshold: float
    window: int

    def _table(self) -> TextTable:
        rows = [("bits", "first window", "last window", "rise", ""), *map(self._row, self.trace)]
        low, high = self.bits
        note = (
            f"from {low} to {high} bits, by windows of {self.window} steps and a threshold of "
            f"{self.threshold:g}"
        )
        return TextTable(rows, (4,), [note])

    def _row(self, level: Level) -> tuple[str, ...]:
        says = [] if level.passed else ["does not rise"]
        bounds = zip(("lowest", "highest"), self.bits, strict=True)
        says += [name for name, bits in bounds if bits == level.bits]
        means = (level.first, level.last, level.last - level.first)
        return (str(level.bits), *(f"{mean:.4f}" for mean in means), ", ".join(says))


class NoPrecisionPassed(RuntimeError):
    """No candidate's accuracy rose by more than the threshold.

    Args:
        message: the error.
        trace: all levels, ascending.
    """

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

    >>> from lpkernels.techniques.cpt import precision_range_test
    >>> accuracy = iter([0.1, 0.1, 0.1, 0.5, 0.1, 0.9, 0.1, 0.9])
    >>> found = precision_range_test(
    ...     lambda: next(accuracy), print, candidates=range(2, 6), window=1, steps_per_level=2
    ... )
    2
    3
    4
    5
    >>> found.bits
    (3, 4)
    """
    checks.function("step_fn", step_fn, "step_fn() -> accuracy")
    checks.function("set_bits", set_bits, "set_bits(bits)")
    levels = _candidates(candidates)
    checks.whole("window", window, 1)
    checks.whole("steps_per_level", steps_per_level, 1)
    if steps_per_level < window:
        raise ValueError(
            f"steps_per_level: expected at least window={window}, got {steps_per_level}"
        )
    limit = checks.number("threshold", threshold, least=0)
    checks.choice("mode", mode, MODES)
    around = partial(_as_found, list(restore))
    of_all, of_level = (nullcontext, around) if mode == "within" else (around, nullcontext)
    trace: list[Level] = []
    with of_all():
        for bits in levels:
            with of_level():
                set_bits(bits)
                accuracy = tuple(_accuracy(step_fn(), bits) for _ in range(steps_per_level))
            trace.append(_level(bits, accuracy, window, limit))
    return PrecisionRange(_bounds(tuple(trace), limit), tuple(trace), limit, window)


def _candidates(candidates: Iterable[int]) -> list[int]:
    levels = [width("candidates", bits) for bits in candidates]
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


@contextmanager
def _as_found(things: Sequence[Any]) -> Iterator[None]:
    """At its end, after an error too, modules, optimizers and other things with a state_dict are as
    they were at its start, and so are the global generators of torch, numpy and Python.

    Raises: TypeError: a thing without state_dict and load_state_dict.
    """
    # The global generator is what a user's data loading may draw from.
    numbers, own = np.random.get_state(), random.getstate()  # noqa: NPY002
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices), ExitStack() as stack:
            # The first thing is put back first.
            for thing in reversed(things):
                kept = _module if isinstance(thing, nn.Module) else _state
                stack.enter_context(kept(thing))
            yield
    finally:
        np.random.set_state(numbers)  # noqa: NPY002
        random.setstate(own)


@contextmanager
def _module(module: nn.Module) -> Iterator[None]:
    """Beside the state that `left_as_found` puts back: modules inside, all other attributes (a
    precision is one) and extra states. Tensors keep their places in memory."""
    own = [(m, dict(vars(m)), dict(m._modules), _extra(m)) for m in module.modules()]
    with left_as_found(module, []):
        try:
            yield
        finally:
            for each, attributes, modules, extra in own:
                vars(each).clear()
                vars(each).update(attributes)
                each._modules.clear()
                each._modules.update(modules)
                if extra is not None:
                    each.set_extra_state(extra)


def _extra(module: nn.Module) -> Any:
    has = type(module).get_extra_state is not nn.Module.get_extra_state
    return copy.deepcopy(module.get_extra_state()) if has else None


@contextmanager
def _state(thing: Any) -> Iterator[None]:
    """An optimizer, or anything else with a state_dict."""
    if not all(callable(getattr(thing, n, None)) for n in ("state_dict", "load_state_dict")):
        raise TypeError(
            "restore: expected models, optimizers and other things with state_dict and "
            f"load_state_dict, got {type(thing).__name__}"
        )
    state = copy.deepcopy(thing.state_dict())
    settings = [set(group) for group in getattr(thing, "param_groups", ())]
    try:
        yield
    finally:
        thing.load_state_dict(state)
        # An optimizer may keep settings that training has added to its groups.
        for group, before in zip(getattr(thing, "param_groups", ()), settings, strict=True):
            for name in group.keys() - before:
                del group[name]
