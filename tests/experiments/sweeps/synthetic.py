"""Studies whose cells train nothing: their errors are a formula of task and configuration."""

from pathlib import Path
from typing import Any

import numpy as np

from lpkernels.arithmetic import as_quantizer
from lpkernels.experiments import records
from lpkernels.experiments.sweeps.specification import SweepSpec
from lpkernels.experiments.sweeps.training import Progress
from lpkernels.experiments.training.config import RunConfig
from lpkernels.techniques.pareto import ErrorMatrix, FormatSpace
from tests.experiments.sweeps import toy

SPACE = FormatSpace(
    ["e3m1_sat", "e4m2_sat", "e5m2_sat", "e4m3_sat"], ["e6m7_sat", "e6m9_sat", "e6m11_sat"]
)


def error_of(noise: float, low: str, high: str) -> float:
    """The error of a task with that much label noise.

    Errors are of rank two over tasks and configurations.
    """
    bits = [as_quantizer(name).fmt.man_bits for name in (low, high)]  # type: ignore[union-attr]
    return 0.1 + 0.4 * noise + (0.2 + noise) * 2.0 ** -bits[0] * 0.5 + 0.3 * 2.0 ** -bits[1]


def train(config: RunConfig, folder: Path, progress: Progress) -> None:
    """Writes one epoch, whose accuracy is 1 - `error_of` - 0.001 * seed."""
    fields = config.flat()
    error = error_of(fields["label_noise"], fields["tensors"], fields["ends"])
    line = toy.record_of(1, 1 - error - 0.001 * config.seed)
    records.write_records(folder / records.RECORDS, [toy.header_of(config), line])
    progress(1, 1)


def diverging(config: RunConfig, folder: Path, progress: Progress) -> None:
    """Ends without an accuracy in the lowest format."""
    train(config, folder, progress)
    if "e3m1" in config.flat()["tensors"]:
        lines = records.read_records(folder / records.RECORDS)
        records.write_records(folder / records.RECORDS, [lines[0], toy.record_of(1, None)])


def failing(config: RunConfig, folder: Path, progress: Progress) -> None:
    """Fails in the lowest format."""
    if "e3m1" in config.flat()["tensors"]:
        raise ValueError("this cell cannot train")
    train(config, folder, progress)


def failing_all(config: RunConfig, folder: Path, progress: Progress) -> None:
    raise ValueError("this cell cannot train")


#: How `run_study` runs the cells.
HOW: dict[str, Any] = {"jobs": 1, "train": train}


def spec(*noises: float, seeds: int = 1, space: FormatSpace = SPACE) -> SweepSpec:
    """A study with a task for each share of wrong labels, which is named "noise 0.1" or so."""
    tasks = {f"noise {noise}": {"label_noise": noise} for noise in noises}
    base = {"data": "iris", "epochs": 1, "batch": 32, "width": 4}
    axes = {name: list(map(str, getattr(space, name))) for name in ("low", "high")}
    return SweepSpec(**axes, base=base, arms=tasks, seeds=seeds, name="synthetic")


def truth(*noises: float) -> ErrorMatrix:
    """The errors of the tasks of `spec` in all configurations."""
    errors = [[error_of(noise, *map(str, c)) for c in SPACE] for noise in noises]
    return ErrorMatrix(SPACE, [f"noise {noise}" for noise in noises], np.array(errors))


KNOWN = truth(0.0, 0.2, 0.3, 0.6, 0.8)
