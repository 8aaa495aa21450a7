"""The folder of a sweep: the names of cells, tries that take each other's place, ends, damage."""

import re
from pathlib import Path
from typing import Any

import pytest

from lpkernels.experiments.records import RECORDS, write_records
from lpkernels.experiments.sweeps.cells import (
    CELL,
    Folder,
    cell_name,
    code_of,
    read_cell,
    settle,
)
from lpkernels.experiments.sweeps.specification import SweepSpec
from lpkernels.experiments.training.checkpoints import CHECKPOINT, PREVIOUS
from lpkernels.experiments.training.config import RunConfig
from lpkernels.schemas import header
from tests.experiments import tiny

X, Y = "0123456789abcdef", "fedcba9876543210"
SPEC = SweepSpec(base={"epochs": 2}, arms={"a": {}}, axes={"lr": [0.1]}, seeds=2)


EPOCH = {"epoch": 1, "test_accuracy": 0.75}


def record(cell: str, **changes: object) -> dict[str, object]:
    place = {"arm": "a", "axes": {"lr": 0.1}, "seed": 1}
    text = {"status": "finished", "error": "", "version": "1", "code": "commit x"}
    return {**header("cell"), "cell": cell, **place, **text, **changes}


@pytest.fixture
def there(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path)
    folder.make()
    return folder


def begun(there: Folder, name: str, text: str) -> Path:
    folder = there.begin(name)
    folder.mkdir()
    for file in (CHECKPOINT, PREVIOUS):
        (folder / file).write_text(text)
    run = {**header("run"), "config": {"name": "b", "seed": 1, "epochs": 1}}
    write_records(folder / RECORDS, [run, {"type": "epoch", **EPOCH}])
    return folder


@pytest.mark.parametrize(
    "settings", [{"seed": 1}, {"threads": 1}, {"lr": 0.2}, {"loss_scale": 2.0}], ids=str
)
def test_cells_of_other_settings_have_other_names(settings: dict[str, Any]) -> None:
    assert cell_name(RunConfig.of(**settings)) != cell_name(RunConfig())


@pytest.mark.parametrize(
    "settings", [{"name": "b"}, {"loss_scale": 1.0, "clip": None, "model": ""}], ids=str
)
def test_the_run_s_name_and_defaults_are_no_part_of_a_cell_s_name(settings: dict[str, Any]) -> None:
    assert cell_name(RunConfig.of(epochs=3, **settings)) == cell_name(RunConfig.of(epochs=3))


def test_the_code_of_a_cell_is_a_commit_and_the_source_of_its_module() -> None:
    own = RunConfig.of(data="tests.experiments.tiny:tiny_workload")
    assert code_of(RunConfig(), None) == "commit unknown"
    code = code_of(own, "0123456789abcdef+")
    assert re.fullmatch(rf"commit 0123456789ab\+, {tiny.__name__} [0-9a-f]{{12}}", code)


def test_each_try_takes_the_folder_of_the_try_before(there: Folder) -> None:
    first = begun(there, X, "one")
    (first / CHECKPOINT).with_suffix(".tmp").write_text("half")
    second = there.begin(X)
    assert not first.parent.exists() and there.begun() == {X: second}
    assert {path.name for path in second.iterdir()} == {CHECKPOINT, PREVIOUS, RECORDS}
    # A try that is still at work finds nothing to write into or to finish.
    for write in (lambda: (first / CHECKPOINT).open("wb"), lambda: first.rename(there.cells / X)):
        with pytest.raises(FileNotFoundError):
            write()
    settle(second, there.cells, record(X))
    assert there.finished() == {X} and there.begun() == {} and not any(there.work.iterdir())
    assert {path.name for path in (there.cells / X).iterdir()} == {CELL, RECORDS}
    run = read_cell(there.settled(X))
    assert (run.label(), run.status, run.epochs) == ("a, lr 0.1, seed 1", "finished", [EPOCH])
    assert run.header["code"] == "commit x"


def test_a_failed_cell_is_forgotten_and_what_is_no_sweep_s_stays(there: Folder) -> None:
    names = ("work/.DS_Store", "work/notes", "cells/.DS_Store", "cells/notes", "failed/x")
    for name in names:
        (there.root / name).write_text("theirs")
    there.give_up(X, record(X, status="failed"))
    assert there.given_up() == {X} and read_cell(there.settled(X)).status == "failed"
    there.forget(X)
    # The leavings of a command that was killed.
    there.begin(Y)
    there.make()
    assert there.given_up() == there.finished() == set() and there.begun() == {}
    assert {str(p.relative_to(there.root)) for p in there.root.glob("*/*")} == set(names)


def test_the_specification_grows_and_damage_to_it_is_told(there: Folder) -> None:
    assert there.read_spec() is None
    there.join(SPEC, [X])
    settle(begun(there, X, ""), there.cells, record(X))
    there.join(SPEC.replace(seeds=[0, 1, 2]), [X, Y])
    spec = there.read_spec()
    assert spec is not None and spec.seeds == [0, 1, 2]
    with pytest.raises(ValueError, match=r"holds another sweep; .* of its 1 other cells"):
        there.join(SPEC, [Y])
    whole = there.spec.read_bytes()
    name = whole.index(b'"sha256"')
    for at in {*range(0, len(whole) - 1, 7)} - {*range(name, name + 8)}:
        there.spec.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(
            ValueError, match=r"sweep.json: expected the spec.* damaged .* remove it and"
        ):
            there.read_spec()
    there.spec.write_text('{"kind": "run", "schema": 2}')
    with pytest.raises(ValueError, match="damaged or something else"):
        there.read_spec()


@pytest.mark.parametrize("name", [CELL, RECORDS])
def test_no_damage_of_a_finished_cell_is_believed(name: str, there: Folder) -> None:
    settle(begun(there, X, ""), there.cells, record(X))
    folder = there.cells / X
    whole = (folder / name).read_bytes()
    # The digest's own name is not among what it protects.
    begin = len(whole.partition(b'"sha256"')[0])
    for at in {*range(len(whole) - 1)} - {*range(begin, begin + 8)}:
        (folder / name).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ValueError, match=r"expected|remove the folder"):
            pytest.fail(f"byte {at} of {name}: {read_cell(folder)}")
    (folder / name).write_bytes(whole)
    assert read_cell(folder).values == EPOCH
