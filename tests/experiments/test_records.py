"""Reading and writing records, and records as a frame of pandas."""

import json
import math
from pathlib import Path

import pytest

import lpkernels as lp
from lpkernels.experiments import records
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.workloads.workload import Metric


def write_run(folder: Path, epochs: int = 2, *, name: str = "a", loss: float = 0.5) -> Path:
    """Records of a run of 2 planned epochs, of which `epochs` are done."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / records.RECORDS
    records.write_records(path, [records.header(RunConfig(name=name, epochs=2), "fp32")])
    for epoch in range(1, epochs + 1):
        record = {"type": "epoch", "epoch": epoch, "train_loss": loss, "train_accuracy": 0.7}
        record |= {"test_loss": 0.4, "test_accuracy": 0.8 + 0.05 * epoch}
        record |= {"lr": 0.1, "skipped_steps": 1, "seconds": 1.5}
        records.append_record(path, record)
    return path


def test_half_a_write_leaves_the_old_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    records.write_records(path, [{"step": 1}])

    def half(self: Path, text: str, **options: object) -> None:
        self.write_bytes(text[:4].encode())
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(KeyboardInterrupt):
        records.write_records(path, [{"step": 2}, {"step": 3}])
    assert records.read_records(path) == [{"step": 1}]


def test_a_last_line_cut_short_is_left_out_and_one_within_is_an_error(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    text = path.read_text()
    path.write_text(text[:-20])
    assert len(records.read_run(path).epochs) == 1
    path.write_text(text.replace('{"type": "epoch", "epoch": 1', "{", 1))
    with pytest.raises(ValueError, match="line 2 is not a JSON record"):
        records.read_run(path)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected the records of a run at"):
        records.read_run(tmp_path)


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"type": "epoch"}', "expected a header as first record"),
        ('{"type": "header", "kind": "sweep", "schema": 2}', "records of a run, got .* a sweep"),
    ],
    ids=["no header", "a sweep"],
)
def test_a_file_of_something_else_is_refused(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text(f"{line}\n")
    with pytest.raises(ValueError, match=message):
        records.read_run(tmp_path / "other.jsonl")


def test_headers_say_kind_and_metric_and_losses_not_finite_are_null(tmp_path: Path) -> None:
    metric = Metric("test_bits", "bits", higher=False, percent=False)
    first = records.header(RunConfig(), "fp32", metric)
    assert first["kind"] == "run"
    run = records.run_of(first, [])
    assert (run.metric, run.config) == (metric, RunConfig())
    path = write_run(tmp_path, loss=math.inf)
    assert json.loads(path.read_text().splitlines()[1])["train_loss"] is None
    table = records.table_of([records.read_run(path)], epochs=True)
    assert table["train_loss"].astype(float).isna().all()


@pytest.mark.parametrize(
    "train_loss, test_loss, skipped, status",
    [
        (0.5, 0.5, 3, "finished"),
        (0.5, 0.5, 4, "diverged"),
        (None, 0.5, 0, "diverged"),
        (0.5, None, 0, "diverged"),
    ],
)
def test_a_run_diverged_by_its_last_epoch(train_loss, test_loss, skipped, status):
    first = records.header(RunConfig(epochs=2), "fp32")
    good = {"train_loss": 0.5, "test_loss": 0.5, "updates": 4, "skipped_steps": 4}
    losses = {"train_loss": train_loss, "test_loss": test_loss}
    last = {**losses, "updates": 4, "skipped_steps": skipped}
    assert records.run_of(first, [good, last]).status == status
    assert records.run_of(first, [good]).status == records.run_of(first, []).status == "begun"


def test_runs_are_found_below_a_folder_and_of_a_sweep_the_finished_cells(tmp_path: Path) -> None:
    for cell, name in (("1", "second"), ("2", "first")):
        path = write_run(tmp_path / "cells" / cell, name=name)
    write_run(tmp_path / "work" / "try" / "3", name="third", epochs=1)
    runs = records.find_runs(tmp_path).values()
    assert [run.arm for run in runs] == ["first", "second", "third"]
    assert [run.finished for run in runs] == [True, True, False]
    assert [run.arm for run in records.find_runs(path).values()] == ["first"]
    (tmp_path / "sweep.json").write_text("{}\n")
    assert [run.arm for run in records.find_runs(tmp_path).values()] == ["first", "second"]


def write_losses(folder: Path, config: RunConfig, losses: list[float], **figures: float) -> None:
    folder.mkdir()
    path = folder / "records.jsonl"
    records.write_records(path, [records.header(config, "fp32")])
    for epoch, loss in enumerate(losses, start=1):
        record = {"type": "epoch", "epoch": epoch, "test_loss": loss, "lr": 0.01}
        records.append_record(path, {**record, **figures, "seconds": 1.5})


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs; the second has a figure that the first lacks."""
    write_losses(tmp_path / "a", RunConfig.of(name="a", lr=0.1), [0.5, float("inf")])
    own = RunConfig.of(name="b", lr=0.05, recipe="fp8_wang2018", dynamic_scale=True)
    write_losses(tmp_path / "b", own, [0.25], loss_scale=2.0**16)
    return tmp_path


def test_a_row_is_an_epoch_with_the_settings_of_its_run(runs: Path) -> None:
    table = lp.experiments.frame(runs)
    rows = table[["run", "name", "recipe", "epoch"]].values.tolist()
    assert rows == [[0, "a", "fp32", 1], [0, "a", "fp32", 2], [1, "b", "fp8_wang2018", 1]]
    assert set(RunConfig().flat()) < set(table.columns)
    # A figure that has the name of a setting is kept beside it.
    assert table[["lr", "lr_figure"]].values.tolist() == [[0.1, 0.01]] * 2 + [[0.05, 0.01]]
    assert table["loss_scale"].tolist() == [1.0] * 3
    # A figure that is not there or not finite is NaN.
    assert table["loss_scale_figure"].isna().tolist() == [True, True, False]
    assert table["test_loss"].isna().tolist() == [False, True, False]


def test_settings_of_earlier_versions_are_columns(runs: Path) -> None:
    path = runs / "a" / "records.jsonl"
    path.write_text(path.read_text().replace('"lr": 0.1', '"lr_decay": 0.3, "lr": 0.1', 1))
    assert lp.experiments.frame(runs / "a")["lr_decay"].tolist() == [0.3] * 2


@pytest.mark.parametrize("place", ["a", "a/records.jsonl"])
def test_a_table_is_read_from_the_folder_or_the_file_of_a_run(place: str, runs: Path) -> None:
    assert lp.experiments.frame(runs / place)["epoch"].tolist() == [1, 2]


@pytest.mark.parametrize("place", ["empty", "gone"])
def test_a_table_of_no_run_is_refused(place: str, runs: Path) -> None:
    (runs / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"expected .*records of .*lpkernels train"):
        lp.experiments.frame(runs / place)
