"""Tables of predicted products; docs/predictions.md says what the columns are."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from bench.predict.records import Prediction
from lpkernels.report.sizes import bytes_text

_RIGHT = (
    "GxMxNxK", "tile", "waves", "splits", "launches", "instr", "scratch", "us", "share", "x fp32",
)  # fmt: skip


def prediction_table(prediction: Prediction) -> Table:
    """A row for each product of one backend, the products of equal layer, pass and sizes in one."""
    total = prediction.total
    table = Table(
        title=f"{prediction.backend} on {total['device']}: {total['model']}, batch "
        f"{total['batch']}, {total['recipe']}; predicted, not measured"
    )
    for column in ("layer", "pass", "kernel"):
        table.add_column(column, overflow="fold")
    for column in _RIGHT:
        table.add_column(column, justify="right", overflow="fold")
    for row in prediction.products:
        times = f" ({row['times']} times)" if row["times"] > 1 else ""
        table.add_row(
            row["layer"] + times, row["gemm"], row["kernel"], "x".join(map(str, row["sizes"])),
            "x".join(map(str, row["tile"])), str(row["waves"]), str(row["splits"]),
            str(row["launches"]), f"{row['instructions']:.2f}", bytes_text(row["scratch"]),
            f"{row['microseconds']:,.1f}", f"{row['share']:.1%}",
            ratio(row["microseconds"] / row["fp32_microseconds"]),
        )  # fmt: skip
    return table


def total_table(predictions: Sequence[Prediction]) -> Table:
    """A row for each backend: the step's products alone, then launches and packing."""
    table = Table(title="One training step, predicted: products alone, launches and packing beside")
    table.add_column("backend")
    for column in (
        "products", "us", "x fp32", "fp32 us", "launches", "launch us", "packing launches",
        "packing us", "most scratch",
    ):  # fmt: skip
        table.add_column(column, justify="right")
    for prediction in predictions:
        table.add_row(prediction.backend, *_figures(prediction.total))
    return table


def _figures(total: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(total["products"]), f"{total['microseconds']:,.0f}", ratio(total["ratio"]),
        f"{total['fp32_microseconds']:,.0f}", str(total["launches"]),
        f"{total['launch_microseconds']:,.0f}", str(total["packing_launches"]),
        f"{total['packing_microseconds']:,.0f}", bytes_text(total["scratch"]),
    )  # fmt: skip


def ratio(value: float) -> str:
    """A ratio with three digits, or with all digits before the point if these are more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
