"""Error matrices of the user's own: columns of names, and the file that --known reads."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpkernels.experiments.sweeps.frontiers.choosing import Known, choose_next, frontier_of
from lpkernels.techniques import pareto
from lpkernels.techniques.pareto import ErrorMatrix, FormatSpace
from tests.loops import each
from tests.support import commands
from tests.support.commands import sentence, wide  # noqa: F401
from tests.support.refusals import refused
from tests.techniques.pareto.matrices import low_rank, some_of

SPACE = FormatSpace(["e3m1", "e4m2", "e4m3", "e5m2"], ["e6m7", "e6m9", "e6m11"])
MEMORY = 100 * SPACE.low_bits + 10 * SPACE.high_bits
TASKS = tuple(f"set {i}" for i in range(9))
DRAWN = np.where(some_of((9, 12), 0.8), low_rank(9, 12, 2, noise=0.01), np.nan)
WHOLE = low_rank(9, 12, 2, noise=0.01)
call, done = (partial(command, "frontier") for command in (commands.call, commands.done))


def of_names(folder: Path, errors: Any = DRAWN, memory: Any = MEMORY) -> Path:
    """A file of names."""
    return ErrorMatrix(SPACE.names, TASKS, errors, memory).save(folder / "known.csv")


def test_names_with_memory_answer_as_formats_do(tmp_path: Path) -> None:
    path = of_names(tmp_path)
    own, formats = ErrorMatrix.load(path), ErrorMatrix(SPACE, TASKS, DRAWN)
    assert own.space is None and own.names == formats.names == SPACE.names and own.tasks == TASKS
    assert np.array_equal(own.errors, formats.errors, equal_nan=True)
    assert np.array_equal(own.memory, np.tile(MEMORY, (9, 1)))
    assert formats.memory is None
    answers = []
    for matrix, memory in ((own, own.memory[0]), (formats, MEMORY)):
        seen = ~np.isnan(matrix.mean)
        completed = pareto.complete(matrix.mean, seen, rank=2, lam=0.1)
        y = pareto.embed(completed.values, 2)
        chosen = pareto.select(y, n=4, cost=memory, budget=6 * memory.mean())
        predicted = pareto.predict(y, chosen, WHOLE[0, chosen])
        known = Known.of(matrix, "set 0", 2)
        more = choose_next(known, memory, 5, asked=[0], cap=float(np.median(memory)))
        measured = np.where(np.isin(np.arange(12), chosen), WHOLE[0], np.nan)
        found = frontier_of(memory, measured, known=known).predicted
        front = pareto.pareto_front(memory, predicted)
        answers.append([completed.values, y, chosen, predicted, front, more, found])
    assert all(np.array_equal(*pair) for pair in zip(*answers, strict=True))
    # Called as a space's configurations, columns of names become this space's.
    assert ErrorMatrix.load(path, SPACE).space == SPACE
    with pytest.raises(ValueError, match="it has no 'e3m1_sat e6m7_sat'"):
        ErrorMatrix.load(path, FormatSpace.peppp())


def test_a_study_takes_names_that_are_its_configurations(tmp_path: Path) -> None:
    known, study = of_names(tmp_path), tmp_path / "study.toml"
    axes = [f"{name} = {[str(f) for f in getattr(SPACE, name)]}" for name in ("low", "high")]
    fields = '[base]\ndata = "iris"\nwidth = 4\nepochs = 1\nbatch = 64'
    study.write_text("\n".join(['name = "own"', "seeds = 1", *axes, fields]))
    options = ("--known", known, "--rank", 2)
    said = done("run", study, "--out", tmp_path / "out", *options, "--measure", 3, "--jobs", 1)
    assert "3 finished" in said
    assert "predicted from other tasks" in done("predict", tmp_path / "out", *options)
    known.write_text(known.read_text().replace("e4m2 e6m9", "e9m9 of ours"))
    said = sentence(call("run", study, "--out", tmp_path / "new", *options), 2)
    assert "--known: known: its errors are of other configurations: it has no 'e4m2 e6m9'" in said
    assert not (tmp_path / "new").exists()


@each("memory", [MEMORY, np.outer(1 + np.arange(9), MEMORY)])
def test_a_file_comes_back_as_it_was_saved(memory: np.ndarray, tmp_path: Path) -> None:
    path = of_names(tmp_path, memory=memory)
    found = ErrorMatrix.load(path)
    assert np.array_equal(found.memory, np.broadcast_to(memory, (9, 12)))
    assert found.save(tmp_path / "again.csv").read_text() == path.read_text()
    seeds = ErrorMatrix(SPACE, TASKS, np.stack([DRAWN, WHOLE], axis=2), memory)
    found = ErrorMatrix.load(seeds.save(tmp_path / "seeds.csv"), SPACE)
    assert found.space == SPACE and np.array_equal(found.memory, seeds.memory)
    assert np.array_equal(found.errors, seeds.errors, equal_nan=True)


def test_memory_is_scaled_by_the_task_or_by_the_matrix() -> None:
    memory = np.outer(1 + np.arange(9), MEMORY)
    options = {"methods": ["greedy"], "counts": [3], "rank": 2}
    own, scaled = pareto.leave_one_out(WHOLE, memory, **options), None
    assert own == pareto.leave_one_out(WHOLE, MEMORY, **options)
    scaled = pareto.leave_one_out(WHOLE, memory, scale="matrix", **options)
    # The last task has the matrix's largest memory; along memory others have a part of their own.
    assert scaled[8] == own[8]
    for i, (small, large) in enumerate(zip(scaled, own, strict=True)):
        assert small["measured"] == large["measured"] and small["rmse"] == large["rmse"]
        assert small["convergence"] <= large["convergence"] * (1 + 1e-9)
        truth, predicted = np.array([0.9, 0.3]), np.array([0.8, 0.3])
        found = pareto.compare(truth, predicted, np.array([i + 1.0, i + 2.0]), [], largest=10.0)
        assert found["hyperdiff"] == pytest.approx(0.1 * 0.1)


HEAD = "task,configuration,memory,error\n"
WRONG = [
    ("a,b\n", r"a CSV of errors whose first line is 'task,configuration,memory,error', got 'a,b'"),
    ("", "whose first line is .*, got ''"),
    ('{"type": "error matrix"}', "a CSV of errors whose first line is"),
    (b"\xff\xfe", "expected a CSV of errors, got no text"),
    (HEAD, "tasks|at least one value"),
    (HEAD + "a,x,1\n", "line 2: expected task,configuration,memory,error, got 'a,x,1'"),
    (HEAD + "a,x,1,0.5\na,y,1,half\n", "line 3: error must be a number or empty, got 'half'"),
    (HEAD + "a,x,1,0.5\na,x,2,0.5\n", "line 3: 'a' in 'x' has memory 2 here and 1.0 above"),
    (HEAD + "a,x,-1,0.5\n", "memory: expected numbers above 0, got -1"),
    (HEAD + "a,x,1,inf\n", "errors must be finite, or NaN where missing; got inf"),
    (HEAD + ",x,1,0.5\n", "each must have a name of its own, got an empty one at 0"),
]


@each("content, message", WRONG)
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
    assert (found.space, found.tasks, found.memory) == (space, ("b", "a"), None)
    nan = np.nan
    want = [[[0.5, 0.75], [0.25, nan]], [[nan, nan], [nan, nan]]]
    assert np.array_equal(found.errors, want, equal_nan=True)
    for other, message in (
        (FormatSpace(["e4m2"], ["e6m7", "e6m9", "e6m11"]), "it has no 'e4m2 e6m11'"),
        (FormatSpace(["e4m2"], ["e6m9"]), "it has 'e4m2 e6m7'; its columns must be called"),
    ):
        with pytest.raises(ValueError, match=message):
            ErrorMatrix.load(path, other)


NAMES = ["a", "b"]
test_wrong_matrices_of_names_are_refused = refused(
    [
        (lambda: ErrorMatrix(NAMES, ["x"], [[0.1, 0.2]], [1]), r"must be \(1, 2\) or \(2,\), got"),
        (lambda: ErrorMatrix(NAMES, ["x"], [[0.1]], [1, 2]), r"\(1 tasks, 2 configurations, seeds"),
        (lambda: ErrorMatrix(["a", "a"], ["x"], [[0.1, 0.2]], [1, 2]), "got 'a' twice"),
    ],
    ValueError,
)
