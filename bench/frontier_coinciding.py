"""``python -m bench.frontier_coinciding``: which formats of a configuration change no bit.

It trains a few tasks of a study in the low formats given and in all of the paper's high formats,
and says which high formats end with the same weights, masters and momenta, to the bit, and the same
figures. High formats that differ in exponent bits alone do so where nothing that is rounded to
them leaves the range of the narrowest. Results are printed, and appended to
bench/results/frontier-coinciding.jsonl.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lpkernels as lp
from lpkernels import schemas
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import append_record
from lpkernels.experiments.sweeps.frontiers.specification import (
    FrontierSpec,
    read_frontier_spec,
    settings_of,
)
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.formats import Format
from lpkernels.techniques.loss_scaling import MasterWeights
from lpkernels.techniques.pareto import FormatSpace

HERE = Path(__file__).resolve().parent
STUDY = HERE / "studies" / "frontier-tasks.toml"
RESULTS = HERE / "results" / "frontier-coinciding.jsonl"


def trained(spec: FrontierSpec, task: str, low: str, high: str, seed: int) -> dict[str, Any]:
    """A digest of all bits that a cell ends with, its figures, and how long it took.

    least: the exponent of the smallest value other than 0 that a master or a momentum has.
    """
    space = FormatSpace([low], [high])
    config = spec.config(task).replace(threads=1, seed=seed, **settings_of(space[0]))
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        trainer = Trainer(config, folder)
        last = trainer.fit().epochs[-1]
        seconds = time.perf_counter() - start
    kept = _kept(trainer, space[0][1])
    digest = hashlib.sha256()
    for tensor in kept:
        digest.update(tensor.contiguous().numpy().tobytes())
    some = torch.cat([tensor.abs().flatten() for tensor in kept])
    least = float(some[some > 0].min().log2().floor())
    error = 1 - last["test_accuracy"]
    return {"digest": digest.hexdigest()[:16], "error": error, "least": least, "seconds": seconds}


def _kept(trainer: Trainer, high: Format) -> list[Tensor]:
    """The weights, masters and momenta, as float32 values."""
    optimizer = trainer.optimizer
    assert isinstance(optimizer, MasterWeights)
    parameters = list(trainer.model.parameters())
    kept = [parameter.detach().clone() for parameter in parameters]
    with optimizer.masters():
        kept += [parameter.detach().clone() for parameter in parameters]
    for parameter in parameters:
        codes = optimizer.state[parameter]["momentum_buffer"]
        kept.append(lp.unpack(codes, high, parameter.shape))
    return kept


def coinciding(found: dict[str, dict[str, Any]]) -> list[list[str]]:
    """The high formats, in groups that have the same bits."""
    groups: dict[str, list[str]] = {}
    for high, cell in found.items():
        groups.setdefault(cell["digest"], []).append(high)
    return list(groups.values())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.frontier_coinciding")
    parser.add_argument("--study", type=Path, default=STUDY)
    parser.add_argument("--tasks", nargs="+", default=["digits-10", "mnist1d-cnn", "wine"])
    parser.add_argument("--low", nargs="+", default=["e3m1_sat", "e4m3_sat", "e5m2_sat"])
    parser.add_argument("--high", nargs="+", default=[str(f) for f in FormatSpace.peppp().high])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    spec, where = read_frontier_spec(options.study), environment("cpu")
    for task in options.tasks:
        for low in options.low:
            found = {high: trained(spec, task, low, high, options.seed) for high in options.high}
            groups = coinciding(found)
            record = {
                **schemas.line("frontier coinciding"), "task": task, "low": low,
                "seed": options.seed, "groups": groups, "cells": found,
                "when": datetime.now(timezone.utc).isoformat(),
            }  # fmt: skip
            append_record(options.out, record | {"environment": where})
            mean = sum(cell["seconds"] for cell in found.values()) / len(found)
            text = "; ".join(" = ".join(group) for group in groups)
            print(f"{task}, {low}: {text}; {mean:.2f} s a cell", flush=True)


if __name__ == "__main__":
    main()
