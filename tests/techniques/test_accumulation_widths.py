"""The widths of a plan by its metric and margin, and its printed table with the notes."""

import math
import re
from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from lpkernels.techniques.accumulation import min_mantissa_bits, plan
from tests.loops import each
from tests.support.plans import grad, linear_rows, mean_square

#: The options of a plan, the metric and the margin that they mean, and the bits of 1024 products.
WIDTHS: list[tuple[dict[str, Any], str, int, int]] = [
    ({}, "nmse", 1, 9),
    ({"margin": 0}, "nmse", 0, 8),
    ({"metric": "vrr", "margin": 0}, "vrr", 0, 7),
    ({"metric": "vrr"}, "vrr", 1, 8),
    ({"metric": "vrr", "margin": 3}, "vrr", 3, 10),
]


@each("options, metric, margin, of_1024", WIDTHS)
def test_rows_are_as_wide_as_the_metric_and_the_margin_say(
    options: dict[str, Any], metric: str, margin: int, of_1024: int
):
    x, w = torch.randn(32, 1024), torch.randn(8, 1024)
    for chunk in (None, 64):
        row = linear_rows(x, w, operand="e5m2", chunk=chunk, **options)[0]
        assert row.product_bits == 5
        bits = min_mantissa_bits(1024, 5, nzr=row.nzr, chunk=chunk, metric=metric) + margin
        assert row.format.man_bits == bits
        assert row.accumulator == lp.Accumulator(row.format, chunk=chunk)
        assert row.man_bits == of_1024


@each("options, metric, margin, of_1024", WIDTHS)
def test_the_best_chunk_needs_the_fewest_bits(
    options: dict[str, Any], metric: str, margin: int, of_1024: int
):
    x, w = torch.randn(4, 16384), torch.randn(2, 16384)
    row = linear_rows(x, w, operand="e5m2", chunk="best", **options)[0]
    every = {
        c: min_mantissa_bits(16384, 5, nzr=row.nzr, chunk=2**c, metric=metric) + margin
        for c in range(4, 11)
    }
    assert row.chunk_bits == min(every.values())
    assert every[int(math.log2(row.chunk))] == row.chunk_bits
    assert row.accumulator.chunk == row.chunk
    # Chunks gain nothing on a sum this short.
    x, w = torch.randn(4, 16), torch.randn(3, 16)
    short = linear_rows(x, w, operand="e5m2", chunk="best", **options)[0]
    assert short.accumulator.chunk is None


def test_no_accumulator_has_more_mantissa_than_fp32():
    row = linear_rows(torch.randn(4, 64), torch.randn(3, 64), margin=23)[0]
    assert row.format.man_bits == 23 < row.man_bits
    assert any(f"needs {row.man_bits} mantissa bits" in note for note in row.notes)


@each(
    "options, name, metric",
    [
        ({"criterion": "total"}, "criterion='total'", "vrr"),
        ({"cutoff": 10.0}, "cutoff=10.0", "vrr"),
        ({"metric": "vrr", "eps": 1e-2}, "eps=0.01", "nmse"),
    ],
)
def test_options_of_the_other_metric_are_refused(options: dict[str, Any], name: str, metric: str):
    x, w = torch.ones(2, 4), torch.ones(3, 4)
    with pytest.raises(ValueError, match=f"plan: {name} is an option of metric='{metric}' and has"):
        linear_rows(x, w, **options)
    assert linear_rows(x, w, **{**options, "metric": metric})


WRONG_MARGINS = [
    (-1, ValueError, r"plan: margin: expected 0 to 23, got -1; .* take narrowed\(\) of the plan"),
    (24, ValueError, "plan: margin: expected 0 to 23, got 24; a margin is mantissa bits beyond"),
    (0.5, TypeError, "plan: margin: expected an int, got float 0.5; a margin is mantissa bits"),
    (True, TypeError, "plan: margin: expected an int, got bool True"),
    ("1", TypeError, "plan: margin: expected an int, got str '1'"),
    (None, TypeError, "plan: margin: expected an int, got NoneType None"),
]


@each("margin, error, message", WRONG_MARGINS)
def test_a_margin_is_a_number_of_bits(margin: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        linear_rows(torch.ones(2, 4), torch.ones(3, 4), margin=margin)


def test_a_plan_prints_as_a_table_of_its_rows():
    model = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
    made = plan(model, torch.randn(32, 64), loss=mean_square, operand="e5m2")
    assert str(made) == repr(made)
    head, *lines = str(made).splitlines()
    names = "block gemm length m_p nzr normal chunked exponents accumulator notes"
    assert head.split() == names.split()
    # A note of several rows stands once.
    notes = {
        note: sum(note in row.notes for row in made.rows) for row in made.rows for note in row.notes
    }
    for row, line in zip(made.rows, lines, strict=False):
        low, high = row.exponents
        assert f"{low}..{high} +1  {row.accumulator}" in line
        assert line.split()[0] == (row.layer if row.gemm == "fprop" else row.gemm)
    assert lines[len(made.rows) :] == [
        f"{i}: {note}" + (f" ({count} rows)" if count > 1 else "")
        for i, (note, count) in enumerate(notes.items(), start=1)
    ]


def test_equal_notes_print_once_with_a_count_and_the_ends_of_their_figures():
    def mean(scale: float) -> nn.Linear:
        layer = nn.Linear(64, 64, bias=False)
        nn.init.constant_(layer.weight, scale)
        return layer

    model = nn.Sequential(mean(1.0), mean(1.0), nn.Linear(64, 8, bias=False))
    made = plan(model, torch.ones(32, 64) + torch.randn(32, 64), loss=mean_square, operand="bf16")
    growing = [row for row in made.rows if any("not of mean zero" in n for n in row.notes)]
    times = [re.search(r"is (\d+) times", " ".join(row.notes))[1] for row in growing]
    assert len(set(times)) > 2
    low, high = sorted({int(n) for n in times})[:: len(set(times)) - 1]
    (line,) = (line for line in str(made).splitlines() if "not of mean zero" in line)
    assert f"E[sum^2] is {low} to {high} times" in line
    assert line.endswith(f"({len(growing)} rows)")
    # Each row keeps the notes that it has, and its number is that of the line.
    number = line.split(":")[0]
    rows = str(made).splitlines()[1 : len(made.rows) + 1]
    numbered = [
        number in text.split(row.accumulator.fmt.name)[1].split()
        for row, text in zip(made.rows, rows, strict=True)
    ]
    assert numbered == [row in growing for row in made.rows]


def test_notes_say_where_the_theory_is_wrong():
    model = nn.Linear(4, 3)
    nn.init.zeros_(model.weight)
    rows = plan(model, grad(2, 4), loss=mean_square, operand="e5m2").rows
    assert any("every product is zero" in note for note in rows[0].notes)
    assert rows[0].format.exp_bits == 8
    tiny = plan(nn.Linear(64, 3), grad(2, 64), loss=lambda y: y.sum() * 2.0**-30, operand="e5m2")
    dgrad = next(row for row in tiny.rows if row.gemm == "dgrad")
    assert any("round to zero as operands" in note for note in dgrad.notes)
    layer, options = nn.Linear(3, 3), {"loss": torch.sum, "operand": "e4m3"}
    narrow, short = "fewer mantissa bits than the operands", {"metric": "vrr", "margin": 0}
    assert all(
        narrow not in note for row in plan(layer, grad(2, 3), **options).rows for note in row.notes
    )
    (note,) = plan(layer, grad(2, 3), **options, **short).rows[0].notes
    assert note.startswith(narrow) and "the loss of 3.9 products" in note
    # The error law has no loss of whole products, and no artefact in long sums.
    options["operand"] = "fp16"
    (note,) = plan(nn.Linear(3, 3), torch.randn(2, 3), **options).rows[0].notes
    assert note.startswith(narrow) and "3.9 products" not in note
    rows = [
        linear_rows(
            torch.empty(1, 2**22, device="meta"),
            torch.empty(1, 2**22, device="meta"),
            operand="e5m2",
            **given,
        )[0]
        for given in ({}, short)
    ]
    assert ["2^22" in " ".join(row.notes) for row in rows] == [False, True]
