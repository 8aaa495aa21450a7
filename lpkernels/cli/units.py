"""`lpkernels units`: the tensor cores that have names."""

from typing import Annotated

import typer

from lpkernels.arithmetic import MODELS, UNITS
from lpkernels.cli._options import alone, show_table, valid
from lpkernels.formats.elsewhere import nearest


def _unit(name: str) -> None:
    if name and name not in UNITS | MODELS:
        listed = nearest(name, UNITS | MODELS, "`lpkernels units` lists all")
        raise ValueError(f"unknown unit {name!r}; expected one of {listed}")


def units(
    name: Annotated[str, typer.Argument(callback=valid(_unit), help="A unit; none: all.")] = "",
) -> None:
    """Show all tensor cores, or one in detail with the known and unknown parts of its arithmetic.

    Example: `lpkernels units h100_e4m3`
    """
    from lpkernels.report.named import unit_details, unit_table

    show_table(unit_details((UNITS | MODELS)[name]) if name else unit_table())


app = alone(units)
