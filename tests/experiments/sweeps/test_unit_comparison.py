"""One network in two arithmetics: the outputs that differ, and a comparison that goes on."""

from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from lpkernels.experiments.records import Run, read_records
from lpkernels.experiments.sweeps import unit_comparison
from lpkernels.experiments.sweeps.unit_comparison import Comparison, begin, compare
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.interrupts import Interrupted
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.experiments.workloads.workload import Workload
from lpkernels.report.units import block_note

Whole = tuple[Path, list[unit_comparison.Difference], list[Run]]
RUN = RunConfig.of(
    data="tests.experiments.tiny:tiny_workload", model="cnn1", width=2, epochs=1, batch=15
)
PAIR = Comparison("fp32", "h100_fp8", RUN)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A comparison that nobody stopped: its folder, and its result."""
    folder = tmp_path_factory.mktemp("whole")
    begin(PAIR, folder)
    return folder, *compare(PAIR, folder)


def test_sides_are_the_run_in_recipes_and_units_and_not_the_same() -> None:
    with pytest.raises(ValueError, match=r"b: ada_bf16 is the same arithmetic as a100_bf16"):
        Comparison("a100_bf16", "ada_bf16", RUN)
    with pytest.raises(ValueError, match="unknown name 'h100'"):
        Comparison("fp32", "h100", RUN)
    sides = Comparison("h100_fp8", "ada_e4m3", RUN).sides()
    recipes = {side: config.arithmetic.recipe for side, config in sides.items()}
    assert recipes == {"a": "h100_fp8", "b": "ada_e4m3"}
    assert sides["a"].replace(name="run", recipe="fp32") == RUN


class Fixed(nn.Module):
    """Gives three outputs for every example, whatever the example."""

    def __init__(self, *outputs: float) -> None:
        super().__init__()
        self.outputs = torch.tensor(outputs).reshape(-1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outputs


def test_what_differs_is_counted() -> None:
    nan, inf = float("nan"), float("inf")
    one = Fixed(1.0, 5.0, -8.0, nan, inf, 0.0)
    other = Fixed(1.0, 5.5, -7.0, nan, 1.0, -0.0)
    workload = Workload("x", nn.Module, None, [(torch.zeros(2),)], (), lambda m, b: {"y": m(b[0])})
    found = unit_comparison._difference("untrained", [one, other], workload, RUN)
    assert found == unit_comparison.Difference("untrained", 6, 4, 1.0, 8.0, 2, 0)
    third = Fixed(6.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    swapped = unit_comparison._difference("h100_fp8", [one, third], workload, RUN)
    assert (swapped.predictions, swapped.predicted_otherwise) == (2, 2)


def test_sides_of_equal_weights_are_compared(whole: Whole) -> None:
    folder, found, runs = whole
    assert [each.weights for each in found] == ["untrained", "fp32", "h100_fp8"]
    assert all(each.outputs == 24 and 0 < each.differ <= 24 for each in found)
    assert [run.name for run in runs] == ["fp32", "h100_fp8"] and all(run.finished for run in runs)
    header, *lines = read_records(folder / unit_comparison.RECORDS)
    assert (header["kind"], header["a"], header["b"]) == ("units", "fp32", "h100_fp8")
    assert [line["differ"] for line in lines] == [each.differ for each in found]


def test_no_sum_longer_than_a_block_is_said() -> None:
    assert unit_comparison.longest_sum(PAIR) == 9
    assert PAIR.blocks() == {"h100_fp8": 32}
    assert "the longest has 9 products, a block 32 in h100_fp8;" in block_note(PAIR, 9)
    both = Comparison("h100_e4m3", "ada_e4m3", RUN)
    assert "a block 32 in h100_e4m3 and 16 in ada_e4m3;" in block_note(both, 16)
    # Nothing is said of longer or unknown sums, and without blocks.
    assert block_note(both, 17) == block_note(both, None) == ""
    assert block_note(Comparison("fp32", "fp8_wang2018", RUN), 9) == ""


def test_units_with_the_same_sums_of_few_products_do_not_differ(tmp_path: Path) -> None:
    # Nine products are one block in either unit.
    pair = Comparison("h100_e4m3", "ada_e4m3", RUN.replace(epochs=1, batch=30))
    begin(pair, tmp_path)
    found, _ = compare(pair, tmp_path)
    assert [each.differ for each in found[:1]] == [0]


def test_stopped_it_goes_on_to_the_same(tmp_path, monkeypatch, whole):
    fit = Trainer.fit

    def stopping(self: Trainer, **given: object) -> Run:
        if self.config.name == "h100_fp8":
            raise Interrupted("stopped")
        return fit(self, **given)

    begin(PAIR, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "fit", stopping)
        with pytest.raises(Interrupted):
            compare(PAIR, tmp_path)
    assert unit_comparison.read_comparison(tmp_path) == PAIR
    found, runs = compare(unit_comparison.read_comparison(tmp_path), tmp_path)
    assert found == whole[1]
    one, other = ([run.curve("train_loss") for run in group] for group in (runs, whole[2]))
    assert one == other


def test_ctrl_c_says_where_the_runs_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(PAIR, tmp_path)
    monkeypatch.setattr(unit_comparison, "_difference", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(Interrupted, match="what was trained is in"):
        compare(PAIR, tmp_path)


def test_what_cannot_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = Workload("gan", nn.Module, None, [], (None, None), lambda model, batch: {})
    with monkeypatch.context() as patch:
        patch.setattr(unit_comparison, "find", lambda config: two)
        with pytest.raises(ValueError, match="data: gan trains several networks in turns"):
            begin(Comparison("fp32", "h100_fp8", RunConfig.of(data="gan")), tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError, match="out: expected a comparison in"):
        unit_comparison.read_comparison(tmp_path)
    begin(PAIR, tmp_path)
    with pytest.raises(FileExistsError, match=r"out: .* holds a comparison already"):
        begin(PAIR, tmp_path)
