"""Processes that agree, as far as one process can tell, and folders that belong to one."""

import contextlib
import os
import platform
import time
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import pytest

from lpkernels.experiments.processes.folders import owned
from lpkernels.experiments.processes.torchrun import ALONE, Processes, joined
from tests.experiments.killing import forked
from tests.support.commands import as_rank_0

TWO = (Processes(0, 2), Processes(1, 2))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("images", [7, 8, 13])
def test_shares_are_the_batch_in_order_and_even(images: int, count: int) -> None:
    shares = [list(range(images))[Processes(rank, count).share(images)] for rank in range(count)]
    assert [i for share in shares for i in share] == list(range(images))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@pytest.mark.parametrize(
    "batch, images, match",
    [
        (63, 640, "batch: 63 examples do not divide by 2 processes; choose a multiple of 2 .* 64"),
        (1, 640, "choose a multiple of 2 such as 2"),
        (64, 641, "of 641 examples in batches of 64 the last batch has 1, fewer than the 2 proc"),
    ],
)
def test_batches_that_leave_a_process_without_work(batch: int, images: int, match: str) -> None:
    TWO[0].check_batches(64, 640)
    TWO[0].check_batches(64, 642)
    ALONE.check_batches(batch, images)
    with pytest.raises(ValueError, match=match):
        TWO[0].check_batches(batch, images)


def test_processes_have_gpus_of_their_own_and_without_torchrun_there_is_one(monkeypatch):
    second = Processes(3, 4, local_rank=1)
    assert second.device("cpu") == "cpu"
    assert second.device("cuda") == "cuda:1"
    assert ALONE.device("cuda:1") == "cuda:1"
    with pytest.raises(ValueError, match="4 processes cannot share 'cuda:1'; give 'cuda'"):
        second.device("cuda:1")
    monkeypatch.delenv("RANK", raising=False)
    with joined() as processes:
        assert processes is ALONE
    message = r"--fsdp spreads the weights .* start them with torchrun"
    with pytest.raises(ValueError, match=message), joined(sharded=True):
        pass
    as_rank_0(monkeypatch, 1)
    with joined() as processes:
        assert processes is ALONE
    assert processes.sums([1.5, True]) == [1.5, 1]
    assert processes.on_first(lambda: 7) == 7


def _own(folder: Path, ready: Event) -> None:
    with owned(folder):
        ready.set()
        time.sleep(600)


def test_a_folder_is_owned_by_one_process_until_it_ends(tmp_path: Path) -> None:
    ready = get_context("fork").Event()
    owner = forked(_own, tmp_path, ready)
    assert ready.wait(60)
    message = rf"{tmp_path}: process {owner.pid} on {platform.node()} is at work there; wait for"
    with pytest.raises(BlockingIOError, match=message), owned(tmp_path):
        pass
    owner.kill()
    owner.join()
    # The file that the killed process left is no obstacle, and the same thread may own it again.
    assert len(list(tmp_path.iterdir())) == 1
    with owned(tmp_path), owned(tmp_path):
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def _contend(folder: Path, together: Barrier) -> None:
    together.wait(60)
    with contextlib.suppress(BlockingIOError), owned(folder):
        # The one that owns the folder keeps it until all others have looked.
        together.wait(60)
        os._exit(0)
    together.wait(60)
    os._exit(3)


def test_of_many_that_come_at_once_one_owns_the_folder(tmp_path: Path) -> None:
    together = get_context("fork").Barrier(4)
    contenders = [forked(_contend, tmp_path, together) for _ in range(4)]
    for contender in contenders:
        contender.join()
    assert sorted(contender.exitcode or 0 for contender in contenders) == [0, 3, 3, 3]
