"""`lpkernels quantize`: values in a format."""

import contextlib
from typing import Annotated

import typer

from lpkernels.cli._options import show_table, valid
from lpkernels.formats import parse_format
from lpkernels.rounding import ROUNDINGS, check_rounding

#: A negative number looks like an option. Unknown options therefore count as values, which
#: `quantize` parses.
SETTINGS = {"context_settings": {"ignore_unknown_options": True}}


def quantize(
    values: Annotated[list[str], typer.Argument(help="Numbers, also inf, nan and 0x1.8p-3.")],
    fmt: Annotated[
        str, typer.Option("--format", callback=valid(parse_format), help="A format's name.")
    ] = "e4m3fn",
    rounding: Annotated[
        str, typer.Option(callback=valid(check_rounding), help=f"One of {', '.join(ROUNDINGS)}.")
    ] = "nearest_even",
    seed: Annotated[int, typer.Option(min=0, help="Seed of stochastic rounding.")] = 0,
) -> None:
    """Round values to a format: code, result and error.

    Example: `lpkernels quantize 0.1 464 --format e4m3fn --rounding nearest_even`
    """
    from lpkernels.report.named import probes

    numbers = [_number(text) for text in values]
    show_table(probes(numbers, parse_format(fmt), rounding, seed=seed))


def _number(text: str) -> float:
    try:
        return float.fromhex(text) if "x" in text.lower() else float(text)
    except (ValueError, OverflowError) as error:
        meant = ""
        with contextlib.suppress(ValueError):
            fmt = parse_format(text)
            meant = f"; it is a format: lpkernels quantize 0.3 --format {text}" if fmt else ""
        message = f"expected numbers, got {text!r}{meant}"
        raise typer.BadParameter(message, param_hint="VALUES") from error
