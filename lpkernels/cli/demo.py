"""`lpkernels demo`: three runs of one network, from fp32 to too narrow an accumulator."""

from pathlib import Path
from typing import Annotated

import typer

from lpkernels.cli._options import (
    Out,
    Seed,
    check_one_process,
    console,
    say,
    show_picture,
    show_table,
)
from lpkernels.cli.sweep import running, show_losses
from lpkernels.experiments.training.interrupts import sigterm_as_ctrl_c


@sigterm_as_ctrl_c()
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
    from lpkernels.experiments.sweeps.demo import demo_spec
    from lpkernels.experiments.sweeps.sweep import run_sweep
    from lpkernels.report.runs import by_name, plot_curves, summary

    with running():
        spec = demo_spec(epochs=epochs, seed=seed)
        results = run_sweep(spec, out, jobs=1, retry_failed=True, console=console)
    if show_losses(results):
        raise typer.Exit(1)
    work = results.runs[0].config.workload
    show_table(summary(results.runs, title=f"{work.model} on {work.data}, seed {seed}"))
    title, curves = "One network, one seed, three arithmetics", by_name(results.runs)
    show_picture(lambda: plot_curves(curves), out / "curves.png", title=title)
    say(f"records in {out}")
