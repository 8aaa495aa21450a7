"""`lpkernels frontier`: which precision is worth its memory, from a few measurements of a task."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lpkernels.cli._options import (
    bytes_from,
    check_one_process,
    console,
    imported,
    named_options,
    say,
    show_picture,
    show_table,
    valid,
)
from lpkernels.cli.sweep import Engine, Jobs, RetryFailed, Specification, SweepFolder, running
from lpkernels.experiments.training.interrupts import sigterm_as_ctrl_c
from lpkernels.report.tables import bytes_text

if TYPE_CHECKING:
    from lpkernels.experiments.sweeps.frontiers import Frontier, Study
    from lpkernels.techniques.pareto import ErrorMatrix

_NAMES = ("cap", "engine", "jobs", "known", "measure", "rank", "task")
_LOAD_MATRIX = "techniques.pareto:ErrorMatrix.load"

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown")


@app.callback()
def frontier() -> None:
    """Which precision is worth its memory, from a few measurements: run, table, predict.

    Example: `lpkernels frontier run task.toml --known errors.csv --out results/frontier`
    """


Folder = Annotated[
    Path,
    typer.Argument(
        callback=valid("experiments.sweeps.frontiers:study_spec"), help="The folder of a study."
    ),
]
KnownFile = Annotated[
    Path | None,
    typer.Option(
        "--known",
        callback=valid(_LOAD_MATRIX),
        help="Errors of other tasks: a CSV of `frontier table --export`, or one of your own with "
        "the columns task, configuration, memory and error.",
    ),
]
Rank = Annotated[int, typer.Option(min=1, help="With --known: dimensions of the embeddings.")]


@app.command()
@sigterm_as_ctrl_c()
def run(
    spec: Specification,
    out: SweepFolder,
    known: KnownFile = None,
    measure: Annotated[
        int, typer.Option(min=1, help="With --known: configurations of each task to train.")
    ] = 8,
    rank: Rank = 3,
    cap: Annotated[
        str,
        typer.Option(
            callback=valid(bytes_from), help="With --known: train none above this memory, as 64KiB."
        ),
    ] = "",
    jobs: Jobs = None,
    engine: Engine = "processes",
    retry_failed: RetryFailed = False,
) -> None:
    """Train the configurations of each task: all of them, which makes a matrix for --known; with
    --known only the few from which the others are predicted.

    The arms of the specification are the tasks. The command may be stopped or killed at any moment,
    and then resumes with the same choice. While it runs, no other command may use the folder;
    `lpkernels sweep status` shows its cells.

    Example: `lpkernels frontier run task.toml --known errors.csv --measure 8 --out results/task`
    """
    check_one_process("frontier run")
    from lpkernels.experiments.sweeps.frontiers import run_study
    from lpkernels.experiments.sweeps.specification import read_spec

    with running(_NAMES):
        study = run_study(
            read_spec(spec),
            out,
            known=_matrix(known),
            n=measure,
            rank=rank,
            cap=bytes_from(cap) if cap else None,
            jobs=jobs,
            engine=engine,
            retry_failed=retry_failed,
            console=console,
        )
    _show_lost(study)
    say(f"results in {out}; next: lpkernels frontier predict {out}")


@app.command()
def table(
    folder: Folder,
    export: Annotated[
        Path | None, typer.Option(help="Also write the errors into this file, for --known.")
    ] = None,
) -> None:
    """Show the measurements of each task.

    Example: `lpkernels frontier table results/frontier --export errors.csv`
    """
    from lpkernels.report.frontiers import matrix_table

    study = _measured(folder)
    show_table(matrix_table(study.matrix, title=study.spec.name))
    _show_lost(study)
    if export is not None:
        say(f"errors in {study.matrix.save(export)}")


@app.command()
def predict(
    folder: Folder,
    known: KnownFile = None,
    task: Annotated[str, typer.Option(help="Only this task; default: all.")] = "",
    rank: Rank = 3,
    cap: Annotated[
        str,
        typer.Option(
            callback=valid(bytes_from),
            help="Memory of a training step, as 64KiB: choose the least error below it.",
        ),
    ] = "",
    plot: Annotated[
        Path | None, typer.Option(help="Also draw it into this file (.png, .pdf, .svg).")
    ] = None,
) -> None:
    """Show the frontier of memory and error of each task, measured or predicted, and the best
    configuration under a memory cap, with the command that trains the task in it.

    Example: `lpkernels frontier predict results/frontier --known errors.csv --cap 64KiB`
    """
    from lpkernels.experiments.sweeps.frontiers import frontiers as frontiers_of
    from lpkernels.report.frontiers import frontier_table, plot_frontiers

    study, size = _measured(folder), bytes_from(cap) if cap else None
    with named_options(_NAMES):
        frontiers = frontiers_of(study, task=task, known=_matrix(known), rank=rank)
    for name, frontier in frontiers.items():
        show_table(frontier_table(frontier, study.spec.space, title=name))
        if size is not None:
            _show_choice(study, name, frontier, size)
    _show_lost(study)
    if plot is not None:
        names, title = study.spec.space.names, study.spec.name
        draw = partial(plot_frontiers, frontiers, names, cap=size)
        show_picture(draw, plot, option="--plot", title=title)


def _show_choice(study: "Study", task: str, frontier: "Frontier", cap: float) -> None:
    from lpkernels.experiments.sweeps.frontiers import task_config
    from lpkernels.experiments.sweeps.specification import settings_of
    from lpkernels.experiments.training.config import command_of
    from lpkernels.techniques.pareto import TrainingRecipe, choose

    space = study.spec.space
    with named_options(option="--cap"):
        index = choose(frontier.memory, frontier.predicted, cap)
    size, error = bytes_text(frontier.memory[index]), frontier.predicted[index]
    configuration = f"{space.names[index]}, {size}, error {error:.4f}"
    say(f"choice for {task}, at most {bytes_text(cap)}: {configuration}")
    say(f"recipe: {TrainingRecipe(*space[index])}")
    settings = settings_of(space[index])
    say(command_of(task_config(study.spec, task, seed=study.spec.seeds[0], **settings)))


def _measured(folder: Path) -> "Study":
    from lpkernels.experiments.sweeps.frontiers import read_study

    with named_options(_NAMES):
        return read_study(folder)


def _matrix(path: Path | None) -> "ErrorMatrix | None":
    return None if path is None else imported(_LOAD_MATRIX)(path)


def _show_lost(study: "Study") -> None:
    if study.lost:
        say(f"{len(study.lost)} runs gave no error and count as missing:")
    for text in study.lost:
        say(f"  {text}")
