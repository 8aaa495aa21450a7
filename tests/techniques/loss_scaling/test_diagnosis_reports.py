"""From counts to advice: scales that fit, unscaled gradients, files; refusals."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from lpkernels.techniques.loss_scaling import LossScaler, Report, diagnose
from lpkernels.techniques.loss_scaling.rows import Histogram, InFormats, ScaleAdvice, TensorRow
from tests.techniques.loss_scaling.diagnosed import batch, net, row_of, train


def scale_advice(*rows: TensorRow) -> ScaleAdvice:
    return Report(rows).recommend()


def row(layer: str, kind: str, *exponents: int, fmt: str = "fp16") -> TensorRow:
    """A row with one number for each exponent."""
    of = Histogram.from_pairs([[e, 1] for e in exponents])
    return TensorRow(layer, kind, "", lp.parse_format(fmt), None, 1, of, of)


def test_a_scale_that_fits() -> None:
    rows = [row("a", "input", 3), row("a", "grad_output", -26, -20), row("b", "grad_input", -26)]
    advice = scale_advice(*rows)
    # 2**-20 may become 2**13, below the 2**14 that is a binade away from 65504.
    assert (advice.scale, advice.least) == (2.0**33, 2.0**2)
    assert str(advice) == (
        "loss scale for gradients in e5m10: 8589934592 is the largest safe one, 4 the smallest "
        "that loses at most 1% of sum |g|\n"
        "  underflow: 0.00% of the gradients, and of the worst tensor 0.00% of its magnitude\n"
        "  without a scale: 66.67%, and 100.00%"
    )


def test_layers_that_no_one_scale_fits_are_named() -> None:
    advice = scale_advice(row("a", "grad_output", 10), row("b", "grad_output", -60))
    assert (advice.scale, advice.least) == (2.0**3, None)
    assert "no one scale fits: at this one b underflow, larger ones overflow" in str(advice)


def test_gradients_that_overflow_unscaled_have_a_scale_below_one() -> None:
    advice = scale_advice(row("a", "grad_output", 20, 0))
    assert advice.scale == 2.0**-7 and "; 50.00% overflow" in str(advice)


def test_rows_without_gradients_have_no_scale() -> None:
    advice = scale_advice(row("a", "input", 0))
    assert str(advice) == "no loss scale: no gradient with a format holds a number"
    assert advice.scale is None and advice.least is None


def rounded(layer: str, *exponents: tuple[int, int], zeros: int = 0, nonfinite: int = 0) -> Any:
    """A row of a gradient that the model rounds to e4m3: (exponent, count), zeros, infinities."""
    of, fmt = Histogram.from_pairs(exponents, zeros, nonfinite), lp.parse_format("e4m3")
    return TensorRow(layer, "grad_output", "", fmt, fmt, 1, of, of)


UNSEEN = {
    "zeros": ([rounded("a", (-12, 4)), rounded("b", zeros=4)], "hold no number"),
    "overflow": ([rounded("a", (11, 4)), rounded("b", nonfinite=4)], "hold infinities or NaN"),
    "infinities from elsewhere": (
        [rounded("a", (0, 4)), rounded("b", (0, 4), nonfinite=4)], "hold infinities or NaN"),
}  # fmt: skip


@pytest.mark.parametrize("rows, what", UNSEEN.values(), ids=UNSEEN)
def test_gradients_that_did_not_come_through_keep_advice_back(
    rows: list[TensorRow], what: str
) -> None:
    advice = scale_advice(*rows)
    assert advice.scale is not None and advice.least is None
    assert str(advice).endswith(f"1 of 2 tensors {what}: diagnose the model before convert")


# A layer that is new or dead has zero gradients; a dynamic scale overflows in few steps.
EXPLAINED = {
    "nothing underflows": [rounded("a", (0, 4)), rounded("b", zeros=4)],
    "the model does not round": [row("a", "grad_output", -30), rounded("b", zeros=4)],
    "few infinities": [rounded("a", (0, 4)), rounded("b", (0, 1000), nonfinite=4)],
}


@pytest.mark.parametrize("rows", EXPLAINED.values(), ids=EXPLAINED)
def test_zeros_that_no_underflow_explains_keep_no_advice_back(rows: list[TensorRow]) -> None:
    assert scale_advice(*rows).unseen == ""


SCALERS = {
    "number": 64.0,
    "static": LossScaler(static=64.0),
    "dynamic": LossScaler(init_scale=64.0, growth_interval=1),
    "disabled": LossScaler(enabled=False),
    "torch": torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1),
}


@pytest.mark.parametrize("name", SCALERS)
def test_gradients_are_shown_unscaled_too(name: str) -> None:
    """This also holds for a scale that doubles after every step."""
    model, scaler = net().eval(), SCALERS[name]
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
    own, shown = ([x.unscaled.to_pairs() for x in r.rows if x.is_gradient] for r in (plain, scaled))
    assert own == shown
    seen = [row_of(r, "conv", "grad_output").histogram.exponents for r in (plain, scaled)]
    assert (seen[0] == seen[1]) == (name == "disabled")


@pytest.mark.parametrize(
    "dtype, scale, unscaled", [(torch.float16, 2.0**40, -38), (torch.float64, 3.0, 0)], ids=str
)
def test_an_unscaled_gradient_keeps_the_numbers_that_its_dtype_lacks(
    dtype: torch.dtype, scale: float, unscaled: int
) -> None:
    model = nn.Linear(2, 1, bias=False, dtype=dtype)
    with diagnose(model, "fp32", scaler=scale) as report:
        (4 * model(torch.tensor([[1.0, 0.0]], dtype=dtype))).sum().backward()
    row = row_of(report, "Linear", "grad_weight")
    assert (row.histogram.to_pairs(), row.unscaled.to_pairs()) == ([[2, 1]], [[unscaled, 1]])
    assert row.histogram.zeros == row.unscaled.zeros == 1


@pytest.fixture
def report() -> Report:
    with diagnose(net(), "e4m3fn", scaler=64.0) as diagnosis:
        train(diagnosis._model)
    return diagnosis


@pytest.mark.parametrize("way", ["file", "reduce"])
def test_a_report_is_the_same_from_a_file_and_from_all_processes(
    report: Any, way: str, tmp_path: Path
) -> None:
    path = tmp_path / "a" / "report.jsonl"
    other = Report.load(report.save(path)) if way == "file" else report.reduce()
    assert other.records() == report.records() and str(other) == str(report)
    assert str(other.recommend()) == str(report.recommend())


def test_a_loaded_state_adds_to_the_counts(report: Any) -> None:
    calls = [row.calls for row in report.rows]
    report.load_state_dict(report.state_dict())
    assert [row.calls for row in report.rows] == [2 * n for n in calls]


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text('{"type": "header", "kind": "run", "schema": 2}\n')
    with pytest.raises(ValueError, match="expected the records of a diagnosis, got 'run'"):
        Report.load(tmp_path / "other.jsonl")


MODEL = nn.Linear(2, 2)


def test_an_empty_report_says_so() -> None:
    report = diagnose(MODEL)
    assert str(report).startswith("nothing was counted yet; a model that rounds nothing needs a fo")
    assert report.recommend() == ScaleAdvice() and len(report.records()) == 1


def test_a_block_is_entered_once() -> None:
    with diagnose(MODEL, "fp16") as report:
        with pytest.raises(RuntimeError, match="this block is entered already"):
            report.__enter__()
        MODEL(torch.ones(1, 2))
    assert report.rows[0].calls == 1


def test_compiled_models_are_refused_on_entering() -> None:
    report = diagnose(torch.compile(MODEL, backend="eager"), "fp16")
    with pytest.raises(NotImplementedError, match="is compiled"):
        report.__enter__()
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.parametrize("name", ["fp16", "e4m3fn", "e5m2", "fp4_e2m1"])
@pytest.mark.parametrize("exponent", [-24, -3, 0, 8, 15])
def test_the_fitting_exponent_is_the_largest_that_stays_below_max(exponent: int, name: str) -> None:
    """The scale is 2**floor(log2(max / largest)) for the top of the binade, in exact arithmetic."""
    fmt: Any = lp.parse_format(name)
    tensors = InFormats([(Histogram.from_pairs([[exponent, 1]]), fmt)])
    # A binade stays free.
    fitting = tensors.fitting() + 1
    top, most = Fraction(2 - 2.0**-23) * Fraction(2) ** exponent, Fraction(fmt.max)
    assert top * Fraction(2) ** fitting <= most < top * Fraction(2) ** (fitting + 1)
