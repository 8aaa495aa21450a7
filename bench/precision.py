"""``python -m bench.precision``: the cost of steps with a changing and with a static precision.

ResNet-8 on digits32 and the network for MNIST-1D, converted by the policy cpt_fu2021, in a loop of
forward, backward and SGD. One model keeps 8 bits. The other gets another precision before every
step, 3 to 8 bits forward and 8 backward, as a schedule would set it. Both take turns on the same
batches on one thread. Times are the process's own, the best and the median of each. Results are
printed, and appended to bench/results/precision.jsonl.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import lpkernels as lp
from bench.recording import keep
from bench.timing import interleave
from lpkernels import schemas
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.trainer import Trainer

RESULTS = Path(__file__).resolve().parent / "results" / "precision.jsonl"
BITS = (3, 4, 5, 6, 7, 8)
CASES = {"digits32": "resnet8", "mnist1d": "cnn"}


def stepping(config: RunConfig, folder: Path, bits: tuple[int, ...]) -> Callable[[], None]:
    """One step of a trainer's model in a loop by hand. Precisions of `bits` take turns; with none
    the precision stays as it is."""
    trainer = Trainer(config, folder)
    model = lp.convert(lp.revert(trainer.model), lp.policy("cpt_fu2021"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    plan = trainer.workload.train.plan(config.seed, 0)
    batches = itertools.cycle([plan.batch(i, config.batch) for i in range(8)])
    turns = itertools.cycle(bits)
    model.train()

    def step() -> None:
        x, labels = next(batches)
        if bits:
            lp.set_precision(model, next(turns), 8)
        optimizer.zero_grad()
        cross_entropy(model(x), labels).backward()
        optimizer.step()

    return step


def setting(config: RunConfig, folder: Path) -> Callable[[], None]:
    """A change of precision alone."""
    model = lp.convert(lp.revert(Trainer(config, folder).model), lp.policy("cpt_fu2021"))
    turns = itertools.cycle(BITS)
    return lambda: lp.set_precision(model, next(turns), 8)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.precision")
    parser.add_argument("--seconds", type=float, default=60, help="of each comparison")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for data, model in CASES.items():
        compare(data, model, options)


def compare(data: str, model: str, options: argparse.Namespace) -> None:
    """Measures and prints one line of the report."""
    config = RunConfig.of(data=data, model=model, threads=1)
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            "static": stepping(config, Path(folder) / "static", ()),
            "changing": stepping(config, Path(folder) / "changing", BITS),
            "setting": setting(config, Path(folder) / "setting"),
        }
        found = interleave(runs, options.seconds, clock=time.process_time)
    over = found["changing"].best / found["static"].best - 1
    middle = found["changing"].p50 / found["static"].p50 - 1
    print(
        f"{model} on {data:8} static {1e3 * found['static'].best:7.2f} ms, changing {over:+.1%} "
        f"(medians {middle:+.1%}), set_precision {1e6 * found['setting'].best:.0f} us"
    )
    record = {
        **schemas.line("precision"), "model": model, "data": data, "policy": "cpt_fu2021",
        "bits": BITS, "batch": config.batch, "threads": 1, "clock": "process_time",
        "static_s": found["static"].best, "changing_s": found["changing"].best,
        "setting_s": found["setting"].best, "over": over, "over_median": middle,
        "samples": found["static"].samples,
    }  # fmt: skip
    keep(options.out, record)


if __name__ == "__main__":
    main()
