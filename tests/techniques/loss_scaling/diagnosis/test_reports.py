"""What is made of the counts: gradients without a scale, reports in files, states, processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lpkernels as lp
from lpkernels.techniques.loss_scaling import Diagnosis, Report, diagnose
from tests.techniques.loss_scaling.diagnosis.network import batch, net, row_of, train


def gradients(report: Report) -> list[list[list[int]]]:
    return [row.unscaled.to_pairs() for row in report.rows if row.is_gradient]


def scalers() -> dict[str, Any]:
    ours = lp.techniques.loss_scaling.LossScaler
    return {
        "number": 64.0,
        "static": ours(static=64.0),
        "dynamic": ours(init_scale=64.0, growth_interval=1),
        "disabled": ours(enabled=False),
        "torch": torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1),
    }


@pytest.mark.parametrize("name", scalers())
def test_gradients_are_shown_unscaled_too(name: str) -> None:
    """This also holds for a scale that doubles after every step."""
    model = net().eval()
    with diagnose(model, "fp16") as plain:
        for seed in range(3):
            model(batch(seed)).mean().backward()
    scaler = scalers()[name]
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


def test_a_report_is_saved_and_read_again(tmp_path: Any) -> None:
    model = net()
    with diagnose(model, "e4m3fn", scaler=64.0) as report:
        train(model)
    again = Report.load(report.save(tmp_path / "a" / "report.jsonl", {"note": "x"}))
    assert again.to_dicts() == report.to_dicts()
    assert str(again) == str(report)
    assert str(again.recommend()) == str(report.recommend())
    first = (tmp_path / "a" / "report.jsonl").read_text().splitlines()[0]
    assert '"kind": "diagnosis"' in first and '"note": "x"' in first


def test_a_state_goes_on(tmp_path: Any) -> None:
    model = net()
    with diagnose(model, "fp16") as whole:
        train(model)
    one, two = diagnose(model, "fp16"), diagnose(model, "fp16")
    model.load_state_dict(net().state_dict())
    torch.manual_seed(0)
    with one:
        train(model, 1)
    two.load_state_dict(one.state_dict())
    assert str(two) == str(one)
    with two:
        train(model, 1)
    assert [row.calls for row in two.rows] == [row.calls for row in whole.rows]


def test_reduce_of_one_process_is_the_report() -> None:
    model = net()
    with diagnose(model, "fp16") as report:
        train(model)
    alone = report.reduce()
    assert not isinstance(alone, Diagnosis)
    assert alone.to_dicts() == report.to_dicts()
