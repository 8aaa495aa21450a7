"""`lpkernels units`: the tensor cores that have names, and two of them compared on a network."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lpkernels.arithmetic import MODELS, UNITS
from lpkernels.cli._options import (
    Out,
    check_one_process,
    console,
    is_given,
    show_table,
    stopped,
    valid,
)
from lpkernels.cli._settings import with_settings, wrong_option
from lpkernels.experiments.settings import Section
from lpkernels.experiments.sweeps import unit_comparison as work
from lpkernels.experiments.training.config import RunConfig, device_exists, sections
from lpkernels.experiments.training.interrupts import Interrupted
from lpkernels.formats.elsewhere import nearest
from lpkernels.recipes import recipe

_SECTIONS: dict[str, type[Section]] = {
    name: sections()[name] for name in ("workload", "optimizer", "loss_scale")
}


class _Units(TyperGroup):
    """`lpkernels units` and `lpkernels units NAME` are `lpkernels units show`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and not args[0].startswith("-")):
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="units",
    cls=_Units,
    help="The tensor cores that have names, one of them in detail (`units NAME`), or two compared "
    "on a network (`units compare`).\n\n"
    "Example: `lpkernels units h100_e4m3`",
    rich_markup_mode="markdown",
)


def _unit(name: str) -> None:
    if name not in UNITS | MODELS:
        listed = nearest(name, UNITS | MODELS, "`lpkernels units` lists all")
        raise ValueError(f"unknown unit {name!r}; expected one of {listed}")


@app.command()
def show(
    name: Annotated[str, typer.Argument(callback=valid(_unit), help="A unit; none: all.")] = "",
) -> None:
    """Show all tensor cores, or one in detail with the known and unknown parts of its arithmetic.

    Example: `lpkernels units show h100_e4m3`, or shorter `lpkernels units h100_e4m3`
    """
    from lpkernels.report.units import unit_details, unit_table

    show_table(unit_details((UNITS | MODELS)[name]) if name else unit_table())


Side = Annotated[
    str,
    typer.Option(
        callback=valid(recipe),
        help="A recipe, as h100_fp8 or hopper_fp8, or a tensor core of `lpkernels units`, as "
        "ada_e4m3: all three products of every layer by it. A published method, as mxfp8, treats "
        "norms, the first and the last layer as its source does.",
    ),
]


@app.command()
@with_settings(_SECTIONS)
def compare(
    context: typer.Context,
    values: dict[str, Any],
    a: Side = "",
    b: Side = "",
    out: Out = Path("results/units"),
    epochs: Annotated[int, typer.Option(min=1, help="Times over the training examples.")] = 10,
    batch: Annotated[int, typer.Option(min=1, help="Examples in a step.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Of weights and order.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0: torch's choice.")] = 1,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the comparison in --out, by its own options."),
    ] = False,
) -> None:
    """Train the same network and seed in two GPUs' arithmetic: outputs that differ, training
    curves.

    Outputs are compared for the same weights and the first test batch: before training, and after
    it with the weights of either side. Records, and curves.png, go to --out.

    Example: `lpkernels units compare --a h100_fp8 --b ada_e4m3 --model cnn3 --data mnist1d`
    """
    own = {"a": a, "b": b, "epochs": epochs, "batch": batch, "seed": seed, "device": device}
    options = {**values, **own, "threads": threads}
    given = [name for name in options if is_given(context, name)]
    check_one_process("units compare")
    try:
        comparison = _resumed(out, given) if resume else _begun(out, options)
    except (FileExistsError, FileNotFoundError, ImportError, ValueError) as error:
        raise wrong_option(error, [*options, "out"]) from error
    try:
        found, runs = work.compare(comparison, out, console)
    except Interrupted as stop:
        stopped(stop, f"lpkernels units compare --resume --out {out}")
    _show(comparison, found, runs, out)


def _begun(out: Path, options: dict[str, Any]) -> work.Comparison:
    for side in ("a", "b"):
        if not options[side]:
            raise ValueError(f"{side}: expected a recipe or a tensor core, as h100_fp8, got none")
    try:
        device_exists(options["device"])
    except ValueError as error:
        raise ValueError(f"device: {error}") from error
    run = RunConfig.of(**{name: options[name] for name in options if name not in ("a", "b")})
    comparison = work.Comparison(options["a"], options["b"], run)
    work.begin(comparison, out)
    return comparison


def _resumed(out: Path, given: list[str]) -> work.Comparison:
    if given:
        raise ValueError(
            f"{given[0]}: a comparison goes on with the options it was begun with; leave this one "
            "out, or begin another in another folder (option --out)"
        )
    return work.read_comparison(out)


def _show(
    comparison: work.Comparison, found: list[work.Difference], runs: list[Any], out: Path
) -> None:
    from lpkernels.report.plots import plot_curves
    from lpkernels.report.units import block_note, difference_table, training_table

    title = f"{comparison.a} and {comparison.b}"
    show_table(difference_table(found, title=f"Outputs in {title}, same weights"))
    if comparison.blocks() and (note := block_note(comparison, work.longest_sum(comparison))):
        console.print(note, highlight=False)
    show_table(training_table(runs, title=f"Training in {title}, seed {comparison.run.seed}"))
    picture = plot_curves(runs, out / "curves.png", title=title, accumulators=False)
    console.print(f"records in {out}, curves in {picture}", soft_wrap=True)
