"""The results of a sweep, from its folder and from a file."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas
import pytest

from lpkernels.experiments.sweeps.cells import Folder
from lpkernels.experiments.sweeps.results import read_results, read_status, write_results
from tests.experiments.sweeps import toy


def test_a_file_of_results_says_what_the_folder_does(tmp_path: Path) -> None:
    spec = toy.spec("a", "b", seeds=10, lr=[0.1, 0.2])
    results = toy.run(spec, tmp_path / "out")
    path = write_results(results, tmp_path / "deep" / "results.jsonl")
    assert read_results(tmp_path / "out") == results
    pandas.testing.assert_frame_equal(read_results(path).table, results.table)
    assert replace(read_results(path), runs=results.runs) == results
    header, *lines = (json.loads(line) for line in path.read_text().splitlines())
    assert (header["kind"], header["schema"], header["cells"]) == ("sweep-results", 2, 40)
    assert header["metric"]["field"] == "test_accuracy"
    assert len(lines) == 40 and lines[0]["axes"] == {"lr": 0.1}
    # Even hundreds of cells are far from a megabyte.
    assert path.stat().st_size < 40 * 1000


@pytest.mark.parametrize("read", [read_results, read_status])
@pytest.mark.parametrize("name", ["", "none"], ids=["empty folder", "no folder"])
def test_a_folder_without_a_sweep_is_refused(read: Any, name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected the folder of a sweep at"):
        read(tmp_path / name)


@pytest.mark.parametrize(
    "name, place, message",
    [
        ("x.jsonl", "x.jsonl", r"expected results that .* got 'run'"),
        ("sweep.json", "", "expected the specification of a sweep"),
    ],
    ids=["file", "folder"],
)
def test_the_records_of_something_else_are_refused(name, place, message, tmp_path) -> None:
    (tmp_path / name).write_text('{"type": "header", "kind": "run", "schema": 2}\n')
    with pytest.raises(ValueError, match=message):
        read_results(tmp_path / place)


def test_the_status_of_a_file_is_refused(exported: list[str], tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("\n".join(exported))
    with pytest.raises(ValueError, match=rf"got the file .*`lpkernels sweep table {path}` for"):
        read_status(path)


def test_settings_of_another_version_are_read(exported: list[str], tmp_path: Path) -> None:
    header, *lines = exported
    header = header.replace('"base": {', '"base": {"colour": 3, ', 1)
    (tmp_path / "x").write_text("\n".join([header.replace('"arms"', '"hue": 1, "arms"'), *lines]))
    assert read_results(tmp_path / "x").spec.base["colour"] == 3


def test_a_header_without_its_fields_is_refused(exported: list[str], tmp_path: Path) -> None:
    (tmp_path / "x").write_text(exported[0].replace('"metric"', '"figure"'))
    with pytest.raises(ValueError, match=r"x: the header is none of .*'metric'"):
        read_results(tmp_path / "x")


def test_results_of_a_sweep_that_has_only_begun(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        toy.run(toy.spec(), tmp_path, train=Mock(side_effect=KeyboardInterrupt))
    results = read_results(tmp_path)
    assert (results.runs, results.missing) == ([], 4)


def test_a_broken_cell_is_shown_and_blocks_no_other(tmp_path: Path) -> None:
    spec = toy.spec("a", "b", seeds=2)
    whole = toy.run(spec, tmp_path)
    cells = Folder(tmp_path).cells
    for run, text in zip(whole.runs, ["{", "[]", "{}"], strict=False):
        (cells / run.cell / "cell.json").write_text(text)
    results = toy.run(spec, tmp_path)
    assert results.runs == whole.runs[3:] and results.missing == 0
    assert len(results.broken) == 3 and "a, seed 0: " in results.broken[0]
    assert all("expected the record of a cell" in text for text in results.broken)
    assert read_status(tmp_path) == (results, [])


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The lines of a file of results."""
    folder = tmp_path_factory.mktemp("exported")
    path = write_results(toy.run(toy.spec("a", seeds=1), folder / "out"), folder / "results.jsonl")
    return path.read_text().splitlines()


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: [],
        lambda line: {},
        lambda line: {"arm": 1},
        lambda line: {**line, "axes": []},
        lambda line: {**line, "values": []},
        lambda line: {**line, "status": "running"},
    ],
    ids=["a list", "empty", "an arm alone", "axes in a list", "values in a list", "a status"],
)
def test_a_line_that_is_no_result_is_refused(damage: Any, exported: list[str], tmp_path: Path):
    header, line, *_ = exported
    damaged = json.dumps(damage(json.loads(line)))
    path = tmp_path / "results.jsonl"
    path.write_text("\n".join([header, damaged, damaged]))
    with pytest.raises(ValueError, match=r"results.jsonl: line 2 is not the result of a cell"):
        read_results(path)


def test_results_without_their_header_are_refused(exported: list[str], tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("\n".join(exported[1:]))
    with pytest.raises(ValueError, match=r"results.jsonl: expected results that"):
        read_results(tmp_path / "results.jsonl")
