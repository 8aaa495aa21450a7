"""A report in one HTML file, which opens without a network: `lpkernels report RUN... --html`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpkernels.experiments.frames import frame
from lpkernels.experiments.records import RECORDS, Run, read_records, runs_by_path, write_lines
from lpkernels.experiments.sweeps.results import Results, read_results
from lpkernels.experiments.sweeps.statistics import axes_of, summarise
from lpkernels.experiments.training.config import RunConfig, command_of
from lpkernels.experiments.workloads.workload import Metric
from lpkernels.formats.elsewhere import nearest

if TYPE_CHECKING:
    import pandas

__all__ = ["write_page"]

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 1rem 2rem 3rem; }}
table {{ border-collapse: collapse; font-size: .88rem; display: block; overflow-x: auto; }}
th, td {{ padding: .2rem 1.2rem .2rem 0; text-align: left; vertical-align: top; }}
td:not(:last-child) {{ white-space: nowrap; }}
pre {{ background: #f6f8fa; padding: .6rem; white-space: pre-wrap; font-size: .82rem; }}
</style></head><body><h1>{title}</h1><script>{plotly}</script>
{body}
</body></html>
"""
_DASHES = [dash for dash in ("solid", "dash", "dot", "dashdot") for _ in range(10)]
_SETTINGS = RunConfig().flat()


def write_page(
    paths: Sequence[str | Path], out: str | Path, *, metric: str = "", reference: str = "",
    command: str = "",
) -> Path:  # fmt: skip
    """Writes one page: runs, curves, underflow, a sweep's differences, settings and commands.

    Args:
        paths: folders of runs, or a sweep's folder, or its file of `sweep table --export`.
        out: the file, whose folders are made too; one that exists is replaced.
        metric: the field that runs are compared by; "": that of the workload.
        reference: with a sweep, the arm to compare with; "": as its specification says.
        command: the command that made the report, which the page shows.
    Raises:
        ValueError: no records of a run, or also those of a sweep, a field or an arm that there is
            not, or records that this version cannot read.
        ModuleNotFoundError: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}; pip install 'lpkernels[report]'") from error
    results, runs = _read([Path(path) for path in paths])
    if reference and results is None:
        raise ValueError(f"reference: it names an arm of a sweep, got {reference!r}; leave it out")
    shown = (results or next(iter(runs.values()))).metric
    if metric not in ("", shown.field):
        shown = Metric(metric, metric.replace("_", " "), percent=False)
    parts = _differences(results, shown, reference) if results else []
    parts += [*_curves_and_table(_epochs(runs, results), shown), *_shares(runs)] if runs else []
    names = list(results.spec.arms if results else dict.fromkeys(r.name for r in runs.values()))
    title = (results.spec.name if results else "") or ", ".join(names)
    again = escape("\n".join([command, *_repetition(runs, results)]).strip())
    body = "\n".join([*parts, f"<h2>Machines and commands</h2><pre>{again}</pre>"])
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    write_lines(Path(out), [_PAGE.format(title=escape(title), plotly=get_plotlyjs(), body=body)])
    return Path(out)


def _read(paths: Sequence[Path]) -> tuple[Results | None, dict[Path, Run]]:
    """The results of a sweep, if there is one, and the runs by the paths of their records."""
    listed = ", ".join(map(str, paths)) or "no paths"
    sweeps = [found for path in paths if (found := _results(path))]
    if not paths or (len(paths) > 1 and sweeps):
        raise ValueError(f"expected runs, or one sweep, got {listed}; make a report of each")
    if sweeps and paths[0].is_file():
        return sweeps[0], {}
    runs = {path: run for each in paths for path, run in runs_by_path(each).items() if run.epochs}
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


def _epochs(runs: dict[Path, Run], results: Results | None) -> pandas.DataFrame:
    """A row for each run and epoch: run, arm, every setting, every figure of the records. Arms of a
    sweep share a colour, any other run has its own; its folder tells it from others of its name."""
    import pandas

    places = {path: str(path.parent if path.name == RECORDS else path) for path in runs}
    table = pandas.concat([frame(path).assign(run=place) for path, place in places.items()])
    arm = table["name"]
    if results is None:
        several = table.groupby("name")["run"].transform("nunique") > 1
        run = arm = arm.where(~several, arm + " (" + table["run"] + ")")
    else:
        for axis in results.spec.axes:
            column = f"{axis}_setting" if f"{axis}_setting" in table else axis
            arm = arm + f", {axis} " + table[column].astype(str)
        run = arm + ", seed " + table["seed"].astype(str)
    return table.assign(arm=arm, run=run)


def _curves_and_table(table: pandas.DataFrame, metric: Metric) -> list[str]:
    """A panel for each figure that changes; a row for each run, with the settings that differ."""
    import plotly.express as px  # type: ignore[import-untyped]

    # A setting that has the name of a figure has another column.
    columns = {k: f"{k}_setting" if f"{k}_setting" in table else k for k in _SETTINGS}
    hidden = {*columns.values(), "epoch", "updates", "seconds"}
    numbers = [n for n in table.select_dtypes("number") if n not in hidden]
    if metric.field not in numbers:
        names = nearest(metric.field, numbers, "the records list all")
        raise ValueError(f"metric: expected one of {names}, got {metric.field!r}")
    fields = list(dict.fromkeys([metric.field, *(n for n in numbers if table[n].nunique() > 1)]))
    panels, epochs = (len(fields) + 1) // 2, int(table["epoch"].max())
    curves = px.line(
        table.melt(["run", "arm", "epoch"], fields, "figure"), x="epoch", y="value", color="arm",
        line_dash="arm", line_dash_sequence=_DASHES, line_group="run", hover_name="run",
        facet_col="figure", facet_col_wrap=2, facet_col_spacing=0.06,
        facet_row_spacing=0.2 / panels, height=120 + 260 * panels, render_mode="svg",
        labels={"arm": "", "value": ""}, markers=epochs == 1,
    )  # fmt: skip
    curves.update_yaxes(matches=None, showticklabels=True)
    curves.update_xaxes(showticklabels=True, dtick=max(1, epochs // 6))
    last = table.groupby("run", sort=False).nth(-1)
    differ = {k: c for k, c in columns.items() if last[c].astype(str).nunique() > 1}
    last["settings in which runs differ"] = [
        ", ".join(f"{k} {row[c]}" for k, c in differ.items()
                  if k not in ("name", "seed") and str(row[c]) != str(_SETTINGS[k]))
        for _, row in last.iterrows()
    ]  # fmt: skip
    shown = dict.fromkeys(["run", metric.field, "train_loss", "epoch", last.columns[-1]])
    rows = last[[name for name in shown if name in last]]
    return [_table("Runs, after the last epoch", rows), "<h2>Curves</h2>", _drawn(curves)]


def _shares(runs: dict[Path, Run]) -> list[str]:
    """The shares of elements that under- and overflowed, a row of panels for a diagnosed run."""
    import plotly.express as px

    rows = [
        {"run": str(path.parent), "tensor": f"{layer} {tensor}", "epoch": str(line["epoch"]),
         "what": what, "share (%)": 100 * share / total}
        for path in runs if (file := path.parent / "diagnosis.jsonl").is_file()
        for line in read_records(file) if line.get("type") == "epoch"
        for layer, tensor, total, over, under in line["rows"] if total
        for what, share in (("underflow", under), ("overflow", over))
    ]  # fmt: skip
    if not rows:
        return []
    height = 120 + 18 * len({(row["run"], row["tensor"]) for row in rows})
    drawn = px.density_heatmap(
        rows, x="epoch", y="tensor", z="share (%)", histfunc="avg", facet_col="what",
        facet_row="run", height=height, color_continuous_scale="Cividis",
        range_color=(0, max(1e-3, *(row["share (%)"] for row in rows))),
    )  # fmt: skip
    drawn.update_yaxes(autorange="reversed", title="").update_coloraxes(colorbar_title="%")
    return ["<h2>Elements that underflow and overflow</h2>", _drawn(drawn)]


def _differences(results: Results, metric: Metric, reference: str) -> list[str]:
    """The arms of a sweep: means, and differences to one of them, paired by seed."""
    import pandas
    import plotly.express as px

    compare, scale = reference or results.compare, 100 if metric.percent else 1
    minus, label = f"minus {compare}", f"{metric.label} (%)" if metric.percent else metric.label
    found = summarise(results.table, metric.field, reference=compare, resamples=1)
    figures = {label: "mean", "± error": "standard_error"}
    compared = "difference" in found
    if compared:
        figures |= {minus: "difference", "95% from": "difference_low", "to": "difference_high"}
    axes = axes_of(found)
    table = pandas.DataFrame({
        "arm": [", ".join([row["arm"], *(f"{k} {row[k]}" for k in axes)])
                for _, row in found.iterrows()],
        **{name: scale * found[column] for name, column in figures.items()},
        **({"p (Holm)": found["p_holm"]} if compared else {minus: None}),
        **found[["seeds", "diverged", "failed"]],
        "settings": [", ".join(f"{k} {v}" for k, v in results.spec.arms.get(arm, {}).items())
                     for arm in found["arm"]],
    })  # fmt: skip
    parts = [f"<p>{results.missing} cells have no result yet.</p>"] if results.missing else []
    parts += [f"<p>Not compared: {escape(text)}</p>" for text in results.broken]
    parts.append(_table("Arms; differences are paired by seed", table.dropna(axis=1, how="all")))
    marks = table[table[minus].notna()]
    if len(marks):
        drawn = px.scatter(
            marks, x=minus, y="arm", error_x=marks["to"] - marks[minus],
            error_x_minus=marks[minus] - marks["95% from"], height=130 + 26 * len(table),
            labels={minus: f"{label}, {minus}", "arm": ""},
        )  # fmt: skip
        parts.append(_drawn(drawn.update_yaxes(autorange="reversed")))
    return parts


def _repetition(runs: dict[Path, Run], results: Results | None) -> list[str]:
    """Where the runs were made, and the commands that make them again."""
    found = [run.header.get("environment") for run in runs.values()]
    lines = map(json.dumps, filter(None, results.header["environments"] if results else found))
    if results:
        spec = json.dumps(results.spec.to_dict())
        return [*dict.fromkeys(lines), "lpkernels sweep run SPEC.toml --out DIR", spec]
    commands = [command_of(run.config, f"results/{run.name}") for run in runs.values()]
    return [*dict.fromkeys(lines), *commands]


def _table(title: str, table: pandas.DataFrame) -> str:
    import pandas

    with pandas.option_context("display.max_colwidth", None):
        text = table.to_html(index=False, border=0, na_rep="", float_format="{:.4g}".format)
    return f"<h2>{title}</h2>{text}"


def _drawn(figure: Any) -> str:
    figure.for_each_annotation(lambda each: each.update(text=each.text.partition("=")[2]))
    figure.update_layout(template="plotly_white", margin={"t": 40, "l": 10, "r": 10})
    return str(figure.to_html(full_html=False, include_plotlyjs=False))
