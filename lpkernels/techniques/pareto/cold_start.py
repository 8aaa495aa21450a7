"""The search where no other task is known: measure, refit and choose next, on the grid of formats
of the one task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lpkernels.formats.checks import checked_int
from lpkernels.techniques.pareto import checks
from lpkernels.techniques.pareto._grid import Grid
from lpkernels.techniques.pareto.checks import Floats, Ints
from lpkernels.techniques.pareto.frontier import pareto_front
from lpkernels.techniques.pareto.uncertainty import FrontierBand, band, draw_residuals, hopeful

ENDS = ("bands", "count", "all")


@dataclass(frozen=True)
class ColdStart:
    """What a cold start found.

    Attributes:
        measured: (steps,) configurations in the order in which they were measured.
        errors: (steps,) their errors; NaN where a measurement gave none.
        predicted: (configurations,) errors; a measured configuration has its own.
        band: what is known of the frontier and of each configuration.
        ended: "bands": no configuration that is left can reach the frontier any more; "count": n
            was reached; "all": everything is measured.
    """

    measured: Ints
    errors: Floats
    predicted: Floats
    band: FrontierBand
    ended: str


@dataclass
class _State:
    measured: list[int] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    def known(self) -> tuple[Ints, Floats]:
        found = np.array(self.errors, dtype=np.float64)
        seen = ~np.isnan(found)
        return np.array(self.measured, dtype=np.int64)[seen], found[seen]


def cold_start(
    shape: Sequence[int],
    memory: Any,
    measure: Callable[[int], float],
    *,
    n: int,
    rank: int = 1,
    lam: float = 0.1,
    ridge: float = 0.05,
    level: float = 0.9,
    draws: int = 200,
    seed: int = 0,
    measured: Mapping[int, float] | None = None,
) -> ColdStart:
    """The frontier of one task from measurements of it alone.

    It begins with a cover: as many configurations as the longer axis has entries, so that every row
    and column of the grid has one. Then it repeats these steps: fit the grid (`fit_grid`), draw
    errors around the fit from the residuals of each measured cell when it is left out, and measure
    the configuration that adds most, over the draws, to the area that the measured ones dominate.
    It ends when no configuration is `hopeful`, or n are measured.

    Args:
        shape: that of the grid, such as `FormatSpace.shape`: (low, high) or (low, high,
            accumulators); the last two axes are the columns. Configurations are numbered row by
            row.
        memory: (configurations,).
        measure: gives the error of a configuration, by its number; NaN (a run that failed) counts
            as missing, with a warning, and is not tried again.
        n: at most so many measurements are made, those of `measured` included.
        rank, lam, ridge: those of `fit_grid`.
        level: the share of the draws within a band.
        draws, seed: those of the bands.
        measured: errors that are known already, such as those of a run that was stopped; the
            cover leaves out what they cover.

    Returns:
        A ColdStart. The same measurements give the same choices.

    Raises:
        TypeError, ValueError: a grid that has no two rows and columns; n below what the cover
            takes or above the grid; memory of another size; fewer than three errors that are
            numbers after the cover; an infinite error.
    """
    grid = Grid.of("cold_start", shape, rank, lam, ridge)
    m = checks.finite("cold_start", "memory", memory, 1)
    if len(m) != grid.size:
        raise ValueError(f"cold_start: memory has {len(m)} values, the grid {grid.size}")
    known = dict(measured or {})
    checks.indices("cold_start", "measured", list(known), grid.size)
    state = _State(list(known), [float(error) for error in known.values()])
    cover = grid.cover(state.known()[0])
    least = len(state.measured) + len(cover)
    checked_int("cold_start", "n", n, 1)
    if not least <= n <= grid.size:
        raise ValueError(
            f"cold_start: n must be in {least}..{grid.size}: {len(state.measured)} measured already"
            f" and {len(cover)} for every row and column of {grid.rows} x {grid.columns}; got {n}"
        )
    checks.share("cold_start", "level", level)
    draw_residuals("cold_start", [0.0], draws, 1, seed)
    for index in cover:
        _measure(state, measure, index)
    while True:
        predicted, simulated = _simulate(grid, state, draws, seed)
        bands = band(m, predicted, simulated, level, "cold_start")
        following, ended = _next(m, state, bands, simulated, n)
        if following is None:
            found = np.array(state.errors)
            return ColdStart(np.array(state.measured), found, predicted, bands, ended)
        _measure(state, measure, following)


def _measure(state: _State, measure: Callable[[int], float], index: int) -> None:
    error = np.array([measure(int(index))], dtype=np.float64)
    checks.without_nan("cold_start", error, np.ones(1, dtype=bool))
    state.measured.append(int(index))
    state.errors.append(float(error[0]))


def _simulate(grid: Grid, state: _State, draws: int, seed: int) -> tuple[Floats, Floats]:
    """The fit, and draws around it: (draws, configurations). A measured configuration has its own
    error in all of them."""
    indices, errors = state.known()
    if len(indices) < 3:
        raise ValueError(
            f"cold_start: {len(indices)} of {len(state.measured)} measurements gave an error; "
            "bands need three"
        )
    predicted = grid.fit(indices, errors)
    residuals = grid.left_out(indices, errors)
    # Each step has another seed, because else one draw could be lucky all the way.
    size = grid.size
    drawn = draw_residuals("cold_start", residuals, draws, size, seed + len(state.measured))
    simulated = predicted + drawn
    simulated[:, indices] = predicted[indices] = errors
    return predicted, simulated


def _next(
    memory: Floats, state: _State, bands: FrontierBand, simulated: Floats, n: int
) -> tuple[int | None, str]:
    left = np.setdiff1d(np.arange(len(memory)), state.measured)
    if not len(left):
        return None, "all"
    indices, errors = state.known()
    may = hopeful(memory[left], bands.error_low[left], memory[indices], errors)
    if not may.any():
        return None, "bands"
    if len(state.measured) >= n:
        return None, "count"
    left = left[may]
    gain = expected_gain(memory[left], simulated[:, left], memory[indices], errors)
    return int(left[gain.argmax()]), ""


def expected_gain(memory: Any, simulated: Any, known_memory: Any, known_error: Any) -> Floats:
    """How much each configuration alone would add to the area that the known ones dominate:
    (configurations,), the mean over draws of its error.

    The area reaches up to the largest known error, and a tenth of the range of memory beyond the
    largest memory, because else the dearest configuration could never add to it.

    Args:
        memory, simulated: (configurations,) and (draws, configurations).
        known_memory, known_error: (points,).
    """
    m, e = (np.asarray(x, dtype=np.float64) for x in (memory, simulated))
    at, found = (np.asarray(x, dtype=np.float64) for x in (known_memory, known_error))
    front = pareto_front(at, found)
    every = np.concatenate([m, at])
    end = every.max() + 0.1 * (np.ptp(every) or 1.0)
    # Before its first point the frontier stands at the largest known error.
    steps = np.concatenate([[-np.inf], at[front]])
    levels = np.concatenate([[found.max()], found[front]])
    stops = np.append(steps[1:], end)
    widths = np.maximum(stops[:, None] - np.maximum(steps[:, None], m), 0)
    heights = np.maximum(levels[:, None, None] - e, 0).mean(axis=1)
    return (widths * heights).sum(axis=0)
