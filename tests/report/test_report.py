"""Tables and plots of records; tables of formats and of values; bytes as text."""

import math
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.table import Table

from lpkernels import formats
from lpkernels.experiments.records import Run, run_of
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.workloads.workload import ACCURACY
from lpkernels.report.figures import save_figure
from lpkernels.report.named import code_text, format_details, named_formats, probes
from lpkernels.report.runs import plot_curves, summary
from lpkernels.report.tables import bytes_text
from lpkernels.schemas import header
from tests.report.shown import same_each_time, text


def make_run(
    name: str, accuracies: list[float], *, epochs: int = 2, loss: float | None = 0.25
) -> Run:
    first = {
        **header("run"),
        "config": RunConfig(name=name, epochs=epochs).to_dict(),
        "accumulator": f"sums of {name}",
        "metric": asdict(ACCURACY),
    }
    done = [
        {"epoch": i, "test_accuracy": a, "train_loss": loss, "skipped_steps": 3, "seconds": 2.0}
        for i, a in enumerate(accuracies, start=1)
    ]
    return run_of(first, done)


def row(table: Table, start: str) -> list[str]:
    line = next(line for line in text(table, 200).splitlines() if f"│ {start} " in line)
    return [cell.strip() for cell in line.strip("│ ").split("│")]


def test_summary_shows_accuracy_time_and_accumulator() -> None:
    table = summary(
        [make_run("a", [0.9, 0.85]), make_run("b", [0.5], loss=None), make_run("c", [])]
    )
    assert row(table, "a") == ["a", "85.00%", "0.2500", "2", "6", "4.0", "sums of a"]
    assert row(table, "b") == ["b", "50.00%", "not finite", "1/2", "3", "2.0", "sums of b"]
    assert row(table, "c")[3] == "0/2"


def test_plot_curves_writes_the_same_picture_from_the_same_records(tmp_path: Path) -> None:
    runs = [make_run("a $\\x{$", [0.9, 0.95]), make_run("diverged", [0.1, 0.1], loss=None)]
    same_each_time(lambda: plot_curves(runs), tmp_path)


def test_the_axes_of_one_epoch_have_plain_numbers(tmp_path: Path) -> None:
    near = [make_run(str(i), [0.5 + i / 10**9], loss=2.5 + i / 1000) for i in range(2)]
    figure = plot_curves(near)
    save_figure(figure, tmp_path / "a.png")
    for axes in figure.axes:
        low, high = axes.get_xlim()
        epochs = axes.get_xticklabels()
        assert [e.get_text() for e in epochs if low < e.get_position()[0] < high] == ["1"]
        labels = [*axes.get_yticklabels(), *axes.get_yticklabels(minor=True)]
        written = [label.get_text() for label in labels if label.get_text()]
        assert written and all(re.fullmatch(r"\d+(\.\d+)?", number) for number in written)
        assert axes.yaxis.get_offset_text().get_text() == ""


def test_runs_of_one_label_share_a_colour_and_every_field_has_a_panel() -> None:
    runs = [make_run("a", [0.5, 0.6])] * 2 + [make_run("b", [0.1])]
    figure = plot_curves(runs, ["test_accuracy", "skipped_steps", "train_loss"])
    accuracy, skipped, loss, _ = figure.axes
    assert [line.get_color() for line in accuracy.lines] == ["C0", "C0", "C1"]
    assert list(accuracy.lines[0].get_ydata()) == [50.0, 60.0]
    assert skipped.get_ylabel() == "skipped steps" and loss.get_yscale() == "log"


def test_runs_without_epochs_and_unknown_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one run with a finished epoch"):
        plot_curves([make_run("a", [])])
    with pytest.raises(ValueError, match="not supported"):
        save_figure(plot_curves([make_run("a", [0.5])]), tmp_path / "a.docx")


def test_named_formats_list_every_name_and_details_the_values_of_small_formats() -> None:
    shown = text(named_formats(), 200)
    assert all(f" {name} " in shown for name in formats.NAMED)
    assert row(named_formats(), "e5m2")[:6] == ["e5m2", "8", "5", "2", "15", "57344"]
    shown = text(format_details(formats.FP4_E2M1))
    assert "15 values" in shown
    assert "-6  -4  -3  -2  -1.5  -1  -0.5" in shown
    assert "fp4_e2m1" in shown


@pytest.mark.parametrize("name", ["e4m3fn", "fixed8_f4", "affine8", "block32_e4m3", "fp32", "nf4"])
def test_format_details_work_for_every_kind_of_format(name: str) -> None:
    assert formats.parse_format(name).name in text(format_details(formats.parse_format(name)))


def test_probes_show_code_result_and_error_of_float64_values() -> None:
    # 464 is a tie of e4m3fn; the second lies above it by less than float32 can hold.
    table = probes([464.0, 464.0 + 2.0**-40, 0.1], formats.parse_format("e4m3fn"), "nearest_even")
    assert row(table, "            464.0") == ["464.0", "0 1111 110", "448", "-16"]
    assert row(table, "464.0000000000009") == ["464.0000000000009", "0 1111 111", "nan", "nan"]
    assert row(table, "              0.1") == ["0.1", "0 0011 101", "0.1015625", "0.00156"]


def test_draws_of_probes_repeat_with_their_seed() -> None:
    one, again = (
        text(probes([0.1] * 20, formats.parse_format("e4m3fn"), "stochastic", seed=3))
        for _ in range(2)
    )
    assert one == again and "0.09375" in one and "0.1015625" in one


@pytest.mark.parametrize(
    "value, name, bits",
    [
        (-0.0, "e4m3fn", "1 0000 000"), (math.inf, "e5m2", "0 11111 00"),
        (math.inf, "e4m3none", ""), (-0.5, "fixed8_f4", "11111000"), (1.0, "affine8", ""),
        (1.0, "e5m0", "0 01111"),
    ],
)  # fmt: skip
def test_a_code_is_shown_by_its_fields(value: float, name: str, bits: str) -> None:
    assert code_text(value, formats.parse_format(name)) == bits


@pytest.mark.parametrize(
    "size, shown",
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (6168, "6.02 KiB"),
        (1.5 * 2**20, "1.50 MiB"), (3 * 2**30, "3.00 GiB"), (5000 * 2**30, "5000.00 GiB"),
    ],
)  # fmt: skip
def test_bytes_have_a_binary_unit(size: float, shown: str) -> None:
    assert bytes_text(size) == shown
