"""Kills with signal 9 at random moments, and the finished cells that must be as before after
each."""

import contextlib
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path

from lpkernels.experiments.processes.folders import owned
from lpkernels.experiments.records import RECORDS
from lpkernels.experiments.sweeps.cells import CELL, WORKER, Folder
from lpkernels.experiments.training.checkpoints import CHECKPOINT


def forked(call: Callable[..., object], *arguments: object) -> ForkProcess:
    """A call in a fork of this process, begun: a new interpreter would take seconds to import what
    a forked one has."""
    process = get_context("fork").Process(target=call, args=arguments)
    process.start()
    return process


@contextlib.contextmanager
def owned_by_another_thread(folder: Path) -> Iterator[None]:
    begun, over = threading.Event(), threading.Event()

    def own() -> None:
        with owned(folder):
            begun.set()
            over.wait()

    thread = threading.Thread(target=own)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()


def is_alive(pid: int) -> bool:
    """Whether a process of this machine works; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    return []


def workers(folder: Path) -> list[int]:
    """The living processes that train cells of a sweep now."""
    found = []
    for path in folder.glob(f"work/*/*/{WORKER}"):
        with contextlib.suppress(OSError):
            found += map(int, re.findall(r"process (\d+) on", path.read_text()))
    return list(filter(is_alive, found))


def stamps(folder: Path) -> dict[str, tuple[int, ...]]:
    """The finished cells of a sweep, each with what changes where its files are written."""
    there = Folder(folder)
    found = {}
    for name in there.finished():
        files = [(there.cells / name / file).stat() for file in (CELL, RECORDS)]
        found[name] = tuple(number for f in files for number in (f.st_ino, f.st_mtime_ns))
    return found


def random_moment(folder: Path, process: ForkProcess, chance: random.Random) -> None:
    """Waits for up to two steps of the training in a folder (new checkpoints or finished cells),
    and for a part of the next step, while the process lives."""
    steps, seen = chance.randrange(3), set[object]()
    while len(seen) <= steps and process.exitcode is None:
        seen.add(_progress(folder))
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.1))


def _progress(folder: Path) -> tuple[object, ...]:
    found: list[object] = [*sorted(Folder(folder).finished())]
    for path in sorted(folder.rglob(CHECKPOINT)):
        with contextlib.suppress(OSError):
            found.append((path.stat().st_ino, path.stat().st_mtime_ns))
    return tuple(found)


def kill_sweep(
    start: Callable[[], ForkProcess], folder: Path, kills: int, chance: random.Random
) -> int:
    """Runs a sweep and kills its command, or one of its workers, while cells run, until it is done
    or so many kills were made; returns how many.

    Fails where a cell that was finished is gone, or another one, after a kill, and where a process
    outlives its command.
    """
    process, done, known = start(), 0, set[int]()
    while done < kills and process.exitcode != 0:
        if process.exitcode is not None:
            process = start()
        while process.exitcode is None and not workers(folder):
            time.sleep(0.01)
        random_moment(folder, process, chance)
        kept, held = stamps(folder), workers(folder)
        known.update(held)
        if process.exitcode is not None or not held:
            continue
        assert process.pid is not None
        victim = chance.choice([process.pid, *held])
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        if victim == process.pid:
            process.join()
        done += 1
        changed = kept.items() - stamps(folder).items()
        assert not changed, f"finished cells were lost or trained again: {changed}"
    process.kill()
    process.join()
    end = time.monotonic() + 60
    while any(map(is_alive, known)):
        assert time.monotonic() < end, "processes of a killed command are still there"
        time.sleep(0.1)
    return done
