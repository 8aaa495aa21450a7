"""``python -m bench.certificates``: would tiles take faster kernels if facts were known by block?

csrc/cuda/product/plan.h chooses the kernel of a product from facts of its whole operands. Here
ResNet-18 for 32 x 32 images on digits32, a GPT of two layers and an LSTM on text are trained on the
CPU, and every product of some steps is looked at. Its kernel is chosen in three ways: from facts of
whole operands; for each tile of 128 x 128 outputs, from facts of its own rows and columns; and from
facts of whole operands again, if tensor cores took operands that are scaled by a power of two.
Instructions are those counted for sm_90. Results are printed, and appended to
bench/results/certificates.jsonl.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from bench.certificates.choices import BY, SUMS, Looking, Tally
from bench.training_loop import through_the_loop
from lpkernels import schemas
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import append_record, read_records
from lpkernels.experiments.training.config import RunConfig

RESULTS = Path(__file__).resolve().parents[1] / "results" / "certificates.jsonl"
#: By network: the settings of a run, and the steps whose products are looked at.
NETWORKS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "resnet18": ({"data": "digits32", "model": "resnet18", "batch": 8}, (1, 24)),
    "gpt2": (
        {"data": "text", "model": "gpt2", "batch": 32, "optimizer": "adam", "lr": 0.003},
        (1, 50, 200),
    ),
    "lstm1": (
        {"data": "text", "model": "lstm1", "batch": 32, "optimizer": "adam", "lr": 0.01},
        (1, 50, 200),
    ),
}
_SUMS = {"acc": "e6m9", "chunk": 64}
#: By name: what operands are rounded to, while the sums are e6m9 in chunks of 64.
OPERANDS: dict[str, dict[str, Any]] = {
    "fp8_wang2018": {"recipe": "fp8_wang2018"},
    "bf16 operands": {"operands": "bf16", "grads": "bf16", **_SUMS},
    "e6m9 operands": {"operands": "e6m9", "grads": "e6m9", **_SUMS},
    "float32 operands": _SUMS,
}
LOSS_SCALE = 1024.0
# The names of the sums in the table.
_SHORT = dict(zip(SUMS, ("e6m9", "native"), strict=True))


def measured(network: str, name: str, threads: int) -> dict[tuple[str, str], Tally]:
    """The products of some steps of a network that is trained with these operands."""
    settings, at = NETWORKS[network]
    config = RunConfig.of(**settings, **OPERANDS[name], threads=threads, loss_scale=LOSS_SCALE)
    looking = Looking()
    with tempfile.TemporaryDirectory() as folder:
        step = through_the_loop(config, Path(folder) / "run")
        for number in range(1, at[-1] + 1):
            if number in at:
                with looking:
                    step()
            else:
                step()
    return looking.found


def record(network: str, name: str, threads: int) -> dict[str, Any]:
    """The record of one network and one kind of operands, with a part for each pass and sums."""
    settings, at = NETWORKS[network]
    parts = [
        {
            "pass": gemm, "sums": sums, "products": tally.products, "tiles": dict(tally.tiles),
            "faster": tally.faster,
            "macs": {by: dict(tally.macs[by]) for by in BY},
            "instructions": {by: round(tally.instructions[by]) for by in BY},
        }
        for (gemm, sums), tally in measured(network, name, threads).items()
    ]  # fmt: skip
    return {
        **schemas.line("certificates"), "network": network, "operands": name, "settings": settings,
        "arithmetic": OPERANDS[name], "loss_scale": LOSS_SCALE, "steps": at, "threads": threads,
        "parts": parts, "when": datetime.now(timezone.utc).isoformat(),
        "environment": environment("cpu"),
    }  # fmt: skip


def shares(part: dict[str, Any], by: str) -> dict[str, float]:
    """The shares of the multiply-adds that kernels take in a part of a record, largest first."""
    macs = part["macs"][by]
    return {
        kernel: macs[kernel] / sum(macs.values()) for kernel in sorted(macs, key=macs.get)[::-1]
    }


def gain(part: dict[str, Any], by: str) -> float:
    """The share of the instructions that this way of choosing saves."""
    return 1 - part["instructions"][by] / part["instructions"]["tensor"]


def whole(parts: Sequence[dict[str, Any]], sums: str) -> dict[str, Any]:
    """One part for all passes together."""
    own = [part for part in parts if part["sums"] == sums]
    macs: dict[str, Counter[str]] = {by: Counter() for by in BY}
    for part in own:
        for by in BY:
            macs[by].update(part["macs"][by])
    work = {by: sum(part["instructions"][by] for part in own) for by in BY}
    return {
        "pass": "all", "sums": sums, "macs": macs, "instructions": work,
        "tiles": sum((Counter(part["tiles"]) for part in own), Counter()),
        "faster": sum(part["faster"] for part in own),
    }  # fmt: skip


def _percent(share: float) -> str:
    """A share in whole percents; one that rounds to 0% has no sign."""
    return f"{0.0 + round(100 * share):.0f}%"


def _kernels(part: dict[str, Any], by: str) -> str:
    """The kernels that make half a percent of the multiply-adds or more."""
    return "; ".join(f"{k} {_percent(v)}" for k, v in shares(part, by).items() if v >= 0.005)


def rows(record: dict[str, Any]) -> list[str]:
    """The rows of the table in docs/predictions.md, one for each of `SUMS`."""
    found = []
    for sums in SUMS:
        parts = {part["pass"]: part for part in record["parts"] if part["sums"] == sums}
        total = whole(record["parts"], sums)
        cells = [
            record["network"], record["operands"], _SHORT[sums],
            _kernels(total, "tensor"), _kernels(total, "block"),
            _percent(total["faster"] / sum(total["tiles"].values())),
            *(_percent(gain(parts[name], "block")) for name in ("fprop", "dgrad", "wgrad")),
            _percent(gain(total, "block")), _percent(gain(total, "scaled")),
        ]  # fmt: skip
        found.append(f"| {' | '.join(cells)} |")
    return found


def newest(path: Path) -> list[dict[str, Any]]:
    """The last record of each network and kind of operands, in this order."""
    found = {(one["network"], one["operands"]): one for one in read_records(path)}
    return [found[key] for key in itertools.product(NETWORKS, OPERANDS) if key in found]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.certificates")
    parser.add_argument("--network", choices=NETWORKS, action="append")
    parser.add_argument("--operands", choices=OPERANDS, action="append")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--show", action="store_true", help="only what the file holds")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    chosen = itertools.product(options.network or NETWORKS, options.operands or OPERANDS)
    for network, name in () if options.show else chosen:
        append_record(options.out, record(network, name, options.threads))
        print(f"{network}, {name}: looked at", flush=True)
    for one in newest(options.out):
        print("\n".join(rows(one)))


if __name__ == "__main__":
    main()
