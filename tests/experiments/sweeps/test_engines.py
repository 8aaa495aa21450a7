"""Workers in processes, on Ray and on Dask: their cells, their deaths, their ends."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lpkernels.experiments.sweeps import engines, sweep
from lpkernels.experiments.sweeps.engines import gpu_of, gpus_for
from lpkernels.experiments.sweeps.results import Results, read_status
from lpkernels.experiments.sweeps.specification import SweepSpec
from lpkernels.experiments.sweeps.sweep import run_sweep
from lpkernels.experiments.training.checkpoints import CHECKPOINT
from lpkernels.experiments.training.interrupts import Interrupted, sigterm_as_ctrl_c
from tests.experiments.killing import workers
from tests.experiments.sweeps import toy

SPEC = toy.spec("a", "b", seeds=2)
ENDS = {"a": "finished", "dies once": "finished"}


def survive(folder: Path, *never: str, **options: Any) -> Results:
    """Runs a sweep of cells that train and die, in workers that SIGTERM would end; asserts
    that other cells did not notice, and that finished cells have the results of an undisturbed
    sweep. `never`: the arms whose cells fail in both tries."""
    spec, whole, book = toy.spec(*ENDS, *never, seeds=1), folder / "whole", folder / "book"
    toy.run(toy.spec(*ENDS, seeds=1), whole)
    with sigterm_as_ctrl_c():
        before = signal.getsignal(signal.SIGTERM)
        train = partial(toy.fragile, book=book)
        results = run_sweep(spec, folder / "out", jobs=2, train=train, **options)
        assert signal.getsignal(signal.SIGTERM) is before
    assert {r.arm: r.status for r in results.runs} == ENDS | dict.fromkeys(never, "failed")
    assert toy.figures(folder / "out") == toy.figures(whole)
    starts = toy.starts(book)
    assert [starts.count(arm) for arm in (*ENDS, *never)] == [1, 2, *[2] * len(never)]
    return results


@pytest.mark.parametrize(
    "worker, visible, count, gpu",
    [(0, None, 2, "0"), (3, None, 2, "1"), (1, "4, 6", 2, "6"), (2, "GPU-abc", 1, "GPU-abc")],
)
def test_workers_take_turns_with_the_gpus(
    worker: int, visible: str | None, count: int, gpu: str
) -> None:
    assert gpu_of(worker, visible, count) == {"CUDA_VISIBLE_DEVICES": gpu}


def test_without_gpus_a_worker_s_environment_stays() -> None:
    assert gpu_of(0, None, 0) == {}


@pytest.mark.parametrize(
    "devices, gpus", [(["cuda", "cpu"], 3), (["cpu"], 0), (["cuda", "cuda:1"], 0)], ids=str
)
def test_gpus_are_shared_where_no_cell_names_one(devices, gpus, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert gpus_for(devices) == gpus


@pytest.mark.parametrize(
    "threads, asked, jobs",
    [(1, None, 8), (3, None, 2), (16, None, 1), (0, None, 1), (0, 5, 5)],
)
def test_jobs_are_the_processors_by_the_threads_of_a_cell(threads, asked, jobs, monkeypatch):
    monkeypatch.setattr(sweep, "processors", lambda: 8)
    cells = SweepSpec(base={"threads": threads}).cells()
    assert sweep._jobs(cells, "processes", asked) == jobs


def test_processes_outlive_cells_that_die(tmp_path: Path) -> None:
    # A death concerns a process: two workers start, and another for each that dies.
    *_, lost = survive(tmp_path, "dies always").runs
    assert lost.error.count("its worker died (process") == 2


def test_workers_that_end_before_they_take_a_cell_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_begin", os._exit)
    monkeypatch.setattr(engines, "_MOST_LOST_STARTS", 1)
    with pytest.raises(RuntimeError, match="the workers end before they take a cell"):
        run_sweep(SPEC, tmp_path / "out", jobs=2, train=toy.train)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where a shell started the tests in its background and
    told them to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_stops_a_worker_where_it_is(tmp_path: Path) -> None:
    spec = toy.spec("a", seeds=1, epochs=50)
    toy.run(spec, tmp_path / "whole")
    owners: list[int] = []

    def interrupt() -> None:
        # The cell gets a checkpoint to go on from.
        while not list((tmp_path / "out").rglob(CHECKPOINT)):
            time.sleep(0.02)
        owners.extend(workers(tmp_path / "out"))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Interrupted, match="stopped; 0 of 1 cells"):
        run_sweep(spec, tmp_path / "out", jobs=2, train=toy.slow(0.2))
    thread.join()
    assert len(owners) == 1 and os.getpid() not in owners
    assert len(read_status(tmp_path / "out")[1]) == 1
    toy.run(spec, tmp_path / "out")
    assert toy.figures(tmp_path / "out") == toy.figures(tmp_path / "whole")
    (resumed,) = (tmp_path / "out").rglob("records.jsonl")
    assert '"type": "resume"' in resumed.read_text()


def test_a_ray_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Ray takes most of the time to start its servers and its workers: the sweep's own cluster is
    # kept, and is the program's afterwards.
    ray = pytest.importorskip("ray")
    ends: list[bool] = []
    with monkeypatch.context() as patch:
        patch.setattr(ray, "shutdown", lambda: ends.append(ray.is_initialized()))
        try:
            survive(tmp_path, engine="ray")
            assert ends == [True]
            with pytest.raises(ValueError, match="the Ray cluster has 2 processors, got 3 jobs"):
                run_sweep(SPEC, tmp_path / "more", jobs=3, engine="ray", train=toy.train)
            assert ray.is_initialized() and ends == [True]
        finally:
            patch.undo()
            ray.shutdown()


def test_a_dask_cluster(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    survive(tmp_path, engine="dask")
    # This cluster is the program's, and its workers are threads of this very process.
    here = {"processes": False, "n_workers": 1, "threads_per_worker": 2}
    with distributed.Client(**here, dashboard_address=None):
        threads = tmp_path / "threads"
        assert run_sweep(SPEC, threads, engine="dask", train=toy.train).missing == 0
        toy.run(SPEC, tmp_path / "alone")
        assert toy.figures(threads) == toy.figures(tmp_path / "alone")
