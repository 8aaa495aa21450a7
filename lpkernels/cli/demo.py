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
    show_picture,
    show_table,
    stopped,
)
from lpkernels.experiments.training.interrupts import Interrupted


def demo(
    out: Out = Path("results/demo"),
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of each of the three runs.")] = 8,
    seed: Seed = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where ctrl-C stopped.")] = False,
) -> None:
    """Train one network on real digits in fp32, in FP8, and in FP8 with too narrow an accumulator.

    Prints a table and saves the curves. Example: `lpkernels demo --out results/demo`
    """
    check_one_process("demo")
    from lpkernels.experiments.sweeps.demo import demo as run_demo
    from lpkernels.report.runs import by_name, plot_curves, summary

    try:
        with named_options(option="--resume"):
            runs = run_demo(out, epochs=epochs, seed=seed, resume=resume, console=console)
    except Interrupted as stop:
        stopped(stop, f"lpkernels demo --resume --out {out} --epochs {epochs} --seed {seed}")
    work = runs[0].config.workload
    show_table(summary(runs, title=f"{work.model} on {work.data}, seed {seed}"))
    title = "One network, one seed, three arithmetics"
    show_picture(lambda: plot_curves(by_name(runs)), out / "curves.png", title=title)
    console.print(f"records in {out}")
