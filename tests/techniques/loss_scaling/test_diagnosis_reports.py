"""From counts to advice: scales and formats that fit, unscaled gradients, files; refusals."""

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from lpkernels.formats import FloatFormat, parse_format
from lpkernels.techniques.loss_scaling import LossScaler, Report, advice, diagnose
from lpkernels.techniques.loss_scaling.advice import ScaleAdvice
from lpkernels.techniques.loss_scaling.rows import Histogram, TensorRow
from tests.loops import each, rows
from tests.support.refusals import refused
from tests.techniques.loss_scaling.diagnosed import batch, net, row_of, train


def scale_advice(rows: list[TensorRow]) -> ScaleAdvice:
    found = Report(rows).recommend().scale
    assert found is not None
    return found


def row(layer: str, kind: str, *exponents: int, fmt: str = "fp16") -> TensorRow:
    """A row with one number for each exponent."""
    of = Histogram.from_pairs([[e, 1] for e in exponents], 0, 0)
    return TensorRow(layer, kind, "", lp.parse_format(fmt), 1, of, of, 0, 0)


def test_a_scale_that_fits() -> None:
    rows = [row("a", "input", 3), row("a", "grad_output", -26, -20), row("b", "grad_input", -26)]
    found = Report(rows).recommend()
    scale = found.scale
    assert scale is not None and scale.fits
    # 2**-20 may become 2**13, below the 2**14 that is a binade away from 65504.
    assert (scale.scale, scale.least) == (2.0**33, 2.0**2)
    assert (scale.scaled.underflow, scale.unscaled.underflow) == (0, 2 / 3)
    assert (scale.scaled.worst, scale.unscaled.worst) == (0, 1)
    assert (scale.lost, scale.left) == ((), ())
    assert str(found).startswith(
        "loss scale for gradients in e5m10: 8589934592 is the largest safe one, 4 the smallest "
        "that loses at most 1% of sum |g|\n"
        "  underflow: 0.00% of the gradients, and of the worst tensor 0.00% of its magnitude\n"
        "  without a scale: 66.67%, and 100.00%\n"
    )


def test_layers_that_no_one_scale_fits() -> None:
    scale = scale_advice([row("a", "grad_output", 10), row("b", "grad_output", -60)])
    assert not scale.fits and (scale.scale, scale.least) == (2.0**3, None)
    assert (scale.lost, scale.left) == (("b",), ())
    assert "no one scale fits: at this one b underflow, larger ones overflow" in str(scale)
    # One large number keeps many small numbers from being scaled.
    of = Histogram.from_pairs([[0, 1], [-31, 10**9]], 0, 0)
    wide = TensorRow("c", "grad_weight", "", lp.parse_format("e4m3fn"), 1, of, of, 0, 0)
    scale = scale_advice([row("b", "grad_output", 0), wide])
    assert (scale.lost, scale.left) == (("c",), ("c",))
    assert "e5m10, e4m3fn is too narrow for c, whatever the scale" in str(scale)


def test_another_format_and_gradients_that_overflow_unscaled() -> None:
    report = Report([row("a", "grad_output", -20)])
    found = [report.recommend("e4m3fn", margin=m).scale for m in (0, 1, 3)]
    assert [str(scale.formats[0]) for scale in found if scale] == ["e4m3fn"] * 3
    assert [scale.scale for scale in found if scale] == [2.0**27, 2.0**26, 2.0**24]
    scale = scale_advice([row("a", "grad_output", 20, 0)])
    assert (scale.scale, scale.unscaled.overflow) == (2.0**-7, 0.5)
    assert "; 50.00% overflow" in str(scale)
    nothing = Report([row("a", "input", 0)]).recommend()
    assert str(nothing).startswith("no loss scale: no gradient with a format holds a number")


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
    of, fmt = Histogram.from_pairs(exponents, zeros, nonfinite), lp.parse_format("e4m3")
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
    assert scale_advice(rows).unseen == ""


def gradients(report: Report) -> list[list[list[int]]]:
    return [row.unscaled.to_pairs() for row in report.rows if row.is_gradient]


SCALERS = {
    "number": 64.0,
    "static": LossScaler(static=64.0),
    "dynamic": LossScaler(init_scale=64.0, growth_interval=1),
    "disabled": LossScaler(enabled=False),
    "torch": torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1),
}


@each("name, scaler", SCALERS.items())
def test_gradients_are_shown_unscaled_too(name: str, scaler: Any) -> None:
    """This also holds for a scale that doubles after every step."""
    model = net().eval()
    with diagnose(model, "fp16") as plain:
        for seed in range(3):
            model(batch(seed)).mean().backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with diagnose(model, "fp16", scaler=scaler) as scaled:
        for seed in range(3):
            optimizer.zero_grad()
            loss = model(batch(seed)).mean()
            if isinstance(scaler, float):
                (loss * scaler).backward()
                continue
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert gradients(scaled) == gradients(plain)
    seen, own = (row_of(r, "conv", "grad_output").histogram.exponents for r in (scaled, plain))
    assert seen is not None and own is not None
    doubled = {"dynamic": 2, "torch": 2}.get(name, 0)
    times = 0 if name == "disabled" else 6
    assert own[0] + times <= seen[0] and seen[1] <= own[1] + times + doubled
    assert seen != own or name == "disabled"


def test_numbers_that_leave_float32_without_the_scale_stay_in_the_last_bins() -> None:
    model = nn.Linear(3, 1, bias=False)
    with diagnose(model, "fp32", scaler=2.0**20) as report:
        y = model(torch.tensor([[2.0**-120, 1.0, 0.0]])) * 2.0**20
        y.sum().backward()
    row = row_of(report, "Linear", "grad_weight")
    assert row.histogram.to_pairs() == [[-100, 1], [20, 1]] and row.histogram.zeros == 1
    assert row.unscaled.to_pairs() == [[-120, 1], [0, 1]] and row.unscaled.zeros == 1
    with diagnose(model, "fp32", scaler=2.0**-120) as report:
        model(torch.tensor([[2.0**10, 1.0, 0.0]])).sum().backward()
    assert row_of(report, "Linear", "grad_weight").unscaled.to_pairs() == [[120, 1], [127, 1]]


def test_reports_are_saved_read_again_gone_on_with_and_reduced(tmp_path: Path) -> None:
    model = net()
    with diagnose(model, "e4m3fn", scaler=64.0) as report:
        train(model)
    again = Report.load(report.save(tmp_path / "a" / "report.jsonl"))
    alone = report.reduce()
    assert type(alone) is Report
    for other in (again, alone):
        assert other.records() == report.records() and str(other) == str(report)
        assert str(other.recommend()) == str(report.recommend())
    other = diagnose(model, "e4m3fn", scaler=64.0)
    other.load_state_dict(report.state_dict())
    assert str(other) == str(report)
    with other:
        train(model, 1)
    assert [row.calls for row in other.rows] == [3 * row.calls // 2 for row in report.rows]
    (tmp_path / "other.jsonl").write_text('{"type": "header", "kind": "run", "schema": 2}\n')
    with pytest.raises(ValueError, match="expected the records of a diagnosis, got 'run'"):
        Report.load(tmp_path / "other.jsonl")


MODEL = nn.Linear(2, 2)


def recommend(**options: Any) -> Any:
    with diagnose(MODEL, "fp16") as report:
        MODEL(torch.ones(1, 2))
    return report.recommend(**options)


WRONG = [
    (lambda: diagnose("model"), TypeError, "diagnose: model must be a torch.nn.Module, got str"),
    (lambda: diagnose(MODEL, "fp17"), ValueError, "diagnose: fmt: .*'fp17'"),
    (lambda: diagnose(MODEL, "affine8"), ValueError, "fmt: expected a .*exponent.* got affine8"),
    (lambda: diagnose(MODEL, {"grad": "fp16"}), ValueError, "formats by grad_input, .*; got grad"),
    (lambda: diagnose(MODEL, scaler="1"), TypeError, "scaler: expected a number, got str"),
    (lambda: recommend(candidates=[]), ValueError, "expected at least one format, got none"),
    (lambda: recommend(margin=-1), ValueError, "recommend: margin: expected at least 0, got -1"),
    (lambda: recommend(threshold=1.0), ValueError, "threshold: expected .* below 1, got 1.0"),
]
test_wrong_arguments = refused(WRONG)


@each("use", ["recommend", "records", "cells"])
def test_a_report_of_nothing(use: str) -> None:
    report = diagnose(MODEL, "fp16")
    with pytest.raises(RuntimeError, match="nothing was counted yet; run the model"):
        getattr(report, use)()
    assert str(report) == "nothing was counted yet"


def test_blocks_are_entered_once_and_compiled_models_never() -> None:
    with diagnose(MODEL, "fp16") as report:
        with pytest.raises(RuntimeError, match="this block is entered already"):
            report.__enter__()
        MODEL(torch.ones(1, 2))
    assert report.rows[0].calls == 1
    report = diagnose(torch.compile(MODEL, backend="eager"), "fp16")
    with pytest.raises(NotImplementedError, match="is compiled"):
        report.__enter__()
    assert torch._C._len_torch_function_stack() == 0


def fmt(name: str) -> FloatFormat:
    found = parse_format(name)
    assert isinstance(found, FloatFormat)
    return found


def powers(**counts: int) -> Histogram:
    """A histogram by exponents: e_24=3 means three elements 2**-24, and e3=1 means one of 2**3."""
    pairs = [[int(name[1:].replace("_", "-")), count] for name, count in counts.items()]
    return Histogram.from_pairs(pairs, 0, 0)


@each("exponent, name", [-24, -3, 0, 8, 15], ["fp16", "e4m3fn", "e5m2", "fp4_e2m1"])
def test_fitting_exponent_is_the_largest_that_stays_below_max(exponent: int, name: str) -> None:
    """The scale is 2**floor(log2(max / largest)) for the top of the binade, in exact arithmetic."""
    held = [(powers(**{f"e{exponent}".replace("-", "_"): 1}), fmt(name))]
    found = advice.fitting_exponent(held, margin=0)
    top, most = Fraction(2 - 2.0**-23) * Fraction(2) ** exponent, Fraction(fmt(name).max)
    assert top * Fraction(2) ** found <= most < top * Fraction(2) ** (found + 1)
    assert advice.fitting_exponent(held) == found - 1


@rows(
    "of, scaled, wanted",
    (powers(e_5=1, e0=1), False, ("e4m3fn", 0)),
    (powers(e_12=100, e0=1), False, ("e5m2", 0)),
    (powers(e_20=99999, e0=1), False, ("e5m10", 0)),
    (powers(e_20=9, e_22=1), False, ("e5m10", 0)),
    (powers(e_20=9, e_22=1), True, ("e4m3fn", 13)),
    (powers(e20=1), False, ("e8m7", 0)),
    (powers(e_100=1, e100=1), False, ("e8m7", 0)),
)
def test_narrowest_is_the_format_of_fewest_bits_that_holds_everything(of, scaled, wanted) -> None:
    candidates = [fmt(name) for name in ("fp32", "fp16", "bf16", "e5m2", "e4m3fn")]
    found = advice.narrowest("grad_input" if scaled else "input", [of], candidates)
    assert (str(found.format), math.log2(found.scale)) == wanted


def test_narrowest_may_saturate_but_not_overflow() -> None:
    """One of a million elements is beyond the range."""
    of, fn, sat = powers(e0=1_000_000, e9=1), fmt("e4m3fn"), fmt("e4m3fn_sat")
    assert advice.narrowest("input", [of], [fn]).format is None
    found = advice.narrowest("input", [of], [fn, sat])
    assert found.format == sat and found.lost == pytest.approx(2.0**9 / (10**6 + 2.0**9))
