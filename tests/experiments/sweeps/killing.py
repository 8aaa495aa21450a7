"""Kills of sweeps with signal 9, at random moments, and the cells that must be as before after
each."""

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from lpkernels.experiments.processes.leases import HELD, Note, process_start
from lpkernels.experiments.records import RECORDS
from lpkernels.experiments.sweeps.cells import CELL
from lpkernels.experiments.sweeps.places import LEASE, Places
from lpkernels.experiments.training.checkpoints import CHECKPOINT


class Killable(Protocol):
    """A process that was started; subprocess.Popen is one."""

    @property
    def pid(self) -> Any: ...
    @property
    def returncode(self) -> Any: ...
    def poll(self) -> int | None: ...
    def kill(self) -> None: ...
    def wait(self) -> int: ...


class Kept:
    """The finished cells of a sweep, which must stay as they are and be trained no second time."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._cells: dict[str, tuple[int, ...]] = {}
        self._tries: dict[str, list[int]] = {}

    def look(self) -> None:
        """Fails where a cell that was finished at the last look is gone, another one, or begun
        again."""
        cells = {name: _stamp(self.places.cells / name) for name in self.places.finished()}
        changed = self._cells.items() - cells.items()
        assert not changed, f"finished cells were lost or made anew: {changed}"
        tries = self.places.tries()
        for name in self._cells:
            # A try that has no records yet may be one that notices just now that it came too late.
            new = set(tries.get(name, ())).difference(self._tries[name])
            again = [number for number in new if (self.places.at(name, number) / RECORDS).exists()]
            assert not again, f"the finished cell {name} is trained again, by its tries {again}"
        self._cells, self._tries = cells, {name: tries.get(name, []) for name in cells}


def _stamp(folder: Path) -> tuple[int, ...]:
    files = [(folder / name).stat() for name in (CELL, RECORDS)]
    return tuple(number for file in files for number in (file.st_ino, file.st_mtime_ns))


def random_moment(folder: Path, process: Killable, chance: random.Random) -> None:
    """Waits for up to two steps of the training in a folder (new checkpoints or finished cells),
    and for a part of the next step, while the process lives."""
    steps, seen = chance.randrange(3), set[object]()
    while len(seen) <= steps and process.poll() is None:
        seen.add(_progress(folder))
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.2))


def _progress(folder: Path) -> tuple[object, ...]:
    found: list[object] = [*sorted(Places(folder).finished())]
    for path in sorted(folder.rglob(CHECKPOINT)):
        with contextlib.suppress(OSError):
            found.append((str(path), path.stat().st_ino, path.stat().st_mtime_ns))
    return tuple(found)


def workers(places: Places) -> list[int]:
    """The processes that hold a cell now."""
    tries = [places.at(cell, numbers[-1]) / LEASE for cell, numbers in places.tries().items()]
    held = [note for note in map(Note.read, tries) if note and note.state == HELD]
    return [note.owner.pid for note in held if not note.owner.surely_dead()]


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    return []


def wait_for_end(processes: set[int]) -> None:
    """Fails unless the processes end, as the workers of a killed command must."""
    end = time.monotonic() + 90
    while any(process_start(pid) for pid in processes):
        assert time.monotonic() < end, "processes of a killed command are still there"
        time.sleep(0.1)


def kill_some(
    start: Callable[[], Killable], folder: Path, kills: int, chance: random.Random
) -> Counter[str]:
    """Runs a sweep and kills its command or one of its workers, `kills` times, at random moments
    while cells run; returns how often each was killed before the sweep was done."""
    places, process = Places(folder), start()
    done: Counter[str] = Counter()
    known: set[int] = set()
    kept = Kept(places)
    while done.total() < kills:
        if process.poll() is not None:
            if process.returncode == 0:
                break
            process = start()
        while not workers(places) and process.poll() is None:
            time.sleep(0.01)
            kept.look()
        random_moment(folder, process, chance)
        held = workers(places)
        if not held:
            # These were workers of a command that was killed before.
            continue
        known.update(children(process.pid))
        victim = chance.choice([chance.choice(held), process.pid])
        done["commands" if victim == process.pid else "workers"] += 1
        if victim == process.pid:
            process.kill()
            process.wait()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        kept.look()
    process.kill()
    process.wait()
    wait_for_end(known)
    return done
