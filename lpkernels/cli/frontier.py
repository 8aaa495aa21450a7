"""`lpkernels frontier`: which precision is worth its memory, from a few measurements of a task."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpkernels.cli._options import (
    check_one_process,
    console,
    imported,
    named_options,
    one_of,
    show_table,
    valid,
)
from lpkernels.cli.sweep import Engine, Jobs, RetryFailed, running
from lpkernels.experiments.training.interrupts import sigterm_as_ctrl_c
from lpkernels.formats.elsewhere import nearest
from lpkernels.report.sizes import bytes_from, bytes_text

if TYPE_CHECKING:
    import numpy as np

    from lpkernels.experiments.sweeps.frontiers.choosing import Frontier
    from lpkernels.experiments.sweeps.frontiers.study import Measured
    from lpkernels.techniques.pareto import ErrorMatrix

# Text that is printed as it is, whatever the width of the terminal.
_PLAIN: Any = {"highlight": False, "markup": False, "soft_wrap": True}
_NAMES = ("cap", "engine", "jobs", "known", "measure", "rank", "task", "truth")
_PICTURES = ("frontier", "matrix", "singular-values", "choices")
_METHODS = ("greedy", "qr", "random")
_LOAD_MATRIX = "techniques.pareto:ErrorMatrix.load"
_SPECIFICATION = "experiments.sweeps.frontiers.specification"

app = typer.Typer(
    name="frontier",
    help="Which precision is worth its memory, from a few measurements: run, status, table, "
    "predict, choose, plot.\n\n"
    "Example: `lpkernels frontier run task.toml --known errors.csv --out results/frontier`",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


def _are_there(paths: list[Path]) -> None:
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(
                f"expected the folder of a study or a file of records at {str(path)!r}; `lpkernels "
                "frontier run` makes a study"
            )


Folder = Annotated[
    Path,
    typer.Argument(
        callback=valid(f"{_SPECIFICATION}:read_study_spec"), help="The folder of a study."
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
Task = Annotated[str, typer.Option(help="Only this task; default: all.")]
Rank = Annotated[int, typer.Option(min=1, help="With --known: dimensions of the embeddings.")]
Cap = Annotated[
    str, typer.Option(callback=valid(bytes_from), help="Memory of a training step: 64KiB, 1.5MiB.")
]


@app.command()
@sigterm_as_ctrl_c()
def run(
    spec: Annotated[
        Path,
        typer.Argument(
            callback=valid(f"{_SPECIFICATION}:read_frontier_spec"),
            help="Tasks and configurations, a TOML file.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(file_okay=False, help="Folder of the study, made or continued.")
    ],
    known: KnownFile = None,
    measure: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Configurations of each task to train; default: 8, without --known 5 more than "
            "cover every format.",
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Train all configurations: a matrix for --known.")
    ] = False,
    task: Task = "",
    rank: Rank = 3,
    cap: Annotated[
        str,
        typer.Option(
            callback=valid(bytes_from), help="With --known: train none above this memory, as 64KiB."
        ),
    ] = "",
    method: Annotated[
        str,
        typer.Option(
            callback=valid(one_of(*_METHODS)),
            help=f"With --known: choice, one of {', '.join(_METHODS)}.",
        ),
    ] = "greedy",
    jobs: Jobs = None,
    engine: Engine = "processes",
    retry_failed: RetryFailed = False,
) -> None:
    """Train a few configurations of each task: the ones that tell most about all others.

    With --known the choice follows from earlier tasks, else from the task's own measurements, one
    after the other. The command may be stopped or killed at any moment, and then goes on with the
    same choice. While it runs, the folder is its own.

    Example: `lpkernels frontier run task.toml --known errors.csv --measure 8 --out results/task`
    """
    check_one_process("frontier run")
    from lpkernels.experiments.sweeps.frontiers.specification import read_frontier_spec
    from lpkernels.experiments.sweeps.frontiers.study import run_study

    with running(_NAMES):
        tasks = read_frontier_spec(spec)
        if task:
            tasks.config(task)
            tasks = tasks.replace(tasks={task: tasks.tasks[task]})
        study = run_study(
            tasks,
            out,
            known=_matrix(known),
            n=measure,
            everything=every,
            rank=rank,
            cap=bytes_from(cap) if cap else None,
            method=method,
            jobs=jobs,
            engine=engine,
            retry_failed=retry_failed,
            console=console,
        )
    _show_lost(study)
    console.print(f"results in {out}; next: lpkernels frontier predict {out}", soft_wrap=True)


@app.command()
def status(folder: Folder) -> None:
    """Show how many of the chosen cells are done, which run, which failed and why.

    Example: `lpkernels frontier status results/frontier`
    """
    from lpkernels.cli.sweep import status as show_sweep

    study = _measured(folder)
    for name, asked in study.asked.items():
        console.print(f"{name}: {len(asked)} of {len(study.spec.space)} configurations chosen")
    if any(study.asked.values()):
        show_sweep(folder)


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
        console.print(f"errors in {study.matrix.save(export)}")


@app.command()
def predict(folder: Folder, known: KnownFile = None, task: Task = "", rank: Rank = 3) -> None:
    """Show the frontier of memory and error of each task, measured or predicted, with its band.

    Example: `lpkernels frontier predict results/frontier --known errors.csv`
    """
    from lpkernels.report.frontiers import frontier_table

    study, frontiers = _frontiers(folder, known, task, rank)
    for name, frontier in frontiers.items():
        show_table(frontier_table(frontier, study.spec.space, title=name))
    _show_lost(study)


@app.command()
def choose(
    folder: Folder,
    cap: Cap,
    known: KnownFile = None,
    task: Task = "",
    rank: Rank = 3,
) -> None:
    """Choose the configuration of least error under a memory cap, print the command that trains
    the task in it.

    Example: `lpkernels frontier choose results/frontier --cap 64KiB`
    """
    from lpkernels.experiments.sweeps.frontiers.choosing import best
    from lpkernels.experiments.training.config import command_of
    from lpkernels.techniques.pareto import TrainingRecipe

    study, frontiers = _frontiers(folder, known, task, rank)
    if len(frontiers) > 1:
        listed = nearest(task, frontiers, "`lpkernels frontier status` lists all")
        raise typer.BadParameter(
            f"expected one of {listed}: a recipe is for one task", param_hint="--task"
        )
    (name, frontier), size = next(iter(frontiers.items())), bytes_from(cap)
    with named_options(_NAMES):
        index = best(frontier, size)
    recipe = TrainingRecipe(*study.spec.space[index])
    where = f"{name}, at most {bytes_text(size)}"
    console.print(f"choice for {where}: {_choice(frontier, index, study)}", **_PLAIN)
    console.print(f"recipe: {recipe}", **_PLAIN)
    cell = study.spec.sweep([(name, index)]).cells()[0]
    console.print(command_of(cell.config.replace(name="run")), **_PLAIN)


def _choice(frontier: "Frontier", index: int, study: "Measured") -> str:
    """A configuration in words."""
    measured = frontier.measured[index] == frontier.measured[index]
    low, high = frontier.band.error_low[index], frontier.band.error_high[index]
    band = "measured" if measured else f"predicted, {low:.4f} .. {high:.4f}"
    size, error = bytes_text(frontier.memory[index]), frontier.predicted[index]
    return f"{study.spec.space.name(index)}, {size}, error {error:.4f} ({band})"


@app.command()
def plot(
    sources: Annotated[
        list[Path],
        typer.Argument(
            callback=valid(_are_there),
            help="Folders of studies; for choices records of bench.frontier_study.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The picture (.png, .pdf, .svg).")],
    what: Annotated[
        str,
        typer.Option(callback=valid(one_of(*_PICTURES)), help=f"One of {', '.join(_PICTURES)}."),
    ] = "frontier",
    known: KnownFile = None,
    task: Task = "",
    rank: Rank = 3,
    truth: Annotated[
        Path | None,
        typer.Option(
            callback=valid(_LOAD_MATRIX),
            help="Errors in which the true frontiers are, where known.",
        ),
    ] = None,
    cap: Annotated[
        str, typer.Option(callback=valid(bytes_from), help="A memory cap to draw: 64KiB.")
    ] = "",
) -> None:
    """Draw frontiers, the error matrix, its singular values, or a comparison of ways to choose.

    Several studies are drawn on one picture.

    Example: `lpkernels frontier plot results/frontier --known errors.csv --out frontier.png`
    """
    from lpkernels.report import frontiers as pictures

    if what == "choices":
        from lpkernels.experiments.sweeps.frontiers.choosing import read_choices

        with named_options(_NAMES):
            rows = {path.stem: read_choices(path) for path in sources}
        with named_options(option="--out"):
            picture = pictures.plot_counts(rows, out)
    elif what == "frontier":
        frontiers, true = _to_draw(sources, known, task, rank, _matrix(truth))
        with named_options(option="--out"):
            size = bytes_from(cap) if cap else None
            picture = pictures.plot_frontiers(frontiers, out, truth=true, cap=size)
    else:
        matrices = {path.name: _measured(path).matrix for path in sources}
        draw = pictures.plot_error_matrix if what == "matrix" else pictures.plot_singular_values
        with named_options(option="--out"):
            picture = draw(matrices, out)
    console.print(f"picture in {picture}")


def _to_draw(
    sources: list[Path], known: Path | None, task: str, rank: int, truth: "ErrorMatrix | None"
) -> "tuple[dict[str, Frontier], dict[str, np.ndarray]]":
    """Frontiers by label, and true errors by the same labels where they are known."""
    frontiers: dict[str, Any] = {}
    true: dict[str, Any] = {}
    for path in sources:
        study, own = _frontiers(path, known, task, rank)
        if truth is not None:
            with named_options(option="--truth"):
                truth = truth.for_space("truth", study.spec.space)
        for name, frontier in own.items():
            label = name if len(sources) == 1 else f"{path.name}: {name}"
            frontiers[label] = frontier
            if truth is not None and name in truth.tasks:
                true[label] = truth.mean[truth.tasks.index(name)]
    return frontiers, true


def _measured(folder: Path) -> "Measured":
    from lpkernels.experiments.sweeps.frontiers.study import read_measured

    with named_options(_NAMES):
        return read_measured(folder)


def _matrix(path: Path | None) -> "ErrorMatrix | None":
    return None if path is None else imported(_LOAD_MATRIX)(path)


def _frontiers(
    folder: Path, known: Path | None, task: str, rank: int
) -> "tuple[Measured, dict[str, Frontier]]":
    from lpkernels.experiments.sweeps.frontiers.choosing import frontiers

    study, others = _measured(folder), _matrix(known)
    with named_options(_NAMES):
        if task:
            study.spec.config(task)
        return study, frontiers(study, task=task, known=others, rank=rank)


def _show_lost(study: "Measured") -> None:
    if study.lost:
        console.print(f"{len(study.lost)} runs gave no error and count as missing:")
    for text in study.lost:
        console.print(f"  {text}", **_PLAIN)
