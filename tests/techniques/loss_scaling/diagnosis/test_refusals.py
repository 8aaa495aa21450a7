"""Wrong input to a diagnosis, and what it says then."""

from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from lpkernels.techniques.loss_scaling import Report, diagnose

MODEL = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("model",), TypeError, "diagnose: model must be a torch.nn.Module, got str"),
        ((MODEL, "fp17"), ValueError, "diagnose: fmt: .*'fp17'"),
        ((MODEL, 16), TypeError, "diagnose: fmt: .*16"),
        ((MODEL, "affine8"), ValueError, "fmt: expected a format with an exponent.* got affine8"),
        ((MODEL, lp.FixedFormat(8, 4)), ValueError, "expected a format with an exponent"),
        ((MODEL, {"grad": "fp16"}), ValueError, "expected formats by input, .*; got grad"),
        ((MODEL, {}), ValueError, "got an empty mapping"),
        ((MODEL, {"weight": "affine8"}), ValueError, "fmt: weight: expected a format with"),
    ],
    ids=["model", "name", "type", "affine", "fixed", "kind", "empty", "affine by kind"],
)
def test_wrong_arguments(arguments: tuple[Any, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        diagnose(*arguments)


@pytest.mark.parametrize(
    ("scaler", "error", "text"),
    [
        ("dynamic", TypeError, "diagnose: scaler: expected a number, got str"),
        (0.0, ValueError, "diagnose: scaler: expected a positive finite scale"),
    ],
)
def test_wrong_scalers(scaler: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        diagnose(MODEL, scaler=scaler)


@pytest.mark.parametrize("use", ["recommend", "to_dicts", "records", "cells"])
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


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"fmt": "affine8"}, ValueError, "recommend: fmt: expected a format with an exponent"),
        ({"candidates": ["fp16", "affine8"]}, ValueError, "recommend: candidates: expected a"),
        ({"candidates": []}, ValueError, "candidates: expected at least one format, got none"),
        ({"margin": -1}, ValueError, "recommend: margin: expected at least 0, got -1"),
        ({"margin": 1.5}, TypeError, "recommend: margin: expected an int"),
        ({"threshold": 1.0}, ValueError, r"threshold: expected a part in 0..1, got 1.0"),
        ({"threshold": None}, TypeError, "threshold: expected a number"),
    ],
    ids=["fmt", "candidate", "no candidate", "margin", "margin type", "threshold", "no threshold"],
)
def test_wrong_questions(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with diagnose(MODEL, "fp16") as report:
        MODEL(torch.ones(1, 2))
    with pytest.raises(error, match=text):
        report.recommend(**options)


def test_a_block_is_entered_once_at_a_time() -> None:
    with diagnose(MODEL, "fp16") as report:
        with pytest.raises(RuntimeError, match="this block is entered already"):
            report.__enter__()
        MODEL(torch.ones(1, 2))
    assert report.rows[0].calls == 1


def test_compiled_models_are_refused() -> None:
    report = diagnose(torch.compile(MODEL), "fp16")
    with pytest.raises(NotImplementedError, match="is compiled"):
        report.__enter__()
    assert torch._C._len_torch_function_stack() == 0


def test_other_files_are_refused(tmp_path: Any) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"type": "header", "kind": "run", "schema": 1}\n')
    with pytest.raises(ValueError, match="expected the records of a diagnosis, got 'run'"):
        Report.load(path)
