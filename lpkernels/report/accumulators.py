"""Tables and pictures of accumulators, planned and simulated."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from lpkernels.experiments.records import Record
from lpkernels.report.figures import finish, new_figure, save_figure
from lpkernels.report.tables import make_table
from lpkernels.techniques.accumulation import nmse, vrr
from lpkernels.techniques.accumulation.planning import COLUMNS, WORDS, PlanRow, plan_text

_COLOURS = {"fprop": "tab:blue", "dgrad": "tab:orange", "wgrad": "tab:green"}
_FIGURES = {"vrr": "variance retention ratio", "nmse": "error^2 / variance"}
_SHAPES = {"nearest_even": "o", "stochastic": "^", "aligned_truncation": "s"}


def plan_table(blocks: Sequence[PlanRow], *, title: str = "") -> Table:
    """The table of `plan_text`, without the notes."""
    # Narrow enough for 80 columns: long names of blocks are folded, numbers never cut.
    style: Any = {"box": SIMPLE_HEAD, "padding": 0, "caption": COLUMNS}
    head, *cells = plan_text(blocks).rows
    table = make_table(head, cells, words=WORDS, title=title, **style)
    table.caption_justify = "left"
    for column in table.columns:
        column.no_wrap = column.header not in ("block", "notes")
    return table


def simulation_table(sums: Sequence[Record], *, title: str = "") -> Table:
    """A row for every simulated sum."""
    rows = [
        (
            point["accumulator"],
            str(point["length"]),
            "-" if point.get("theory") is None else f"{point['theory']:.4f}",
            _with_error(point),
            *("-" if point.get(x) is None else f"{point[x]:.2e}" for x in ("law", "nmse")),
        )
        for point in sorted(sums, key=lambda p: (p["accumulator"], p["length"]))
    ]
    columns = (
        "accumulator", "length", "VRR, theory", "VRR, simulated", "NMSE, law", "NMSE, simulated",
    )  # fmt: skip
    return make_table(columns, rows, words=columns[:1], title=title)


def speed_length_table(sums: Sequence[Record], *, title: str = "") -> Table:
    """A row for every length: each backend's rate, variance kept and error."""
    names = list(dict.fromkeys(record["backend"] for record in sums))
    rows = []
    for length in dict.fromkeys(record["length"] for record in sums):
        own = {r["backend"]: r for r in sums if r["length"] == length}
        rates = [f"{own[name]['rate'] / 1e9:.3g}" if name in own else "-" for name in names]
        record = next(iter(own.values()))
        rows.append((f"{length}", *rates, _with_error(record), f"{record['nmse']:.2e}"))
    columns = ("length", *(f"{name}, GMAC/s" for name in names), "VRR", "error^2 / variance")
    return make_table(columns, rows, title=title)


def _with_error(record: Record) -> str:
    """The variance that is kept, and its error."""
    value, error = record["vrr"], record["vrr_error"]
    if value is None:
        return "not finite"
    return f"{value:.4f}" + ("" if error is None else f" +- {error:.4f}")


def plot_bits(rows: Sequence[Record], path: str | Path, *, title: str = "") -> Path:
    """Mantissa bits per layer and GEMM: one sum (filled) and with chunks (hollow)."""
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    axes = new_figure((max(6.0, 0.22 * len(layers) + 3), 4.2)).subplots()
    for number, (gemm, colour) in enumerate(_COLOURS.items()):
        chosen = [row for row in rows if row["gemm"] == gemm]
        at = [layers.index(row["layer"]) + 0.2 * (number - 1) for row in chosen]
        axes.plot(at, [row["man_bits"] for row in chosen], "o", color=colour, label=gemm)
        axes.plot(at, [row["chunk_bits"] for row in chosen], "o", color=colour, mfc="none")
    axes.set_xticks(range(len(layers)), layers, rotation=90, fontsize="x-small")
    finish(
        axes, xlabel="layer", ylabel="mantissa bits of the accumulator", ylim=(0, None),
        legend="hollow: in chunks",
    )  # fmt: skip
    return save_figure(axes.figure, path, title)


def plot_simulations(
    sums: Sequence[Record], path: str | Path, *, metric: str, title: str = ""
) -> Path:
    """The variance kept ("vrr") or the error ("nmse") against length: the prediction as curves,
    simulated sums as points with two deviations.
    """
    axes = new_figure((6.5, 4.2)).subplots()
    points = [p for p in sums if p.get("theory") is not None]
    lengths = [p["length"] for p in points] or [64]
    many = np.unique(np.geomspace(min(lengths), max(lengths), 60).round().astype(int))
    names = sorted({p["accumulator"] for p in points}, key=_width)
    names = [n for n in names if sum(p["accumulator"] == n for p in points) >= 4] or names
    for index, name in enumerate(names):
        chosen = [p for p in points if p["accumulator"] == name and p[metric] is not None]
        if not chosen:
            continue
        colour, bits, first = f"C{index % 10}", _width(name), chosen[0]
        if metric == "vrr":
            axes.plot(many, vrr(bits, first["product_bits"], many)[0], color=colour)
        elif first.get("law"):
            axes.plot(many, first["law"] / first["length"] * many, color=colour)
        at = [p["length"] for p in chosen]
        _draw_points(axes, at, chosen, metric, fmt="o", color=colour, label=f"{bits} bits")
    axes.set_xscale("log", base=2)
    _finish(axes, metric, xlabel="products of a sum", legend="lines: predicted")
    return save_figure(axes.figure, path, title)


def _width(name: str) -> int:
    return int(name.split("m")[1].split("_")[0].split(":")[0])


def _draw_points(
    axes: Any, at: Sequence[float], sums: Sequence[Record], metric: str, **style: Any
) -> None:
    """Simulated figures with two deviations."""
    errors = [2 * (point[f"{metric}_error"] or 0.0) for point in sums]
    axes.errorbar(at, [point[metric] for point in sums], errors, ms=4, **style)


def _finish(axes: Any, metric: str, **labels: Any) -> None:
    if metric == "nmse":
        axes.set_yscale("log")
    else:
        axes.axhline(1, color="grey", lw=0.5)
    finish(axes, ylabel=_FIGURES[metric], **labels)


def plot_law(sums: Sequence[Record], path: str | Path, *, metric: str, title: str = "") -> Path:
    """The variance kept ("vrr") or the error ("nmse") against x = 2^m / sqrt n.

    Simulated sums are points with two deviations, a shape for each rounding. Lines are the theory
    of the variance at several lengths, or the law of the error of each rounding.
    """
    axes, x = new_figure((6.5, 4.2)).subplots(), np.geomspace(0.25, 64, 50)
    nearest = [p for p in sums if p["rounding"] == "nearest_even"]
    lengths = sorted({p["length"] for p in nearest}) if metric == "vrr" else []
    for shade, length in enumerate(lengths[1::2] or lengths):
        chosen = sorted((p for p in nearest if p["length"] == length), key=lambda p: p["man_bits"])
        grey = str(0.75 - 0.75 * shade / max(1, len(lengths) // 2))
        values = [p["theory"] for p in chosen]
        label = f"theory, {length} products"
        axes.plot(_normalised(chosen), values, "--", lw=1, color=grey, label=label)
    for index, (rounding, shape) in enumerate(_SHAPES.items()):
        chosen = [p for p in sums if p["rounding"] == rounding and p[metric]]
        style = {"fmt": shape, "color": f"C{index}", "label": rounding}
        if chosen and metric == "nmse":
            axes.plot(x, nmse(1, 4, rounding=rounding) / x**2, color=f"C{index}", lw=1)
        if chosen:
            _draw_points(axes, _normalised(chosen), chosen, metric, **style)
    axes.set_xscale("log", base=2)
    limits = {"ylim": (0.3, 1.6)} if metric == "vrr" else {"legend": "lines: c / x^2"}
    _finish(axes, metric, xlabel="2^m / sqrt n", fontsize="x-small", **limits)
    return save_figure(axes.figure, path, title)


def _normalised(sums: Sequence[Record]) -> list[float]:
    return [2.0 ** point["man_bits"] / point["length"] ** 0.5 for point in sums]
