"""Tables of tensor cores: all named ones, and one in detail."""

from rich.table import Table

from lpkernels.arithmetic import MODELS, UNITS, Unit
from lpkernels.report.tables import add_numbers


def unit_table() -> Table:
    """Every named unit with the parameters of its step."""
    table = Table(title="Tensor cores (lpkernels units NAME: what is known of one)")
    table.add_column("name", no_wrap=True)
    table.add_column("recorded on")
    table.add_column("instruction")
    add_numbers(table, "block", "bits")
    table.add_column("result")
    add_numbers(table, "least")
    for unit in (UNITS | MODELS).values():
        acc = unit.accumulator
        least = "" if acc.least_exponent is None else str(acc.least_exponent)
        recorded = unit.hardware if unit.evidence == "recordings" else unit.evidence
        cells = (recorded, unit.instruction, str(acc.block), str(acc.aligned_bits))
        table.add_row(unit.name, *cells, f"{acc.fmt} {acc.rounding}", least)
    return table


def unit_details(unit: Unit) -> Table:
    """One unit in detail: its arithmetic, the source, and the unknown parameters."""
    table = Table(title=unit.name, show_header=False)
    table.add_column("what", no_wrap=True)
    # An accumulator is one long word.
    table.add_column("known", overflow="fold")
    for row in (
        ("accumulator", str(unit.accumulator)),
        ("evidence", unit.evidence),
        ("recorded on", unit.hardware),
        ("instruction", unit.instruction),
        ("recordings decide", unit.decided),
        ("not known from them", unit.unknown),
        ("source", SOURCES[unit.evidence]),
    ):
        table.add_row(*row)
    return table


#: Where units come from, by their evidence.
SOURCES = {
    "recordings": "Khattak and Mikaitis 2026, doi:10.1145/3830409, arXiv 2512.07004, recordings of "
    "MATLAB-tensor-core, and what docs/tensor-cores.md names",
    "model only": "MMA-Sim, arXiv 2511.10909, the program microsoft/MMA-Sim: a model, no recording",
}
