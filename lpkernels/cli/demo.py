"""`lpkernels demo`: three runs of one network, from fp32 to too narrow an accumulator."""

from pathlib import Path
from typing import Annotated

import typer

from lpkernels.cli._options import (
    Out,
    Seed,
    check_one_process,
    console,
    named_options,
    say,
    show_picture,
    show_table,
    stopped,
)
from lpkernels.experiments.training.interrupts import Interrupted


def demo(
    out: Out = Path("results/demo"),
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of each of the three runs.")] = 8,
    seed: Seed = 0,
) -> None:
    """Train one network on real digits in fp32, in FP8, and in FP8 with too narrow an accumulator.

    Prints a table and saves the curves. Stopped, the same command goes on; runs that are finished
    are shown again. Example: `lpkernels demo --out results/demo`
    """
    check_one_process("demo")
    from lpkernels.experiments.sweeps.demo import demo as run_demo
    from lpkernels.report.runs import by_name, plot_curves, summary

    try:
        with named_options(option="--out"):
            runs = run_demo(out, epochs=epochs, seed=seed, console=console)
    except Interrupted as stop:
        stopped(stop)
    work = runs[0].config.workload
    show_table(summary(runs, title=f"{work.model} on {work.data}, seed {seed}"))
    title = "One network, one seed, three arithmetics"
    show_picture(lambda: plot_curves(by_name(runs)), out / "curves.png", title=title)
    say(f"records in {out}")
