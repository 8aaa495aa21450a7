"""Runs that are stopped and go on: to the bits of runs that are not, with every callback."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.experiments.workloads.registry import find
from tests.experiments.image_files import write_fashion
from tests.support.trainings import SMALL, goes_on_alike, tiny_trainer

WANG: dict[str, Any] = {"recipe": "fp8_wang2018"}
SCHEDULED: dict[str, Any] = {"recipe": "cpt_fu2021", "epochs": 3, "lr": 0.05}
MASTERS: dict[str, Any] = {
    "optimizer": "adam", "lr": 1e-3, "clip": 1.0,
    "master": "e6m9:stochastic", "working": "fp8_e4m3", "opt_grad": "e5m2",
    "opt_state": "exp_avg=e5m7:stochastic,exp_avg_sq=block128_linear4_sfp32",
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "augmented": {"augment": True, "acc": "e6m5:stochastic"},
    "delayed scales": {"recipe": "te_delayed"},
    "dynamic scale": {
        **WANG, "dynamic_scale": True, "scale_start": 2.0**24, "scale_interval": 4,
        "scale_floor": 2.0, "scale_hysteresis": 3,
    },
    "masters": MASTERS,
    "masters scaled": {**MASTERS, "loss_scale": 1024.0},
    "diagnosis": {**WANG, "diagnose": "fp16"},
    "every tensor": {
        "tensors": "e4m2_sat:stochastic", "ends": "e6m9_sat:stochastic", "loss_scale": 1000.0,
    },
    # Results overflow in this low format, so that tensors are promoted.
    "assignment": {
        "width": 4, "lr": 0.1, "loss_scale": 256.0,
        "assignment": "ratio=1,low=e2m2none_b3_sat,order=increasing",
    },
    "cycles": {**SCHEDULED, "schedule": "cpt:3-8/8,cycles=2"},
    "shuffled cycles": {**SCHEDULED, "schedule": "shuffled:3-8/8,cycles=2"},
    # This run stops in the middle of a period, and rises after the fifth.
    "stages": {**SCHEDULED, "schedule": "pfq:3-8/8,period=2,eps=9"},
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_a_stopped_run_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    goes_on_alike(partial(tiny_trainer, SMALL.replace(**SETTINGS[name])), tmp_path, 3, 7)


@pytest.mark.parametrize("data", ["fashion-mnist", "fashion-denoise", "iris", "text"])
def test_a_stopped_run_on_other_data_goes_on_to_the_same_bits(data: str, tmp_path: Path) -> None:
    write_fashion(tmp_path / "files", (24, 4))
    own: dict[str, Any] = {"data": data, "width": 1, "batch": 16, "epochs": 2, "threads": 1}
    if data.startswith("fashion"):
        own |= {"data_dir": str(tmp_path / "files"), "augment": data == "fashion-mnist"}
    config = RunConfig.of(**own, train_size=0 if data == "iris" else 24)
    goes_on_alike(partial(Trainer, config), tmp_path, 3, workload=find(config.workload))
