"""Processes that agree, as far as one process can tell; leases, by no clock but the observer's."""

import dataclasses
import json
import os
import signal
import threading
import time
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from types import SimpleNamespace

import pytest

from lpkernels.experiments.processes import leases
from lpkernels.experiments.processes.leases import Lease, Note, Watch, hold
from lpkernels.experiments.processes.torchrun import ALONE, Processes, joined
from tests.loops import each, rows
from tests.support.commands import as_rank_0

TWO = (Processes(0, 2), Processes(1, 2))


@each("count, images", [1, 2, 3, 4, 7], [7, 8, 13])
def test_shares_are_the_batch_in_order_and_even(images: int, count: int) -> None:
    shares = [list(range(images))[Processes(rank, count).share(images)] for rank in range(count)]
    assert [i for share in shares for i in share] == list(range(images))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@rows(
    "batch, images, match",
    (63, 640, "batch: 63 examples do not divide by 2 processes; choose a multiple of 2 .* 64"),
    (1, 640, "choose a multiple of 2 such as 2"),
    (64, 641, "of 641 examples in batches of 64 the last batch has 1, fewer than the 2 proc"),
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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The observer's clock."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(leases.time, "monotonic", lambda: clock.now)
    return clock


def note_of(path: Path) -> Note:
    note = Note.read(path)
    assert note is not None
    return note


def elsewhere(path: Path, **changes: object) -> None:
    """The lease of a process of another machine, which cannot be asked."""
    owner = {**vars(leases.Owner.here()), "boot": "another", "host": "far"}
    note = {"owner": owner, "run": "", "seconds": 60.0, "state": leases.HELD, "token": "t"}
    path.write_text(json.dumps({**note, "count": 1, "done": 0, "total": 0, **changes}))


def test_a_lease_is_made_once_and_says_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    with Lease(path) as lease:
        assert (note_of(path).owner, note_of(path).state) == (leases.Owner.here(), leases.HELD)
        with pytest.raises(FileExistsError):
            Lease(path)
        size = path.stat().st_size
        lease._shown = -1e9
        lease.show(3, 7)
        assert (note_of(path).done, note_of(path).total) == (3, 7)
        assert path.stat().st_size == size
        # It lives, but its work has made no step since.
        lease._stepped -= 300
        lease._update(flush=False)
        assert 300 <= note_of(path).idle < 400
        lease.show(4, 7)
        lease._update(flush=False)
        assert note_of(path).idle < 100
    assert Watch().is_over(path)
    note = note_of(path)
    assert note.state == leases.RELEASED
    lease.end(leases.FAILED)
    assert Note.read(path) == note


def test_a_lease_renews_itself_and_survives_a_folder_that_moves(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    with Lease(path, seconds=0.06):
        seen = {path.read_bytes() for _ in range(20) if time.sleep(0.01) is None}
    assert len(seen) > 3
    folder = tmp_path / "a"
    folder.mkdir()
    lease = Lease(folder / "lease", seconds=0.06)
    folder.rename(tmp_path / "b")
    lease.end(leases.FAILED)
    assert note_of(tmp_path / "b" / "lease").state == leases.FAILED


def test_silence_is_judged_by_the_observers_clock(tmp_path: Path, clock: SimpleNamespace) -> None:
    path, watch = tmp_path / "lease", Watch()
    elsewhere(path)
    # By its date the file has not changed for years, but the observer has only just begun to look.
    os.utime(path, (0, 0))
    for seconds, over in ((0, False), (59, False), (2, True)):
        clock.now += seconds
        assert watch.is_over(path) == over
    elsewhere(path, count=2)
    for seconds, over in ((0, False), (61, True)):
        clock.now += seconds
        assert watch.is_over(path) == over


def test_a_lease_says_its_own_time_if_it_is_whole(tmp_path: Path, clock: SimpleNamespace) -> None:
    path, half, watch = tmp_path / "lease", tmp_path / "half", Watch(5)
    elsewhere(path, seconds=600.0)
    half.write_text('{"owner": ')
    assert not watch.is_over(path) and not watch.is_over(half)
    clock.now += 6
    assert watch.is_over(half) and Note.read(half) is None
    clock.now += 494
    assert not watch.is_over(path)
    clock.now += 101
    assert watch.is_over(path)
    assert Watch().is_over(tmp_path / "none")
    assert Note.read(tmp_path / "none") is None


# A new interpreter would take seconds to import the modules that a forked one has.
_FORK = get_context("fork")


def _keep(path: Path, ready: Event) -> None:
    Lease(path)
    ready.set()
    time.sleep(600)


@pytest.mark.skipif(leases.machine() == ("", ""), reason="this system does not tell its boots")
def test_a_killed_process_of_this_machine_is_dead_at_once(tmp_path: Path) -> None:
    path, watch, ready = tmp_path / "lease", Watch(), _FORK.Event()
    owner = _FORK.Process(target=_keep, args=(path, ready))
    owner.start()
    assert ready.wait(60) and not watch.is_over(path)
    owner.kill()
    assert owner.pid is not None
    os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
    # A zombie does nothing more.
    assert watch.is_over(path)
    owner.join()
    assert watch.is_over(path)


def test_who_is_surely_dead() -> None:
    here = leases.Owner.here()
    assert not here.surely_dead()
    if here.boot:
        assert dataclasses.replace(here, start="0").surely_dead()
        assert dataclasses.replace(here, pid=2**22 + 1).surely_dead()
    # Nothing is sure about a process of another machine, another start of this one or another
    # container.
    for field in ("boot", "space"):
        assert not dataclasses.replace(here, **{field: "other"}, pid=2**22 + 1).surely_dead()
    assert not dataclasses.replace(here, boot="", space="", pid=2**22 + 1).surely_dead()


def test_a_folder_is_held_by_one(tmp_path: Path) -> None:
    said: list[str] = []
    with hold(tmp_path, said.append) as held:
        held.check()
        with pytest.raises(BlockingIOError, match=r"process \d+ on .* is at work there; wait for"):
            hold(tmp_path, said.append)
        assert [path.suffix for path in tmp_path.iterdir()] == [".lease"]
    assert list(tmp_path.iterdir()) == [] and said == []
    # A folder that was taken over is noticed.
    with hold(tmp_path, print) as held:
        held.path.unlink()
        with pytest.raises(FileNotFoundError, match="another process has taken it over: this one"):
            held.check()


def _contend(folder: Path, together: Barrier) -> None:
    together.wait(60)
    status = 0
    try:
        hold(folder, print)
    except BlockingIOError:
        status = 3
    # The one that holds the folder keeps it until all others have looked.
    together.wait(60)
    os._exit(status)


def test_of_many_that_come_at_once_one_holds_the_folder(tmp_path: Path) -> None:
    together = _FORK.Barrier(4)
    contenders = [_FORK.Process(target=_contend, args=(tmp_path, together)) for _ in range(4)]
    for contender in contenders:
        contender.start()
    for contender in contenders:
        contender.join()
    assert sorted(contender.exitcode for contender in contenders) == [0, 3, 3, 3]


def _hold_and_die(folder: Path) -> None:
    hold(folder, print)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_dead_owner_s_folder_is_taken_over_at_once(tmp_path: Path) -> None:
    owner = _FORK.Process(target=_hold_and_die, args=(tmp_path,))
    owner.start()
    owner.join()
    (left,) = tmp_path.iterdir()
    said: list[str] = []
    with hold(tmp_path, said.append):
        assert not left.exists() and said == []


def test_a_process_elsewhere_is_watched(tmp_path: Path) -> None:
    other, said = tmp_path / "a.lease", []
    elsewhere(other, seconds=1.5)
    with hold(tmp_path, said.append):
        assert not other.exists()
    who = f"process {os.getpid()} on far"
    assert said == [f"{tmp_path}: waiting up to 60 s for a sign of life from {who}"]
    elsewhere(other, seconds=1.5)
    renewed = threading.Timer(0.4, lambda: elsewhere(other, seconds=1.5, count=2))
    renewed.start()
    with pytest.raises(BlockingIOError, match="on far is at work there"):
        hold(tmp_path, said.append)
    renewed.join()


def test_a_lease_of_wrong_types_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.lease"
    elsewhere(path)
    right = json.loads(path.read_text())
    assert Note.parse(json.dumps(right).encode()) is not None
    wrong = {"seconds": "60", "state": 3, "done": [], "token": None, "owner": {"pid": 1}, "run": 1}
    for name, value in [*wrong.items(), ("seconds", 1e308), ("seconds", -1), ("other", 1)]:
        path.write_text(json.dumps({**right, name: value}))
        assert Note.read(path) is None, name
        assert not Watch().is_over(path), "it is watched for a minute as any other"
    for text in ("", "[]", "7", "null", '"a"'):
        assert Note.parse(text.encode()) is None
