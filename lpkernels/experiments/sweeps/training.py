"""One cell of a sweep, trained in whatever process an engine chose, and settled there."""

import errno
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import lpkernels
from lpkernels.experiments import records
from lpkernels.experiments.processes.folders import this_process
from lpkernels.experiments.sweeps.cells import ERROR, WORKER, cell_record, settle
from lpkernels.experiments.sweeps.specification import Cell
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.interrupts import Interrupted, InterruptRequest
from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.workload import Workload

#: Called with the steps done and the steps of the whole run.
Progress = Callable[[int, int], None]
#: Trains a configuration in a folder, which may hold a checkpoint to go on from, and leaves the
#: run's records there.
Train = Callable[[RunConfig, Path, Progress], None]

#: A file beside the folder of a try, with which a command tells the worker to save its state and
#: to end.
STOP = "stop"
# A run looks so often whether it is to stop.
_LOOK_EVERY = 0.5
# Random numbers and thread counts belong to a process: its threads take turns.
_ALONE = threading.Lock()


@dataclass(frozen=True)
class Task:
    """A cell to train.

    folder: of this try at the cell.
    final: the folder of finished cells.
    version: of lpkernels, which the worker must have too.
    """

    cell: Cell
    folder: Path
    final: Path
    train: Train
    version: str = lpkernels.__version__

    @property
    def name(self) -> str:
        return self.folder.name


#: The cell is finished; it failed; it was told to stop; there is no room; no worker could train it.
DONE, FAILED, STOPPED, FULL, UNFIT = "done", "failed", "stopped", "full", "unfit"


class End(NamedTuple):
    """How the training of a cell ended, and a message about it."""

    kind: str
    text: str = ""


def train_cell(config: RunConfig, folder: Path, on_progress: Progress) -> None:
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
    trainer.fit(on_progress=on_progress)


@lru_cache(maxsize=1)
def _workload(config: WorkloadConfig) -> Workload:
    """The workload of a cell; the last one is kept, since the next cell mostly has the same."""
    from lpkernels.experiments.workloads.registry import find

    return find(config)


def work(task: Task, stop: InterruptRequest | None = None) -> End:
    """Trains a cell and makes its folder that of a finished cell.

    stop: gets the ctrl-C of this process, for a caller that wants to know of it.
    """
    if task.version != lpkernels.__version__:
        return End(UNFIT, f"{this_process()} has another version of lpkernels; all need the same")
    if (task.final / task.name).is_dir():
        # Dask makes a result again whose worker died before it handed the result over.
        return End(DONE)
    # Ctrl-C is a request here, which the run answers when its state is saved.
    with _ALONE, stop or InterruptRequest() as request:
        try:
            task.folder.mkdir(exist_ok=True)
            (task.folder / ERROR).unlink(missing_ok=True)
            (task.folder / WORKER).write_text(this_process(), encoding="utf-8")
            task.train(task.cell.config, task.folder, _progress(task, request))
            _settle(task)
            return End(DONE)
        except KeyboardInterrupt:
            return End(STOPPED)
        except (Exception, SystemExit) as error:
            last = traceback.format_exception_only(error)[-1].strip()
            if is_full(error):
                return End(FULL, last)
            with suppress(OSError):
                text = "".join(traceback.format_exception(error))
                (task.folder / ERROR).write_text(text, encoding="utf-8")
            return End(FAILED, last)


def _settle(task: Task) -> None:
    run = records.read_run(task.folder)
    if not run.finished:
        raise RuntimeError(f"the run ended after {len(run.epochs)} epochs, before its last")
    settle(task.folder, task.final, cell_record(task.name, task.cell, run.status, run=run))


def _progress(task: Task, request: InterruptRequest) -> Progress:
    """The function that the run calls after a step, and that stops it."""
    looked = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal looked
        if request.requested:
            raise Interrupted("stopped")
        if time.monotonic() - looked < _LOOK_EVERY:
            return
        looked = time.monotonic()
        # A run whose folder was taken before it began has made the folder anew.
        if not (task.folder / WORKER).exists():
            raise Interrupted("another try goes on with this cell")
        if (task.folder.parent / STOP).exists():
            _interrupt()

    return progress


def _interrupt() -> None:
    """Stops the run as ctrl-C does: the run saves its state and ends. Only the main thread can do
    that; in another thread the run ends at once, and its last checkpoint stays."""
    if threading.current_thread() is threading.main_thread():
        signal.raise_signal(signal.SIGINT)
    else:
        raise Interrupted("stopped with its command")


def is_full(error: BaseException | None) -> bool:
    """Whether `error`, or one that led to it, says that there is no room to write."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False
