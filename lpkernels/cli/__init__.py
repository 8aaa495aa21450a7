"""The `lpkernels` command: parses options and calls; the work is done in experiments and report."""

import contextlib
import sys
from pathlib import Path
from typing import Annotated

try:
    import rich  # noqa: F401
    import typer
except ImportError as missing:
    raise SystemExit(
        f'lpkernels: the command needs {missing.name}: pip install "lpkernels[lab]"; '
        "`lpkernels doctor` and `lpkernels --version` run without it"
    ) from missing

from lpkernels import formats as lp_formats
from lpkernels.arithmetic import as_accumulator
from lpkernels.cli._options import (
    Out,
    Seed,
    check_one_process,
    console,
    show_table,
    stopped,
    valid,
)
from lpkernels.cli.accumulate import accumulate, bench_accumulate
from lpkernels.cli.assign import assign
from lpkernels.cli.frontier import app as frontier_app
from lpkernels.cli.report import report
from lpkernels.cli.schedule import schedule
from lpkernels.cli.sweep import app as sweep_app
from lpkernels.cli.train import train
from lpkernels.cli.units import app as units_app
from lpkernels.experiments.measuring.speed import measure, shape_from
from lpkernels.experiments.training.interrupts import Interrupted
from lpkernels.recipes import describe
from lpkernels.rounding import ROUNDINGS, check_rounding

_INSTALL = 'pip install "lpkernels[lab]"'

app = typer.Typer(
    name="lpkernels",
    help="Emulated low-precision arithmetic for training, exact to the bit.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="markdown",
)


def _show_version(asked: bool) -> None:
    if asked:
        from lpkernels.report.doctor import versions

        typer.echo(versions())
        raise typer.Exit


@app.callback()
def _before_commands(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the versions of lpkernels and torch, and the backends that run here.",
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """The entry point; a lacking package of the [lab] extra is a message, not a traceback."""
    try:
        app()
    except ImportError as error:
        hint = "" if "pip install" in str(error) else f"; is the [lab] extra installed? {_INSTALL}"
        sys.exit(f"lpkernels: {error}{hint}")


def _benched(name: str) -> None:
    if name not in ("product", "accumulate"):
        raise ValueError(f"expected product or accumulate, got {name!r}")


Rounding = Annotated[
    str, typer.Option(callback=valid(check_rounding), help=f"One of {', '.join(ROUNDINGS)}.")
]


@app.command()
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
    from lpkernels.report.plots import plot_curves
    from lpkernels.report.tables import summary

    try:
        runs = run_demo(out, epochs=epochs, seed=seed, resume=resume, console=console)
    except Interrupted as stop:
        stopped(stop, f"lpkernels demo --resume --out {out} --epochs {epochs} --seed {seed}")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--resume") from error
    work = runs[0].config.workload
    show_table(summary(runs, title=f"{work.model} on {work.data}, seed {seed}"))
    picture = plot_curves(
        runs, out / "curves.png", title="One network, one seed, three arithmetics"
    )
    console.print(f"records in {out}, curves in {picture}")


@app.command(name="formats")
def show_formats(
    name: Annotated[
        str, typer.Argument(callback=valid(lp_formats.parse_format), help="A format; none: all.")
    ] = "",
) -> None:
    """The named formats, the aliases of block formats and the names of tables, or one format in
    detail.

    Example: `lpkernels formats e4m3fn`
    """
    from lpkernels.report.numbers import aliases, format_details, named_formats, named_tables

    if name:
        show_table(format_details(lp_formats.parse_format(name)))
    else:
        show_table(named_formats())
        show_table(aliases())
        show_table(named_tables())


@app.command(name="recipes")
def show_recipes(
    name: Annotated[
        str, typer.Argument(callback=valid(describe), help="A recipe; none: all.")
    ] = "",
) -> None:
    """The named recipes, or one with its policy, its source and its departures from the source.

    Example: `lpkernels recipes nvfp4_pretraining`
    """
    from lpkernels.report.recipes import recipe_details, recipe_table

    show_table(recipe_details(name) if name else recipe_table())


# A negative number looks like an option. Unknown options therefore count as values, which
# `quantize` parses.
@app.command(context_settings={"ignore_unknown_options": True})
def quantize(
    values: Annotated[list[str], typer.Argument(help="Numbers, also inf, nan and 0x1.8p-3.")],
    fmt: Annotated[
        str,
        typer.Option("--format", callback=valid(lp_formats.parse_format), help="A format's name."),
    ] = "e4m3fn",
    rounding: Rounding = "nearest_even",
    seed: Annotated[int, typer.Option(min=0, help="Seed of stochastic rounding.")] = 0,
) -> None:
    """Send values through a format: code, result and error.

    Example: `lpkernels quantize 0.1 464 --format e4m3fn --rounding nearest_even`
    """
    from lpkernels.experiments.measuring.probe import probe
    from lpkernels.report.numbers import probes

    numbers = [_number(text) for text in values]
    rows = probe(numbers, lp_formats.parse_format(fmt), rounding, seed=seed)
    show_table(probes(rows, title=f"{fmt}, {rounding}"))


def _number(text: str) -> float:
    try:
        return float.fromhex(text) if "x" in text.lower() else float(text)
    except (ValueError, OverflowError) as error:
        meant = ""
        with contextlib.suppress(ValueError):
            fmt = lp_formats.parse_format(text)
            meant = f"; it is a format: lpkernels quantize 0.3 --format {text}" if fmt else ""
        message = f"expected numbers, got {text!r}{meant}"
        raise typer.BadParameter(message, param_hint="VALUES") from error


app.command()(train)
app.command()(report)


#: Options of predictions, which this command made before they moved to bench/predict.
_Moved = Annotated[str | None, typer.Option(hidden=True)]


@app.command()
def bench(
    what: Annotated[
        str,
        typer.Argument(
            callback=valid(_benched), help="product, or accumulate: speed and error over lengths."
        ),
    ] = "product",
    shape: Annotated[
        str, typer.Option(callback=valid(shape_from), help="M, K and N of the product.")
    ] = "960x960x960",
    operands: Annotated[
        str, typer.Option(callback=valid(lp_formats.parse_format), help="Format of both operands.")
    ] = "e5m2",
    accumulator: Annotated[
        str, typer.Option(callback=valid(as_accumulator), help="Accumulator, by name.")
    ] = "e6m9_chunk64",
    repeats: Annotated[int, typer.Option(min=1, help="Calls; the best one counts.")] = 5,
    threads: Annotated[int, typer.Option(min=0, help="Threads; 0: torch's choice.")] = 0,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say which kernels did the work, and why.")
    ] = False,
    longest: Annotated[
        int, typer.Option(min=6, max=24, help="accumulate: log2 of the longest sum's products.")
    ] = 20,
    out: Annotated[
        Path | None,
        typer.Option(help="accumulate: add the records to this JSON lines file."),
    ] = None,
    predict: _Moved = None,
    model: _Moved = None,
    recipe: _Moved = None,
    batch: _Moved = None,
) -> None:
    """Time one emulated matrix product beside torch's in float32, and say which kernels ran.

    With `accumulate` it measures speed and error over lengths 2^6, 2^8, ... on each backend.

    Example: `lpkernels bench --operands e4m3 --accumulator e5m10 --explain`
    """
    if any(given is not None for given in (predict, model, recipe, batch)):
        raise typer.BadParameter(
            "predictions for a GPU are made by `python -m bench.predict` in a checkout of the "
            "sources (docs/predictions.md)",
            param_hint="--predict",
        )
    import torch

    from lpkernels import backends
    from lpkernels.report.speeds import order_table, speed_table, tier_table

    if threads:
        torch.set_num_threads(threads)
    if what == "accumulate":
        return bench_accumulate(operands, accumulator, longest, repeats, out)
    backends.take_tiers()
    speed = measure(shape_from(shape), operands, as_accumulator(accumulator), repeats=repeats)
    tiers = backends.take_tiers()
    show_table(speed_table(speed, shape, operands, accumulator, torch.get_num_threads()))
    if explain:
        show_table(tier_table(tiers))
        show_table(order_table())


@app.command()
def doctor() -> None:
    """Show what this installation can do, and the reason for everything it lacks.

    Example: `lpkernels doctor`
    """
    from lpkernels.report import doctor

    typer.echo(doctor.report())


app.command()(accumulate)
app.command()(schedule)
app.command()(assign)
app.add_typer(sweep_app)
app.add_typer(frontier_app)
app.add_typer(units_app)
