"""What a report recommends, for rows whose numbers are known."""

from typing import Any

import torch

from lpkernels.formats import parse_format
from lpkernels.techniques.loss_scaling import Report
from lpkernels.techniques.loss_scaling.diagnosis import Histogram, TensorRow
from tests.loops import each


def row(layer: str, kind: str, *exponents: int, fmt: str = "fp16") -> TensorRow:
    """A row with one number for each exponent."""
    of = Histogram.of(torch.tensor([2.0**e for e in exponents], dtype=torch.float64).numpy())
    return TensorRow(layer, kind, "", parse_format(fmt), 1, of, of, 0, 0)


def test_a_scale_that_fits() -> None:
    rows = [row("a", "input", 3), row("a", "grad_output", -26, -20), row("b", "grad_input", -26)]
    found = Report(rows).recommend()
    scale = found.scale
    assert scale is not None and scale.fits
    # 2**-20 may become 2**13, below the 2**14 that is a binade away from 65504.
    assert (scale.scale, scale.least) == (2.0**33, 2.0**2)
    assert (scale.underflow, scale.underflow_unscaled) == (0, 2 / 3)
    assert (scale.worst.magnitude, scale.worst_unscaled.magnitude) == (0, 1)
    assert (scale.layers, scale.left) == ({}, ())
    assert str(found).startswith(
        "loss scale for gradients in e5m10: 8589934592 is the largest safe one, 4 the smallest "
        "that loses at most 1% of sum |g|\n"
        "  underflow: 0.00% of the gradients, and of the worst tensor 0.00% of its magnitude\n"
        "  without a scale: 66.67%, and 100.00%\n"
    )


def test_layers_that_no_one_scale_fits() -> None:
    rows = [row("a", "grad_output", 10), row("b", "grad_output", -60), row("c", "grad_output", 0)]
    scale = Report(rows).recommend().scale
    assert scale is not None and not scale.fits
    assert (scale.scale, scale.least) == (2.0**3, None)
    assert scale.layers == {"b": 70} and scale.left == ()
    assert "no one scale fits: at this one b underflow, larger ones overflow" in str(scale)
    assert "layer_scales(model, {'b': 70}) beside it" in str(scale)


def test_a_layer_that_its_format_does_not_hold() -> None:
    """One large number keeps many small numbers from being scaled."""
    of = Histogram.from_pairs([[0, 1], [-31, 10**9]], 0, 0)
    wide = TensorRow("c", "grad_weight", "", parse_format("e4m3fn"), 1, of, of, 0, 0)
    scale = Report([row("b", "grad_output", 0), wide]).recommend().scale
    assert scale is not None
    assert scale.left == ("c",)
    assert "e5m10, e4m3fn is too narrow for c, whatever the scale" in str(scale)


def test_another_format_and_gradients_that_overflow_unscaled() -> None:
    report = Report([row("a", "grad_output", -20)])
    scale = report.recommend("e4m3fn").scale
    assert scale is not None
    assert (str(scale.formats[0]), scale.scale) == ("e4m3fn", 2.0**26)
    margins = [report.recommend("e4m3fn", margin=m).scale for m in (0, 3)]
    assert [m and m.scale for m in margins] == [2.0**27, 2.0**24]
    scale = Report([row("a", "grad_output", 20, 0)]).recommend().scale
    assert scale is not None
    assert (scale.scale, scale.overflow_unscaled) == (2.0**-7, 0.5)
    assert "; 50.00% overflow" in str(scale)


def test_no_gradient_no_scale() -> None:
    found = Report([row("a", "input", 0)]).recommend()
    assert found.scale is None
    assert str(found).startswith("no loss scale: no gradient with a format holds a number")


def test_the_narrowest_format_of_each_kind() -> None:
    rows = [row("a", "input", 0, 2), row("b", "input", -9), row("a", "grad_output", -60, -58)]
    found = Report(rows).recommend(candidates=["fp16", "e5m2", "e4m3fn"])
    assert [str(each) for each in found.formats] == [
        "input: e4m3fn, losing at most 0.00%",
        "grad_output: e4m3fn at a loss scale of 2.2518e+15, losing at most 0.00%",
    ]
    none = Report([row("a", "input", 30)]).recommend(candidates=["fp16"]).formats
    assert [str(each) for each in none] == ["input: none of the candidates"]


def rounded(layer: str, *exponents: tuple[int, int], zeros: int = 0, nonfinite: int = 0) -> Any:
    """A row of a gradient that the model rounds to e4m3: (exponent, count), zeros, infinities."""
    of, fmt = Histogram.from_pairs(exponents, zeros, nonfinite), parse_format("e4m3")
    return TensorRow(layer, "grad_output", "", fmt, 1, of, of, 0, 0, fmt)


ZEROS, OVERFLOW = "hold no number", "hold infinities or NaN"
UNSEEN = [
    ([rounded("a", (-12, 4)), rounded("b", zeros=4)], ZEROS, ", or again at a scale of 131072"),
    # These are zeros at the largest safe scale.
    ([rounded("a", (6, 1), (-12, 10**6)), rounded("b", zeros=4)], ZEROS,
     "; no larger scale is safe for the others"),
    ([rounded("a", (11, 4)), rounded("b", nonfinite=4)], OVERFLOW,
     ", or again at a scale of 0.015625"),
    # These infinities come from elsewhere.
    ([rounded("a", (0, 4)), rounded("b", (0, 4), nonfinite=4)], OVERFLOW,
     ", or again at a scale of 0.00390625"),
]  # fmt: skip


@each("rows, what, how", UNSEEN)
def test_gradients_that_did_not_come_through(rows: list[TensorRow], what: str, how: str) -> None:
    found = Report(rows).recommend()
    assert found.scale is not None and not found.scale.fits and found.formats == ()
    assert f"1 of 2 tensors {what}: diagnose the model before convert{how}" in str(found)


EXPLAINED = [
    # Nothing underflows; the model does not round; there are few infinities.
    [rounded("a", (0, 4)), rounded("b", zeros=4)],
    [row("a", "grad_output", -30), rounded("b", zeros=4)],
    [rounded("a", (0, 4)), rounded("b", (0, 1000), nonfinite=4)],
]


@each("rows", EXPLAINED)
def test_zeros_that_no_underflow_explains_keep_no_advice_back(rows: list[TensorRow]) -> None:
    """A layer that is new or dead has such gradients; a dynamic scale overflows in few steps."""
    scale = Report(rows).recommend().scale
    assert scale is not None and scale.unseen is None
