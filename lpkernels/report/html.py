"""A report in one HTML file, which opens without a network: `lpkernels report RUN... --html`."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lpkernels.experiments.records import (
    Run,
    figure_names,
    find_runs,
    read_records,
    table_of,
    write_lines,
)
from lpkernels.experiments.sweeps.cells import Folder
from lpkernels.experiments.sweeps.results import Results, read_results
from lpkernels.experiments.sweeps.statistics import summarise
from lpkernels.experiments.training.config import command_of
from lpkernels.report.figures import save_figure
from lpkernels.report.runs import plot_curves, summary
from lpkernels.report.sweeps import plot_sweep, sweep_table
from lpkernels.techniques.loss_scaling import Report

__all__ = ["write_page"]

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 1rem 2rem 3rem; }}
pre {{ font-size: .82rem; line-height: 1.25; overflow-x: auto; }}
svg {{ max-width: 100%; height: auto; }}
</style></head><body><h1>{title}</h1>
{body}
</body></html>
"""
# The columns of a table; wider ones have a scroll bar.
_WIDTH = 150


def write_page(paths: Sequence[str | Path], out: str | Path, *, command: str = "") -> Path:
    """Writes one page with the tables and pictures that the commands show: a sweep's differences,
    runs, the curves of all figures that change, underflow; and the commands that make them again.

    Args:
        paths: folders of runs, or a sweep's folder, or its file of `sweep table --export`.
        out: the file, whose folders are made too; one that exists is replaced.
        command: the command that made the report, which the page shows.
    Raises: ValueError: no records of a run, or also those of a sweep, or records that this version
        cannot read.
    """
    results, runs = _read([Path(path) for path in paths])
    parts = [] if results is None else [*_sweep(results)]
    parts += _runs(runs) if runs else []
    title = ", ".join(dict.fromkeys(run.arm for run in runs.values()))
    if results is not None:
        title = results.spec.name or ", ".join(results.spec.arms)
    again = escape("\n".join([command, *_repetition(runs, results)]).strip())
    body = "\n".join([*parts, f"<h2>Machines and commands</h2><pre>{again}</pre>"])
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    write_lines(Path(out), [_PAGE.format(title=escape(title), body=body)])
    return Path(out)


def _read(paths: Sequence[Path]) -> tuple[Results | None, dict[Path, Run]]:
    """The results of a sweep, if there is one, and the runs with epochs by their folders."""
    listed = ", ".join(map(str, paths)) or "no paths"
    sweeps = [path for path in paths if _holds_sweep(path)]
    if not paths or (len(paths) > 1 and sweeps):
        raise ValueError(f"expected runs, or one sweep, got {listed}; make a report of each")
    results = read_results(sweeps[0]) if sweeps else None
    if results is None:
        runs = {file.parent: run for path in paths for file, run in find_runs(path).items()}
    else:
        runs = {Folder(paths[0]).cells / run.cell: run for run in results.runs if run.header}
    runs = {folder: run for folder, run in runs.items() if run.epochs}
    if not runs and not any(map(Path.is_file, sweeps)):
        raise ValueError(f"no records of a run in {listed}; `lpkernels train` writes them")
    return results, runs


def _holds_sweep(path: Path) -> bool:
    """Whether the path is a sweep's folder, or a file of something else than a run."""
    if not path.is_file():
        return Folder(path).spec.is_file()
    first = read_records(path)[:1]
    return not (first and isinstance(first[0], dict) and first[0].get("kind") == "run")


def _sweep(results: Results) -> Iterator[str]:
    """The arms of a sweep: means, and differences to one of them, paired by seed."""
    metric = results.metric
    arms = summarise(results.table, metric.field, reference=results.compare)
    if results.missing:
        yield f"<p>{results.missing} cells have no result yet.</p>"
    for text in results.broken:
        yield f"<p>Not compared: {escape(text)}</p>"
    yield _shown(sweep_table(arms, metric))
    if arms["figures"].any():
        yield _drawn(plot_sweep(results.table, arms, metric))


def _runs(runs: Mapping[Path, Run]) -> Iterator[str]:
    """The last figures of each run, a panel of curves for each figure that changes, and the tables
    of diagnosed runs."""
    listed = list(runs.values())
    field, table = listed[0].metric.field, table_of(listed, epochs=True)
    figures = table[figure_names(table)].select_dtypes("number")
    changing = [
        name.removesuffix("_figure")
        for name in sorted(set(figures) - {"epoch", "updates", "seconds", field})
        if figures[name].nunique() > 1
    ]
    yield _shown(summary(listed))
    yield _drawn(plot_curves(listed, [field, *changing]))
    for folder in runs:
        if (file := folder / "diagnosis.jsonl").is_file():
            yield f"<p>Tensors of {escape(str(folder))}:</p>{Report.load(file)._repr_html_()}"


def _repetition(runs: Mapping[Path, Run], results: Results | None) -> list[str]:
    """Where the runs were made, and the commands that make them again."""
    if results is not None:
        places = map(json.dumps, results.environments)
        spec = json.dumps(results.spec.to_dict())
        return [*places, "lpkernels sweep run SPEC.toml --out DIR", spec]
    environments = [run.header.get("environment") for run in runs.values()]
    lines = dict.fromkeys(map(json.dumps, filter(None, environments)))
    return [*lines, *map(_command, runs.values())]


def _command(run: Run) -> str:
    try:
        return command_of(run.config, f"results/{run.arm}")
    except ValueError as error:
        return f"# {run.arm}: {error}"


def _shown(table: Table) -> str:
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), markup=False)
    console.print(table)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def _drawn(figure: Any) -> str:
    file = save_figure(figure, io.StringIO(), format="svg", metadata={"Date": None})
    return str(file.getvalue()).partition("<!DOCTYPE")[2].partition(">")[2]
