"""The search where no other task is known: measure, refit and choose next, on the grid of formats
of the one task."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lpkernels.techniques import checks
from lpkernels.techniques.checks import Floats, Ints
from lpkernels.techniques.pareto.completion import complete, measurements
from lpkernels.techniques.pareto.frontier import pareto_front
from lpkernels.techniques.pareto.uncertainty import FrontierBand, band, draw_residuals, hopeful


@dataclass(frozen=True)
class Grid:
    """Rows x columns cells, numbered row by row.

    The fit is mu + a_row + b_column, by least squares with `ridge` times the squares of a and b
    added. `complete` with `rank` and `lam` fits the residuals, if every row and every column has a
    cell and the rank is not 0. A row without a cell is at the mean of the others.
    """

    rows: int
    columns: int
    rank: int
    lam: float
    ridge: float

    @classmethod
    def of(cls, function: str, shape: Sequence[int], rank: int, lam: float, ridge: float) -> Grid:
        """The grid of the shape of a space.

        Raises: TypeError, ValueError: there are not two or three axes, the first of at least 2
            entries, the others together too; rank, lam or ridge is out of range.
        """
        sizes = [checks.whole(f"{function}: shape", size, 1) for size in shape]
        rows, columns = (sizes or [0])[0], math.prod(sizes[1:])
        if len(sizes) not in (2, 3) or rows < 2 or columns < 2:
            raise ValueError(
                f"{function}: shape must be (low, high) or (low, high, accumulators), with at "
                f"least 2 x 2 cells, got {tuple(shape)}"
            )
        if checks.whole(f"{function}: rank", rank, 0) > min(rows, columns):
            raise ValueError(
                f"{function}: rank must be in 0..{min(rows, columns)} for a grid of {rows} x "
                f"{columns}, got {rank}"
            )
        checks.number(f"{function}: lam", lam, least=0)
        checks.number(f"{function}: ridge", ridge, above=0)
        return cls(rows, columns, rank, lam, ridge)

    @property
    def size(self) -> int:
        return self.rows * self.columns

    def cover(self, known: Ints) -> list[int]:
        """Cells along diagonals until each row and column has one, known ones included."""
        rows, columns = set(known // self.columns), set(known % self.columns)
        found = []
        for i in range(max(self.rows, self.columns)):
            row, column = i % self.rows, i % self.columns
            if row not in rows or column not in columns:
                found.append(row * self.columns + column)
                rows.add(row)
                columns.add(column)
        return found

    def fit(self, indices: Ints, errors: Floats) -> Floats:
        """The errors of all cells, from the errors of some: (cells,)."""
        rows, columns = indices // self.columns, indices % self.columns
        design = np.zeros((len(indices), 1 + self.rows + self.columns))
        design[:, 0] = 1
        design[np.arange(len(indices)), 1 + rows] = 1
        design[np.arange(len(indices)), 1 + self.rows + columns] = 1
        penalty = np.full(design.shape[1], self.ridge)
        penalty[0] = 0
        found = np.linalg.solve(design.T @ design + np.diag(penalty), design.T @ errors)
        result = found[0] + found[1 : 1 + self.rows, None] + found[1 + self.rows :]
        every = len(set(rows)) == self.rows and len(set(columns)) == self.columns
        if self.rank and every:
            left, mask = np.zeros(result.shape), np.zeros(result.shape, dtype=bool)
            left[rows, columns] = errors - result[rows, columns]
            mask[rows, columns] = True
            result += complete(left, mask, rank=self.rank, lam=self.lam, clip=None).values
        return result.ravel()

    def left_out(self, indices: Ints, errors: Floats) -> Floats:
        """The residual of each measured cell under the fit to all other cells."""
        found = np.empty(len(indices))
        for i in range(len(indices)):
            others = np.arange(len(indices)) != i
            found[i] = errors[i] - self.fit(indices[others], errors[others])[indices[i]]
        return found


def fit_grid(
    shape: Sequence[int],
    indices: object,
    errors: object,
    *,
    rank: int = 1,
    lam: float = 0.1,
    ridge: float = 0.05,
) -> Floats:
    """The errors of all configurations of one task, from the errors of some of them alone.

    The model is additive in the formats, with a matrix of low rank beside: mu + a_low + b_high + Z.

    Args:
        shape: (low, high) or (low, high, accumulators), the last two being the columns.
        indices, errors: the measured configurations, each once, and their errors; NaN counts as
            missing, with a warning.
        rank, lam: of Z, for `complete`; rank 0: the model has no Z.
        ridge: above 0, the variance of the noise over the variance of a and b: how much a and b are
            held back.

    Returns:
        (configurations,) float64, the fit also where it was measured.

    Raises:
        TypeError, ValueError: as `predict`, and a row or a column of the grid without an error.
    """
    grid = Grid.of("fit_grid", shape, rank, lam, ridge)
    chosen, found = measurements("fit_grid", indices, errors, grid.size)
    checks.indices("fit_grid: indices", chosen, grid.size)
    if cover := grid.cover(chosen):
        row, column = divmod(cover[0], grid.columns)
        raise ValueError(
            f"fit_grid: row {row} or column {column} of the {grid.rows} x {grid.columns} grid has "
            f"no error; measure configuration {cover[0]}, say"
        )
    return grid.fit(chosen, found)


@dataclass(frozen=True)
class ColdStart:
    """The result of a cold start.

    Attributes:
        measured: (steps,) configurations in the order in which they were measured.
        errors: (steps,) their errors; NaN where a measurement gave none.
        predicted: (configurations,) errors; a measured configuration has its own.
        band: the bands of the frontier and of each configuration.
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
        shape: of the grid, such as `FormatSpace.shape`: (low, high) or (low, high, accumulators);
            the last two axes are the columns. Configurations are numbered row by row.
        memory: (configurations,).
        measure: gives the error of a configuration, by its number; NaN (a run that failed) counts
            as missing, with a warning, and is not tried again.
        n: the most measurements, `measured` included.
        rank, lam, ridge: as for `fit_grid`.
        level: the share of the draws within a band.
        draws, seed: of the bands.
        measured: errors that are known already, for example by a run that was stopped; the cover
            leaves out the rows and columns that they cover.

    Returns:
        A ColdStart. The same measurements give the same choices.

    Raises:
        TypeError, ValueError: a grid that has no two rows and columns; n below the size of the
            cover or above the size of the grid; memory of another size; fewer than three errors
            that are numbers after the cover; an infinite error.
    """
    grid = Grid.of("cold_start", shape, rank, lam, ridge)
    m = checks.finite("cold_start: memory", memory, 1)
    if len(m) != grid.size:
        raise ValueError(f"cold_start: memory has {len(m)} values, the grid {grid.size}")
    known = dict(measured or {})
    checks.indices("cold_start: measured", list(known), grid.size)
    state = _State(list(known), [float(error) for error in known.values()])
    cover = grid.cover(state.known()[0])
    least = len(state.measured) + len(cover)
    checks.whole("cold_start: n", n, 1)
    if not least <= n <= grid.size:
        raise ValueError(
            f"cold_start: n must be in {least}..{grid.size}: {len(state.measured)} measured already"
            f" and {len(cover)} for every row and column of {grid.rows} x {grid.columns}; got {n}"
        )
    checks.number("cold_start: level", level, above=0, below=1)
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
    checks.without_nan("cold_start", error)
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
