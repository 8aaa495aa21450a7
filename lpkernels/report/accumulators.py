"""The table of simulated sums."""

from collections.abc import Sequence

from rich.table import Table

from lpkernels.experiments.records import Record
from lpkernels.report.tables import make_table


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


def _with_error(record: Record) -> str:
    """The variance that is kept, and its error."""
    value, error = record["vrr"], record["vrr_error"]
    if value is None:
        return "not finite"
    return f"{value:.4f}" + ("" if error is None else f" +- {error:.4f}")
