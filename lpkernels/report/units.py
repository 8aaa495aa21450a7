"""Tensor cores: the named ones, and what is known of one."""

from rich.table import Table

from lpkernels.arithmetic import UNITS, Unit


def unit_table() -> Table:
    """Every named unit with the parameters of its step."""
    table = Table(title="Tensor cores (lpkernels units NAME: what is known of one)")
    table.add_column("name", no_wrap=True)
    table.add_column("recorded on")
    table.add_column("instruction")
    table.add_column("block", justify="right")
    table.add_column("bits", justify="right")
    table.add_column("result")
    table.add_column("least", justify="right")
    for unit in UNITS.values():
        acc = unit.accumulator
        least = "" if acc.least_exponent is None else str(acc.least_exponent)
        cells = (unit.hardware, unit.instruction, str(acc.block), str(acc.aligned_bits))
        table.add_row(unit.name, *cells, f"{acc.fmt} {acc.rounding}", least)
    return table


def unit_details(unit: Unit) -> Table:
    """What one unit is, where that is known from, and what is not."""
    table = Table(title=unit.name, show_header=False)
    table.add_column("what", no_wrap=True)
    # An accumulator is one long word.
    table.add_column("known", overflow="fold")
    for row in (
        ("accumulator", str(unit.accumulator)),
        ("recorded on", unit.hardware),
        ("instruction", unit.instruction),
        ("recordings decide", unit.decided),
        ("not known from them", unit.unknown),
        ("source", SOURCE),
    ):
        table.add_row(*row)
    return table


#: Of all units.
SOURCE = (
    "Khattak and Mikaitis 2026, doi:10.1145/3830409, arXiv 2512.07004, recordings of "
    "MATLAB-tensor-core, and what docs/tensor-cores.md names"
)
