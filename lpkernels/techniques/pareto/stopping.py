"""Runs that end before their last epoch: where they would end up, and whether that matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lpkernels.techniques import checks
from lpkernels.techniques.checks import Floats
from lpkernels.techniques.pareto.uncertainty import hopeful


def final_error(finished: Any, so_far: Any, *, level: float = 0.9) -> tuple[float, float, float]:
    """The final error of a run that has reported its error a few times: (predicted, low, high).

    Runs of one task that differ in formats alone still have about the same way to go. So each
    finished run says where this one may end: at this run's last error, less the gain of the
    finished run from that report to its last. The prediction is the median over finished runs. A
    few runs have no tails, so the band's ends are taken outward, from gains that occurred: with
    level 0.9 and less than twenty runs, they are the least and the largest.

    Args:
        finished: (runs, reports) errors of the finished runs of the same task and budget.
        so_far: (1..reports,) the errors of this run.
        level: the share of the gains within the band.

    Returns:
        Three floats, low <= predicted <= high. After the last report all are the last error.

    Raises:
        TypeError, ValueError: shapes that do not agree, values that are not finite, no finished
            run, a level outside (0, 1).
    """
    curves = checks.finite("final_error: finished", finished, 2)
    errors = checks.finite("final_error: so_far", so_far, 1)
    share = checks.number("final_error: level", level, above=0, below=1)
    if not 1 <= len(errors) <= curves.shape[1]:
        raise ValueError(
            f"final_error: so_far must have 1..{curves.shape[1]} reports, as many as finished runs "
            f"have at most; got {len(errors)}"
        )
    gains = curves[:, len(errors) - 1] - curves[:, -1]
    tail = (1 - share) / 2
    most = np.quantile(gains, 1 - tail, method="higher")
    least = np.quantile(gains, tail, method="lower")
    last = float(errors[-1])
    return last - float(np.median(gains)), last - float(most), last - float(least)


@dataclass(eq=False)
class EarlyStop:
    """Ends runs of one task whose error can no longer reach the frontier.

    ::

        stop = pareto.EarlyStop(memory, reports=epochs)

        def measure(index):
            run = stop.start(index)
            while run.report(train_one_epoch()):
                pass
            return run.error

        found = pareto.cold_start(space.shape, memory, measure, n=20)

    Memory is exact. A run goes on while the lower end of its `final_error` is below the least
    error of the finished runs with at most its memory (`hopeful`).

    Args:
        memory: (configurations,).
        reports: how many errors a run that is not ended reports, such as its epochs.
        level: the share of the finished runs' gains within a run's band.
        least: so many runs finish before the first one is ended; their gains make the band.

    Raises:
        TypeError, ValueError: memory that is not finite, a level outside (0, 1), reports or least
            below 1.
    """

    memory: Any
    reports: int
    level: float = 0.9
    least: int = 5
    _indices: list[int] = field(default_factory=list, init=False, repr=False)
    _curves: list[list[float]] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        self.memory = checks.finite("EarlyStop: memory", self.memory, 1)
        checks.whole("EarlyStop: reports", self.reports, 1)
        checks.whole("EarlyStop: least", self.least, 1)
        checks.number("EarlyStop: level", self.level, above=0, below=1)

    def start(self, index: int) -> StoppableRun:
        """A run of the configuration with this number.

        Raises: TypeError, ValueError: no such configuration.
        """
        checks.indices("EarlyStop: index", [index], len(self.memory))
        return StoppableRun(self, int(index))

    def known(self) -> tuple[Floats, Floats]:
        """(memory, error) of the runs that finished."""
        errors = np.array([curve[-1] for curve in self._curves], dtype=np.float64)
        found: Floats = self.memory[self._indices] if self._indices else errors
        return found, errors

    def judge(self, index: int, errors: Sequence[float]) -> tuple[str, float]:
        """How the run of a configuration ended and its error, or ("", NaN) while it goes on."""
        if not np.isfinite(errors[-1]):
            return "hopeless", float("nan")
        if len(errors) == self.reports:
            self._indices.append(index)
            self._curves.append(list(errors))
            return "finished", errors[-1]
        if len(self._curves) >= self.least:
            predicted, low, _ = final_error(self._curves, errors, level=self.level)
            if not hopeful(self.memory[[index]], [low], *self.known())[0]:
                return "hopeless", predicted
        return "", float("nan")


@dataclass(eq=False)
class StoppableRun:
    """A run of `EarlyStop`, and the errors that it has reported.

    Attributes:
        index: its configuration.
        errors: as reported.
        ended: whether it is over: "finished", "hopeless", or "" while it runs.
    """

    stop: EarlyStop = field(repr=False)
    index: int
    errors: list[float] = field(default_factory=list, init=False)
    ended: str = field(default="", init=False)
    _error: float = field(default=float("nan"), init=False, repr=False)

    def report(self, error: float) -> bool:
        """Takes the present error; returns whether the run goes on.

        An error that is not finite ends the run as hopeless: its `error` is NaN.

        Raises: TypeError: no number. ValueError: the run is over.
        """
        if self.ended:
            raise ValueError(
                f"StoppableRun.report: the run of configuration {self.index} is over "
                f"({self.ended}); start another"
            )
        try:
            value = float(error)
        except (TypeError, ValueError):
            raise TypeError(
                f"StoppableRun.report: error must be a number, got {type(error).__name__}"
            ) from None
        self.errors.append(value)
        self.ended, self._error = self.stop.judge(self.index, self.errors)
        return not self.ended

    @property
    def error(self) -> float:
        """The last error of a finished run, else the one that `final_error` predicted at its end.

        Raises: ValueError: the run goes on.
        """
        if not self.ended:
            raise ValueError(
                f"StoppableRun.error: the run of configuration {self.index} goes on after "
                f"{len(self.errors)} of {self.stop.reports} reports; report until it ends"
            )
        return self._error
