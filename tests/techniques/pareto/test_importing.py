"""Error matrices of the user's own: what `lpkernels frontier import` reads and refuses."""

import json
import pickle
import tempfile
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


def written(folder: Path, errors: Any = DRAWN, memory: Any = MEMORY) -> list[Path]:
    """The files of an import: errors, memory, names of rows, names of columns."""
    np.save(folder / "errors.npy", errors)
    np.save(folder / "memory.npy", memory)
    (folder / "rows.txt").write_text("\n".join(TASKS))
    (folder / "columns.txt").write_text("".join(f"{name} \r\n" for name in SPACE.names))
    return [folder / name for name in ("errors.npy", "memory.npy", "rows.txt", "columns.txt")]


def imported(folder: Path, errors: Any = DRAWN, memory: Any = MEMORY) -> Path:
    e, m, rows, columns = written(folder, errors, memory)
    out = Path(tempfile.mkdtemp(dir=folder)) / "known.json"
    said = done("import", e, m, "--rows", rows, "--columns", columns, "--out", out)
    assert f"errors of 9 tasks in 12 configurations in {out}" in said
    return out


def test_names_with_memory_answer_as_formats_do(tmp_path: Path) -> None:
    path = imported(tmp_path)
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
    with pytest.raises(ValueError, match="column 0 is 'e3m1 e6m7', expected 'e3m1_sat e6m7_sat'"):
        ErrorMatrix.load(path, FormatSpace.peppp())


def test_a_study_takes_names_that_are_its_configurations(tmp_path: Path) -> None:
    known, study = imported(tmp_path), tmp_path / "study.toml"
    axes = [f"{name} = {[str(f) for f in getattr(SPACE, name)]}" for name in ("low", "high")]
    fields = '[base]\ndata = "iris"\nwidth = 4\nepochs = 1\nbatch = 64'
    study.write_text("\n".join(['name = "own"', "seeds = 1", *axes, fields]))
    options = ("--known", known, "--rank", 2)
    said = done("run", study, "--out", tmp_path / "out", *options, "--measure", 3, "--jobs", 1)
    assert "3 finished" in said
    assert "predicted from other tasks" in done("predict", tmp_path / "out", *options)
    other = json.loads(known.read_text())
    other["names"][4] = "e9m9 of ours"
    known.write_text(json.dumps(other))
    said = sentence(call("run", study, "--out", tmp_path / "new", *options), 2)
    assert (
        "--known: known: its errors are of other configurations: column 4 is 'e9m9 of ours'" in said
    )
    assert not (tmp_path / "new").exists()


@each("memory", [MEMORY, np.outer(1 + np.arange(9), MEMORY)])
def test_a_file_comes_back_as_it_was_saved(memory: np.ndarray, tmp_path: Path) -> None:
    path = imported(tmp_path, memory=memory)
    found = ErrorMatrix.load(path)
    assert np.array_equal(found.memory, np.broadcast_to(memory, (9, 12)))
    again = found.save(tmp_path / "again.json")
    assert again.read_text() == path.read_text()
    seeds = ErrorMatrix(SPACE, TASKS, np.stack([DRAWN, DRAWN], axis=2), memory)
    found = ErrorMatrix.load(seeds.save(tmp_path / "seeds.json"))
    assert found.space == SPACE and np.array_equal(found.memory, seeds.memory)
    path.unlink()
    e, m, *_ = written(tmp_path, memory=memory)
    done("import", e, m, "--out", path)
    found = ErrorMatrix.load(path)
    assert found.tasks[8] == "task 8" and found.names[11] == "configuration 11"


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


NAN_ROW, NAN_COLUMN, PERCENT, LESS = (DRAWN.copy() for _ in range(4))
NAN_ROW[3], NAN_COLUMN[:, 5], PERCENT[2, 1], LESS[0, 0] = np.nan, np.nan, 37.5, -0.1
ZERO, LOST = MEMORY.copy(), MEMORY.copy()
ZERO[3], LOST[4] = 0, np.nan
# The file that is replaced, its new content, the option that the error names, and the message.
WRONG = [
    ("errors", DRAWN[0], "", "errors: expected 2 dimension(s) and at least one value, got"),
    ("errors", np.empty((0, 12)), "", "errors: expected 2 dimension(s) and at least one value"),
    ("errors", DRAWN[..., None], "", "2 dimension(s) and at least one value, got shape (9, 12, 1)"),
    ("errors", DRAWN + 0j, "'errors'", "expected real numbers, got complex128"),
    ("errors", DRAWN > 0.5, "'errors'", "expected real numbers, got bool"),
    ("errors", PERCENT, "", "errors: expected shares of 0 to 1, NaN where nothing was measured, "
     "got 37.5 at row 2, column 1; divide percentages by 100"),
    ("errors", LESS, "", "got -0.1 at row 0, column 0"),
    ("errors", np.where(np.isnan(DRAWN), np.inf, DRAWN), "", "expected shares of 0 to 1"),
    ("errors", NAN_ROW, "", "errors: row 3 is NaN throughout (1 row(s) are), so that nothing is"),
    ("errors", NAN_COLUMN, "", "column 5 is NaN throughout (1 column(s) are), so that nothing is"),
    ("errors", b"PK\x03\x04 a zip", "'errors'", "expected an array of numbers, a whole .npy file"),
    ("errors", pickle.dumps(DRAWN), "'errors'", "objects that are pickled are not read"),
    ("errors", np.array([{}, 1.0], dtype=object), "'errors'", "objects that are pickled are not"),
    ("errors", None, "'errors'", "No such file"),
    ("memory", None, "'memory'", "No such file"),
    ("memory", b"", "'memory'", "an array of numbers, a whole .npy file as np.save writes it"),
    ("memory", MEMORY[:11], "", "memory must be (9, 12) or (12,), got (11,)"),
    ("memory", np.tile(MEMORY, (8, 1)), "", "memory must be (9, 12) or (12,), got (8, 12)"),
    ("memory", -MEMORY, "", "memory: expected numbers above 0, got -980"),
    ("memory", ZERO, "", "memory: expected numbers above 0, got 0"),
    ("memory", LOST, "", "memory: expected finite numbers, got nan at index 4"),
    ("rows", b"a\nb\na\n", "'--rows'", "rows.txt: each must have a name of its own, got 'a' twice"),
    ("rows", b"a\n\nb\n", "'--rows'", "each must have a name of its own, got an empty one at 1"),
    ("rows", b"\xff\xfe", "'--rows'", "rows.txt: expected a text in UTF-8, a name in each line"),
    ("rows", b"a\nb\n", "--rows", "rows: expected 9 names, one for each of the rows of errors"),
    ("columns", b"a\nb\n", "--columns", "expected 12 names, one for each of the columns of errors"),
    ("columns", b"a\na", "'--columns'", "got 'a' twice"),
]  # fmt: skip


@each("name, content, option, message", WRONG)
def test_wrong_files_are_one_sentence_and_nothing_is_written(
    name: str, content: Any, option: str, message: str, tmp_path: Path
) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    e, m, rows, columns = written(folder)
    path = {"errors": e, "memory": m, "rows": rows, "columns": columns}[name]
    if isinstance(content, np.ndarray):
        np.save(path, content)
    elif content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    there = sorted(folder.iterdir())
    result = call("import", e, m, "--rows", rows, "--columns", columns, "--out", folder / "o.json")
    said = sentence(result, 2)
    assert message in said and f"Invalid value{' for ' * bool(option)}{option}" in said, said
    assert sorted(folder.iterdir()) == there


def test_a_part_of_a_file_an_old_output_and_no_folder_are_refused(tmp_path: Path) -> None:
    e, m, *_ = written(tmp_path)
    out = tmp_path / "known.json"
    whole = e.read_bytes()
    for size in range(0, len(whole), 37):
        e.write_bytes(whole[:size])
        assert "a whole .npy file as np.save writes it" in sentence(
            call("import", e, m, "--out", out), 2
        )
    e.write_bytes(whole)
    out.write_text("mine")
    said = sentence(call("import", e, m, "--out", out), 2)
    assert "'--out'" in said and f"{out} is there already; choose another file" in said
    assert out.read_text() == "mine"
    said = sentence(call("import", e, m, "--out", tmp_path / "none" / "known.json"), 2)
    assert "'--out'" in said and "expected a folder at" in said


NAMES = ["a", "b"]
test_wrong_matrices_of_names_are_refused = refused(
    [
        (lambda: ErrorMatrix(NAMES, ["x"], [[0.1, 0.2]]), "memory must be given where columns are"),
        (lambda: ErrorMatrix(NAMES, ["x"], [[0.1, 0.2]], [1]), r"must be \(1, 2\) or \(2,\), got"),
        (lambda: ErrorMatrix(NAMES, ["x"], [[0.1]], [1, 2]), r"\(1 tasks, 2 configurations, seeds"),
        (lambda: ErrorMatrix(["a", "a"], ["x"], [[0.1, 0.2]], [1, 2]), "got 'a' twice"),
    ],
    ValueError,
)
