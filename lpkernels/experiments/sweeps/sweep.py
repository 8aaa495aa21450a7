"""Runs the cells of a specification that a folder lacks."""

import errno
import shutil
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lpkernels.experiments.processes.leases import SECONDS, Watch
from lpkernels.experiments.records import Run, read_run
from lpkernels.experiments.sweeps.engines import check_engine, processors, run_workers
from lpkernels.experiments.sweeps.log import join, read_specs
from lpkernels.experiments.sweeps.places import Places
from lpkernels.experiments.sweeps.reading import Results, read_results
from lpkernels.experiments.sweeps.sources import cell_name
from lpkernels.experiments.sweeps.specification import Cell, SweepSpec, check_same_sweep, spec_of
from lpkernels.experiments.sweeps.worker import (
    DONE,
    FULL,
    STOPPED,
    End,
    Task,
    Train,
    is_full,
    train_cell,
    work,
)
from lpkernels.experiments.training.config import RunConfig, device_exists
from lpkernels.experiments.training.interrupts import Interrupted
from lpkernels.experiments.workloads.registry import find

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["run_sweep"]

# The progress bar is renewed so often. The time left is judged by what was done in so many seconds:
# cells take minutes.
_LOOK_EVERY, _SPEED_SECONDS = 0.5, 3600.0


def run_sweep(
    spec: SweepSpec,
    folder: str | Path,
    *,
    jobs: int | None = None,
    engine: str = "processes",
    retry_failed: bool = False,
    console: "Console | None" = None,
    train: Train | None = None,
    seconds: float = SECONDS,
) -> Results:
    """Runs the cells of `spec` that have no result in `folder` yet, and returns all results.

    It may be killed at any moment and loses no finished cell; called again, it runs the cells that
    are missing, and a cell goes on from its last checkpoint. Any number of such calls, on any
    machines, share a folder and run no cell twice. A cell that fails is tried once more, then given
    up, with its error among the results; so is one that kills its worker twice. A diverged run is a
    result like any other. A cell that runs longer than `cell_seconds` of the specification fails
    too, hanging or not: its worker ends, and another takes its place.

    Args:
        spec: the cells to run. More arms, seeds or values of the axes may be added later.
        folder: where results go; made if absent.
        jobs: workers at a time. 1 with engine "processes": this very process, unless cells have a
            time limit. None: this machine's processors divided by the threads of a cell; with Ray
            or Dask one for each processor.
        engine: "processes" of this machine, "ray" or "dask": the cluster that the program is
            connected to, or that RAY_ADDRESS or DASK_SCHEDULER_ADDRESS names, else a local one.
        retry_failed: run cells again that were given up.
        console: gets a progress bar over all cells.
        train: a function that makes a cell's records, in place of the trainer.
        seconds: without a sign of life after which a worker on another machine counts as dead.
    Raises:
        ValueError: a cell's configuration, workload or device cannot be; jobs is less than 1; the
            folder is another sweep's. Nothing has run then.
        ModuleNotFoundError: the engine is not installed. Nothing has run then.
        Interrupted: ctrl-C; what ran is saved.
        OSError: there is no room left (errno ENOSPC); no finished cell is lost.
        RuntimeError: workers have other sources of lpkernels, or die before they take a cell.
    """
    cells = {cell_name(cell.config): cell for cell in spec.cells()}
    jobs = _jobs(list(cells.values()), engine, jobs)
    # The process of a cell with a limit may have to end with it.
    own = jobs == 1 and engine == "processes" and spec.cell_seconds is None
    if not own:
        check_engine(engine)
    if engine == "processes":
        for device in {cell.config.device for cell in cells.values()}:
            device_exists(device)
    if train is None:
        for workload in {cell.config.workload: None for cell in cells.values()}:
            find(workload)
    places = Places(Path(folder).absolute())
    try:
        join(places, spec)
        places.sweep_up(Watch(seconds))
        if retry_failed:
            for name in places.given_up().intersection(cells):
                places.remove(places.failed / name)
        ended = places.finished() | places.given_up()
        left = {name: cell for name, cell in cells.items() if name not in ended}
        if left:
            task = Task(places.root, left, "", seconds, train or train_cell, spec.cell_seconds)
            with _shown(console, places, cells):
                ends = [work(task)] if own else run_workers(engine, jobs, task)
            _check_ends(ends, _so_far(places, cells))
    except KeyboardInterrupt as stop:
        raise Interrupted(f"stopped; {_so_far(places, cells)}") from stop
    except OSError as error:
        if not is_full(error):
            raise
        raise OSError(
            errno.ENOSPC,
            f"no room left in {places.root}: {error.strerror}; {_so_far(places, cells)}, and none "
            "is lost: make room and give the same command again",
        ) from error
    return read_results(folder)


def _jobs(cells: Sequence[Cell], engine: str, jobs: int | None) -> int | None:
    """How many jobs there are; None: as many as the cluster has room for."""
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs: expected at least 1, got {jobs}")
    if engine != "processes":
        return jobs
    threads = max(cell.config.threads or processors() for cell in cells)
    return jobs or max(1, processors() // threads)


class Counts(NamedTuple):
    """How many cells are finished, failed and running; done: with the parts of running ones."""

    finished: int
    failed: int
    running: int
    done: float

    @staticmethod
    def of(places: Places, cells: Collection[str]) -> "Counts":
        """The counts of `cells` in the folder, so that the work of every other command counts."""
        finished, failed = (len(e & set(cells)) for e in (places.finished(), places.given_up()))
        shares = [note.share for cell, note in places.held().items() if cell in cells]
        return Counts(finished, failed, len(shares), finished + failed + sum(shares))

    def __str__(self) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.finished} finished, {self.running} running{failed}"


@contextmanager
def _shown(console: "Console | None", places: Places, cells: Collection[str]) -> Iterator[None]:
    """A bar on `console` while the context lasts; none if that is None."""
    if console is None:
        yield
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.percentage:>3.0f}%"),
        BarColumn(),
        TextColumn("{task.description}", markup=False),
        TimeRemainingColumn(),
    )
    over = threading.Event()
    with Progress(*columns, console=console, speed_estimate_period=_SPEED_SECONDS) as bar:
        now = Counts.of(places, cells)
        task = bar.add_task(str(now), total=len(cells))
        # It is set apart, so that cells done before do not count for the speed.
        bar.update(task, completed=now.done)

        def look() -> None:
            while not over.wait(_LOOK_EVERY):
                update()

        def update() -> None:
            now = Counts.of(places, cells)
            bar.update(task, description=str(now), completed=now.done)

        watcher = threading.Thread(target=look, daemon=True, name="progress")
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            update()


def _so_far(places: Places, cells: dict[str, Cell]) -> str:
    now = Counts.of(places, cells)
    failed = f" and {now.failed} failed" if now.failed else ""
    return f"{now.finished} of {len(cells)} cells are finished{failed}, in {places.root}"


def _check_ends(ends: Sequence[End], so_far: str) -> None:
    for end in ends:
        if end.kind == FULL:
            raise OSError(errno.ENOSPC, end.text)
    others = [end.text for end in ends if end.kind not in (DONE, STOPPED)]
    if others:
        raise RuntimeError(
            f"other sources of lpkernels than here have {', '.join(others)}; all workers need the "
            f"same, and they must not change while a sweep runs; {so_far}"
        )


def train_all(
    configs: Sequence[RunConfig],
    folder: str | Path,
    *,
    name: str,
    resume: bool,
    console: "Console | None" = None,
) -> list[Run]:
    """Trains `configs` one after the other in this process, as a sweep in `folder`; each run has a
    progress bar.

    Args:
        configs: every named run for every seed; of several that differ only in name one is trained.
        name: the sweep's name.
        resume: keep the results in the folder; else everything is trained again.
    Returns: the runs, in the order of `configs`.
    Raises:
        Interrupted: ctrl-C; what was done so far is saved.
        ValueError: the folder holds other runs.
        RuntimeError: a run failed, twice.
    """
    different = {cell_name(config): config for config in reversed(configs)}
    spec, places = spec_of([c for c in configs if c in different.values()], name), Places(folder)
    specs = read_specs(places)
    if not resume and any(other.name != name for other in specs):
        raise ValueError(f"{folder} holds a sweep, {specs[0].name!r}; choose another folder")
    if not resume:
        _clear(places)
    elif specs:
        check_same_sweep(specs[0], spec)
    for workload in {config.workload: None for config in configs}:
        # A fault in it is an error of the call, and not of a cell.
        find(workload)
    train = partial(train_cell, console=console)
    results = run_sweep(spec, folder, jobs=1, retry_failed=True, train=train)
    for result in results.results:
        if result.status == "failed":
            raise RuntimeError(f"{result.arm}, seed {result.seed}: {result.error}")
    return [_named(read_run(places.cells / cell_name(config)), config.name) for config in configs]


def _named(run: Run, name: str) -> Run:
    """The run under the name it has now."""
    return replace(run, header={**run.header, "config": {**run.header["config"], "name": name}})


def _clear(places: Places) -> None:
    """Removes a sweep, the file with its specifications last."""
    for folder in (places.cells, places.failed, places.work, places.runs):
        if folder.is_dir():
            shutil.rmtree(folder)
    places.log.unlink(missing_ok=True)
