"""`lpkernels formats`, `recipes`, `units`, `doctor`: what has a name, and what this machine has."""

from pathlib import Path
from typing import Annotated

import typer

from lpkernels.arithmetic import MODELS, UNITS, as_accumulator
from lpkernels.cli._options import named_options, one_of, say, show_table, system_errors, valid
from lpkernels.formats import parse_format
from lpkernels.recipes import describe


def formats(
    name: Annotated[
        str, typer.Argument(callback=valid(parse_format), help="A format; none: all.")
    ] = "",
) -> None:
    """The named formats, the aliases of block formats and the names of tables, or one format in
    detail.

    Example: `lpkernels formats e4m3fn`
    """
    from lpkernels.report.named import aliases, format_details, named_formats, named_tables

    if name:
        show_table(format_details(parse_format(name)))
    else:
        for table in (named_formats(), aliases(), named_tables()):
            show_table(table)


def recipes(
    name: Annotated[
        str, typer.Argument(callback=valid(describe), help="A recipe; none: all.")
    ] = "",
) -> None:
    """The named recipes, or one with its policy, its source and its departures from the source.

    Example: `lpkernels recipes nvfp4_pretraining`
    """
    from lpkernels.report.named import recipe_details, recipe_table

    show_table(recipe_details(name) if name else recipe_table())


def units(
    name: Annotated[
        str, typer.Argument(callback=valid(one_of(*UNITS, *MODELS)), help="A unit; none: all.")
    ] = "",
) -> None:
    """Show all tensor cores, or one in detail with the known and unknown parts of its arithmetic.

    Example: `lpkernels units h100_e4m3`
    """
    from lpkernels.report.named import unit_details, unit_table

    show_table(unit_details((UNITS | MODELS)[name]) if name else unit_table())


def vectors(
    accumulator: Annotated[
        str, typer.Argument(callback=valid(as_accumulator), help="A unit, or an accumulator.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    k: Annotated[int, typer.Option(min=1, help="Products of a case.")] = 32,
    cases: Annotated[int, typer.Option(min=1, help="Number of cases.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the operands.")] = 0,
    operands: Annotated[
        str,
        typer.Option(
            callback=valid(parse_format),
            help="Their format, if the sum has none; none: the unit's, or fp16.",
        ),
    ] = "",
) -> None:
    """Write test vectors of a sum, hard ones among them: operands, the start and the bits of the
    result, as .npz and as hexadecimal text.

    Example: `lpkernels vectors h100_e4m3 --k 32 --cases 1000 --seed 0 --out vectors`
    """
    from lpkernels.experiments.measuring.vectors import write_vectors

    acc = as_accumulator(accumulator)
    own = UNITS[accumulator].inputs if accumulator in UNITS and not acc.operands else "fp16"
    fmt = parse_format(operands or own)
    if operands and acc.operands and set(acc.operands) != {fmt}:
        raise typer.BadParameter(
            f"{accumulator} takes {', '.join(map(str, acc.operands))}, got {operands}; leave "
            "--operands away",
            param_hint="--operands",
        )
    with named_options(option="accumulator"), system_errors("lpkernels vectors"):
        write_vectors(out, acc, fmt, k, cases, seed)
    say(f"{cases} cases of {acc} in {out}")


def doctor() -> None:
    """Show what this installation can do, and the reason for everything it lacks.

    Example: `lpkernels doctor`
    """
    from lpkernels.report import doctor

    typer.echo(doctor.report())
