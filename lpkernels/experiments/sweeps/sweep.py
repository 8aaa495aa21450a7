"""Runs the cells of a specification that a folder lacks."""

import errno
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lpkernels.experiments.processes.folders import owned
from lpkernels.experiments.sweeps.cells import Folder, cell_name
from lpkernels.experiments.sweeps.engines import check_engine, processors, run_cells
from lpkernels.experiments.sweeps.results import Results, read_results, share_done
from lpkernels.experiments.sweeps.specification import Cell, SweepSpec
from lpkernels.experiments.sweeps.training import Train, is_full, train_cell
from lpkernels.experiments.training.config import device_exists
from lpkernels.experiments.training.interrupts import Interrupted
from lpkernels.experiments.training.progress import progress_bar
from lpkernels.experiments.workloads.registry import find

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["run_sweep"]


def run_sweep(
    spec: SweepSpec,
    folder: str | Path,
    *,
    jobs: int | None = None,
    engine: str = "processes",
    retry_failed: bool = False,
    console: "Console | None" = None,
    train: Train | None = None,
) -> Results:
    """Runs the cells of `spec` that have no result in `folder` yet, and returns all results.

    It may be killed at any moment and loses no finished cell; called again, it runs the cells that
    are missing, and a cell goes on from its last checkpoint. A cell that fails is tried once more,
    then given up, with its error among the results; so is one that kills its worker twice. A
    diverged run is a result like any other.

    Finished cells that another version or commit of lpkernels, or another source of their own
    module, has trained stay; `Results.codes` counts them.

    Args:
        spec: the cells to run. Later it may have more arms, seeds and values of the axes.
        folder: where results go; made if absent. It belongs to this call until it returns.
        jobs: workers at a time. 1 with engine "processes": this very process. None: this machine's
            processors divided by the threads of a cell; with Ray or Dask one for each processor.
        engine: "processes" of this machine, "ray" or "dask": the cluster that the program is
            connected to, or that RAY_ADDRESS or DASK_SCHEDULER_ADDRESS names, else a local one.
        retry_failed: run cells again that were given up.
        console: gets a progress bar over all cells.
        train: a function that makes a cell's records, in place of the trainer.
    Raises:
        ValueError: a cell's configuration, workload or device cannot be; jobs is less than 1; the
            folder holds cells that `spec` does not have. Nothing has run then.
        ModuleNotFoundError: the engine is not installed. Nothing has run then.
        BlockingIOError: another command owns the folder. Nothing has run then.
        Interrupted: ctrl-C; what ran is saved.
        OSError: there is no room left (errno ENOSPC); no finished cell is lost.
        RuntimeError: workers have another version of lpkernels, or die before they take a cell.
    """
    cells = {cell_name(cell.config): cell for cell in spec.cells()}
    jobs = _jobs(list(cells.values()), engine, jobs)
    if jobs == 1 and engine == "processes":
        engine = ""
    else:
        check_engine(engine)
    if engine in ("", "processes"):
        for device in {cell.config.device for cell in cells.values()}:
            device_exists(device)
    if train is None:
        for workload in {cell.config.workload: None for cell in cells.values()}:
            find(workload)
    store = Folder(Path(folder).absolute())
    try:
        with owned(store.root):
            store.join(spec, cells)
            waiting = _without_result(store, cells, retry_failed)
            if waiting:
                look = partial(_look, store, cells)
                with progress_bar(console, len(cells), look) as renew:
                    run_cells(engine, jobs, store, waiting, train or train_cell, renew)
    except KeyboardInterrupt as stop:
        raise Interrupted(f"stopped; {_so_far(store, cells)}") from stop
    except OSError as error:
        if not is_full(error):
            raise
        raise OSError(
            errno.ENOSPC,
            f"no room left in {store.root}: {error.strerror}; {_so_far(store, cells)}, and none "
            "is lost: make room and give the same command again",
        ) from error
    return read_results(folder)


def _without_result(store: Folder, cells: dict[str, Cell], retry_failed: bool) -> dict[str, Cell]:
    """The cells without a result; of failed cells those that are to run again."""
    store.make()
    for name in store.given_up().intersection(cells) if retry_failed else ():
        store.forget(name)
    settled = store.finished() | store.given_up()
    return {name: cell for name, cell in cells.items() if name not in settled}


def _jobs(cells: Sequence[Cell], engine: str, jobs: int | None) -> int | None:
    """How many jobs there are; None: as many as the cluster has room for."""
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs: expected at least 1, got {jobs}")
    if engine != "processes":
        return jobs
    threads = max(cell.config.threads or processors() for cell in cells)
    return jobs or max(1, processors() // threads)


def _counts(store: Folder, cells: dict[str, Cell]) -> tuple[int, int]:
    """How many cells are finished, and how many failed."""
    return len(store.finished() & cells.keys()), len(store.given_up() & cells.keys())


def _look(store: Folder, cells: dict[str, Cell]) -> tuple[float, str]:
    """How many cells are done, with the shares of those under way, and the same in words."""
    (finished, failed), begun = _counts(store, cells), store.begun()
    shares = [share_done(begun[name], cells[name]) for name in begun.keys() & cells.keys()]
    words = f"{finished} finished, {len(shares)} under way" + f", {failed} failed" * (failed > 0)
    return finished + failed + sum(shares), words


def _so_far(store: Folder, cells: dict[str, Cell]) -> str:
    finished, failed = _counts(store, cells)
    words = f" and {failed} failed" if failed else ""
    return f"{finished} of {len(cells)} cells are finished{words}, in {store.root}"
