"""Toy callbacks go through training, checkpoints, tables and options, and are called in order."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from pydantic import Field
from rich.console import Console
from torch import Tensor
from typer.testing import CliRunner

from lpkernels.cli._options import with_settings
from lpkernels.experiments import records
from lpkernels.experiments.training.callback import Callback, CallbackConfig, Context, register
from lpkernels.experiments.training.callbacks import CALLBACKS
from lpkernels.experiments.training.config import RunConfig, sections
from lpkernels.report.runs import summary
from tests.support.trainings import SMALL, goes_on_alike, tiny_trainer

CALLS: list[str] = []


class Toy(Callback):
    """Multiplies the weights after each update that ran, and notes every hook that is called."""

    def __init__(self, name: str, factor: float, takes: bool = False) -> None:
        self.name, self.factor, self.takes = name, factor, takes
        self.ran = torch.zeros(())

    def note(self, what: str) -> None:
        CALLS.append(f"{what} {self.name}")

    def prepare(self, context: Context) -> None:
        self.note("prepare")
        self.parameters = list(context.model.parameters())
        assert len(context.sample[0]) == SMALL.batch and context.total_steps == 8
        assert context.loss(context.model, context.sample).shape == ()

    def before_step(self, step: int) -> None:
        self.note(f"before {step}")

    def scale_loss(self, loss: Tensor) -> Tensor:
        self.note("scale")
        return loss

    def after_backward(self) -> None:
        self.note("unscale")

    def step(self, optimizer: Any) -> Tensor | None:
        self.note("step")
        return torch.tensor(False) if self.takes else None

    def after_step(self, ran: Tensor) -> None:
        self.note("after")
        self.ran = self.ran + ran
        for parameter in self.parameters:
            parameter.data.mul_(self.factor)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self.note("enter")
        yield
        self.note("leave")

    def state_dict(self) -> dict[str, Any]:
        return {"ran": self.ran}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ran = state["ran"]

    def record(self) -> dict[str, Any]:
        return {} if self.takes else {"shrunk": int(self.ran)}


class Shrinking(CallbackConfig):
    shrink: float = Field(1.0, description="Factor of all weights after each update.")

    def build(self) -> Callback:
        return Toy("first", self.shrink)


class Taking(CallbackConfig):
    takes: bool = False

    def build(self) -> Callback:
        return Toy("second", 1.0, takes=True)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """The toys are registered only while a test runs."""
    before = dict(CALLBACKS)
    register("shrinking", order=1)(Shrinking)
    register("a_taking", order=2)(Taking)
    CALLS.clear()
    yield
    CALLBACKS.clear()
    CALLBACKS.update(before)


trainer_in = partial(tiny_trainer, SMALL)


def test_a_toy_callback_trains_and_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = trainer_in(tmp_path / "toy", shrink=0.5)
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(toy.callbacks[0], "after_epoch", seen.append)
    run = toy.fit()
    assert [{"type": "epoch", **epoch} for epoch in run.epochs] == seen
    assert run.config == toy.config
    assert [epoch["shrunk"] for epoch in run.epochs] == [4, 8]
    assert run.header["config"]["callbacks"] == {"shrinking": {"shrink": 0.5}}
    assert float(toy.model.head.weight.detach().abs().max()) < 0.1
    trainer_in(tmp_path / "plain").fit()
    console = Console(record=True, width=120)
    console.print(summary([run, records.read_run(tmp_path / "plain")]))
    text = console.export_text()
    assert "shrunk" in text and " 8 " in text and " - " in text


def test_a_toy_callback_resumes_to_the_same_bits(tmp_path: Path) -> None:
    goes_on_alike(partial(trainer_in, shrink=0.5), tmp_path, 6)


def test_two_callbacks_are_called_in_their_order(tmp_path: Path) -> None:
    run = trainer_in(tmp_path, shrink=0.5, takes=True).fit()
    assert CALLS[:14] == [
        "prepare first", "prepare second", "before 0 first", "before 0 second", "scale first",
        "scale second", "unscale second", "unscale first", "step first", "step second",
        "after first", "after second", "before 1 first", "before 1 second",
    ]  # fmt: skip
    start = CALLS.index("enter first")
    tested = ["enter first", "enter second", "leave second", "leave first"]
    assert CALLS[start : start + 4] == tested
    # The second callback took every step and said that none ran.
    assert run.epochs[0]["skipped_steps"] == run.epochs[0]["updates"] == 4
    assert run.status == "diverged"


def test_a_callback_brings_its_options_has_a_name_of_its_own_and_builds() -> None:
    app, options = typer.Typer(), dict[str, Any]()

    def command(values: dict[str, Any]) -> None:
        options.update(values)

    app.command()(with_settings(sections())(command))
    result = CliRunner().invoke(app, ["--shrink", "0.5"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert RunConfig.of(**options).callbacks == (Shrinking(shrink=0.5),)
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    assert "Shrinking" in shown and "Factor of all weights after each update." in shown
    with pytest.raises(ValueError, match="a callback called 'shrinking' exists already"):
        register("shrinking", order=50)(Taking)
    with pytest.raises(NotImplementedError, match=r"CallbackConfig must define build\(\)"):
        CallbackConfig().build()
