"""Tables and pictures of accumulators, planned and simulated."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import JustifyMethod
from rich.table import Table

from lpkernels.experiments.records import Record
from lpkernels.report.figures import new_figure, save_figure
from lpkernels.report.tables import add_numbers
from lpkernels.techniques.accumulation import nmse, vrr
from lpkernels.techniques.accumulation.tables import COLUMNS, FIXED, WORDS, plan_cells
from lpkernels.techniques.accumulation.theory import NMSE_CONSTANTS

_GEMMS = ("fprop", "dgrad", "wgrad")
_COLOURS = {"fprop": "tab:blue", "dgrad": "tab:orange", "wgrad": "tab:green"}
_MEASURES = {"vrr": "variance retention ratio", "nmse": "error^2 / variance"}
_SHAPES = {"nearest_even": "o", "stochastic": "^", "aligned_truncation": "s"}


def plan_table(rows: Sequence[Record], *, title: str = "") -> Table:
    """A row for every GEMM of every block, with the cells of `plan_cells`; the notes stand below
    the table, by number.
    """
    # Narrow enough for 80 columns: long names of blocks are folded, numbers never cut.
    table = Table(title=title or None, box=SIMPLE_HEAD, padding=0, caption=COLUMNS)
    table.caption_justify = "left"
    head, *cells = plan_cells(rows)
    for name in head:
        folds = name in ("block", FIXED, "notes")
        justify: JustifyMethod = "left" if name in WORDS else "right"
        table.add_column(name, justify=justify, no_wrap=not folds, overflow="fold")
    for row in cells:
        table.add_row(*row)
    return table


def simulation_table(found: Sequence[Record], *, title: str = "") -> Table:
    """A row for every simulated sum."""
    table = Table(title=title or None)
    table.add_column("accumulator", no_wrap=True)
    add_numbers(table, "length", "VRR, theory", "VRR, simulated", "NMSE, law", "NMSE, simulated")
    for point in sorted(found, key=lambda p: (p["accumulator"], p["length"])):
        theory = point.get("theory")
        table.add_row(
            point["accumulator"],
            str(point["length"]),
            "-" if theory is None else f"{theory:.4f}",
            _with_error(point),
            *("-" if point.get(x) is None else f"{point[x]:.2e}" for x in ("law", "nmse")),
        )
    return table


def speed_length_table(found: Sequence[Record], *, title: str = "") -> Table:
    """A row for every length: each backend's rate, variance kept and error."""
    table = Table(title=title or None)
    names = list(dict.fromkeys(record["backend"] for record in found))
    add_numbers(table, "length", *(f"{name}, GMAC/s" for name in names))
    add_numbers(table, "VRR", "error^2 / variance")
    for length in dict.fromkeys(record["length"] for record in found):
        rows = {r["backend"]: r for r in found if r["length"] == length}
        rates = [f"{rows[name]['rate'] / 1e9:.3g}" if name in rows else "-" for name in names]
        any_row = next(iter(rows.values()))
        table.add_row(f"{length}", *rates, _with_error(any_row), f"{any_row['nmse']:.2e}")
    return table


def _with_error(record: Record) -> str:
    """The variance that is kept, and its error."""
    value, error = record["vrr"], record["vrr_error"]
    if value is None:
        return "not finite"
    return f"{value:.4f}" + ("" if error is None else f" +- {error:.4f}")


def plot_bits(rows: Sequence[Record], path: str | Path, *, title: str = "") -> Path:
    """Mantissa bits per layer and GEMM: one sum (filled) and with chunks (hollow)."""
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    figure = new_figure((max(6.0, 0.22 * len(layers) + 3), 4.2))
    axes = figure.subplots()
    for gemm in _GEMMS:
        chosen = [row for row in rows if row["gemm"] == gemm]
        at = [layers.index(row["layer"]) + 0.2 * (_GEMMS.index(gemm) - 1) for row in chosen]
        colour = _COLOURS[gemm]
        axes.plot(at, [row["man_bits"] for row in chosen], "o", color=colour, label=gemm)
        axes.plot(at, [row["chunk_bits"] for row in chosen], "o", color=colour, mfc="none")
    axes.set_xticks(range(len(layers)), layers, rotation=90, fontsize="x-small")
    axes.set(xlabel="layer", ylabel="mantissa bits of the accumulator", ylim=(0, None))
    axes.legend(title="hollow: in chunks", fontsize="small")
    return save_figure(figure, path, title)


def plot_simulations(
    found: Sequence[Record], path: str | Path, *, metric: str, title: str = ""
) -> Path:
    """The variance kept ("vrr") or the error ("nmse") against length: the prediction as curves,
    simulated sums as points with two deviations.
    """
    figure = new_figure((6.5, 4.2))
    axes = figure.subplots()
    points = [p for p in found if p.get("theory") is not None]
    lengths = [p["length"] for p in points] or [64]
    many = np.unique(np.geomspace(min(lengths), max(lengths), 60).round().astype(int))
    names = sorted({p["accumulator"] for p in points}, key=_width)
    names = [n for n in names if sum(p["accumulator"] == n for p in points) >= 4] or names
    for index, name in enumerate(names):
        chosen = [p for p in points if p["accumulator"] == name and p[metric] is not None]
        if not chosen:
            continue
        colour = f"C{index % 10}"
        bits, first = _width(name), chosen[0]
        if metric == "vrr":
            axes.plot(many, vrr(bits, first["product_bits"], many)[0], color=colour)
        elif first.get("law"):
            axes.plot(many, first["law"] / first["length"] * many, color=colour)
        errors = [2 * (p[f"{metric}_error"] or 0.0) for p in chosen]
        values = [p[metric] for p in chosen]
        at = [p["length"] for p in chosen]
        axes.errorbar(at, values, errors, fmt="o", ms=4, color=colour, label=f"{bits} bits")
    axes.set_xscale("log", base=2)
    axes.set(xlabel="products of a sum", ylabel=_MEASURES[metric])
    if metric == "nmse":
        axes.set_yscale("log")
    else:
        axes.axhline(1, color="grey", lw=0.5)
    axes.legend(title="lines: predicted", fontsize="small")
    axes.grid(alpha=0.3)
    return save_figure(figure, path, title)


def _width(name: str) -> int:
    return int(name.split("m")[1].split("_")[0].split(":")[0])


def plot_knee(found: Sequence[Record], path: str | Path, *, title: str = "") -> Path:
    """VRR against x = 2^m / sqrt n: the theory at several lengths, simulated sums by rounding."""
    figure = new_figure((6.5, 4.2))
    axes = figure.subplots()
    nearest = [p for p in found if p["rounding"] == "nearest_even"]
    lengths = sorted({p["length"] for p in nearest})
    for shade, length in enumerate(lengths[1::2] or lengths):
        chosen = sorted((p for p in nearest if p["length"] == length), key=lambda p: p["man_bits"])
        x = [2.0 ** p["man_bits"] / length**0.5 for p in chosen]
        grey = str(0.75 - 0.75 * shade / max(1, len(lengths) // 2))
        label = f"theory, {length} products"
        axes.plot(x, [p["theory"] for p in chosen], "--", lw=1, color=grey, label=label)
    for index, rounding in enumerate(_SHAPES):
        chosen = [p for p in found if p["rounding"] == rounding and p["vrr"] is not None]
        if not chosen:
            continue
        x = [2.0 ** p["man_bits"] / p["length"] ** 0.5 for p in chosen]
        errors = [2 * (p["vrr_error"] or 0.0) for p in chosen]
        values = [p["vrr"] for p in chosen]
        shape = _SHAPES[rounding]
        axes.errorbar(x, values, errors, fmt=shape, ms=4, color=f"C{index}", label=rounding)
    axes.set(xlabel="2^m / sqrt n", ylabel="variance retention ratio", ylim=(0.3, 1.6))
    axes.set_xscale("log", base=2)
    axes.legend(fontsize="x-small")
    axes.grid(alpha=0.3)
    return save_figure(figure, path, title)


def plot_error_law(found: Sequence[Record], path: str | Path, *, title: str = "") -> Path:
    """NMSE against x = 2^m / sqrt n: the law of each rounding, simulated sums as points with two
    deviations.
    """
    figure = new_figure((6.5, 4.2))
    axes = figure.subplots()
    x = np.geomspace(0.25, 64, 50)
    for index, rounding in enumerate(NMSE_CONSTANTS):
        chosen = [p for p in found if p["rounding"] == rounding and p["nmse"]]
        if not chosen:
            continue
        law = nmse(1, 4, rounding=rounding)
        axes.plot(x, law / x**2, color=f"C{index}", lw=1)
        at = [2.0 ** p["man_bits"] / p["length"] ** 0.5 for p in chosen]
        values = [p["nmse"] for p in chosen]
        errors = [2 * (p["nmse_error"] or 0.0) for p in chosen]
        shape = _SHAPES[rounding]
        axes.errorbar(at, values, errors, fmt=shape, ms=4, color=f"C{index}", label=rounding)
    axes.set(xlabel="2^m / sqrt n", ylabel="error^2 / variance", yscale="log")
    axes.set_xscale("log", base=2)
    axes.legend(title="lines: c / x^2", fontsize="small")
    axes.grid(alpha=0.3)
    return save_figure(figure, path, title)
