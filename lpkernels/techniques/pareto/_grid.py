"""One task's errors as a matrix of low formats x high formats, fitted to a few of its cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lpkernels.formats.checks import checked_int
from lpkernels.techniques.pareto import checks
from lpkernels.techniques.pareto.checks import Floats, Ints
from lpkernels.techniques.pareto.completion import complete
from lpkernels.techniques.pareto.embedding import measurements


@dataclass(frozen=True)
class Grid:
    """Rows x columns cells, numbered row by row.

    The fit is mu + a_row + b_column, by least squares with `ridge` times the squares of a and b
    added. `complete` with `rank` and `lam` fits what that leaves, if every row and every column has
    a cell and the rank is not 0. A row without a cell is at the mean of the others.
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
        sizes = [checked_int(function, "shape", size, 1) for size in shape]
        rows, columns = (sizes or [0])[0], math.prod(sizes[1:])
        if len(sizes) not in (2, 3) or rows < 2 or columns < 2:
            raise ValueError(
                f"{function}: shape must be (low, high) or (low, high, accumulators), with at "
                f"least 2 x 2 cells, got {tuple(shape)}"
            )
        if checked_int(function, "rank", rank, 0) > min(rows, columns):
            raise ValueError(
                f"{function}: rank must be in 0..{min(rows, columns)} for a grid of {rows} x "
                f"{columns}, got {rank}"
            )
        checks.number(function, "lam", lam, least=0)
        checks.number(function, "ridge", ridge, least=0, above=True)
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
        """The errors of all cells, from those of some: (cells,)."""
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
    """The errors of all configurations of one task, from those of some of them alone.

    The model is additive in the formats, with a matrix of low rank beside: mu + a_low + b_high + Z.

    Args:
        shape: (low, high) or (low, high, accumulators), the last two being the columns.
        indices, errors: what was measured, each configuration once; NaN counts as missing, with a
            warning.
        rank, lam: those of Z, for `complete`; rank 0: the model has no Z.
        ridge: above 0, the variance of noise over that of a and b: how much these are held back.

    Returns:
        (configurations,) float64, the fit also where it was measured.

    Raises:
        TypeError, ValueError: as `predict`, and a row or a column of the grid without an error.
    """
    grid = Grid.of("fit_grid", shape, rank, lam, ridge)
    chosen, found = measurements("fit_grid", indices, errors, grid.size)
    checks.indices("fit_grid", "indices", chosen, grid.size)
    if cover := grid.cover(chosen):
        row, column = divmod(cover[0], grid.columns)
        raise ValueError(
            f"fit_grid: row {row} or column {column} of the {grid.rows} x {grid.columns} grid has "
            f"no error; measure configuration {cover[0]}, say"
        )
    return grid.fit(chosen, found)
