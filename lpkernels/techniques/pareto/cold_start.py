"""The search where no other task is known: measure, refit and choose next, on the grid of formats
of the one task."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lpkernels.techniques import checks
from lpkernels.techniques.checks import Floats, Ints
from lpkernels.techniques.pareto.completion import complete
from lpkernels.techniques.pareto.prediction import (
    FrontierBand,
    band,
    pareto_front,
    step_function,
)


@dataclass(frozen=True)
class ColdStart:
    """The result of a cold start.

    measured: (steps,) configurations in the order in which they were measured.  errors: (steps,)
        their errors; NaN where a measurement gave none.
    predicted: (configurations,) errors; a measured configuration has its own.
    band: the bands of the frontier and of each configuration.
    ended: "bands": no other configuration can reach the frontier any more; "count": n was reached;
        "all": everything is measured.
    """

    measured: Ints
    errors: Floats
    predicted: Floats
    band: FrontierBand
    ended: str


def cold_start(
    shape: Sequence[int],
    memory: Any,
    measure: Callable[[int], float],
    *,
    n: int,
    level: float = 0.9,
    draws: int = 200,
    seed: int = 0,
    measured: Mapping[int, float] | None = None,
) -> ColdStart:
    """The frontier of one task from measurements of it alone.

    It begins with a cover: as many configurations as the longer axis has entries, so that every row
    and column of the grid has one. Then it repeats these steps: fit the errors by mu + a_row +
    b_column and a matrix of rank 1, draw errors around the fit from the residuals of the measured
    cells, one left out at a time, and measure the configuration that adds most, over the draws, to
    the area that the measured ones dominate. It ends when no configuration can reach the frontier
    (the lower end of its band is above a measured error of no more memory), or n are measured.

    Args:
        shape: of the grid, such as `FormatSpace.shape`: (low, high) or (low, high, accumulators);
            the last two axes are the columns. Configurations are numbered row by row.
        memory: (configurations,).
        measure: gives the error of a configuration, by its number; NaN (a run that failed) counts
            as missing, with a warning, and is not tried again.
        n: the most measurements, `measured` included.
        level: the share of the draws within a band.
        draws, seed: of the bands.
        measured: errors that were measured before, for example by a run that was stopped; the cover
            leaves out their rows and columns.
    Returns: a ColdStart. The same measurements give the same choices.
    Raises: TypeError, ValueError: a grid that has no two rows and columns; n below the size of the
        cover or above the size of the grid; memory of another size; fewer than three errors that
        are numbers after the cover; an infinite error.
    """
    sizes = [checks.whole("cold_start: shape", size, 1) for size in shape]
    grid = (sizes or [0])[0], math.prod(sizes[1:])
    if len(sizes) not in (2, 3) or min(grid) < 2:
        raise ValueError(
            "cold_start: shape must be (low, high) or (low, high, accumulators), with at least "
            f"2 x 2 cells, got {tuple(shape)}"
        )
    size = math.prod(grid)
    m = checks.finite("cold_start: memory", memory, (size,))
    former = dict(measured or {})
    checks.indices("cold_start: measured", list(former), size)
    errors = {index: float(error) for index, error in former.items()}
    rest = cover(grid, [index for index, error in errors.items() if not math.isnan(error)])
    least = len(errors) + len(rest)
    if not least <= checks.whole("cold_start: n", n, 1) <= size:
        raise ValueError(
            f"cold_start: n: expected {least} to {size}, got {n}: {len(errors)} are measured "
            f"already, and configurations {rest} for every row and column of the grid are not; "
            "measure them"
        )
    checks.number("cold_start: level", level, above=0, below=1)
    checks.whole("cold_start: draws", draws, 2)
    checks.whole("cold_start: seed", seed, 0)

    def take(index: int) -> None:
        error = np.array([measure(index)], dtype=np.float64)
        checks.without_nan("cold_start", error)
        errors[index] = float(error[0])

    for index in rest:
        take(index)
    while True:
        cells, values = np.array(list(errors), dtype=np.int64), np.array(list(errors.values()))
        has_error = ~np.isnan(values)
        points, heights = cells[has_error], values[has_error]
        # A step has a seed of its own, because else one draw could be lucky all the way.
        predicted, simulated = _simulate(grid, points, heights, draws, seed + len(cells))
        bands = band(m, predicted, simulated, level, "cold_start")
        others = np.setdiff1d(np.arange(size), cells)
        low = bands.error_low[others]
        hopeful = others[low < step_function(m[points], heights, m[others])]
        if not len(hopeful) or len(cells) >= n:
            ended = "count" if len(hopeful) else "bands" if len(others) else "all"
            return ColdStart(cells, values, predicted, bands, ended)
        gain = expected_gain(m[hopeful], simulated[:, hopeful], m[points], heights)
        take(int(hopeful[gain.argmax()]))


def cover(shape: Sequence[int], measured: Sequence[int] = ()) -> list[int]:
    """Cells along diagonals until every row and column has one, the measured cells included.

    shape: as of `cold_start`.
    """
    height, width = shape[0], math.prod(shape[1:])
    rows, columns = map(set, np.divmod(np.array(measured, dtype=np.int64), width))
    cells = []
    for i in range(max(height, width)):
        row, column = i % height, i % width
        if row not in rows or column not in columns:
            cells.append(row * width + column)
            rows.add(row)
            columns.add(column)
    return cells


def fit_grid(
    shape: tuple[int, int],
    indices: Ints,
    errors: Floats,
    *,
    rank: int = 1,
    lam: float = 0.1,
    ridge: float = 0.05,
) -> Floats:
    """The errors of all cells, from the errors of some: (cells,).

    The fit is mu + a_row + b_column, by least squares with `ridge` times the squares of a and b
    added: the variance of the noise over that of a and b. `complete` with `rank` and `lam` fits the
    residuals, if every row and every column has a cell and the rank is not 0. A row without a cell
    is at the mean of the others.
    """
    rows, columns = np.divmod(indices, shape[1])
    cells = np.arange(len(indices))
    design = np.zeros((len(indices), 1 + sum(shape)))
    design[:, 0] = design[cells, 1 + rows] = design[cells, 1 + shape[0] + columns] = 1
    penalty = np.full(design.shape[1], ridge)
    penalty[0] = 0
    terms = np.linalg.solve(design.T @ design + np.diag(penalty), design.T @ errors)
    result = terms[0] + terms[1 : 1 + shape[0], None] + terms[1 + shape[0] :]
    if rank and not cover(shape, [int(i) for i in indices]):
        residuals, mask = np.zeros(shape), np.zeros(shape, dtype=bool)
        residuals[rows, columns] = errors - result[rows, columns]
        mask[rows, columns] = True
        result += complete(residuals, mask, rank=rank, lam=lam, clip=None).values
    return result.ravel()


def _simulate(
    grid: tuple[int, int], indices: Ints, errors: Floats, draws: int, seed: int
) -> tuple[Floats, Floats]:
    """The fit, and draws around it: (draws, configurations). A measured configuration has its own
    error in all of them."""
    if len(indices) < 3:
        raise ValueError(f"cold_start: bands need 3 measured errors, got {len(indices)}")
    predicted = fit_grid(grid, indices, errors)
    held_out = [
        fit_grid(grid, np.delete(indices, i), np.delete(errors, i))[cell]
        for i, cell in enumerate(indices)
    ]
    generator = np.random.default_rng(seed)
    simulated = predicted + generator.choice(errors - held_out, (draws, len(predicted)))
    simulated[:, indices] = predicted[indices] = errors
    return predicted, simulated


def expected_gain(
    memory: Floats, simulated: Floats, measured_memory: Floats, measured_error: Floats
) -> Floats:
    """How much a configuration alone would add to the area that the measured ones dominate:
    (configurations,), the mean over draws of its error.

    The area reaches up to the largest measured error, and a tenth of the range of memory beyond the
    largest memory, because else the dearest configuration could never add to it.

    memory, simulated: (configurations,) and (draws, configurations). measured_memory,
    measured_error: (points,).
    """
    front = pareto_front(measured_memory, measured_error)
    every = np.concatenate([memory, measured_memory])
    end = every.max() + 0.1 * (np.ptp(every) or 1.0)
    # Before its first point the frontier stands at the largest measured error.
    steps = np.concatenate([[-np.inf], measured_memory[front]])
    levels = np.concatenate([[measured_error.max()], measured_error[front]])
    stops = np.append(steps[1:], end)
    widths = np.maximum(stops[:, None] - np.maximum(steps[:, None], memory), 0)
    heights = np.maximum(levels[:, None, None] - simulated, 0).mean(axis=1)
    return (widths * heights).sum(axis=0)
