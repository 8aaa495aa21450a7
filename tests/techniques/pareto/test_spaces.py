"""Spaces of configurations and error matrices: the paper's 99, products, files, refusals."""

from pathlib import Path

import numpy as np
import pytest

from lpkernels import Accumulator, FloatFormat
from lpkernels.techniques.pareto import ErrorMatrix, FormatSpace
from tests.loops import each
from tests.support.refusals import refused
from tests.techniques.pareto.matrices import low_rank, some_of

AXES = {"low": ["e4m3", "e5m2"], "high": ["fp16", "bf16", "fp32"]}


def test_peppp_has_the_99_of_the_paper():
    space = FormatSpace.peppp()
    assert len(space) == len(list(space)) == 99
    assert space.shape == (11, 9)
    assert space.name(0) == "e3m1_sat e6m7_sat"
    assert space.name(98) == "e5m3_sat e8m11_sat"
    widths = [low.bits for low in space.low]
    assert {bits: widths.count(bits) for bits in widths} == {5: 1, 6: 2, 7: 3, 8: 3, 9: 2}
    assert [high.bits for high in space.high] == [14, 16, 18, 15, 17, 19, 16, 18, 20]
    assert {fmt.overflow for pair in FormatSpace.peppp() for fmt in pair} == {"saturate"}


def test_a_space_has_the_low_format_outermost_and_accumulators_innermost():
    space = FormatSpace(**AXES)
    low, high = space[4]
    assert (str(low), str(high)) == ("e5m2", "e8m7")
    assert space[-1] == (FloatFormat(5, 2), FloatFormat(8, 23))
    assert space[:2] == (space[0], space[1])
    assert space.low_bits.tolist() == [8] * 6
    assert space.high_bits.tolist() == [16, 16, 32] * 2
    space = FormatSpace(**AXES, accumulators=["native", "e6m9_chunk64:stochastic"])
    assert space.shape == (2, 3, 2)
    assert space[1] == (FloatFormat(4, 3), FloatFormat(5, 10), space.accumulators[1])
    assert space.accumulators[1] == Accumulator("e6m9", "stochastic", chunk=64)
    assert space.low_bits.shape == (12,)


def test_a_space_is_a_sequence_with_names():
    space = FormatSpace(**AXES)
    assert [space.index(configuration) for configuration in space] == list(range(6))
    assert str(space) == "e4m3 e5m2 x e5m10 e8m7 e8m23"
    assert space.name(4) == space.names[4] == "e5m2 e8m7"
    assert space == FormatSpace(["e4m3", "e5m2"], ["e5m10", "e8m7", "e8m23"])
    for missing in (lambda: space.index(("e5m2", "e5m2")), lambda: space[6]):
        with pytest.raises((ValueError, IndexError)):
            missing()


SMALL = FormatSpace(["e4m3", "e5m2"], ["bf16"])
ERRORS = np.array([[[0.1, 0.2], [0.3, np.nan]], [[np.nan, np.nan], [0.5, 0.7]]])
MATRIX = ErrorMatrix(SMALL, ["a", "b"], ERRORS)


def test_means_are_over_the_seeds_that_are_there():
    want = [[0.15, 0.3], [np.nan, 0.6]]
    assert pytest.approx(np.array(want), nan_ok=True) == MATRIX.mean
    single = ErrorMatrix(SMALL, ["a", "b"], ERRORS[..., 0])
    assert single.errors.shape == (2, 2, 1)
    assert np.array_equal(single.mean, ERRORS[..., 0], equal_nan=True)


def test_errors_are_a_copy_that_stays():
    errors = ERRORS.copy()
    matrix = ErrorMatrix(SMALL, ["a", "b"], errors)
    errors[:] = 0
    assert np.array_equal(matrix.errors, ERRORS, equal_nan=True)
    with pytest.raises(ValueError, match="read-only"):
        matrix.errors[0] = 1


HIGH = ["bf16"]
WRONG = [
    (lambda: FormatSpace(["e4m3", "e4m3"], HIGH), ValueError, "low must be distinct"),
    (lambda: FormatSpace(["e4m3"], HIGH, ["e6m9"] * 2), ValueError, "accumulators must be"),
    (lambda: FormatSpace("e4m3", HIGH), TypeError, "low must be a list, got 'e4m3'"),
    (lambda: FormatSpace(["e4m3"], [3]), TypeError, "a format, its name or a torch.dtype, got 3"),
    (lambda: ErrorMatrix(["a", "b"], ["x"], [[0.1, 0.2]], [1]), ValueError,
     r"memory: expected shape \(2,\)"),
    (lambda: ErrorMatrix(SMALL, ["a"], ERRORS), ValueError,
     r"expected shape \(1, 2, 2\), got \(2, 2, 2"),
    (lambda: ErrorMatrix(SMALL, ["a", "a"], ERRORS), ValueError, "distinct"),
    (lambda: ErrorMatrix(SMALL, "ab", ERRORS), TypeError, "tasks must be a list of names"),
    (lambda: ErrorMatrix(SMALL, ["a", "b"], ERRORS * np.inf), ValueError, "got inf"),
    (lambda: ErrorMatrix("e4m3 x bf16", ["a"], ERRORS), TypeError, "names must be a list"),
]  # fmt: skip
test_wrong_axes_texts_and_matrices_are_refused = refused(WRONG)


GRID = FormatSpace(["e3m1", "e4m2", "e4m3", "e5m2"], ["e6m7", "e6m9", "e6m11"])
MEMORY = 100 * GRID.low_bits + 10 * GRID.high_bits
TASKS = tuple(f"set {i}" for i in range(9))
WHOLE = low_rank(9, 12, 2, noise=0.01)
DRAWN = np.where(some_of((9, 12), 0.8), WHOLE, np.nan)


@each("memory", [MEMORY, np.outer(1 + np.arange(9), MEMORY)])
def test_a_file_comes_back_as_it_was_saved(memory: np.ndarray, tmp_path: Path) -> None:
    path = ErrorMatrix(GRID.names, TASKS, DRAWN, memory).save(tmp_path / "known.csv")
    found = ErrorMatrix.load(path)
    assert np.array_equal(found.memory, np.broadcast_to(memory, (9, 12)))
    assert found.save(tmp_path / "again.csv").read_text() == path.read_text()
    seeds = ErrorMatrix(GRID, TASKS, np.stack([DRAWN, WHOLE], axis=2), memory)
    found = ErrorMatrix.load(seeds.save(tmp_path / "seeds.csv"), GRID)
    assert np.array_equal(found.memory, seeds.memory)
    assert np.array_equal(found.errors, seeds.errors, equal_nan=True)


HEAD = "task,configuration,memory,error\n"
WRONG_FILES = [
    ("a,b\n", "line 1: expected a CSV of task,configuration,memory,error: the first line is 'a,b'"),
    (b"\xff\xfe", "expected a CSV of task,configuration,memory,error: .*decode"),
    (HEAD, "must be distinct and not empty"),
    (HEAD + "a,x,1,0.5\na,y,1,half\n", "line 3: .*'half'"),
    (HEAD + "a,x,1,0.5\na,x,2,0.5\n", "line 3: .*'a' in 'x' has memory 2 here and 1 above"),
    (HEAD + "a,x,-1,0.5\n", "memory: expected numbers above 0, got -1"),
    (HEAD + "a,x,1,inf\n", "errors must be finite, or NaN where missing; got inf"),
]


@each("content, message", WRONG_FILES)
def test_wrong_files_are_refused(content: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "known.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message) as error:
        ErrorMatrix.load(path)
    assert str(error.value).startswith(str(path))


def test_lines_come_in_any_order_and_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "known.csv"
    path.write_text(
        HEAD + "b,e4m2 e6m9,,0.25\r\nb,e4m2 e6m7,,0.5\r\na,e4m2 e6m7,,\r\nb,e4m2 e6m7,,0.75\r\n"
    )
    space = FormatSpace(["e4m2"], ["e6m7", "e6m9"])
    found = ErrorMatrix.load(path, space)
    assert (found.names, found.tasks, found.memory) == (space.names, ("b", "a"), None)
    nan = np.nan
    want = [[[0.5, 0.75], [0.25, nan]], [[nan, nan], [nan, nan]]]
    assert np.array_equal(found.errors, want, equal_nan=True)
    for other, message in (
        (FormatSpace(["e4m2"], ["e6m7", "e6m9", "e6m11"]), "it has no 'e4m2 e6m11'"),
        (FormatSpace(["e4m2"], ["e6m9"]), "it has 'e4m2 e6m7'; its columns must be called"),
    ):
        with pytest.raises(ValueError, match=message):
            ErrorMatrix.load(path, other)
