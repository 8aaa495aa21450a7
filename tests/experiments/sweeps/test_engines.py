"""Workers in processes, on Ray and on Dask: what they run, and what happens when they die."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lpkernels.experiments.sweeps import engines, sweep
from lpkernels.experiments.sweeps.engines import gpu_of, wants_gpus
from lpkernels.experiments.sweeps.places import read_cell
from lpkernels.experiments.sweeps.reading import read_status
from lpkernels.experiments.sweeps.specification import SweepSpec
from lpkernels.experiments.sweeps.sweep import run_sweep
from lpkernels.experiments.training.checkpoints import CHECKPOINT
from lpkernels.experiments.training.interrupts import Interrupted, sigterm_as_ctrl_c
from tests.experiments.sweeps import toy

SPEC = toy.spec("a", "b", seeds=5)


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, object]:
    """The figures of SPEC, run in this process."""
    run_sweep(SPEC, tmp_path / "whole", jobs=1, train=toy.train)
    return {**toy.figures(tmp_path / "whole")}


@pytest.mark.parametrize(
    ("worker", "visible", "count", "expected"),
    [
        (0, None, 0, {}),
        (0, None, 2, {"CUDA_VISIBLE_DEVICES": "0"}),
        (3, None, 2, {"CUDA_VISIBLE_DEVICES": "1"}),
        (1, "4, 6", 2, {"CUDA_VISIBLE_DEVICES": "6"}),
        (2, "GPU-abc", 1, {"CUDA_VISIBLE_DEVICES": "GPU-abc"}),
    ],
)
def test_workers_take_turns_with_gpus(
    worker: int, visible: str | None, count: int, expected: dict[str, str]
) -> None:
    assert gpu_of(worker, visible, count) == expected


def test_gpus_are_shared_out_unless_cells_name_theirs() -> None:
    assert wants_gpus(["cuda", "cpu"])
    assert not wants_gpus(["cpu"])
    assert not wants_gpus(["cuda", "cuda:1"])


def test_processes_make_the_results_of_this_one(tmp_path: Path, whole: dict[str, object]) -> None:
    with sigterm_as_ctrl_c():
        results = run_sweep(SPEC, tmp_path / "out", jobs=2, train=toy.terminable)
    assert results.missing == 0
    assert toy.figures(tmp_path / "out") == whole


def test_a_cell_whose_worker_dies_goes_on_elsewhere_and_its_neighbours_do_not_notice(
    tmp_path: Path,
) -> None:
    book = tmp_path / "book"
    spec = toy.spec("dies once", "well", "dies always", seeds=1)
    results = run_sweep(spec, tmp_path / "out", jobs=2, train=partial(toy.fragile, book=book))
    assert {r.arm: r.status for r in results.results} == {
        "dies once": "finished",
        "well": "finished",
        "dies always": "failed",
    }
    error = results.results[2].error
    assert error.count("its worker died (process") == 2
    starts = book.read_text().splitlines()
    assert [starts.count(arm) for arm in spec.arms] == [2, 1, 2]


def test_a_cell_that_hangs_is_stopped_at_its_limit_and_others_go_on(tmp_path: Path) -> None:
    # This takes 6 seconds, in which two workers start, one after the other.
    book = tmp_path / "book"
    spec = replace(toy.spec("hangs once", "well", seeds=1), cell_seconds=0.5)
    results = run_sweep(spec, tmp_path / "out", jobs=1, train=partial(toy.fragile, book=book))
    assert [r.status for r in results.results] == ["finished"] * 2
    cell = read_cell(tmp_path / "out" / "cells" / results.results[0].cell)
    assert cell["before"] == ["ran longer than its limit of 0.5 s"]
    assert book.read_text().splitlines() == ["hangs once", "well", "hangs once"]


def test_workers_that_cannot_start_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_begin", os._exit)
    monkeypatch.setattr(engines, "_VAIN_STARTS", 1)
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
def test_ctrl_c_stops_workers_where_they_are(tmp_path: Path) -> None:
    spec = toy.spec("a", "b", seeds=1, epochs=100)
    run_sweep(spec, tmp_path / "whole", jobs=1, train=toy.train)

    def interrupt() -> None:
        # Both cells get a checkpoint to go on from: a cell takes longer than workers need to start.
        while len(list((tmp_path / "out").rglob(CHECKPOINT))) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Interrupted, match="stopped; 0 of 2 cells"):
        run_sweep(spec, tmp_path / "out", jobs=2, train=toy.slow(0.5))
    thread.join()
    status = read_status(tmp_path / "out")
    assert len(status.begun) == 2 and status.running == []
    run_sweep(spec, tmp_path / "out", jobs=1, train=toy.train)
    assert toy.figures(tmp_path / "out") == toy.figures(tmp_path / "whole")
    resumed = [p.read_text() for p in (tmp_path / "out").rglob("records.jsonl")]
    assert all('"type": "resume"' in text for text in resumed)


def test_a_local_ray_cluster(tmp_path: Path, whole: dict[str, object]) -> None:
    # This takes 20 seconds, most of which Ray takes to start its servers and its workers.
    pytest.importorskip("ray")
    with sigterm_as_ctrl_c():
        before = signal.getsignal(signal.SIGTERM)
        results = run_sweep(SPEC, tmp_path / "out", jobs=2, engine="ray", train=toy.terminable)
        assert signal.getsignal(signal.SIGTERM) is before
    assert results.missing == 0
    assert toy.figures(tmp_path / "out") == whole


def test_more_jobs_than_ray_has_room_for(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        with pytest.raises(ValueError, match="the Ray cluster has 1 processors, got 2 jobs"):
            run_sweep(SPEC, tmp_path / "out", jobs=2, engine="ray", train=toy.train)
        assert ray.is_initialized()
    finally:
        ray.shutdown()


def test_a_local_dask_cluster(tmp_path: Path, whole: dict[str, object]) -> None:
    pytest.importorskip("distributed")
    with sigterm_as_ctrl_c():
        results = run_sweep(SPEC, tmp_path / "out", jobs=2, engine="dask", train=toy.terminable)
    assert results.missing == 0
    assert toy.figures(tmp_path / "out") == whole


def test_the_programs_own_dask_cluster_and_a_worker_that_dies(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    book = tmp_path / "book"
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=2, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster),
    ):
        spec = replace(toy.spec("dies once", "hangs once", "well", seeds=1), cell_seconds=2)
        train = partial(toy.fragile, book=book)
        results = run_sweep(spec, tmp_path / "out", engine="dask", train=train)
    assert [r.status for r in results.results] == ["finished"] * 3


def test_a_limit_does_not_end_the_command_whose_threads_are_dask_s_workers(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    spec = replace(toy.spec("a", seeds=1), cell_seconds=2)
    with (
        distributed.Client(processes=False, n_workers=1, dashboard_address=None),
        pytest.raises(RuntimeError, match="cell_seconds: expected workers in processes of their"),
    ):
        run_sweep(spec, tmp_path, engine="dask", train=toy.train)


@pytest.mark.slow
def test_a_cell_that_hangs_on_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    spec = replace(toy.spec("hangs once", "well", seeds=1), cell_seconds=2)
    train = partial(toy.fragile, book=tmp_path / "book")
    results = run_sweep(spec, tmp_path / "out", jobs=2, engine="ray", train=train)
    assert [r.status for r in results.results] == ["finished"] * 2


def test_jobs_are_the_processors_by_the_threads_of_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "processors", lambda: 8)
    for threads, jobs in ((1, 8), (3, 2), (16, 1), (0, 1)):
        cells = SweepSpec(base={"threads": threads}).cells()
        assert sweep._checked(cells, "processes", None, toy.train) == jobs
    assert sweep._checked(cells, "processes", 5, toy.train) == 5
