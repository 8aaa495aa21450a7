"""A worker of a sweep: it takes one cell after the other, trains it and commits its result
itself."""

import errno
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lpkernels.experiments import records
from lpkernels.experiments.processes.leases import Note, Owner, Watch
from lpkernels.experiments.sweeps.cells import cell_record
from lpkernels.experiments.sweeps.places import Claim, Places, take
from lpkernels.experiments.sweeps.sources import cell_name
from lpkernels.experiments.sweeps.specification import Cell
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.interrupts import Interrupted, InterruptRequest
from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.workload import Workload

if TYPE_CHECKING:
    from rich.console import Console

#: Called with the steps done and the steps of the whole run.
Progress = Callable[[int, int], None]
#: Trains a configuration in a folder, which may hold the checkpoint of a former try, and leaves the
#: run's records there.
Train = Callable[[RunConfig, Path, Progress], None]

# How often a worker looks whether it is to stop, and for work where all is taken.
_LOOK_EVERY = 0.5
#: Held while this process works on cells. Random numbers and thread counts belong to a process: its
#: threads take turns.
ALONE = threading.Lock()


@dataclass(frozen=True)
class Task:
    """The task that all workers of a command are given.

    root: the sweep's folder, absolute.
    cells: by the name of their folders, in the order in which they are taken.
    run: the lease of the command; workers stop with it. "": they are in the command's process.
    seconds: the time of a lease.
    limit: the longest that a try may take, in seconds; workers are no threads of the command then.
    """

    root: Path
    cells: dict[str, Cell]
    run: str
    seconds: float
    train: Train
    limit: float | None = None


#: All cells have ended; the command has ended; there is no room; the sources are not the command's.
DONE, STOPPED, FULL, OTHER = "done", "stopped", "full", "other"


class End(NamedTuple):
    """How a worker ended, and a message about it."""

    kind: str
    text: str = ""


class _Superseded(Exception):
    """Another try finished the cell."""


def train_cell(
    config: RunConfig, folder: Path, on_progress: Progress, *, console: "Console | None" = None
) -> None:
    """Trains a run in `folder`, from a checkpoint in it if one is whole."""
    from lpkernels.experiments.training.trainer import Trainer

    workload = _workload(config.workload)
    try:
        trainer = Trainer.resume(folder, workload=workload)
        if trainer.config.replace(name=config.name) != config:
            raise ValueError(f"{folder} holds the checkpoint of another cell")
    except Exception:
        # There is none, or the end of a worker or a machine spoilt it. The run starts again, to the
        # same bits.
        trainer = Trainer(config, folder, workload=workload, overwrite=True)
    trainer.fit(console=console, on_progress=on_progress)


@lru_cache(maxsize=1)
def _workload(config: WorkloadConfig) -> Workload:
    """The workload of a cell; the last one is kept, since the next cell mostly has the same."""
    from lpkernels.experiments.workloads.registry import find

    return find(config)


def work(task: Task) -> End:
    """Takes cells until all are finished or failed. It waits for cells that other workers hold, and
    takes a cell over when its worker dies.

    Raises:
        KeyboardInterrupt: ctrl-C in the command's own process; the cell's state is saved.
        ValueError: cells have a time limit, and this is the command's own process, which must not
            end with one.
    """
    if task.limit is not None:
        command = Note.read(Places(task.root).runs / task.run)
        if command is not None and command.owner == Owner.here():
            raise ValueError(
                "cell_seconds: expected workers in processes of their own, got threads of the "
                "command; give the cluster processes, or leave cell_seconds out"
            )
    with ALONE:
        return _Worker(task).work()


class _Worker:
    def __init__(self, task: Task) -> None:
        self.task, self.places = task, Places(task.root)
        self.watch = Watch(task.seconds)
        self.left = dict(task.cells)
        self.interrupt = InterruptRequest()
        self._looked = 0.0
        self._stopping = False

    def work(self) -> End:
        try:
            # Ctrl-C is a request here, which a run or the next look answers, so that it never
            # interrupts a claim that is half made.
            with self.interrupt:
                return self._loop()
        except KeyboardInterrupt:
            if self.task.run:
                return End(STOPPED)
            raise
        except OSError as error:
            if is_full(error):
                return End(FULL, error.strerror or str(error))
            raise

    def _loop(self) -> End:
        while self.left:
            if self.interrupt.requested:
                raise Interrupted("stopped")
            if self._is_to_stop():
                return End(STOPPED)
            claim = self._claim()
            if claim is None:
                time.sleep(_LOOK_EVERY if self.left else 0)
            elif cell_name(self.left[claim.cell].config) != claim.cell:
                claim.drop()
                return End(OTHER, f"{Owner.here()}")
            else:
                self._attempt(claim, self.left[claim.cell])
        return End(DONE)

    def _is_to_stop(self) -> bool:
        """Whether the command that started this worker is over; looked at now and then."""
        now = time.monotonic()
        if self.task.run and not self._stopping and now - self._looked >= _LOOK_EVERY:
            self._looked = now
            self._stopping = self.watch.is_over(self.places.runs / self.task.run)
        return self._stopping

    def _claim(self) -> Claim | None:
        """The next cell that can be had: new ones first."""
        settled = self.places.finished() | self.places.given_up()
        self.left = {name: cell for name, cell in self.left.items() if name not in settled}
        tries = self.places.tries()
        for name in sorted(self.left, key=lambda name: name in tries):
            claim = take(
                self.places,
                name,
                tries.get(name, []),
                self.watch,
                seconds=self.task.seconds,
                run=self.task.run,
            )
            if claim is not None:
                return claim
        return None

    def _attempt(self, claim: Claim, cell: Cell) -> None:
        if claim.is_hopeless:
            error = "; ".join(claim.bad)
            claim.give_up(cell_record(claim.cell, cell, "failed", claim.bad, error=error))
            return
        try:
            with claim.limited(self.task.limit):
                self.task.train(cell.config, claim.folder, self._progress(claim))
            run = records.read_run(claim.folder)
            if not run.finished:
                raise RuntimeError(f"the run ended after {len(run.epochs)} epochs, before its last")
            status = "diverged" if run.diverged else "finished"
            claim.finish(cell_record(claim.cell, cell, status, claim.bad, run=run))
        except KeyboardInterrupt:
            claim.release()
            raise
        except _Superseded:
            claim.drop()
        except (Exception, SystemExit) as error:
            self._failed(claim, cell, error)

    def _failed(self, claim: Claim, cell: Cell, error: BaseException) -> None:
        if (self.places.cells / claim.cell).is_dir():
            # Another try finished the cell and removed the folder of this one.
            claim.drop()
        elif is_full(error):
            claim.release()
            free = shutil.disk_usage(self.places.root).free
            raise OSError(errno.ENOSPC, f"{_last_line(error)} ({free} bytes free)") from error
        else:
            text, last = "".join(traceback.format_exception(error)), _last_line(error)
            claim.fail(cell_record(claim.cell, cell, "failed", claim.bad, error=last), text)

    def _progress(self, claim: Claim) -> Progress:
        """The function that the run calls after a step: it notes how far the run is, and stops
        it."""
        finished, asked, looked = self.places.cells / claim.cell, False, time.monotonic()

        def progress(done: int, total: int) -> None:
            nonlocal asked, looked
            claim.lease.show(done, total)
            if self.interrupt.requested:
                raise Interrupted("stopped")
            now = time.monotonic()
            if now - looked < _LOOK_EVERY:
                return
            looked = now
            if finished.is_dir():
                raise _Superseded
            if self._is_to_stop() and not asked:
                asked = True
                _interrupt()

        return progress


def _interrupt() -> None:
    """Stops the run as ctrl-C does: it saves its state and ends. Only the main thread can do that;
    in another the cell goes on from its last epoch one day."""
    if threading.current_thread() is threading.main_thread():
        signal.raise_signal(signal.SIGINT)
    else:
        raise Interrupted("stopped with the command that started this worker")


def _last_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()


def is_full(error: BaseException | None) -> bool:
    """Whether `error`, or one that led to it, says that there is no room to write."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False
