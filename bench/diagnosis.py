"""``python -m bench.diagnosis``: the added cost of a training step when every tensor is counted.

ResNet-8 is trained on digits32 in a loop as a user writes it (`bench.training_loop.by_hand`), with
FP8 operands and emulated accumulators (fp8_wang2018) and in float32. Each runs without a diagnosis,
inside a diagnosis of the tensors that the recipe rounds, and inside one of all tensors in fp16. The
runs take turns; the best of each counts, in seconds of the processor, so that other work beside it
disturbs less.
Results are printed, and appended to bench/results/diagnosis.jsonl.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

import lpkernels as lp
from bench.recording import keep
from bench.timing import OtherWork, interleave
from bench.training_loop import by_hand
from lpkernels import schemas
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.techniques.loss_scaling import diagnose

#: A diagnosis has records of its own, of another kind than this benchmark of it.
KIND = "diagnosis step"
RESULTS = Path(__file__).resolve().parent / "results" / "diagnosis.jsonl"
#: The tensors diagnosed, by recipe. In float32 there is nothing that a recipe rounds.
DIAGNOSES = {"fp8_wang2018": ("recipe", "fp16"), "fp32": ("fp16",)}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.diagnosis")
    parser.add_argument("--seconds", type=float, default=30, help="of each comparison")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", default="digits32")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    for recipe, diagnoses in DIAGNOSES.items():
        compare(recipe, diagnoses, options)


def compare(recipe: str, diagnoses: Sequence[str], options: argparse.Namespace) -> None:
    """Measures and prints some lines of the report."""
    # The recipe in every layer: that is what the records measured.
    plain = RunConfig.of(
        data=options.data, model="resnet8", threads=options.threads, recipe=str(lp.recipe(recipe))
    )
    other = OtherWork()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as open_blocks:
        runs = {}
        for fmt in ("", *diagnoses):
            trainer = Trainer(plain, Path(folder) / (fmt or "plain"))
            runs[fmt] = by_hand(trainer)
            if fmt:
                open_blocks.enter_context(diagnose(trainer.model, fmt))
        found = interleave(runs, options.seconds, clock=time.process_time)
    for fmt in diagnoses:
        over = found[fmt].best / found[""].best - 1
        middle = found[fmt].p50 / found[""].p50 - 1
        paired = found[fmt].ratio(found[""]) - 1
        print(
            f"resnet8 on {options.data} {recipe:12} {1e3 * found[''].best:7.2f} ms a step, "
            f"diagnosed in {fmt:6} {over:+.1%} (medians {middle:+.1%}, of rounds {paired:+.1%})"
        )
        record = {
            "type": "diagnosis", "kind": KIND, "schema": schemas.SCHEMA, "loop": "by hand",
            "model": "resnet8", "data": options.data,
            "recipe": recipe, "diagnose": fmt, "batch": plain.batch, "threads": options.threads,
            "plain_s": found[""].best, "diagnosed_s": found[fmt].best, "over": over,
            "over_median": middle, "over_rounds": paired, "samples": found[""].samples,
            "other_processors": other.processors(),
        }  # fmt: skip
        keep(options.out, record)


if __name__ == "__main__":
    main()
