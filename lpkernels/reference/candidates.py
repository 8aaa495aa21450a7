"""The choice between the two codes of a block whose largest is mapped to 6 or to 4."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lpkernels.reference.values import Float64

#: The values to which a block's largest is mapped.
SIX, FOUR = 6.0, 4.0
# A sum of n errors in float64, each of at most six operations, has a relative error below this
# number times n + 8.
_RELATIVE = 2.0**-51


def is_nearer(
    values: Sequence[float], four: Sequence[Fraction], six: Sequence[Fraction], target: str
) -> bool:
    """Whether the codes of 4 are nearer to a block's values than those of 6, in real numbers.

    four, six: the values of the codes. target: "4or6mae", the sum of magnitudes of the errors, or
    "4or6mse", that of their squares.
    """
    power = 1 if target == "4or6mae" else 2
    exact = [Fraction(value) for value in values]
    of_four, of_six = (
        sum(abs(v - x) ** power for v, x in zip(codes, exact, strict=True)) for codes in (four, six)
    )
    return of_four < of_six


def nearer(values: Float64, four: Float64, six: Float64, target: str) -> NDArray[np.bool_]:
    """`is_nearer` of many blocks, (..., values of a block), whose values are finite: (..., 1)."""
    errors = [np.abs(codes - values) for codes in (four, six)]
    if target == "4or6mse":
        errors = [error * error for error in errors]
    of_four, of_six = (error.sum(axis=-1, keepdims=True) for error in errors)
    result: NDArray[np.bool_] = of_four < of_six
    alike = (four == six).all(axis=-1, keepdims=True)
    least = (of_four + of_six) * (_RELATIVE * (values.shape[-1] + 8))
    open_ones = ~alike & ~(np.abs(of_four - of_six) > least)
    result &= ~alike
    for index in zip(*np.nonzero(open_ones[..., 0]), strict=True):
        block = values[index].tolist()
        exact = [[Fraction(v) for v in part[index].tolist()] for part in (four, six)]
        result[index] = is_nearer(block, exact[0], exact[1], target)
    return result


def te_errors(u: NDArray[Any], rows: int, target: str) -> NDArray[Any]:
    """The errors of blocks as TransformerEngine sums them, of float32 differences u (..., values of
    a block): in order, and in a tile of so many rows those of each row and then the rows in a tree.
    rows is 1 for blocks along either dimension."""
    errors = np.abs(u) if target == "4or6mae" else u * u
    of_rows = _in_order(errors.reshape(*errors.shape[:-1], rows, -1))
    # The rows of a short tile are followed by rows of zeros.
    padded = np.zeros((*of_rows.shape[:-1], 16), np.float32)
    padded[..., :rows] = of_rows
    for half in (8, 4, 2, 1):
        padded = padded[..., :half] + padded[..., half : 2 * half]
    return padded


def _in_order(x: NDArray[Any]) -> NDArray[Any]:
    total = np.zeros(x.shape[:-1], np.float32)
    for i in range(x.shape[-1]):
        total = total + x[..., i]
    return total
