"""An error matrix of the user's own, from files of NumPy and of text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from lpkernels.techniques import checks
from lpkernels.techniques.pareto.spaces import ErrorMatrix, names_of


def import_matrix(
    errors: str | Path,
    memory: str | Path,
    *,
    rows: str | Path | None = None,
    columns: str | Path | None = None,
) -> ErrorMatrix:
    """The error matrix of the user's files; its columns are only names.

    Args:
        errors: a .npy file of (tasks, configurations): shares of 0 to 1, NaN where nothing was
            measured.
        memory: a .npy file of that shape, or of (configurations,), in any unit.
        rows, columns: texts with a name of a task, or of a configuration, in each line; None:
            "task 0", "task 1", ..., "configuration 0", ....

    Raises:
        OSError: a file that cannot be read.
        TypeError, ValueError: as `read_array`, `read_names` and `ErrorMatrix`; other than two
            dimensions; an error outside 0..1; a row or a column that is NaN throughout; another
            number of names than there are rows or columns.
    """
    e = checks.numbers("errors", read_array(errors), 2)
    wrong = np.argwhere(~(np.isnan(e) | ((e >= 0) & (e <= 1))))
    if len(wrong):
        row, column = wrong[0]
        raise ValueError(
            f"errors: expected shares of 0 to 1, NaN where nothing was measured, got "
            f"{e[row, column]:g} at row {row}, column {column}; divide percentages by 100"
        )
    for axis, what in ((1, "row"), (0, "column")):
        empty = np.flatnonzero(np.isnan(e).all(axis=axis))
        if len(empty):
            raise ValueError(
                f"errors: {what} {empty[0]} is NaN throughout ({len(empty)} {what}(s) are), so "
                "that nothing is known of it; leave it out of the errors, the memory and the names"
            )
    names = [
        _named(label, path, count, what)
        for label, path, count, what in (
            ("rows", rows, e.shape[0], "task"),
            ("columns", columns, e.shape[1], "configuration"),
        )
    ]
    return ErrorMatrix(names[1], names[0], e, read_array(memory))


def _named(label: str, path: str | Path | None, count: int, what: str) -> tuple[str, ...]:
    if path is None:
        return tuple(f"{what} {i}" for i in range(count))
    found = read_names(path)
    if len(found) != count:
        raise ValueError(
            f"{label}: expected {count} names, one for each of the {label} of errors, got "
            f"{len(found)} in {path}"
        )
    return found


def read_array(path: str | Path) -> NDArray[Any]:
    """The real numbers of a .npy file; nothing in it is unpickled.

    Raises:
        OSError: it cannot be read.
        ValueError: no such file: another kind, a part of one, or numbers that are not real.
    """
    try:
        found = open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:
        # NumPy reads a header with Python's parser, which raises errors of many kinds.
        raise ValueError(
            f"{path}: expected an array of numbers, a whole .npy file as np.save writes it; "
            "objects that are pickled are not read"
        ) from error
    if found.dtype.kind not in "iuf":
        raise ValueError(f"{path}: expected real numbers, got {found.dtype}")
    return np.array(found)


def read_names(path: str | Path) -> tuple[str, ...]:
    """The names in the lines of a text, without spaces around them.

    Raises:
        OSError: it cannot be read.
        ValueError: no text in UTF-8, a line without a name, a name twice.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected a text in UTF-8, a name in each line") from error
    return names_of(str(path), [line.strip() for line in text.rstrip().split("\n")])
