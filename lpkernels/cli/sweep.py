"""`lpkernels sweep`: many runs as one experiment, and their results."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpkernels.cli._options import (
    check_one_process,
    console,
    named_options,
    one_of,
    say,
    show_picture,
    show_table,
    stopped,
    system_errors,
    valid,
)
from lpkernels.experiments.training.interrupts import Interrupted, sigterm_as_ctrl_c

if TYPE_CHECKING:
    import pandas

    from lpkernels.experiments.sweeps.results import Results
    from lpkernels.experiments.workloads.workload import Metric

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown")


@app.callback()
def sweep() -> None:
    """Many training runs as one experiment: run, status, table, plot.

    Example: `lpkernels sweep run sweep.toml --out results/sweep`
    """


Sweep = Annotated[
    Path,
    typer.Argument(
        callback=valid(Path.stat), help="The folder of a sweep, or a file of its results."
    ),
]
Reference = Annotated[
    str, typer.Option(help="The arm to compare with; default: what the specification says.")
]
Field = Annotated[
    str, typer.Option("--metric", help="Field of the records; default: the workload's metric.")
]
Without = Annotated[
    list[str] | None,
    typer.Option("--without", metavar="ARM", help="An arm to leave out; may be repeated."),
]
Specification = Annotated[
    Path,
    typer.Argument(
        callback=valid("experiments.sweeps.specification:read_spec"),
        help="A TOML file: see docs/experiments.md.",
    ),
]
SweepFolder = Annotated[
    Path, typer.Option(file_okay=False, help="Folder of the sweep, created or continued.")
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Runs at a time; default: processors by the threads of a run. 1: no workers.",
    ),
]
Engine = Annotated[str, typer.Option(help="One of processes, ray, dask.")]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Run cells again that failed before.")
]


@app.command()
@sigterm_as_ctrl_c()
def run(
    spec: Specification,
    out: SweepFolder,
    jobs: Jobs = None,
    engine: Engine = "processes",
    retry_failed: RetryFailed = False,
) -> None:
    """Run the cells that the folder lacks. The command may be stopped or killed at any moment, and
    then goes on. While it runs, the folder is its own: a second command is refused.

    A specification has `seeds`, and fields of `lpkernels train` in [base], [arms.NAME] and [axes].
    A failed cell is tried once more, then shown with its error; the exit code is then 1.

    Example: `lpkernels sweep run sweep.toml --out results/sweep --jobs 2`
    """
    check_one_process("sweep run")
    from lpkernels.experiments.sweeps.specification import read_spec
    from lpkernels.experiments.sweeps.sweep import run_sweep

    options: dict[str, Any] = {"jobs": jobs, "engine": engine, "retry_failed": retry_failed}
    with running(options):
        results = run_sweep(read_spec(spec), out, console=console, **options)
    failed = show_losses(results)
    say(f"results in {out}; next: lpkernels sweep table {out}")
    if failed:
        raise typer.Exit(1)


@contextmanager
def running(names: Iterable[str] = ()) -> Iterator[None]:
    """What may end the command of a sweep becomes a message: ctrl-C, wrong options, the system."""
    try:
        with named_options(names):
            yield
    except Interrupted as stop:
        stopped(stop)
    except OSError as error:
        say(error.strerror or str(error))
        raise typer.Exit(1) from error


@app.command()
def status(folder: Annotated[Path, typer.Argument(help="The folder of a sweep.")]) -> None:
    """Show how many cells are done, which are under way, which failed and why.

    Example: `lpkernels sweep status results/sweep`
    """
    from lpkernels.experiments.sweeps.results import read_status

    with named_options():
        results, begun = read_status(folder)
    statuses = [run.status for run in results.runs]
    counts = [f"{statuses.count(name)} {name}" for name in ("finished", "diverged", "failed")]
    counts += [f"{len(begun)} begun", f"{results.missing - len(begun)} waiting"]
    say(f"{results.cells} cells: {', '.join(counts)}")
    for cell, share in begun:
        say(f"begun: {cell.label()}: {share:.0%}")
    show_losses(results)


@app.command()
def table(
    sweep: Sweep,
    reference: Reference = "",
    metric: Field = "",
    without: Without = None,
    export: Annotated[
        Path | None, typer.Option(help="Also write all results into this JSON lines file.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Also write the table into this file.")] = None,
) -> None:
    """Show means over seeds, and differences to one arm, paired by seed, with their intervals.

    An arm that is left out is not compared; --export writes it all the same.

    Example: `lpkernels sweep table results/sweep --export results.jsonl`
    """
    from lpkernels.experiments.sweeps.results import write_results
    from lpkernels.report.sweeps import sweep_table

    results, _, summary, chosen = _summary(sweep, reference, metric, without)
    show_table(sweep_table(summary, chosen, title=results.spec.name))
    show_losses(results)
    if results.missing:
        say(f"{results.missing} cells have no result yet")
    if not (reference or results.compare):
        say(f"nothing is compared: {results.spec.compare!r} has no result yet")
    if csv is not None:
        with system_errors("no table was written"):
            csv.parent.mkdir(parents=True, exist_ok=True)
            summary.to_csv(csv, index=False)
        say(f"table in {csv}")
    if export is not None:
        say(f"results in {write_results(results, export)}")


@app.command()
def plot(
    sweep: Sweep,
    out: Annotated[Path, typer.Option(help="The picture (.png, .pdf, .svg).")],
    reference: Reference = "",
    metric: Field = "",
    against: Annotated[
        str,
        typer.Option(
            help="A field of the records, such as bit_ratio: means over its means, in place of "
            "every seed."
        ),
    ] = "",
    without: Without = None,
) -> None:
    """Draw every seed, the means, and the differences to one arm, as a picture.

    Example: `lpkernels sweep plot results/sweep --out sweep.png`
    """
    from lpkernels.report.sweeps import plot_sweep

    results, cells, summary, chosen = _summary(sweep, reference, metric, without)
    show_picture(
        lambda: plot_sweep(cells, summary, chosen, against=against), out, title=results.spec.name
    )


def _summary(
    sweep: Path, reference: str, field: str, without: list[str] | None
) -> "tuple[Results, pandas.DataFrame, pandas.DataFrame, Metric]":
    """The sweep, the cells without the arms that are left out, their summary, the metric."""
    from lpkernels.experiments.sweeps.results import read_results
    from lpkernels.experiments.sweeps.statistics import metric_named, summarise

    with named_options():
        results = read_results(sweep)
        metric = metric_named(field, results.metric)
        compare = reference or results.compare
        if compare in (without or ()):
            raise ValueError(
                f"--without {compare}: the other arms are compared with it; name another by "
                "--reference"
            )
        cells = results.table
        for arm in without or ():
            one_of(*cells["arm"].unique())(arm)
        cells = cells[~cells["arm"].isin(without or ())]
        return results, cells, summarise(cells, metric.field, reference=compare), metric


def show_losses(results: "Results") -> int:
    """Says which cells failed or cannot be read, and where different versions or commits have
    trained the cells; returns how many failed or cannot be read."""
    failed = [run for run in results.runs if run.status == "failed"]
    for run in failed:
        say(f"failed: {run.label()}: {run.error} (failed/{run.cell})")
    for text in results.broken:
        say(f"broken: {text}")
    if len(results.codes) > 1:
        listed = ", ".join(f"{code} ({number} cells)" for code, number in results.codes.items())
        say(
            f"cells were trained by different code: {listed}; cells/*/cell.json names it, and a "
            "cell whose folder is removed is trained again"
        )
    return len(failed) + len(results.broken)
