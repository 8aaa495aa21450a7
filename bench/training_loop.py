"""``python -m bench.training_loop``: what a step through the trainer costs beside the same by hand.

ResNet-8 is trained on digits (8 x 8) and digits32, in float32 and with FP8 operands, without parts
and with two: a static loss scale and weights rounded after the update. The loop by hand takes the
same batches, schedules the learning rate, skips an update that is not finite and adds up loss and
accuracy, as a careful user's would. Both loops run in turns; the best of each counts. Results are
printed, and appended to bench/results/training-loop.jsonl.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import lpkernels as lp
from bench.recording import keep
from bench.timing import interleave
from lpkernels import schemas
from lpkernels.arithmetic import as_quantizer
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.optimizers import cosine_lr
from lpkernels.experiments.training.trainer import Trainer

RESULTS = Path(__file__).resolve().parent / "results" / "training-loop.jsonl"
PARTS = {"loss_scale": 1024.0, "weight_update": "e6m9:stochastic"}
STEPS = 1000


def through_the_loop(config: RunConfig, folder: Path) -> Callable[[], None]:
    """One step of the trainer."""
    trainer = Trainer(config, folder)
    plan = trainer.workload.train.plan(config.seed, 0)

    def step() -> None:
        trainer.position.step %= trainer.steps - 1
        trainer._train(plan.batch(trainer.position.step, config.batch))
        trainer.position.step += 1

    return step


def by_hand(trainer: Trainer) -> Callable[[], None]:
    """The same step written out; model and data are the trainer's, which is never called."""
    config, model, optimizer = trainer.config, trainer.model, trainer.optimizer
    plan = trainer.workload.train.plan(config.seed, 0)
    scale = config.flat()["loss_scale"]
    weights = as_quantizer(PARTS["weight_update"]) if config.callbacks else None
    at = {"step": 0, "loss": 0.0, "right": 0}

    def step() -> None:
        at["step"] = (at["step"] + 1) % (trainer.steps - 1)
        images, labels = plan.batch(at["step"], config.batch)
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = cosine_lr(0.1, at["step"], STEPS)
        optimizer.zero_grad()
        output = model(images)
        loss = cross_entropy(output, labels)
        (loss * scale).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        if scale != 1:
            torch._foreach_div_(gradients, scale)
        if torch.stack([torch.isfinite(g).all() for g in gradients]).all():
            optimizer.step()
            if weights is not None:
                with torch.no_grad():
                    for p in model.parameters():
                        p.copy_(lp.quantize(p, weights.fmt, weights.rounding))
        at["loss"] += loss.item() * len(labels)
        at["right"] += (output.argmax(dim=1) == labels).sum().item()

    return step


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.training_loop")
    parser.add_argument("--seconds", type=float, default=20, help="of each comparison")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    for data in ("digits", "digits32"):
        for recipe in ("fp32", "fp8_wang2018"):
            for parts in ({}, PARTS):
                compare(data, recipe, parts, options)


def compare(data: str, recipe: str, parts: dict, options: argparse.Namespace) -> None:
    """Measures and prints one line of the report."""
    config = RunConfig.of(
        data=data, model="resnet8", recipe=str(lp.recipe(recipe)), threads=options.threads, **parts
    )
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            "loop": through_the_loop(config, Path(folder) / "loop"),
            "hand": by_hand(Trainer(config, Path(folder) / "hand")),
        }
        found = interleave(runs, options.seconds)
    over = found["loop"].best / found["hand"].best - 1
    middle = found["loop"].p50 / found["hand"].p50 - 1
    print(
        f"resnet8 on {data:8} {recipe:12} {'with parts' if parts else 'no parts':10} by hand "
        f"{1e3 * found['hand'].best:7.2f} ms, over it {over:+.1%} (medians {middle:+.1%})"
    )
    record = {
        **schemas.line("training loop"), "model": "resnet8", "data": data, "recipe": recipe,
        "parts": parts, "batch": config.batch, "threads": options.threads,
        "loop_s": found["loop"].best, "hand_s": found["hand"].best, "over": over,
        "over_median": middle, "samples": found["loop"].samples,
    }  # fmt: skip
    keep(options.out, record)


if __name__ == "__main__":
    main()
