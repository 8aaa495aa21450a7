"""The folder of a sweep: where cells lie, how one is claimed, finished, given up.

    sweep.jsonl             the specifications: a line for each one that was run here
    cells/<cell>/           a finished cell: records.jsonl of its run, and cell.json
    failed/<cell>/          a cell that failed twice
    work/<cell>.<number>/   a try at a cell: lease.json, and the files from which its run goes on
    runs/<name>             the lease of a command that works here

A cell is claimed by making the folder of its next try, and finished by renaming that folder: each
is one rename onto a name that must not be there, and the file system lets one process win. So any
number of workers on any number of machines share a folder, and need no other meeting place.
"""

import contextlib
import errno
import faulthandler
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lpkernels.experiments.processes.leases import FAILED, HELD, SECONDS, Lease, Note, Watch
from lpkernels.experiments.records import RECORDS, Record
from lpkernels.experiments.sweeps.cells import write_cell
from lpkernels.experiments.training.checkpoints import CHECKPOINT, PREVIOUS

LOG = "sweep.jsonl"
LEASE = "lease.json"
#: The traceback of a try that failed, or the stacks of one that ran over its limit.
ERROR = "error.txt"
# Says in the folder of a try that its worker died, and its command did not.
_DIED = "died.txt"
# A cell is given up after so many tries that ended badly.
_BAD_TRIES = 2
# The names of a sweep's cells, of the tries at them, and of leases and unfinished folders.
_CELL = re.compile(r"[0-9a-f]{16}-[0-9a-f]{8}")
_TRY = re.compile(rf"({_CELL.pattern})\.(\d{{1,9}})")
_UNIQUE = re.compile(r"\.?[0-9a-f]{32}")
_WORK = re.compile(f"{_TRY.pattern}|{_UNIQUE.pattern}")
# The errors of a rename onto a folder that is there and not empty; they depend on the system.
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY)


class Places:
    """The folders of a sweep below `root`; nothing is made until `make`."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.log = self.root / LOG
        self.cells, self.failed = self.root / "cells", self.root / "failed"
        self.work, self.runs = self.root / "work", self.root / "runs"

    def make(self) -> None:
        for folder in (self.cells, self.failed, self.work, self.runs):
            folder.mkdir(parents=True, exist_ok=True)

    def finished(self) -> set[str]:
        """The names of finished cells, of any version."""
        return {name for name in _names(self.cells) if _CELL.fullmatch(name)}

    def given_up(self) -> set[str]:
        """The names of cells that failed, of any version."""
        return {name for name in _names(self.failed) if _CELL.fullmatch(name)} - self.finished()

    def tries(self) -> dict[str, list[int]]:
        """The numbers of the tries at cells that lie in `work`, ascending."""
        found: dict[str, list[int]] = {}
        for match in filter(None, map(_TRY.fullmatch, _names(self.work))):
            found.setdefault(match[1], []).append(int(match[2]))
        return {cell: sorted(numbers) for cell, numbers in found.items()}

    def held(self) -> dict[str, Note]:
        """The leases of the last tries that are held, by cell; some of their owners may be dead."""
        notes = {c: Note.read(self.at(c, n[-1]) / LEASE) for c, n in self.tries().items()}
        return {cell: note for cell, note in notes.items() if note and note.state == HELD}

    def strangers(self) -> list[str]:
        """The names of files and folders here that are no sweep's; nobody looks into them."""
        own = {self.cells: _CELL, self.failed: _CELL, self.work: _WORK, self.runs: _UNIQUE}
        return sorted(
            f"{folder.name}/{name}"
            for folder, pattern in own.items()
            for name in _names(folder)
            if not pattern.fullmatch(name)
        )

    def at(self, cell: str, number: int) -> Path:
        """The folder of a try."""
        return self.work / f"{cell}.{number}"

    def settled(self, cell: str) -> Path:
        """The folder of a cell that is finished or failed."""
        finished = self.cells / cell
        return finished if finished.is_dir() else self.failed / cell

    def is_settled(self, cell: str) -> bool:
        return self.settled(cell).is_dir()

    def hidden(self) -> Path:
        """The name of a folder that nobody looks into, new with every call."""
        return self.work / f".{uuid.uuid4().hex}"

    def remove(self, folder: Path) -> None:
        """Removes a folder; nobody sees half of it. One that is gone already is no error."""
        hidden = self.hidden()
        with contextlib.suppress(FileNotFoundError):
            folder.rename(hidden)
            shutil.rmtree(hidden, ignore_errors=True)

    def sweep_up(self, watch: Watch) -> None:
        """Removes the leavings of killed commands: tries at finished cells, folders that were being
        made or removed, leases of commands."""
        for cell, numbers in self.tries().items():
            if (self.cells / cell).is_dir():
                for number in numbers:
                    self.remove(self.at(cell, number))
        for folder in (self.work / name for name in _names(self.work) if _UNIQUE.fullmatch(name)):
            # An empty one may be about to become a try.
            held = (folder / LEASE).exists() and not watch.is_over(folder / LEASE)
            if not held and any(folder.iterdir()):
                shutil.rmtree(folder, ignore_errors=True)
        for lease in (self.runs / name for name in _names(self.runs) if _UNIQUE.fullmatch(name)):
            if watch.is_over(lease):
                lease.unlink(missing_ok=True)


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))  # noqa: PTH208 (names, and no files)
    except FileNotFoundError:
        return set()


@dataclass
class Claim:
    """A try at a cell by this process, which alone writes into `folder` while the lease is held.

    bad: the bad ends of former tries, in words.
    """

    places: Places
    cell: str
    folder: Path
    lease: Lease
    bad: list[str]

    @contextlib.contextmanager
    def limited(self, seconds: float | None) -> Iterator[None]:
        """Ends this process where the block takes longer. C code that never gives Python a turn
        is ended too, since faulthandler's watchdog needs none.

        Whoever takes the cell next finds the sentence below in the folder, and behind it the
        stacks, which the watchdog adds.
        """
        if seconds is None:
            yield
            return
        path = self.folder / ERROR
        with path.open("w", encoding="utf-8") as file:
            file.write(f"ran longer than its limit of {seconds:.10g} s\n")
            file.flush()
            faulthandler.dump_traceback_later(seconds, exit=True, file=file)
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()
                path.unlink(missing_ok=True)

    def finish(self, record: Record) -> bool:
        """Makes this folder the finished cell's; False where another try was faster."""
        write_cell(self.folder, record)
        if not self._settle(self.places.cells):
            return False
        for name in (CHECKPOINT, PREVIOUS):
            with contextlib.suppress(OSError):
                (self.places.cells / self.cell / name).unlink(missing_ok=True)
        if (self.places.failed / self.cell).is_dir():
            # It was given up on while this try was still at work.
            self.places.remove(self.places.failed / self.cell)
        return True

    def fail(self, record: Record, error: str) -> bool:
        """Ends a try that failed; True if the cell is given up by it."""
        (self.folder / ERROR).write_text(error, encoding="utf-8")
        if len(self.bad) + 1 < _BAD_TRIES:
            self.lease.end(FAILED)
            return False
        return self.give_up(record)

    @property
    def is_hopeless(self) -> bool:
        """Whether the former tries are enough to give the cell up."""
        return len(self.bad) >= _BAD_TRIES

    def give_up(self, record: Record) -> bool:
        """Records the cell as failed; False where it was finished or given up by another."""
        write_cell(self.folder, record)
        return self._settle(self.places.failed)

    def _settle(self, where: Path) -> bool:
        try:
            self.folder.rename(where / self.cell)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            self.drop()
            return False
        self.lease.end()
        for name in (LEASE, _DIED):
            with contextlib.suppress(OSError):
                (where / self.cell / name).unlink(missing_ok=True)
        for number in self.places.tries().get(self.cell, []):
            self.places.remove(self.places.at(self.cell, number))
        return True

    def drop(self) -> None:
        """Ends the try and removes its folder."""
        self.lease.end()
        self.places.remove(self.folder)

    def release(self) -> None:
        """Ends the try as it is, for whoever goes on."""
        self.lease.end()


def take(
    places: Places,
    cell: str,
    tries: Sequence[int],
    watch: Watch,
    *,
    seconds: float = SECONDS,
    run: str = "",
) -> Claim | None:
    """Claims a cell; None where another holds it, was faster, or it is finished or given up.

    The new try goes on from the last checkpoint of the former tries, unless an error ended them.
    Then it starts again, since the checkpoint may be the cause.

    Args:
        tries: the numbers of former tries, as the caller found them.
        watch: remembers the leases of others between the calls.
        seconds: the time of the new lease.
        run: the lease of the command that this process works for.
    """
    former, died = [places.at(cell, number) for number in tries], ""
    if former:
        died = _death(places, former[-1], watch)
        if not watch.is_over(former[-1] / LEASE):
            return None
    folder = places.at(cell, tries[-1] + 1 if tries else 1)
    lease = _new_try(places, folder, seconds, run)
    if lease is None:
        return None
    claim = Claim(places, cell, folder, lease, [])
    try:
        if places.is_settled(cell):
            # It was settled since the caller looked, and the folders of its tries are removed.
            claim.drop()
            return None
        if died:
            with contextlib.suppress(FileNotFoundError):
                (former[-1] / _DIED).write_text(died, encoding="utf-8")
        ends = (_error(other) or "".join(_lines(other / _DIED)) for other in former)
        claim.bad = [end for end in ends if end]
        if claim.is_hopeless and _error(former[-1]):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(former[-1] / ERROR, folder / ERROR)
        _inherit(former, folder)
    except BaseException:
        claim.release()
        raise
    return claim


def _new_try(places: Places, folder: Path, seconds: float, run: str) -> Lease | None:
    """Makes the folder of a try, which holds a lease at any moment; None if it is there already."""
    prepared, lease = places.hidden(), None
    try:
        prepared.mkdir()
        lease = Lease(prepared / LEASE, seconds, run)
        prepared.rename(folder)
    except BaseException as error:
        if lease is not None:
            lease.end()
        shutil.rmtree(prepared, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in _TAKEN:
            return None
        raise
    return lease


def _death(places: Places, folder: Path, watch: Watch) -> str:
    """A sentence for a try if its worker seems dead and the worker's command lives: then the worker
    died of its cell, and was not killed with everything else. "" for other tries.

    Both leases are watched from the same moment on. A command that ended together with its worker
    is silent for as long as the worker, give or take a renewal.
    """
    note = Note.read(folder / LEASE)
    if note is None or note.state != HELD or not note.run or watch.is_over(places.runs / note.run):
        return ""
    silence = 2 * watch.silence(places.runs / note.run)
    outlived = note.owner.surely_dead() or silence < watch.silence(folder / LEASE)
    return f"its worker died ({note.owner})" if outlived else ""


def _error(folder: Path) -> str:
    """The error that ended a try, in a sentence; "" for a try that none ended.

    A worker that its cell's limit ended could not mark its lease.
    """
    note, lines = Note.read(folder / LEASE), _lines(folder / ERROR)
    if note is not None and note.state == FAILED:
        return lines[-1] if lines else "an error"
    overran = note is not None and note.state == HELD and len(lines) > 1
    return lines[0] if overran else ""


def _lines(path: Path) -> list[str]:
    """The lines of a text; none where there is no such file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return []


def _inherit(former: Sequence[Path], folder: Path) -> None:
    """Copies the last checkpoint of former tries, and the one before it; a try that an error ended
    does not count, nor do the tries before it."""
    for other in reversed(former):
        if _error(other):
            return
        # The records after the checkpoint: a run adds to them before it saves, and may be alive.
        # The checkpoint gets its name last, so that it never lacks its records.
        copied = folder / f"{CHECKPOINT}.copy"
        try:
            shutil.copyfile(other / CHECKPOINT, copied)
            shutil.copyfile(other / RECORDS, folder / RECORDS)
            if (other / PREVIOUS).is_file():
                shutil.copyfile(other / PREVIOUS, folder / PREVIOUS)
        except FileNotFoundError:
            copied.unlink(missing_ok=True)
            continue
        except OSError:
            copied.unlink(missing_ok=True)
            raise
        copied.replace(folder / CHECKPOINT)
        return
