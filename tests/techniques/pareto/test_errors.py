"""Error matrices of the user's own: columns of names, and the file that --known reads."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpkernels.techniques.pareto import ErrorMatrix, FormatSpace
from tests.loops import each
from tests.support import commands
from tests.support.commands import sentence, wide  # noqa: F401
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
    assert np.array_equal(found.memory, seeds.memory)
    assert np.array_equal(found.errors, seeds.errors, equal_nan=True)


HEAD = "task,configuration,memory,error\n"
WRONG = [
    ("a,b\n", "a CSV of errors with the fields task,configuration,memory,error, got 'a,b'"),
    ("", "a CSV of errors with the fields .*, got ''"),
    ('{"type": "error matrix"}', "a CSV of errors with the fields"),
    (b"\xff\xfe", "expected a CSV of errors, got no text"),
    (HEAD, "must be distinct and not empty"),
    (HEAD + "a,x,1\n", "line 2: expected .* task,configuration,memory,error, got 'a,x,1'"),
    (
        HEAD + "a,x,1,0.5\na,y,1,half\n",
        "line 3: memory and error must be numbers .*half",
    ),
    (HEAD + "a,x,1,0.5\na,x,2,0.5\n", "line 3: 'a' in 'x' has memory 2 here and 1 above"),
    (HEAD + "a,x,-1,0.5\n", "memory: expected numbers above 0, got -1"),
    (HEAD + "a,x,1,inf\n", "errors must be finite, or NaN where missing; got inf"),
    (HEAD + ",x,1,0.5\n", "tasks must be distinct and not empty, got ''"),
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
