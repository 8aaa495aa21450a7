"""Wrong input to a diagnosis, and what it says then."""

from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from lpkernels.techniques.loss_scaling import Report, diagnose
from tests.loops import each

MODEL = nn.Linear(2, 2)


def recommend(**options: Any) -> Any:
    with diagnose(MODEL, "fp16") as report:
        MODEL(torch.ones(1, 2))
    return report.recommend(**options)


FIXED, DYNAMIC = lp.FixedFormat(8, 4), "dynamic"
WRONG = [
    (lambda: diagnose("model"), TypeError, "diagnose: model must be a torch.nn.Module, got str"),
    (lambda: diagnose(MODEL, "fp17"), ValueError, "diagnose: fmt: .*'fp17'"),
    (lambda: diagnose(MODEL, 16), TypeError, "diagnose: fmt: .*16"),
    (lambda: diagnose(MODEL, "affine8"), ValueError, "fmt: expected a .*exponent.* got affine8"),
    (lambda: diagnose(MODEL, FIXED), ValueError, "expected a format with an exponent"),
    (lambda: diagnose(MODEL, {"grad": "fp16"}), ValueError, "formats by input, .*; got grad"),
    (lambda: diagnose(MODEL, {}), ValueError, "got an empty mapping"),
    (lambda: diagnose(MODEL, {"weight": "affine8"}), ValueError, "fmt: weight: expected a format"),
    (lambda: diagnose(MODEL, scaler=DYNAMIC), TypeError, "scaler: expected a number, got str"),
    (lambda: diagnose(MODEL, scaler=0.0), ValueError, "scaler: expected a positive finite scale"),
    (lambda: recommend(fmt="affine8"), ValueError, "recommend: fmt: expected a format with an exp"),
    (lambda: recommend(candidates=["fp16", "affine8"]), ValueError, "candidates: expected a"),
    (lambda: recommend(candidates=[]), ValueError, "expected at least one format, got none"),
    (lambda: recommend(margin=-1), ValueError, "recommend: margin: expected at least 0, got -1"),
    (lambda: recommend(margin=1.5), TypeError, "recommend: margin: expected an int"),
    (lambda: recommend(threshold=1.0), ValueError, "threshold: expected a part in 0..1, got 1.0"),
    (lambda: recommend(threshold=None), TypeError, "threshold: expected a number"),
]


@each("call, error, text", WRONG)
def test_wrong_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()


@each("use", ["recommend", "to_dicts", "records", "cells"])
def test_a_report_of_nothing(use: str) -> None:
    report = diagnose(MODEL, "fp16")
    with pytest.raises(RuntimeError, match="nothing was counted yet; run the model"):
        getattr(report, use)()
    assert str(report) == "nothing was counted yet"


def test_a_plain_model_has_no_recipe() -> None:
    with diagnose(MODEL) as report:
        MODEL(torch.ones(1, 2))
    with pytest.raises(RuntimeError, match="a plain model needs one"):
        report.recommend()


def test_a_block_is_entered_once_at_a_time() -> None:
    with diagnose(MODEL, "fp16") as report:
        with pytest.raises(RuntimeError, match="this block is entered already"):
            report.__enter__()
        MODEL(torch.ones(1, 2))
    assert report.rows[0].calls == 1


def test_compiled_models_are_refused() -> None:
    report = diagnose(torch.compile(MODEL, backend="eager"), "fp16")
    with pytest.raises(NotImplementedError, match="is compiled"):
        report.__enter__()
    assert torch._C._len_torch_function_stack() == 0


def test_other_files_are_refused(tmp_path: Any) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"type": "header", "kind": "run", "schema": 1}\n')
    with pytest.raises(ValueError, match="expected the records of a diagnosis, got 'run'"):
        Report.load(path)
