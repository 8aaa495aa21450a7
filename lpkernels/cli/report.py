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
) -> None:
    """Show the table and the curves of finished or stopped runs.

    Example: `lpkernels report results/demo --html report.html`
    """
    from lpkernels.experiments.records import find_runs
    from lpkernels.report.html import write_page
    from lpkernels.report.runs import plot_curves, summary

    if html is not None:
        with system_errors("no report was written"), named_options():
            write_page(paths, html, command=this_command())
        say(f"report in {html}, {html.stat().st_size / 1e6:.1f} MB")
        if plot is None:
            return
    with named_options(option="PATHS"):
        runs = [run for path in paths for run in find_runs(path).values()]
    if not runs:
        raise typer.BadParameter(
            f"no records.jsonl in {', '.join(map(str, paths))}", param_hint="PATHS"
        )
    show_table(summary(runs))
    if plot is not None:
        show_picture(lambda: plot_curves(runs), plot, option="--plot")
