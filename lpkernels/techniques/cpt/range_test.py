"""The precision range test: which bits a training can start from, and which are enough."""

import copy
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import nn

from lpkernels.techniques import checks
from lpkernels.techniques._table import aligned
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
class PrecisionRange:
    """The result of a precision range test; ``str`` of it is a table.

    bits: (lowest, highest), as PrecisionScheduler takes them.
    trace: every candidate, ascending. threshold, window: the arguments by which candidates were
        judged.
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
    start = _Snapshot(restore)
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


class _RandomStates:
    """The states of torch's, numpy's and Python's global generators."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        # The global generator is what a user's data loading may draw from.
        self._numpy = np.random.get_state()  # noqa: NPY002
        self._python = random.getstate()

    def restore(self) -> None:
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        np.random.set_state(self._numpy)  # noqa: NPY002
        random.setstate(self._python)


class _Module:
    """Parameters, buffers (also buffers outside of the state_dict), gradients, modes, and all other
    attributes and extra states of modules. Tensors keep their places in memory."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        tensors = [*module.parameters(), *module.buffers()]
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in tensors]
        gradients = [(p, p.grad) for p in module.parameters()]
        self._gradients = [(p, g, None if g is None else g.clone()) for p, g in gradients]
        self._own = [(m, dict(vars(m)), _dicts(m), _extra(m)) for m in module.modules()]

    def restore(self) -> None:
        for module, own, dicts, extra in self._own:
            vars(module).clear()
            vars(module).update(own)
            for name, entries in dicts.items():
                own[name].clear()
                own[name].update(entries)
            if extra is not None:
                module.set_extra_state(copy.deepcopy(extra))
        with torch.no_grad():
            for tensor, value in self._tensors:
                tensor.copy_(value)
            for parameter, gradient, kept in self._gradients:
                parameter.grad = gradient
                if gradient is not None and kept is not None:
                    gradient.copy_(kept)


def _dicts(module: nn.Module) -> dict[str, dict[str, Any]]:
    """Which parameters, buffers and modules it has: a forward pass may register some."""
    return {name: dict(vars(module)[name]) for name in ("_parameters", "_buffers", "_modules")}


def _extra(module: nn.Module) -> Any:
    has = type(module).get_extra_state is not nn.Module.get_extra_state
    return copy.deepcopy(module.get_extra_state()) if has else None


class _Stateful:
    """An optimizer, or anything else with a state_dict."""

    def __init__(self, thing: Any) -> None:
        self._thing, self._state = thing, copy.deepcopy(thing.state_dict())
        self._settings = [set(group) for group in getattr(thing, "param_groups", ())]

    def restore(self) -> None:
        self._thing.load_state_dict(copy.deepcopy(self._state))
        # An optimizer may keep settings that training has added to its groups.
        groups = self._thing.param_groups if self._settings else ()
        for group, settings in zip(groups, self._settings, strict=True):
            for name in group.keys() - settings:
                del group[name]


class _Snapshot:
    """A copy of the state of modules, optimizers and other things with a state_dict, and of the
    random states.

    Raises: TypeError: a thing without state_dict and load_state_dict.
    """

    def __init__(self, things: Iterable[Any]) -> None:
        self._parts = [_kept(thing) for thing in things]
        self._random = _RandomStates()

    def restore(self) -> None:
        """Puts everything back; any number of times."""
        for part in self._parts:
            part.restore()
        self._random.restore()


def _kept(thing: Any) -> _Module | _Stateful:
    if isinstance(thing, nn.Module):
        return _Module(thing)
    if not all(callable(getattr(thing, n, None)) for n in ("state_dict", "load_state_dict")):
        raise TypeError(
            "restore: expected models, optimizers and other things with state_dict and "
            f"load_state_dict, got {type(thing).__name__}"
        )
    return _Stateful(thing)
