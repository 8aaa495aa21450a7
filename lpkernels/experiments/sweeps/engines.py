"""Where the workers of a sweep run: processes of this machine, Ray, Dask.

Every worker takes cells from the sweep's folder and commits their results there itself, so an
engine has nothing to hand out or to collect: it starts workers and sees to it that they go on.
"""

import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from lpkernels.experiments.processes.leases import Lease
from lpkernels.experiments.sweeps.places import Places
from lpkernels.experiments.sweeps.worker import ALONE, DONE, STOPPED, End, Task, work

ENGINES = ("processes", "ray", "dask")
_NEEDS = {"processes": ("joblib",), "ray": ("joblib", "ray"), "dask": ("joblib", "distributed")}
_EXTRA = {"processes": "lab", "ray": "ray", "dask": "dask"}
# If so many workers end, one after the other, before any of them takes a cell, workers cannot work.
_VAIN_STARTS = 4
# How long workers may take to save their state when the command is stopped.
_STOP_SECONDS = 60.0

_LOOK_EVERY = 1.0


def check_engine(engine: str) -> None:
    """Checks that an engine can run here.

    Raises:
        ValueError: there is none of that name.
        ModuleNotFoundError: it is not installed; the message says what to install.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine: expected one of {', '.join(ENGINES)}, got {engine!r}")
    missing = [package for package in _NEEDS[engine] if find_spec(package) is None]
    if missing:
        raise ModuleNotFoundError(
            f"engine {engine!r} needs {' and '.join(missing)}: "
            f'pip install "lpkernels[{_EXTRA[engine]}]"'
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


def wants_gpus(devices: Sequence[str]) -> bool:
    """Whether each worker gets a GPU of its own: cells run on "cuda", and no cell names a GPU."""
    return "cuda" in devices and not any(device.startswith("cuda:") for device in devices)


def run_workers(engine: str, jobs: int | None, task: Task) -> list[End]:
    """Runs workers until they end, and replaces workers that die.

    The workers live as long as the lease of this command: its end tells them to save their state
    and to end.

    Args:
        jobs: how many workers, at most one a cell; None: one for each processor or worker of the
            cluster.
    Raises:
        KeyboardInterrupt: ctrl-C; the workers have been told and have ended.
        RuntimeError: workers die before they take a cell.
    """
    task = replace(task, run=uuid.uuid4().hex)
    path, most = Places(task.root).runs / task.run, len(task.cells)
    with Lease(path, task.seconds) as lease:
        try:
            if engine == "processes":
                return _run_processes(min(jobs or processors(), most), task, lease)
            with _CLUSTERS[engine](jobs) as room:
                return _run_elsewhere(engine, min(jobs or room, most), task, lease)
        finally:
            path.unlink(missing_ok=True)


def _run_processes(jobs: int, task: Task, lease: Lease) -> list[End]:
    """Workers in processes of joblib's loky, each in a pool of its own: when a process dies, loky
    ends all others of its pool, and here there are none, so only the dead one's cell is affected.
    """
    from joblib.externals import loky

    gpus = _gpus(task)
    pools: dict[int, Any] = {}
    futures: dict[Any, int] = {}

    def start(worker: int) -> None:
        environment = gpu_of(worker, os.environ.get("CUDA_VISIBLE_DEVICES"), gpus)
        pools[worker] = loky.ProcessPoolExecutor(
            1, initializer=_begin, initargs=(os.getpid(),), env=environment
        )
        futures[pools[worker].submit(work, task)] = worker

    ends: list[End] = []
    vain = _Vain(Places(task.root))
    try:
        for worker in range(jobs):
            start(worker)
        while futures:
            done, _ = loky.wait(futures, timeout=1, return_when=loky.FIRST_COMPLETED)
            for future in done:
                worker = futures.pop(future)
                try:
                    ends.append(future.result())
                except loky.BrokenProcessPool as error:
                    vain.count(error)
                    start(worker)
                else:
                    if ends[-1].kind not in (DONE, STOPPED):
                        lease.end()
    except BaseException:
        lease.end()
        loky.wait(futures, timeout=_STOP_SECONDS)
        raise
    finally:
        for pool in pools.values():
            pool.shutdown(wait=True, kill_workers=True)
    return ends


def _gpus(task: Task) -> int:
    if not wants_gpus([cell.config.device for cell in task.cells.values()]):
        return 0
    import torch

    return torch.cuda.device_count()


def _begin(command: int) -> None:
    """The first thing in a worker's process: the process leaves the terminal's group, since ctrl-C
    is for the command alone, which tells its workers; and it arranges to end with the command."""
    os.setpgrp()
    threading.Thread(target=_end_with, args=(command,), daemon=True).start()


def _end_with(command: int) -> None:
    """Ends this process when the command that started it is no more, and the run has saved its
    state.

    Loky's own processes wait for their next task for ever, or for the rest of one.
    """
    while os.getppid() == command:
        time.sleep(_LOOK_EVERY)
    with ALONE:
        os._exit(0)


class _Vain:
    """Counts the workers that die one after the other while nothing changes in the folder."""

    def __init__(self, places: Places) -> None:
        self.places, self.times = places, 0
        self.last = self._state()

    def _state(self) -> object:
        """It changes when a worker takes a cell or ends one."""
        return self.places.finished(), self.places.given_up(), self.places.tries()

    def count(self, error: BaseException) -> None:
        now = self._state()
        self.times = self.times + 1 if now == self.last else 0
        self.last = now
        if self.times >= _VAIN_STARTS:
            raise RuntimeError(
                f"the workers end before they take a cell, {self.times} times now: {error}"
            ) from error


def _run_elsewhere(engine: str, jobs: int, task: Task, lease: Lease) -> list[End]:
    """Workers as the tasks of one joblib call, which a thread waits for."""
    found: list[End] = []
    wrong: list[BaseException] = []

    def call() -> None:
        from joblib import Parallel, delayed, parallel_config

        options: dict[str, Any] = {}
        if engine == "ray" and _gpus(task):
            options["ray_remote_args"] = {"num_gpus": 1}
        try:
            with parallel_config(backend=engine, n_jobs=jobs, **options):
                found.extend(Parallel(batch_size=1)(delayed(work)(task) for _ in range(jobs)))
        except BaseException as error:
            wrong.append(error)

    vain = _Vain(Places(task.root))
    while True:
        wrong.clear()
        caller = threading.Thread(target=call, daemon=True)
        caller.start()
        try:
            while caller.is_alive():
                caller.join(0.2)
        except BaseException:
            lease.end()
            caller.join(_STOP_SECONDS)
            raise
        if not wrong:
            return found
        vain.count(wrong[0])


@contextmanager
def _ray(jobs: int | None) -> Iterator[int]:
    """The cluster that the program is connected to, else the cluster at RAY_ADDRESS, else a local
    one; yields how many workers it has room for.

    Raises: ValueError: fewer than `jobs`.
    """
    import ray
    from ray.util.joblib import register_ray

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
        register_ray()
        yield room
    finally:
        if started:
            ray.shutdown()


@contextmanager
def _dask(jobs: int | None) -> Iterator[int]:
    """The cluster of the program's client, else the cluster at DASK_SCHEDULER_ADDRESS, else a local
    one; yields how many workers it has."""
    import dask
    import distributed

    with ExitStack() as stack:
        try:
            client = distributed.get_client()
        except ValueError:
            local: dict[str, Any] = {}
            if not dask.config.get("scheduler-address", None):
                # Each worker gets a process: the threads of one process would wait for one another.
                local = {"n_workers": jobs or processors(), "threads_per_worker": 1}
                local["dashboard_address"] = None
            client = stack.enter_context(distributed.Client(**local))
        yield len(client.scheduler_info(n_workers=-1)["workers"])


_CLUSTERS: dict[str, Callable[[int | None], AbstractContextManager[int]]] = {
    "ray": _ray,
    "dask": _dask,
}
