"""A report in one HTML file, which opens without a network: `lpkernels report RUN... --html`."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from lpkernels.experiments.records import Run, read_records, runs_by_path, write_lines
from lpkernels.experiments.sweeps.results import Results, read_results
from lpkernels.experiments.sweeps.statistics import axes_of, metric_named, summarise
from lpkernels.experiments.training.config import RunConfig, command_of
from lpkernels.experiments.workloads.workload import Metric
from lpkernels.formats.elsewhere import nearest
from lpkernels.report.figures import save_figure
from lpkernels.report.runs import by_name, plot_curves
from lpkernels.report.sweeps import plot_sweep

__all__ = ["write_page"]

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 1rem 2rem 3rem; }}
table {{ border-collapse: collapse; font-size: .88rem; display: block; overflow-x: auto; }}
th, td {{ padding: .2rem 1.2rem .2rem 0; text-align: left; vertical-align: top; }}
td:not(:last-child) {{ white-space: nowrap; }}
pre {{ background: #f6f8fa; padding: .6rem; white-space: pre-wrap; font-size: .82rem; }}
svg {{ max-width: 100%; height: auto; }}
</style></head><body><h1>{title}</h1>
{body}
</body></html>
"""


def write_page(
    paths: Sequence[str | Path], out: str | Path, *, metric: str = "", reference: str = "",
    command: str = "",
) -> Path:  # fmt: skip
    """Writes one page: a sweep's differences, runs, curves, underflow, settings and commands.

    Args:
        paths: folders of runs, or a sweep's folder, or its file of `sweep table --export`.
        out: the file, whose folders are made too; one that exists is replaced.
        metric: the field that runs are compared by; "": that of the workload.
        reference: with a sweep, the arm to compare with; "": as its specification says.
        command: the command that made the report, which the page shows.
    Raises: ValueError: no records of a run, or also those of a sweep, a field or an arm that there
        is not, or records that this version cannot read.
    """
    results, runs = _read([Path(path) for path in paths])
    if reference and results is None:
        raise ValueError(f"reference: it names an arm of a sweep, got {reference!r}; leave it out")
    own = (results or next(iter(runs.values()))).metric
    shown = metric_named(metric, own)
    parts, names = [], list(dict.fromkeys(run.name for run in runs.values()))
    if results is not None:
        parts, names = _sweep(results, shown, reference), list(results.spec.arms)
    if runs:
        parts += [*_runs(runs, results, shown), *_shares(runs)]
    title = (results.spec.name if results else "") or ", ".join(names)
    again = escape("\n".join([command, *_repetition(runs, results)]).strip())
    body = "\n".join([*parts, f"<h2>Machines and commands</h2><pre>{again}</pre>"])
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    write_lines(Path(out), [_PAGE.format(title=escape(title), body=body)])
    return Path(out)


def _read(paths: Sequence[Path]) -> tuple[Results | None, dict[Path, Run]]:
    """The results of a sweep, if there is one, and the runs by the paths of their records."""
    listed = ", ".join(map(str, paths)) or "no paths"
    sweeps = [results for path in paths if (results := _results(path))]
    if not paths or (len(paths) > 1 and sweeps):
        raise ValueError(f"expected runs, or one sweep, got {listed}; make a report of each")
    if sweeps and paths[0].is_file():
        return sweeps[0], {}
    runs = {p: run for path in paths for p, run in runs_by_path(path).items() if run.epochs}
    if not runs:
        raise ValueError(f"no records of a run in {listed}; `lpkernels train` writes them")
    return (sweeps[0] if sweeps else None), runs


def _results(path: Path) -> Results | None:
    """The results of a sweep; None for runs."""
    first = read_records(path)[:1] if path.is_file() else []
    if first and isinstance(first[0], dict) and first[0].get("kind") == "run":
        return None
    with contextlib.suppress(FileNotFoundError):
        return read_results(path)
    return None


def _sweep(results: Results, metric: Metric, reference: str) -> list[str]:
    """The arms of a sweep: means, and differences to one of them, paired by seed."""
    compare, scale = reference or results.compare, 100 if metric.percent else 1
    label = f"{metric.label} (%)" if metric.percent else metric.label
    summary = summarise(results.table, metric.field, reference=compare)
    figures = {label: "mean", "± error": "standard_error"}
    if "difference" in summary:
        ends = {"95% from": "difference_low", "to": "difference_high"}
        figures |= {f"minus {compare}": "difference", **ends}
    rows = []
    for row in summary.to_dict("records"):
        settings = results.spec.arms.get(row["arm"], {})
        rows.append({
            "arm": ", ".join([row["arm"], *(f"{k} {row[k]}" for k in axes_of(summary))]),
            **{name: scale * row[column] for name, column in figures.items()},
            **({"p (Holm)": row["p_holm"]} if "p_holm" in row else {}),
            **{name: row[name] for name in ("seeds", "diverged", "failed")},
            "settings": ", ".join(f"{k} {v}" for k, v in settings.items()),
        })  # fmt: skip
    parts = [f"<p>{results.missing} cells have no result yet.</p>"] if results.missing else []
    parts += [f"<p>Not compared: {escape(text)}</p>" for text in results.broken]
    parts.append(_table("Arms; differences are paired by seed", rows))
    if summary["figures"].any():
        parts.append(_drawn(plot_sweep(results.table, summary, metric)))
    return parts


def _runs(runs: Mapping[Path, Run], results: Results | None, metric: Metric) -> list[str]:
    """A row for each run, with the settings that differ; a panel for each figure that changes."""
    hidden = {"type", "epoch", "updates", "seconds"}
    values: dict[str, set[Any]] = {}
    for epoch in (epoch for run in runs.values() for epoch in run.epochs):
        for name in epoch.keys() - hidden:
            if isinstance(epoch[name], int | float | None):
                values.setdefault(name, set()).add(epoch[name])
    if metric.field not in values:
        names = nearest(metric.field, sorted(values), "the records list all")
        raise ValueError(f"metric: expected one of {names}, got {metric.field!r}")
    changing = sorted(name for name, seen in values.items() if len(seen) > 1)
    usual, settings = RunConfig().flat(), [run.config.flat() for run in runs.values()]
    differing = [
        name
        for name in usual
        if name not in ("name", "seed") and len({str(own[name]) for own in settings}) > 1
    ]
    rows = [
        {
            "run": f"{run.name}, seed {own['seed']}",
            metric.field: run.epochs[-1].get(metric.field),
            "train_loss": run.epochs[-1].get("train_loss"),
            "epoch": run.epochs[-1]["epoch"],
            "settings in which runs differ": ", ".join(
                f"{name} {own[name]}" for name in differing if own[name] != usual[name]
            ),
        }
        for run, own in zip(runs.values(), settings, strict=True)
    ]
    groups = by_name(list(runs.values()))
    if results is not None:
        groups = {}
        for run, own in zip(runs.values(), settings, strict=True):
            axes = [f"{name} {own[name]}" for name in results.spec.axes]
            groups.setdefault(", ".join([run.name, *axes]), []).append(run)
    curves = plot_curves(groups, list(dict.fromkeys([metric.field, *changing])))
    return [_table("Runs, after the last epoch", rows), "<h2>Curves</h2>", _drawn(curves)]


def _shares(runs: Mapping[Path, Run]) -> list[str]:
    """The shares of elements that under- and overflowed in the epochs of diagnosed runs."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for path in runs:
        file = path.parent / "diagnosis.jsonl"
        lines = read_records(file) if file.is_file() else []
        for line in (line for line in lines if line.get("type") == "epoch"):
            for layer, tensor, total, over, under in line["rows"]:
                row = rows.setdefault((str(path.parent), f"{layer} {tensor}"), {})
                text = f"{100 * under / total:.3g} / {100 * over / total:.3g}" if total else ""
                row[f"epoch {line['epoch']}"] = text
    table = [{"run": run, "tensor": tensor, **row} for (run, tensor), row in rows.items()]
    return [_table("Elements that underflow / overflow, in percent", table)] if table else []


def _repetition(runs: Mapping[Path, Run], results: Results | None) -> list[str]:
    """Where the runs were made, and the commands that make them again."""
    environments = [run.header.get("environment") for run in runs.values()]
    environments = results.header["environments"] if results else environments
    lines = dict.fromkeys(map(json.dumps, filter(None, environments)))
    if results:
        spec = json.dumps(results.spec.to_dict())
        return [*lines, "lpkernels sweep run SPEC.toml --out DIR", spec]
    return [*lines, *(command_of(run.config, f"results/{run.name}") for run in runs.values())]


def _table(title: str, rows: Iterable[Mapping[str, Any]]) -> str:
    import pandas

    with pandas.option_context("display.max_colwidth", None):
        table = pandas.DataFrame(list(rows)).dropna(axis=1, how="all")
        text = table.to_html(index=False, border=0, na_rep="", float_format="{:.4g}".format)
    return f"<h2>{title}</h2>{text}"


def _drawn(figure: Any) -> str:
    file = save_figure(figure, io.StringIO(), format="svg", metadata={"Date": None})
    return str(file.getvalue()).partition("<!DOCTYPE")[2].partition(">")[2]
