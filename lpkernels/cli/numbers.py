"""`lpkernels formats`, `recipes` and `quantize`: what is known by name, and values in a format."""

import contextlib
from typing import Annotated

import typer

from lpkernels import formats as lp_formats
from lpkernels.cli._options import alone, show_table, valid
from lpkernels.recipes import describe
from lpkernels.rounding import ROUNDINGS, check_rounding

Rounding = Annotated[
    str, typer.Option(callback=valid(check_rounding), help=f"One of {', '.join(ROUNDINGS)}.")
]


def show_formats(
    name: Annotated[
        str, typer.Argument(callback=valid(lp_formats.parse_format), help="A format; none: all.")
    ] = "",
) -> None:
    """The named formats, the aliases of block formats and the names of tables, or one format in
    detail.

    Example: `lpkernels formats e4m3fn`
    """
    from lpkernels.report.named import aliases, format_details, named_formats, named_tables

    if name:
        show_table(format_details(lp_formats.parse_format(name)))
    else:
        show_table(named_formats())
        show_table(aliases())
        show_table(named_tables())


def show_recipes(
    name: Annotated[
        str, typer.Argument(callback=valid(describe), help="A recipe; none: all.")
    ] = "",
) -> None:
    """The named recipes, or one with its policy, its source and its departures from the source.

    Example: `lpkernels recipes nvfp4_pretraining`
    """
    from lpkernels.report.named import recipe_details, recipe_table

    show_table(recipe_details(name) if name else recipe_table())


def quantize(
    values: Annotated[list[str], typer.Argument(help="Numbers, also inf, nan and 0x1.8p-3.")],
    fmt: Annotated[
        str,
        typer.Option("--format", callback=valid(lp_formats.parse_format), help="A format's name."),
    ] = "e4m3fn",
    rounding: Rounding = "nearest_even",
    seed: Annotated[int, typer.Option(min=0, help="Seed of stochastic rounding.")] = 0,
) -> None:
    """Send values through a format: code, result and error.

    Example: `lpkernels quantize 0.1 464 --format e4m3fn --rounding nearest_even`
    """
    from lpkernels.experiments.measuring.probe import probe
    from lpkernels.report.named import probes

    numbers = [_number(text) for text in values]
    rows = probe(numbers, lp_formats.parse_format(fmt), rounding, seed=seed)
    show_table(probes(rows, title=f"{fmt}, {rounding}"))


def _number(text: str) -> float:
    try:
        return float.fromhex(text) if "x" in text.lower() else float(text)
    except (ValueError, OverflowError) as error:
        meant = ""
        with contextlib.suppress(ValueError):
            fmt = lp_formats.parse_format(text)
            meant = f"; it is a format: lpkernels quantize 0.3 --format {text}" if fmt else ""
        message = f"expected numbers, got {text!r}{meant}"
        raise typer.BadParameter(message, param_hint="VALUES") from error


formats_app = alone(show_formats)
recipes_app = alone(show_recipes)
# A negative number looks like an option. Unknown options therefore count as values, which
# `quantize` parses.
quantize_app = alone(quantize, context_settings={"ignore_unknown_options": True})
