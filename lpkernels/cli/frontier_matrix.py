"""`lpkernels frontier import` and `leave-one-out`: what error matrices of your own are worth."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from lpkernels.cli._options import Seed, console, show_table, system_errors, valid
from lpkernels.cli._settings import wrong_option
from lpkernels.experiments.settings import one_of
from lpkernels.report.figures import check_picture
from lpkernels.techniques.pareto import ErrorMatrix, averages
from lpkernels.techniques.pareto import leave_one_out as leave_out
from lpkernels.techniques.pareto.evaluation import COLUMN_MEAN, SCALES
from lpkernels.techniques.pareto.importing import import_matrix, read_array, read_names

_METHODS = ("greedy", "random", "cheapest", COLUMN_MEAN)
_NAMES = ("rows", "columns", "rank", "most", "observed", "cap", "scale")


def _new(path: Path) -> None:
    if path.exists():
        raise FileExistsError(
            f"{path} is there already; choose another file, or remove this one first"
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(f"expected a folder at {str(path.parent)!r}; make it first")


def _with_memory(path: Path) -> ErrorMatrix:
    matrix = ErrorMatrix.load(path)
    if matrix.memory is None:
        raise ValueError(
            f"{path}: expected errors with their memory, as `lpkernels frontier import` writes them"
        )
    return matrix


@contextmanager
def _named_options(function: str) -> Iterator[None]:
    """An error of `function` becomes a message that names the option, without the function."""
    try:
        yield
    except (TypeError, ValueError) as error:
        text = str(error).removeprefix(f"{function}: ")
        # The counts go up to --most.
        found = ValueError(text.replace("counts:", "most:", 1))
        raise wrong_option(found, _NAMES) from error


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
    """Make a file for --known and `leave-one-out` of an error matrix of your own.

    Example: `lpkernels frontier import errors.npy memory.npy --columns names.txt --out known.json`
    """
    with _named_options("ErrorMatrix"):
        matrix = import_matrix(errors, memory, rows=rows, columns=columns)
    with system_errors("nothing was imported"):
        matrix.save(out)
    tasks, configurations = matrix.mean.shape
    console.print(f"errors of {tasks} tasks in {configurations} configurations in {out}")


def leave_one_out(
    known: Annotated[
        Path, typer.Argument(callback=valid(_with_memory), help="Errors with their memory.")
    ],
    out: Annotated[
        Path,
        typer.Option(callback=valid(check_picture), help="The picture (.png, .pdf, .svg)."),
    ],
    rank: Annotated[int, typer.Option(min=1, help="Dimensions of the embeddings.")] = 5,
    most: Annotated[
        int, typer.Option(min=1, help="Measurements at most; the fewest are as many as the rank.")
    ] = 15,
    observed: Annotated[
        float, typer.Option(help="Share of the other tasks' errors that is drawn; the rest hides.")
    ] = 1.0,
    cap: Annotated[
        float | None,
        typer.Option(help="Only configurations up to this memory, in the file's unit."),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            callback=valid(one_of(*SCALES)),
            help="Memory is divided by the largest of the matrix, as in the paper, or of the task.",
        ),
    ] = "matrix",
    draws: Annotated[int, typer.Option(min=1, help="Repetitions of random choices.")] = 10,
    seed: Seed = 0,
) -> None:
    """Take each task in turn as the new one, and draw how far its predicted frontier is from the
    true one.

    The picture is the paper's: convergence and the difference of areas against the number of
    measurements, for D-optimal choices and what they are compared with.

    Example: `lpkernels frontier leave-one-out known.json --observed 0.2 --out figure.png`
    """
    from lpkernels.report.frontiers import choices_table, plot_counts

    matrix = _with_memory(known)
    if most < rank:
        raise typer.BadParameter(
            f"expected at least the rank, {rank}, got {most}", param_hint="--most"
        )
    with _named_options("leave_one_out"):
        rows = averages(
            leave_out(
                matrix.errors, matrix.memory, methods=_METHODS, counts=range(rank, most + 1),
                rank=rank, observed=observed, cap=cap, draws=draws, seed=seed, scale=scale,
            )
        )  # fmt: skip
    show_table(choices_table(rows, title=f"{known.name}: each task in turn is new"))
    with system_errors("no picture was written"):
        picture = plot_counts({known.stem: rows}, out, figures=("convergence", "hyperdiff"))
    console.print(f"picture in {picture}")
