"""Records of runs as a frame of pandas."""

import sys
from pathlib import Path

import pytest

import lpkernels as lp
from lpkernels.experiments.records import append_record, header, write_records
from lpkernels.experiments.training.config import RunConfig


def write_run(folder: Path, config: RunConfig, losses: list[float], **figures: float) -> None:
    folder.mkdir()
    path = folder / "records.jsonl"
    write_records(path, [header(config, "fp32")])
    for epoch, loss in enumerate(losses, start=1):
        record = {"type": "epoch", "epoch": epoch, "test_loss": loss, "lr": 0.01}
        append_record(path, {**record, **figures, "seconds": 1.5})


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs; the second has a figure that the first lacks."""
    write_run(tmp_path / "a", RunConfig.of(name="a", lr=0.1), [0.5, float("inf")])
    own = RunConfig.of(name="b", lr=0.05, recipe="fp8_wang2018", dynamic_scale=True)
    write_run(tmp_path / "b", own, [0.25], loss_scale=2.0**16)
    return tmp_path


@pytest.mark.slow
def test_a_row_is_an_epoch_with_the_settings_of_its_run(runs: Path) -> None:
    pytest.importorskip("pandas")
    table = lp.experiments.frame(runs)
    assert table[["run", "name", "recipe", "epoch"]].values.tolist() == [
        [0, "a", "fp32", 1],
        [0, "a", "fp32", 2],
        [1, "b", "fp8_wang2018", 1],
    ]
    assert set(RunConfig().flat()) - {"lr", "loss_scale"} < set(table.columns)
    # A setting that has the name of a figure is kept beside it.
    assert table[["lr_setting", "lr"]].values.tolist() == [[0.1, 0.01]] * 2 + [[0.05, 0.01]]
    assert table["loss_scale_setting"].tolist() == [1.0] * 3
    # A figure that is not there or not finite is NaN.
    assert table["loss_scale"].isna().tolist() == [True, True, False]
    assert table["test_loss"].isna().tolist() == [False, True, False]


@pytest.mark.slow
def test_one_run_is_read_from_its_folder_or_its_file_and_a_place_without_runs_is_an_error(
    runs: Path,
) -> None:
    pytest.importorskip("pandas")
    (runs / "empty").mkdir()
    for place in ("a", "a/records.jsonl"):
        assert lp.experiments.frame(runs / place)["epoch"].tolist() == [1, 2]
    for place in ("empty", "gone"):
        with pytest.raises(FileNotFoundError, match=r"expected .*records of .*lpkernels train"):
            lp.experiments.frame(runs / place)


def test_without_pandas_the_error_says_what_to_install(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r'needs pandas: pip install "lpkernels\[framew'):
        lp.experiments.frame(runs)
