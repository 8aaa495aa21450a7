"""The precision range test: which bits a training can start from, and which are enough."""

import copy
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise, repeat
from statistics import fmean, variance
from typing import Any

import numpy as np
import torch
from torch import nn

from lpkernels._table import Tabular, TextTable
from lpkernels.nn.observing.observer import left_as_found
from lpkernels.techniques import checks
from lpkernels.techniques.cpt.schedule import width
from lpkernels.techniques.cpt.scheduler import attribute_backup

# The parts of the last window. Student's t for the mean of five has four degrees of freedom: its
# 97.5% quantile makes a 95% interval. A mean of many steps has the normal distribution's.
PARTS = 5
T_OF_PARTS = 2.776
NORMAL = 1.96


@dataclass(frozen=True)
class Level:
    """The result of training at one precision.

    accuracy: of each step.  first, last: its mean over the first and the last window.
    share: of the improvement at the highest candidate.  spread: half the 95% interval of share.
        Both are None where that improvement is within its noise.
    """

    bits: int
    accuracy: tuple[float, ...]
    first: float
    last: float
    share: float | None = None
    spread: float | None = None


@dataclass(frozen=True)
class PrecisionRange(Tabular):
    """The result of a precision range test; ``str`` of it is a table.

    bits: (lowest, highest), as PrecisionScheduler takes them; None where the trace cannot tell.
    trace: every candidate, ascending.  window: the steps of a window.
    reason: why there are no bits; empty where there are.
    """

    bits: tuple[int, int] | None
    trace: tuple[Level, ...]
    window: int
    reason: str = ""

    def _table(self) -> TextTable:
        rows = [("bits", "first window", "last window", "share", "spread", "")]
        for level in self.trace:
            bounds = zip(("lowest", "highest"), self.bits or (), strict=False)
            names = ", ".join(name for name, bits in bounds if bits == level.bits)
            share, spread = ("-" if x is None else f"{x:.3f}" for x in (level.share, level.spread))
            means = f"{level.first:.4f}", f"{level.last:.4f}"
            rows.append((str(level.bits), *means, share, spread, names))
        note = f"no bits: {self.reason}"
        if self.bits is not None:
            note = f"from {self.bits[0]} to {self.bits[1]} bits, by windows of {self.window} steps"
        return TextTable(rows, (len(rows[0]) - 1,), [note])


def precision_range_test(
    step_fn: Callable[..., float],
    set_bits: Callable[[int], object],
    *,
    restore: Iterable[Any],
    batches: Iterable[Any] | None = None,
    candidates: Iterable[int] = range(2, 9),
    window: int = 50,
    steps_per_level: int = 200,
    share: float = 0.9,
    threshold: float = 0.01,
) -> PrecisionRange:
    """Finds the bounds of a precision schedule by a short training at each precision.

    Each candidate trains from the same state. The improvement of a candidate is its mean training
    accuracy over the last window minus the mean over the first window of the highest candidate. The
    lowest bound is the first candidate with at least `share` of the highest candidate's
    improvement. The highest bound is the first candidate above it from which on all surely have at
    least 1 - `threshold` of that improvement; if there is none, it is the last candidate.

    The spread of a share is half its 95% t interval over the fifths of the last window, and at
    least the greatest amount by which a narrower candidate improves more than a wider one. There
    are no bits where the highest candidate's improvement is within the noise of its steps, or where
    the first candidate that may reach the share lies more than one candidate below the first from
    which on all surely reach it.

    Afterwards, after an error too, the things in restore and the random states of torch, numpy and
    Python are as before, to the bit.

    Args:
        step_fn: makes one training step and returns its accuracy, between 0 and 1;
            ``math.exp(-loss)`` of a loss.
        set_bits: sets the precision. What it changes outside of restore is not put back.
        restore: the model, the optimizer, and whatever else a step changes and has a state_dict (a
            gradient scaler, a learning rate's scheduler), or is a torch.Generator.
        batches: the training data, such as a DataLoader: ``step_fn(batch)`` then gets its batches.
            They begin anew for each candidate, in the same order, and again at their end. None:
            ``step_fn()`` has data of its own.
        candidates: bits to try, ascending.
        window: steps over which accuracies are averaged; at least 10.
        steps_per_level: steps at each candidate; at least the window.
        share: of the highest candidate's improvement, above 0 and below 1.
        threshold: a difference of shares that does not count.
    Raises: TypeError, ValueError: a wrong argument; nothing is run then. An accuracy that is not
        between 0 and 1, at the step that returns it.
    Reference: Fu et al. 2021, arXiv 2101.09868, whose lowest bound is the first candidate at which
        the accuracy rises. Differs: the rules here are ours.

    >>> from lpkernels.techniques.cpt import precision_range_test
    >>> ends, bits = {2: 0.4, 3: 0.7, 4: 0.9, 5: 0.9}, [2]
    >>> def set_bits(width):
    ...     bits[0] = width
    ...
    >>> def step(batch):
    ...     return min(1.0, batch / 80) * ends[bits[0]]
    ...
    >>> precision_range_test(step, set_bits, restore=[], batches=range(200), candidates=ends).bits
    (4, 5)
    """
    checks.function("step_fn", step_fn, "step_fn() -> accuracy")
    checks.function("set_bits", set_bits, "set_bits(bits)")
    levels = [width("candidates", bits) for bits in candidates]
    if not levels or levels != sorted(set(levels)):
        raise ValueError(f"candidates: expected ascending bits such as range(2, 9), got {levels}")
    checks.whole("window", window, 2 * PARTS)
    checks.whole("steps_per_level", steps_per_level, window)
    checks.number("share", share, above=0, below=1)
    checks.number("threshold", threshold, least=0)
    if isinstance(restore, nn.Module) or not isinstance(restore, Iterable):
        raise TypeError(
            "restore: expected a list such as [model, optimizer], got a single "
            f"{type(restore).__name__}"
        )
    # iter() of a DataLoader draws from torch's generator, and may start processes.
    if batches is not None and (not isinstance(batches, Iterable) or isinstance(batches, Iterator)):
        raise TypeError(
            "batches: expected data that can begin anew, such as a DataLoader or a list, got "
            f"{type(batches).__name__}"
        )
    # The generators of a DataLoader decide about its order.
    owners = (batches, getattr(batches, "sampler", None))
    generators = [getattr(owner, "generator", None) for owner in owners]
    things = [*restore, *(g for g in generators if isinstance(g, torch.Generator))]
    trace: list[Level] = []
    for bits in levels:
        with _state_backup(things):
            set_bits(bits)
            arguments = _arguments(batches, steps_per_level)
            accuracy = tuple(_accuracy(step_fn(*batch), bits) for batch in arguments)
        if not accuracy:
            raise ValueError("batches: expected at least one batch, got none")
        trace.append(Level(bits, accuracy, fmean(accuracy[:window]), fmean(accuracy[-window:])))
    return _verdict(trace, window, share, threshold)


@contextmanager
def _state_backup(things: Sequence[Any]) -> Iterator[None]:
    """A block after which things and the global generators of torch, numpy and Python are as before
    it. Tensors of modules keep their places in memory.

    Raises: TypeError: a thing without state_dict and load_state_dict.
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices), ExitStack() as stack:
        # A user's data loading may draw from numpy's global generator.
        stack.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002
        stack.callback(random.setstate, random.getstate())
        # The first thing is put back first.
        for thing in reversed(things):
            if isinstance(thing, nn.Module):
                for module in thing.modules():
                    if type(module).get_extra_state is not nn.Module.get_extra_state:
                        extra = copy.deepcopy(module.get_extra_state())
                        stack.callback(module.set_extra_state, extra)
                stack.enter_context(left_as_found(thing, []))
                stack.enter_context(attribute_backup(thing.modules()))
            elif isinstance(thing, torch.Generator):
                stack.callback(thing.set_state, thing.get_state())
            elif all(callable(getattr(thing, n, None)) for n in ("state_dict", "load_state_dict")):
                stack.callback(thing.load_state_dict, copy.deepcopy(thing.state_dict()))
            else:
                raise TypeError(
                    "restore: expected models, optimizers and other things with state_dict and "
                    f"load_state_dict, got {type(thing).__name__}"
                )
        yield


def _accuracy(value: float, bits: int) -> float:
    accuracy = float(value)
    if not 0 <= accuracy <= 1:
        raise ValueError(
            f"step_fn: expected accuracies between 0 and 1, got {accuracy:.6g} at {bits} bits; "
            "divide percents by 100, and return math.exp(-loss) for a loss"
        )
    return accuracy


def _arguments(batches: Iterable[Any] | None, steps: int) -> Iterable[tuple[Any, ...]]:
    """The arguments of every step: none, or the next batch, again from the first at their end."""
    if batches is None:
        return repeat((), steps)
    return islice(chain.from_iterable(zip(batches) for _ in range(steps)), steps)


def _verdict(
    levels: Sequence[Level], window: int, share: float, threshold: float
) -> PrecisionRange:
    """The bounds by the rules of `precision_range_test`."""
    top = levels[-1]
    rise = top.last - top.first
    # Half the 95% interval of the difference of two windows' means, by the noise of single steps:
    # neighbours differ by it, and hardly by the training.
    squares = fmean((b - a) ** 2 for a, b in pairwise(top.accuracy))
    noise = NORMAL * math.sqrt(squares / window)
    if rise <= noise:
        reason = (
            f"at {top.bits} bits the accuracy rises by {rise:.3g}, within its noise of "
            f"{noise:.3g}; the windows are too short to tell: give more steps_per_level, or a "
            "longer window"
        )
        return PrecisionRange(None, tuple(levels), window, reason)
    shares = np.array([(level.last - top.first) / rise for level in levels])
    # A narrower candidate that improves more than a wider one does so by chance.
    chance = float((np.maximum.accumulate(shares) - shares).max())
    top_part = top.accuracy[-window:]
    spreads = [
        max(chance, _spread(level.accuracy[-window:], value, top_part) / rise)
        for level, value in zip(levels[:-1], shares.tolist(), strict=False)
    ]
    spreads.append(0.0)
    rows = zip(levels, shares.tolist(), spreads, strict=True)
    trace = tuple(replace(level, share=value, spread=spread) for level, value, spread in rows)

    def sure(least_share: float) -> int:
        """The first candidate from which on all surely have this share, as the last one does."""
        return 1 + max(np.flatnonzero(shares - spreads < least_share).tolist(), default=-1)

    least, lowest = (int((bound >= share).argmax()) for bound in (shares + spreads, shares))
    if sure(share) - least > 1:
        reason = (
            f"by the spread of the shares the lowest bound may be any of {trace[least].bits} to "
            f"{trace[sure(share)].bits} bits; the windows are too short to tell: give more "
            "steps_per_level and a longer window"
        )
        return PrecisionRange(None, trace, window, reason)
    highest = min(max(lowest + 1, sure(1 - threshold)), len(trace) - 1)
    return PrecisionRange((trace[lowest].bits, trace[highest].bits), trace, window)


def _spread(accuracy: Sequence[float], share: float, top: Sequence[float]) -> float:
    """Half the 95% interval of the mean of accuracy - share * top, over fifths of the window."""
    parts = np.array_split(np.subtract(accuracy, np.multiply(share, top)), PARTS)
    return T_OF_PARTS * math.sqrt(variance(float(part.mean()) for part in parts) / PARTS)
