"""Runs that train nothing: figures that depend on the configuration and on every epoch before."""

import errno
import hashlib
import json
import os
import signal
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from lpkernels import _build, schemas
from lpkernels.experiments import records
from lpkernels.experiments.sweeps.cells import Folder
from lpkernels.experiments.sweeps.results import Results
from lpkernels.experiments.sweeps.specification import SweepSpec
from lpkernels.experiments.sweeps.sweep import run_sweep
from lpkernels.experiments.sweeps.training import Progress, Train
from lpkernels.experiments.training.checkpoints import CHECKPOINT
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.workloads.workload import ACCURACY

_COMMIT = _build.commit()


def train(
    config: RunConfig, folder: Path, progress: Progress, *, seconds: float = 0.0, ballast: int = 0
) -> None:
    """Makes epochs of `seconds` each; after every epoch the run can go on from its checkpoint.

    ballast is the number of bytes of a checkpoint.
    """
    epoch, state = 0, json.dumps(config.replace(name="run").to_dict(), sort_keys=True)
    checkpoint, path = folder / CHECKPOINT, folder / records.RECORDS
    if checkpoint.is_file():
        epoch, state = json.loads(checkpoint.read_text())[:2]
        kept = [r for r in records.read_records(path) if r.get("epoch", 0) <= epoch]
        records.write_records(path, [*kept, {"type": "resume", "epoch": epoch}])
        assert kept[-1].get("epoch", 0) == epoch, "a checkpoint lacks its records"
    else:
        records.write_records(path, [header_of(config)])
    while epoch < config.epochs:
        time.sleep(seconds)
        epoch, state = epoch + 1, hashlib.sha256(state.encode()).hexdigest()
        figure = int(state[:8], 16) / 2**32
        records.append_record(path, record_of(epoch, figure))
        temporary = folder / "checkpoint.tmp"
        temporary.write_text(json.dumps([epoch, state, "x" * ballast]))
        temporary.replace(checkpoint)
        progress(epoch, config.epochs)


def run(spec: SweepSpec, folder: Path, **options: Any) -> Results:
    """Runs a sweep of these runs in this process, unless the options say otherwise."""
    return run_sweep(spec, folder, **{"jobs": 1, "train": train, **options})


def header_of(config: RunConfig) -> records.Record:
    about = {
        "config": config.to_dict(),
        "metric": asdict(ACCURACY),
        "environment": {"commit": _COMMIT},
    }
    return {**schemas.header("run"), **about}


def record_of(epoch: int, figure: float | None) -> records.Record:
    losses = dict.fromkeys(("train_loss", "test_loss", "test_accuracy"), figure)
    counts = {"updates": 1, "skipped_steps": 0, "seconds": 0.0}
    return {"type": "epoch", "epoch": epoch, **losses, **counts}


def slow(seconds: float, ballast: int = 0) -> Train:
    """Makes epochs that take time."""
    return partial(train, seconds=seconds, ballast=ballast)


def noted(config: RunConfig, folder: Path, progress: Progress, *, book: Path) -> None:
    """Notes every start of a cell in the file `book`."""
    note(config, book)
    train(config, folder, progress, seconds=0.02)


def note(config: RunConfig, book: Path) -> None:
    with book.open("a") as file:
        file.write(f"{config.name} {config.seed}\n")


def starts(book: Path) -> list[str]:
    """The arms whose cells were begun, in that order, from `book`."""
    return [line.rpartition(" ")[0] for line in book.read_text().splitlines()]


def fragile(config: RunConfig, folder: Path, progress: Progress, *, book: Path) -> None:
    """Fails as the name of its arm says: it ends in "once" or "always", and may begin with "dies".
    Fails too where SIGTERM would not end the worker at once, as the system or Ray does."""
    handler = signal.getsignal(signal.SIGTERM)
    if handler != signal.SIG_DFL and not getattr(handler, "__module__", "").startswith("ray."):
        raise ValueError(f"SIGTERM calls {handler}")
    begun = book.is_file() and config.name in starts(book)
    if config.name.endswith("always") or (config.name.endswith("once") and not begun):
        note(config, book)
        if config.name.startswith("dies"):
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError(f"{config.name} cannot train")
    noted(config, folder, progress, book=book)


def failing(config: RunConfig, folder: Path, progress: Progress) -> None:
    raise ValueError(f"{config.name} cannot train")


def diverging(config: RunConfig, folder: Path, progress: Progress) -> None:
    """Ends on a loss that is not finite."""
    train(config.replace(epochs=1), folder, progress)
    header = records.read_records(folder / records.RECORDS)[0]
    lines = [{**header, "config": config.to_dict()}]
    lines += [record_of(epoch + 1, None) for epoch in range(config.epochs)]
    records.write_records(folder / records.RECORDS, lines)


def full(config: RunConfig, folder: Path, progress: Progress) -> None:
    """Finds the disk full in every cell but the first seed's."""
    if config.seed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    train(config, folder, progress)


def spec(*arms: str, seeds: int = 2, epochs: int = 3, **axes: list[object]) -> SweepSpec:
    """A sweep whose arms differ in a setting of no meaning here."""
    chosen = {arm: {"batch": 1 + number} for number, arm in enumerate(arms or ("a", "b"))}
    return SweepSpec(base={"epochs": epochs}, arms=chosen, axes=axes, seeds=seeds, name="toy")


def figures(folder: Path) -> dict[str, list[records.Record]]:
    """The epochs of every finished cell without their times."""
    epochs = {}
    for name in sorted(Folder(folder).finished()):
        run = records.read_run(folder / "cells" / name)
        epochs[name] = [{k: v for k, v in e.items() if k != "seconds"} for e in run.epochs]
    return epochs
