"""Tables of accumulators: which figure of a run counts, and which rows have chunks."""

from typing import Any

from lpkernels.report.accumulators import plan_table, training_table
from tests.report.test_report import make_run, row


def test_training_counts_the_last_epochs_and_shows_the_lowest_seed() -> None:
    runs = [make_run("a", [0.1, 0.9]), make_run("a", [0.2, 0.7]), make_run("b", [0.3, 0.5])]
    table = training_table([*runs, make_run("c", [])])
    assert row(table, "a") == ["a", "80.00%", "14.14%", "70.00%", "2"]
    assert row(table, "b") == ["b", "50.00%", "0.00%", "50.00%", "1"]
    assert table.row_count == 2


def plan_row(layer: str, length: int, chunk: int) -> dict[str, Any]:
    return {
        "layer": layer, "gemm": "fprop", "length": length, "product_bits": 5, "nzr": 1.0,
        "man_bits": 9, "chunk_bits": 7, "chunk": chunk, "exponents": None, "accumulator": "e6m9",
        "notes": [],
    }  # fmt: skip


def test_a_chunk_of_the_whole_length_is_shown_as_none() -> None:
    table = plan_table([plan_row("long", 65, 64), plan_row("whole", 64, 64)])
    assert list(table.columns[6].cells) == ["7/64", "-"]


def test_headroom_stands_behind_the_exponents() -> None:
    wide = {**plan_row("wide", 64, 64), "exponents": [-5, 2], "headroom": 1}
    narrow = {**plan_row("narrow", 64, 64), "exponents": [-5, 2], "headroom": -1}
    assert list(plan_table([wide, narrow]).columns[7].cells) == ["-5..2 +1", "-5..2 -1"]
