"""Error matrices as files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lpkernels.techniques.pareto import ErrorMatrix, FormatSpace
from tests.loops import each

SPACE = FormatSpace(["e4m3", "e5m2"], ["bf16"])
ERRORS = np.array([[[0.1, 0.2], [0.3, np.nan]], [[np.nan, np.nan], [0.5, 0.7]]])
MATRIX = ErrorMatrix(SPACE, ["a", "b"], ERRORS)


def test_a_matrix_comes_back_from_its_file(tmp_path: Path):
    found = ErrorMatrix.load(MATRIX.save(tmp_path / "errors.json"), SPACE)
    assert found.space == SPACE and found.tasks == ("a", "b")
    assert np.array_equal(found.errors, ERRORS, equal_nan=True)


def test_the_mean_is_over_the_seeds_that_are_there():
    want = [[0.15, 0.3], [np.nan, 0.6]]
    assert pytest.approx(np.array(want), nan_ok=True) == MATRIX.mean
    single = ErrorMatrix(SPACE, ["a", "b"], ERRORS[..., 0])
    assert single.errors.shape == (2, 2, 1)
    assert np.array_equal(single.mean, ERRORS[..., 0], equal_nan=True)


def test_errors_are_a_copy_that_stays():
    errors = ERRORS.copy()
    matrix = ErrorMatrix(SPACE, ["a", "b"], errors)
    errors[:] = 0
    assert np.array_equal(matrix.errors, ERRORS, equal_nan=True)
    with pytest.raises(ValueError, match="read-only"):
        matrix.errors[0] = 1


def test_other_files_are_refused(tmp_path: Path):
    path = MATRIX.save(tmp_path / "errors.json")
    other = FormatSpace(["e5m2", "e4m3"], ["bf16"])
    with pytest.raises(ValueError, match="another space: e4m3 e5m2 x e8m7; expected e5m2 e4m3 x"):
        ErrorMatrix.load(path, other)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 2}))
    with pytest.raises(ValueError, match="expected schema <= 1 of 'error matrix', got 2"):
        ErrorMatrix.load(path)
    for text in ("{", "[]", '{"type": "sweep"}'):
        path.write_text(text)
        with pytest.raises(ValueError, match="expected an error matrix"):
            ErrorMatrix.load(path)


WRONG = [
    (SPACE, ["a"], ERRORS, ValueError, r"\(1 tasks, 2 configurations, seeds\), got \(2, 2, 2"),
    (SPACE, ["a", "a"], ERRORS, ValueError, "a name of its own"),
    (SPACE, "ab", ERRORS, TypeError, "tasks must be a list of names"),
    (SPACE, ["a", 1], ERRORS, TypeError, "tasks must be a list of names"),
    (SPACE, ["a", "b"], ERRORS * np.inf, ValueError, "got inf"),
    ("e4m3 x bf16", ["a"], ERRORS, TypeError, "space must be a FormatSpace"),
]


@each("space, tasks, errors, error, match", WRONG)
def test_wrong_matrices_are_refused(space, tasks, errors, error, match):
    with pytest.raises(error, match=match):
        ErrorMatrix(space, tasks, errors)
