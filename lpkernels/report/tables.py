"""Tables for the terminal, from result records."""

import math
from collections.abc import Sequence

from rich.table import Table

from lpkernels.experiments.records import Run


def summary(runs: Sequence[Run], *, title: str = "") -> Table:
    """One row per run, the figures after its last epoch."""
    table = Table(title=title or None)
    table.add_column("run")
    # two lines each: the table fits a terminal of 80 columns
    for column in ("test\naccuracy", "train\nloss", "epochs", "skipped\nsteps", "seconds"):
        table.add_column(column, justify="right")
    table.add_column("accumulator", no_wrap=True)
    for run in runs:
        table.add_row(run.name, *_figures(run), str(run.header["accumulator"]))
    return table


def _figures(run: Run) -> list[str]:
    planned = run.config.epochs
    if not run.epochs:
        return ["-", "-", f"0/{planned}", "-", "-"]
    done = str(planned) if run.finished else f"{len(run.epochs)}/{planned}"
    skipped = sum(int(epoch["skipped_steps"]) for epoch in run.epochs)
    loss = run.curve("train_loss")[-1]
    return [
        f"{run.curve('test_accuracy')[-1]:.2%}",
        f"{loss:.4f}" if math.isfinite(loss) else "not finite",
        done,
        str(skipped),
        f"{run.seconds:.1f}",
    ]
