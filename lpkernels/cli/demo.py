"""`lpkernels demo`: three runs of one network, from fp32 to too narrow an accumulator."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from lpkernels.experiments.sweeps.specification import SweepSpec

# Wang et al. 2018 (arXiv 1812.08011): e5m2 operands, e6m9 sums in chunks of 64, 16-bit operands in
# the last layer and for the images, weight updates rounded stochastically to e6m9, one static loss
# scale. Theirs is 1000; 1024 is the power of two next to it, by which float32 gradients are
# multiplied and divided without a rounding.
_FP8 = {"recipe": "fp8_wang2018", "weight_update": "e6m9:stochastic", "loss_scale": 1024.0}


def demo_spec(*, epochs: int = 8, seed: int = 0) -> "SweepSpec":
    """One network, seed and data set: in fp32, in FP8, in FP8 with too narrow an accumulator.

    The third run keeps every sum in e5m2 too, the format of the operands, without chunks: a sum
    that has grown to 16 times a product no longer changes when the product is added, and the weight
    gradients of the first layers sum batch * 8 * 8 = 8192 products. Batch norm and the falling
    learning rate repair much of the damage, so that the run learns late and ends well below the
    others, rather than failing.
    """
    from lpkernels.experiments.sweeps.specification import SweepSpec

    base = {"model": "resnet14", "width": 16, "data": "digits", "batch": 128, "augment": True}
    arms = {"fp32": {}, "fp8": _FP8, "fp8, 8-bit sums": {**_FP8, "acc": "e5m2"}}
    base |= {"epochs": epochs, "threads": 2}
    return SweepSpec(base=base, arms=arms, seeds=[seed], name="demo")


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
    from lpkernels.experiments.sweeps.sweep import run_sweep
    from lpkernels.report.runs import plot_curves, summary

    with running():
        spec = demo_spec(epochs=epochs, seed=seed)
        results = run_sweep(spec, out, jobs=1, retry_failed=True, console=console)
    if show_losses(results):
        raise typer.Exit(1)
    work = results.runs[0].config.workload
    show_table(summary(results.runs, title=f"{work.model} on {work.data}, seed {seed}"))
    title = "One network, one seed, three arithmetics"
    show_picture(lambda: plot_curves(results.runs), out / "curves.png", title=title)
    say(f"records in {out}")
