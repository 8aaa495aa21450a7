"""Leases are held, shown, ended and judged, by no clock but the observer's."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lpkernels.experiments.sweeps import leases
from lpkernels.experiments.sweeps.leases import FAILED, HELD, RELEASED, Lease, Note, Owner, Watch


class Clock:
    """The observer's clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(leases.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def elsewhere(path: Path, **changes: object) -> None:
    """The lease of a process of another machine, which cannot be asked."""
    owner = {"host": "far", "boot": "b", "space": "s", "pid": 1, "start": "2"}
    note = {"owner": owner, "run": "", "seconds": 60.0, "state": HELD, "token": "t", "count": 1}
    path.write_text(json.dumps({**note, "done": 0, "total": 0, **changes}))


def test_a_lease_is_made_once_and_says_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    with Lease(path) as lease:
        note = Note.read(path)
        assert note is not None and note.owner == Owner.here() and note.state == HELD
        with pytest.raises(FileExistsError):
            Lease(path)
        size = path.stat().st_size
        lease._shown = -1e9
        lease.show(3, 7)
        note = Note.read(path)
        assert note is not None and (note.done, note.total) == (3, 7)
        assert path.stat().st_size == size
    assert Watch().is_over(path)
    note = Note.read(path)
    assert note is not None and note.state == RELEASED
    lease.end(FAILED)
    assert Note.read(path) == note


def test_a_lease_renews_itself(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    with Lease(path, seconds=0.06):
        seen = {path.read_bytes() for _ in range(20) if time.sleep(0.01) is None}
    assert len(seen) > 3


def test_a_lease_survives_a_folder_that_moves_and_one_that_goes(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    lease = Lease(folder / "lease", seconds=0.06)
    folder.rename(tmp_path / "b")
    lease.end(FAILED)
    note = Note.read(tmp_path / "b" / "lease")
    assert note is not None and note.state == FAILED


def test_silence_is_judged_by_the_observers_clock(tmp_path: Path, clock: Clock) -> None:
    path, watch = tmp_path / "lease", Watch()
    elsewhere(path)
    # By its date the file has not changed for years, but the observer has only just begun to look.
    os.utime(path, (0, 0))
    assert not watch.is_over(path)
    clock.now += 59
    assert not watch.is_over(path)
    clock.now += 2
    assert watch.is_over(path)
    elsewhere(path, count=2)
    assert not watch.is_over(path)
    clock.now += 61
    assert watch.is_over(path)


def test_the_lease_says_its_own_time(tmp_path: Path, clock: Clock) -> None:
    path, watch = tmp_path / "lease", Watch(5)
    elsewhere(path, seconds=600.0)
    assert not watch.is_over(path)
    clock.now += 500
    assert not watch.is_over(path)
    clock.now += 101
    assert watch.is_over(path)


def test_half_a_lease_is_judged_by_silence_too(tmp_path: Path, clock: Clock) -> None:
    path, watch = tmp_path / "lease", Watch(5)
    path.write_text('{"owner": ')
    assert not watch.is_over(path)
    clock.now += 6
    assert watch.is_over(path)
    assert Note.read(path) is None


def test_a_lease_that_is_gone_is_over(tmp_path: Path) -> None:
    assert Watch().is_over(tmp_path / "none")
    assert Note.read(tmp_path / "none") is None


@pytest.mark.skipif(leases.machine() == ("", ""), reason="this system does not tell its boots")
def test_a_killed_process_of_this_machine_is_dead_at_once(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from lpkernels.experiments.sweeps.leases import Lease\n"
        "Lease(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    )
    path, watch = tmp_path / "lease", Watch()
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    assert not watch.is_over(path)
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    # A zombie does nothing more.
    assert watch.is_over(path)
    process.communicate()
    assert watch.is_over(path)


def test_who_is_surely_dead() -> None:
    here = Owner.here()
    assert not here.surely_dead()
    if here.boot:
        assert dataclasses.replace(here, start="0").surely_dead()
        assert dataclasses.replace(here, pid=2**22 + 1).surely_dead()
    # Nothing is sure about a process of another machine, another start of this one or another
    # container.
    for field in ("boot", "space"):
        assert not dataclasses.replace(here, **{field: "other"}, pid=2**22 + 1).surely_dead()
    assert not dataclasses.replace(here, boot="", space="", pid=2**22 + 1).surely_dead()
