"""Interleaved timing: the calls that are compared run in turns, so that a busy moment hits all."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# A sample is as many calls as it takes for the clock's resolution not to matter.
_SAMPLE_SECONDS = 2e-3
_MIN_ROUNDS = 5
_MAX_ROUNDS = 200

Runs = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Summary:
    """Seconds of one call: the best sample, those at 20, 50 and 80 percent of the samples, and
    every sample in the order of the rounds."""

    best: float
    p20: float
    p50: float
    p80: float
    samples: int
    calls_per_sample: int
    each: tuple[float, ...]

    @classmethod
    def of(cls, samples: list[float], calls: int) -> Summary:
        p20, p50, p80 = np.percentile(samples, [20, 50, 80])
        found = float(p20), float(p50), float(p80)
        return cls(min(samples), *found, len(samples), calls, tuple(samples))

    def ratio(self, other: Summary) -> float:
        """The median ratio to the other's sample of the same round."""
        return float(np.median(np.divide(self.each, other.each)))


def interleave(
    runs: Runs,
    budget: float,
    *,
    synchronize: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Summary]:
    """Times every run in turn, in rounds, for about `budget` seconds and at least five rounds.

    Args:
        runs: what to call, by name; each is called before the first round, untimed.
        synchronize: waits for a device's queue; called before the clock is read.
    """

    def seconds(run: Callable[[], object], calls: int) -> float:
        synchronize()
        start = clock()
        for _ in range(calls):
            run()
        synchronize()
        return (clock() - start) / calls

    calls = {}
    for name, run in runs.items():
        seconds(run, 1)
        once = max(seconds(run, 1), 1e-9)
        calls[name] = max(1, math.ceil(_SAMPLE_SECONDS / once))
    samples: dict[str, list[float]] = {name: [] for name in runs}
    end = clock() + budget
    for done in range(_MAX_ROUNDS):
        if done >= _MIN_ROUNDS and clock() >= end:
            break
        for name, run in runs.items():
            samples[name].append(seconds(run, calls[name]))
    return {name: Summary.of(samples[name], calls[name]) for name in runs}


class OtherWork:
    """How many processors other processes kept busy since this was made."""

    def __init__(self) -> None:
        self._start = self._now()

    def processors(self) -> float | None:
        """The number of processors; None where the system does not say (on Linux it does)."""
        now = self._now()
        if now is None or self._start is None:
            return None
        wall, busy, own = (b - a for a, b in zip(self._start, now, strict=True))
        return round(max(0.0, (busy - own) / wall), 2) if wall > 0 else None

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        """Seconds of the clock, seconds of work of all processors, and of this process's share in
        that work."""
        stat = Path("/proc/stat")
        if not stat.is_file():
            return None
        # The fields are: cpu user nice system idle iowait irq softirq steal ...
        fields = [float(word) for word in stat.read_text().splitlines()[0].split()[1:9]]
        busy = (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")
        times = os.times()
        return time.monotonic(), busy, times.user + times.system
