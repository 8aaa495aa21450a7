"""The engines that train the cells of a sweep: this process, processes of this machine, Ray, Dask.

An engine takes a task and returns a future. A future that raises has lost its worker, and with it
its cell alone: the cell goes to another worker.
"""

import errno
import os
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any, NamedTuple

from lpkernels.experiments.sweeps.cells import WORKER, Folder, cell_record
from lpkernels.experiments.sweeps.specification import Cell
from lpkernels.experiments.sweeps.training import (
    DONE,
    FAILED,
    FULL,
    STOP,
    STOPPED,
    End,
    Task,
    Train,
    work,
)
from lpkernels.experiments.training.interrupts import InterruptRequest

#: The engines, the package that each needs, and the extra that brings the package.
ENGINES = {"processes": ("joblib", "lab"), "ray": ("ray", "ray"), "dask": ("distributed", "dask")}
# A cell is given up after so many tries that ended badly.
_BAD_TRIES = 2
# If so many workers end, one after the other, before any of them takes a cell, workers cannot work.
_MOST_LOST_STARTS = 4
# How long workers may take to save their state when the command is stopped.
_STOP_SECONDS = 60.0
_LOOK_EVERY = 1.0


class Engine(NamedTuple):
    """jobs: how many cells it trains at a time.  submit: trains a cell."""

    jobs: int
    submit: Callable[[Task], "Future[End]"]


def check_engine(engine: str) -> None:
    """Checks that an engine can run here.

    Raises:
        ValueError: there is none of that name.
        ModuleNotFoundError: it is not installed; the message says what to install.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine: expected one of {', '.join(ENGINES)}, got {engine!r}")
    package, extra = ENGINES[engine]
    if find_spec(package) is None:
        raise ModuleNotFoundError(
            f'engine {engine!r} needs {package}: pip install "lpkernels[{extra}]"'
        )


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpu_of(worker: int, visible: str | None, count: int) -> dict[str, str]:
    """The environment that gives a worker one GPU: workers take turns with the GPUs.

    Args:
        worker: its number, from 0.
        visible: CUDA_VISIBLE_DEVICES as it is; None if it is not set.
        count: how many GPUs torch finds.
    """
    if count == 0:
        return {}
    names = [name.strip() for name in visible.split(",")] if visible else range(count)
    return {"CUDA_VISIBLE_DEVICES": str(names[worker % count])}


def gpus_for(devices: Sequence[str]) -> int:
    """The number of GPUs that workers share out; 0 unless cells run on "cuda", and where a cell
    names a GPU."""
    import torch

    named = any(device.startswith("cuda:") for device in devices)
    return torch.cuda.device_count() if "cuda" in devices and not named else 0


def run_cells(
    engine: str,
    jobs: int | None,
    store: Folder,
    cells: Mapping[str, Cell],
    train: Train,
    renew: Callable[[bool], None],
) -> None:
    """Trains the cells; one that fails, or that its worker dies of, is tried once more.

    Args:
        engine: one of ENGINES, or "" for this very process.
        jobs: how many cells at a time; None: one for each processor or worker of the cluster.
        store: the folder of the sweep.
        cells: by their names.
        train: a function that trains a cell.
        renew: called now and then, at the end with True, to show how far the cells are.
    Raises:
        KeyboardInterrupt: ctrl-C; workers have saved their state.
        OSError: there is no room left.
        RuntimeError: workers have another version of lpkernels, or die before they take a cell.
    """
    devices = [cell.config.device for cell in cells.values()]
    queue, running, ends = deque(cells), dict[Future[End], Task](), _Ends(store)
    with _OPEN[engine](jobs, gpus_for(devices) if engine else 0) as workers:
        try:
            while queue or running:
                while queue and len(running) < workers.jobs:
                    name = queue.popleft()
                    folder = store.begin(name)
                    task = Task(cells[name], folder, store.cells, train)
                    running[workers.submit(task)] = task
                renew(False)
                for future in wait(running, _LOOK_EVERY, FIRST_COMPLETED).done:
                    task = running.pop(future)
                    if not ends.is_last(task, future):
                        queue.append(task.name)
            renew(True)
        except BaseException:
            for task in running.values():
                (task.folder.parent / STOP).touch()
            wait(running, _STOP_SECONDS)
            raise


class _Ends:
    """Judges how tries at cells end."""

    def __init__(self, store: Folder) -> None:
        self.store = store
        self.errors: dict[str, list[str]] = {}
        self.lost_starts = 0

    def is_last(self, task: Task, future: "Future[End]") -> bool:
        """Whether a cell is finished or given up; errors as in `run_cells`."""
        try:
            end = future.result()
        except Exception as error:
            return self._died(task, error)
        self.lost_starts = 0
        if end.kind == DONE:
            return True
        if end.kind == FAILED:
            # The checkpoint may be the cause.
            return self._is_given_up(task, end.text, again=True)
        if end.kind == FULL:
            raise OSError(errno.ENOSPC, end.text)
        raise (KeyboardInterrupt if end.kind == STOPPED else RuntimeError)(end.text)

    def _died(self, task: Task, error: Exception) -> bool:
        try:
            worker = (task.folder / WORKER).read_text(encoding="utf-8")
        except OSError:
            self.lost_starts += 1
            if self.lost_starts >= _MOST_LOST_STARTS:
                raise RuntimeError(
                    f"the workers end before they take a cell, {self.lost_starts} times: {error}"
                ) from error
            return (task.final / task.name).is_dir()
        self.lost_starts = 0
        return self._is_given_up(task, f"its worker died ({worker})", again=False)

    def _is_given_up(self, task: Task, error: str, *, again: bool) -> bool:
        """Whether a bad end is one too many; if not, the cell goes on, or starts `again`."""
        errors = self.errors.setdefault(task.name, [])
        errors.append(error)
        if len(errors) < _BAD_TRIES:
            if again:
                shutil.rmtree(task.folder.parent, ignore_errors=True)
            return False
        text = "; ".join(dict.fromkeys(errors))
        record = cell_record(task.name, task.cell, FAILED, error=text)
        self.store.give_up(task.name, record)
        return True


@contextmanager
def _here(jobs: int | None, gpus: int) -> Iterator[Engine]:
    """This very process."""

    def submit(task: Task) -> "Future[End]":
        future, stop = Future[End](), InterruptRequest()
        future.set_result(work(task, stop))
        if stop.requested:
            raise KeyboardInterrupt
        return future

    yield Engine(1, submit)


@contextmanager
def _processes(jobs: int | None, gpus: int) -> Iterator[Engine]:
    """Processes of joblib's loky, each in a pool of its own: when a process dies, loky ends all
    others of its pool, and here there are none."""
    from joblib.externals import loky

    count = jobs or processors()
    pools: dict[int, Any] = {}
    last: dict[int, Future[End]] = {}

    def submit(task: Task) -> "Future[End]":
        worker = next(n for n in range(count) if n not in last or last[n].done())
        if worker not in pools or last[worker].exception() is not None:
            environment = gpu_of(worker, os.environ.get("CUDA_VISIBLE_DEVICES"), gpus)
            pools[worker] = loky.ProcessPoolExecutor(
                1, initializer=_begin, initargs=(os.getpid(),), env=environment
            )
        last[worker] = pools[worker].submit(work, task)
        return last[worker]

    try:
        yield Engine(count, submit)
    finally:
        for pool in pools.values():
            pool.shutdown(wait=True, kill_workers=True)


def _begin(command: int) -> None:
    """The first thing in a worker's process: the process leaves the terminal's group, since ctrl-C
    is for the command alone, which tells its workers; and it arranges to end with the command."""
    os.setpgrp()
    threading.Thread(target=_end_with, args=(command,), daemon=True).start()


def _end_with(command: int) -> None:
    """Ends this process when the command that started it is no more. Loky's own processes would
    finish their task first, or wait for the next one for ever."""
    while os.getppid() == command:
        time.sleep(_LOOK_EVERY)
    os._exit(0)


@contextmanager
def _ray(jobs: int | None, gpus: int) -> Iterator[Engine]:
    """The cluster that the program is connected to, else the cluster at RAY_ADDRESS, else a local
    one.

    Raises: ValueError: it has room for fewer than `jobs`.
    """
    import ray

    started = not ray.is_initialized()
    if started:
        # A cluster that is there has its own processors.
        count = None if "RAY_ADDRESS" in os.environ else jobs or processors()
        before = signal.getsignal(signal.SIGTERM)
        ray.init(include_dashboard=False, log_to_driver=False, num_cpus=count)
        if callable(before) and signal.getsignal(signal.SIGTERM) is not before:
            # Ray has put its own handler in the place of the command's.
            signal.signal(signal.SIGTERM, before)
    try:
        room = int(ray.cluster_resources().get("CPU", 0))
        if jobs is not None and jobs > room:
            raise ValueError(f"jobs: the Ray cluster has {room} processors, got {jobs} jobs")
        remote = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0, max_retries=0)(work)
        yield Engine(jobs or room, lambda task: remote.remote(task).future())
    finally:
        if started:
            ray.shutdown()


@contextmanager
def _dask(jobs: int | None, gpus: int) -> Iterator[Engine]:
    """The cluster of the program's client, else the cluster at DASK_SCHEDULER_ADDRESS, else a local
    one."""
    import dask
    import distributed

    # Dask itself gives a cell to no second worker, where the scheduler is of this process.
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), ExitStack() as stack:
        try:
            client = distributed.get_client()
        except ValueError:
            local: dict[str, Any] = {}
            if not dask.config.get("scheduler-address", None):
                # Each worker gets a process: the threads of one process would wait for one another.
                local = {"n_workers": jobs or processors(), "threads_per_worker": 1}
                local["dashboard_address"] = None
            client = stack.enter_context(distributed.Client(**local))
        executor = client.get_executor(pure=False, retries=0)
        room = len(client.scheduler_info(n_workers=-1)["workers"])
        yield Engine(min(jobs or room, room), lambda task: executor.submit(work, task))


_OPEN: dict[str, Callable[[int | None, int], AbstractContextManager[Engine]]] = {
    "": _here,
    "processes": _processes,
    "ray": _ray,
    "dask": _dask,
}
