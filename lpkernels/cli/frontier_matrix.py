"""`lpkernels frontier import`: an error matrix of your own as a file."""

from pathlib import Path
from typing import Annotated

import typer

from lpkernels.cli._options import console, system_errors, valid
from lpkernels.cli._settings import wrong_option
from lpkernels.techniques.pareto.importing import import_matrix, read_array, read_names


def _new(path: Path) -> None:
    if path.exists():
        raise FileExistsError(
            f"{path} is there already; choose another file, or remove this one first"
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(f"expected a folder at {str(path.parent)!r}; make it first")


NewFile = Annotated[Path, typer.Option("--out", callback=valid(_new), help="The file to write.")]


def import_errors(
    errors: Annotated[
        Path,
        typer.Argument(
            callback=valid(read_array),
            help="Errors of 0 to 1, (tasks, configurations), NaN where unmeasured; a .npy file.",
        ),
    ],
    memory: Annotated[
        Path,
        typer.Argument(
            callback=valid(read_array), help="Memory of the same shape, or one row; a .npy file."
        ),
    ],
    out: NewFile,
    rows: Annotated[
        Path | None,
        typer.Option(callback=valid(read_names), help="Names of the tasks, one in each line."),
    ] = None,
    columns: Annotated[
        Path | None,
        typer.Option(callback=valid(read_names), help="Names of the configurations, likewise."),
    ] = None,
) -> None:
    """Make a file for --known of an error matrix of your own.

    Example: `lpkernels frontier import errors.npy memory.npy --columns names.txt --out known.json`
    """
    try:
        matrix = import_matrix(errors, memory, rows=rows, columns=columns)
    except (TypeError, ValueError) as error:
        found = ValueError(str(error).removeprefix("ErrorMatrix: "))
        raise wrong_option(found, ("rows", "columns")) from error
    with system_errors("nothing was imported"):
        matrix.save(out)
    tasks, configurations = matrix.mean.shape
    console.print(f"errors of {tasks} tasks in {configurations} configurations in {out}")
