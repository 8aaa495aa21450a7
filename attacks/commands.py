"""The commands that are attacked, in processes of their own, and the results of their runs."""

import contextlib
import io
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from multiprocessing.context import ForkProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from lpkernels.cli import app
from lpkernels.experiments import records
from lpkernels.experiments.sweeps.places import Places
from lpkernels.experiments.sweeps.reading import read_results
from lpkernels.experiments.training.checkpoints import CHECKPOINT, read_checkpoint

# Runs of a second, whose bits depend on all that a checkpoint holds: draws, masters, a loss scale.
TINY = {
    "data": "tests.experiments.tiny:tiny_workload",
    "model": "cnn2", "width": 2, "batch": 8, "augment": True, "threads": 1,
    "recipe": "fp8_wang2018", "edge": "e6m9",
}  # fmt: skip
DRAWN = {"weight_update": "e6m9:stochastic", "loss_scale": 1024.0}
MASTERS = {
    "optimizer": "adam", "master": "e8m10:stochastic", "opt_state": "bf16", "dynamic_scale": True,
    "scale_interval": 5,
}  # fmt: skip


# The same as a specification, for so many seeds and epochs.
SWEEP = """
name = "attacked"
seeds = {seeds}
[base]
epochs = {epochs}
data = "tests.experiments.tiny:tiny_workload"
model = "cnn2"
width = 2
batch = 8
augment = true
[arms.drawn]
recipe = "fp8_wang2018"
edge = "e6m9"
weight_update = "e6m9:stochastic"
loss_scale = 1024.0
[arms.masters]
optimizer = "adam"
master = "e8m10:stochastic"
opt_state = "bf16"
dynamic_scale = true
scale_interval = 5
"""


@cache
def warm() -> None:
    """Makes this process, and so its forks, import all that a run does."""
    with TemporaryDirectory() as folder:
        settings = {**TINY, **MASTERS, "epochs": 1}
        with contextlib.redirect_stdout(io.StringIO()):
            app(["train", "--out", f"{folder}/run", *options(settings)], standalone_mode=False)


class Command(ForkProcess):
    """`lpkernels ARGUMENTS` in a fork of this process, begun: a new interpreter would take seconds
    to import what a forked one has, and most kills would meet imports.

    log: gets what the command says.
    """

    def __init__(self, *arguments: object, log: Path, **environment: str) -> None:
        warm()
        super().__init__(target=_run, args=(list(map(str, arguments)), log, environment))
        self.start()

    def poll(self) -> int | None:
        return self.exitcode

    @property
    def returncode(self) -> int | None:
        return self.exitcode

    def wait(self) -> int:
        self.join()
        assert self.exitcode is not None
        return self.exitcode


def _run(arguments: list[str], log: Path, environment: dict[str, str]) -> None:
    with log.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    os.environ.update(environment)
    app(arguments)


def sweep(spec: Path, folder: Path, *how: object, **environment: str) -> Command:
    """`lpkernels sweep run`, begun; what it says is added to a log beside the specification."""
    own = ["--out", folder, "--retry-failed", *how]
    return Command("sweep", "run", spec, *own, log=spec.with_suffix(".log"), **environment)


def whole_sweep(root: Path, seeds: int, epochs: int) -> tuple[Path, Path]:
    """A specification, and the folder of its sweep, which nothing disturbed."""
    spec, folder = root / "sweep.toml", root / "whole"
    spec.write_text(SWEEP.format(seeds=seeds, epochs=epochs), encoding="utf-8")
    assert sweep(spec, folder, "--jobs", 1).wait() == 0, end_of(spec.with_suffix(".log"))
    return spec, folder


def end_of(log: Path) -> str:
    """The last words of a command."""
    return " ".join(log.read_text(encoding="utf-8").split())[-600:]


def options(settings: Mapping[str, object]) -> list[str]:
    """The settings as a command line has them."""
    found = []
    for name, value in settings.items():
        option = "--masters" if name == "master" else f"--{name.replace('_', '-')}"
        found += [option] if value is True else [option, str(value)]
    return found


def figures(folder: Path) -> list[records.Record]:
    """The epochs of a run without their times."""
    epochs = records.read_run(folder).epochs
    return [{k: v for k, v in epoch.items() if k != "seconds"} for epoch in epochs]


def assert_same_run(folder: Path, whole: Path) -> None:
    """Both runs have the same figures, and the same state in the last checkpoint, to the bit."""
    assert figures(folder) == figures(whole), f"{folder} has other figures than {whole}"
    got, want = (read_checkpoint(each / CHECKPOINT).state for each in (folder, whole))
    # Its lines have times, and say where the run was resumed.
    del got["records"], want["records"]
    _assert_same(got, want, str(folder))


def _assert_same(got: Any, want: Any, name: str) -> None:
    if isinstance(want, torch.Tensor):
        assert got.dtype == want.dtype and got.shape == want.shape, name
        bits = [each.contiguous().view(-1).view(torch.uint8) for each in (got, want)]
        assert torch.equal(*bits), f"{name}: other bits"
    elif isinstance(want, Mapping):
        assert got.keys() == want.keys(), name
        for key, value in want.items():
            _assert_same(got[key], value, f"{name}, {key}")
    elif isinstance(want, list | tuple):
        assert len(got) == len(want), name
        for i, value in enumerate(want):
            _assert_same(got[i], value, f"{name}, {i}")
    else:
        assert got == want, f"{name}: {got}, expected {want}"


def assert_same_sweep(folder: Path, whole: Path) -> int:
    """Both folders have the same cells with the same figures, and nothing is under way; returns how
    many cells there are."""
    places, other = Places(folder), Places(whole)
    names = other.finished()
    assert places.finished() == names, "cells are missing, or there are others"
    for name in sorted(names):
        assert figures(places.cells / name) == figures(other.cells / name), f"{name} differs"
    assert _results(folder) == _results(whole), f"{folder} has other results than {whole}"
    left = places.tries(), places.given_up(), places.strangers()
    assert left == ({}, set(), []), f"{left} were left"
    return len(names)


def _results(folder: Path) -> tuple[object, ...]:
    """The results that tables are made of, without times."""
    found = read_results(folder)
    plain = [replace(r, values={**r.values, "seconds": 0.0}) for r in found.results]
    return found.header["spec"], found.header["metric"], found.missing, found.broken, plain
