"""`lpkernels report`: runs as a table, a picture, or one HTML file."""

from pathlib import Path
from typing import Annotated

import typer

from lpkernels.cli._options import (
    named_options,
    say,
    show_picture,
    show_table,
    system_errors,
    this_command,
)


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of runs, or records.jsonl files; with --html also the folder of a sweep, "
            "or a file of `lpkernels sweep table --export`."
        ),
    ],
    plot: Annotated[
        Path | None, typer.Option(help="Also draw the curves into this file (.png, .pdf, .svg).")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write all of it into this one file, which a browser opens without a network: "
            "tables, curves, underflow, a sweep's differences, settings and commands."
        ),
    ] = None,
    metric: Annotated[
        str, typer.Option(help="With --html: field to compare; default: the workload's metric.")
    ] = "",
    reference: Annotated[
        str, typer.Option(help="With --html, of a sweep: the arm to compare with.")
    ] = "",
) -> None:
    """Show the table and the curves of finished or stopped runs.

    Example: `lpkernels report results/demo --html report.html`
    """
    if html is not None:
        _report_html(paths, html, metric, reference)
        if plot is None:
            return
    elif metric or reference:
        option = "--metric" if metric else "--reference"
        raise typer.BadParameter("it belongs to --html", param_hint=option)
    from lpkernels.experiments.records import find_runs
    from lpkernels.report.runs import by_name, plot_curves, summary

    with named_options(option="PATHS"):
        runs = [run for path in paths for run in find_runs(path).values()]
    if not runs:
        raise typer.BadParameter(
            f"no records.jsonl in {', '.join(map(str, paths))}", param_hint="PATHS"
        )
    show_table(summary(runs))
    if plot is not None:
        show_picture(lambda: plot_curves(by_name(runs)), plot, option="--plot")


def _report_html(paths: list[Path], out: Path, metric: str, reference: str) -> None:
    from lpkernels.report.html import write_page

    with system_errors("no report was written"), named_options(("metric", "reference")):
        write_page(paths, out, metric=metric, reference=reference, command=this_command())
    say(f"report in {out}, {out.stat().st_size / 1e6:.1f} MB")
