"""Leases: files that their owners keep changing, so that others can judge whether the owner lives.

The cells of a sweep have one each (sweeps/places.py), and so has the folder of a run (`hold`).

No two machines' clocks are compared. An observer counts an owner as dead if the file has not
changed for the lease's time by the observer's own clock, or at once if the owner was a process of
this machine that has ended.
"""

import contextlib
import json
import os
import platform
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

#: Seconds without a change after which an owner counts as dead.
SECONDS = 60.0
# A lease is renewed so often in its time: five renewals may be late before it is lost.
_RENEWALS = 6
# The file keeps its size and is written in place, so that a full disk cannot end a lease.
_SIZE = 640
# Progress is not written more often: others look at it about as often.
_SHOWN_EVERY = 0.5

# No lease is longer.
_DAY = 86_400
# The end of the names of leases on a folder.
_SUFFIX = ".lease"
# Two that came at the same moment try again after at most so many seconds.
_AGAIN = 0.5
_LOOK_EVERY = 0.2

HELD, RELEASED, FAILED = "held", "released", "failed"


@cache
def machine() -> tuple[str, str]:
    """This machine since it was started, and the name space of its process ids; ("", "") where the
    system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return boot, os.readlink("/proc/self/ns/pid")  # noqa: PTH115 (no file, but a name)
    except OSError:
        return "", ""


def process_start(pid: int) -> str:
    """When a process of this machine began, in a unit of the system's; "" for one that is dead.

    A zombie is dead: it does nothing more.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The name of the program, in parentheses, may hold anything; the state follows it, and the
    # start is field 22 of proc(5).
    state, *others = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else others[18]


@dataclass(frozen=True)
class Owner:
    """The process that holds a lease."""

    host: str
    boot: str
    space: str
    pid: int
    start: str

    @staticmethod
    def here() -> "Owner":
        return Owner(platform.node()[:64], *machine(), os.getpid(), process_start(os.getpid()))

    def is_near(self) -> bool:
        """Whether it is or was a process of this very machine, since its start."""
        return bool(self.boot) and (self.boot, self.space) == machine()

    def surely_dead(self) -> bool:
        """Whether it was a process of this very machine, since its start, that is no more."""
        if not self.is_near():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            # Another user's process: it is there, and /proc may hide which one it is.
            return False
        return process_start(self.pid) != self.start

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True)
class Note:
    """The content of a lease's file: the owner, the lease of the command that it works for, the
    time of the lease, how far the work is, and for how many seconds it has made no step by the
    owner's clock."""

    owner: Owner
    run: str
    seconds: float
    state: str
    token: str
    done: int = 0
    total: int = 0
    idle: float = 0.0

    @property
    def share(self) -> float:
        """The share of the work that is done."""
        return min(1.0, self.done / max(self.total, 1))

    @staticmethod
    def parse(data: bytes) -> "Note | None":
        """The note in the bytes of a file; None where the owner is writing the file, or died while
        writing."""
        try:
            values = json.loads(data)
            values.pop("count")
            note = Note(**{**values, "owner": Owner(**values["owner"])})
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        sound = _has_types(note) and _has_types(note.owner) and 0 < note.seconds <= _DAY
        return note if sound else None

    @staticmethod
    def read(path: Path) -> "Note | None":
        """The note in a file; None for a file that is not there, or as in `parse`."""
        try:
            return Note.parse(path.read_bytes())
        except OSError:
            return None


def _has_types(record: Owner | Note) -> bool:
    kinds = {f.name: (int, float) if f.type is float else f.type for f in fields(record)}
    return all(isinstance(getattr(record, name), kind) for name, kind in kinds.items())  # type: ignore[arg-type]


L = TypeVar("L", bound="Lease")


class Lease:
    """A lease held by this process, renewed by a thread until it ends; a context.

    Args:
        path: the file, made here; its folder may be renamed while the lease is held.
        seconds: without a change after which others may take it for lost.
        run: the lease of the command that this process works for.
    Raises: FileExistsError: the file is there.
    """

    def __init__(self, path: Path, seconds: float = SECONDS, run: str = "") -> None:
        self._note: dict[str, Any] = {
            "owner": vars(Owner.here()), "run": run, "seconds": seconds, "state": HELD,
            "token": uuid.uuid4().hex, "count": 0, "done": 0, "total": 0, "idle": 0.0,
        }  # fmt: skip
        self.path = path
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._shown = self._stepped = time.monotonic()
        try:
            self._write()
        except OSError:
            os.close(self._file)
            raise
        self._thread = threading.Thread(target=self._renew, daemon=True, name="lease")
        self._thread.start()

    def _write(self) -> None:
        self._note["count"] += 1
        self._note["idle"] = round(time.monotonic() - self._stepped, 1)
        text = json.dumps(self._note, separators=(",", ":"))
        os.pwrite(self._file, text.encode().ljust(_SIZE), 0)

    def _update(self, *, flush: bool, **changes: Any) -> None:
        """Changes the file unless the lease is over.

        A failure to write is no error: the folder may be away for a moment, or removed by whoever
        took over. The work goes on, and whether its result counts is decided at its end.
        """
        with self._lock, contextlib.suppress(OSError):
            if not self._over.is_set():
                self._note |= changes
                self._write()
                if flush:
                    # Other machines see it now.
                    os.fsync(self._file)

    def _renew(self) -> None:
        while not self._over.wait(self._note["seconds"] / _RENEWALS):
            self._update(flush=True)

    def show(self, done: int, total: int) -> None:
        """Notes how far the work is."""
        now = self._stepped = time.monotonic()
        if now - self._shown >= _SHOWN_EVERY:
            self._shown = now
            self._update(flush=False, done=done, total=total)

    def end(self, state: str = RELEASED) -> None:
        """Gives the lease up; later calls do nothing."""
        if self._over.is_set():
            return
        self._update(flush=True, state=state)
        with self._lock:
            self._over.set()
            os.close(self._file)
        self._thread.join()

    def __enter__(self: L) -> L:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


class Watch:
    """An observer of leases, which remembers since when it has seen each unchanged.

    seconds: for a file that does not say its own time.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._seen: dict[Path, tuple[bytes, float]] = {}

    def is_over(self, path: Path) -> bool:
        """Whether the lease was given up, or its owner is dead or silent for the lease's time.

        A lease without its file is over too: only the process that ended a lease removes the file.
        """
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return True
        except OSError:
            # The folder is away for a moment; that says nothing of the owner.
            return False
        note = Note.parse(data)
        if note is not None and (note.state != HELD or note.owner.surely_dead()):
            return True
        before, since = self._seen.get(path, (None, 0.0))
        now = time.monotonic()
        if data != before:
            self._seen[path] = data, now
            return False
        return now - since >= (note.seconds if note else self.seconds)

    def silence(self, path: Path) -> float:
        """For how many seconds this observer has seen no change of a file; 0 for a new one."""
        now = time.monotonic()
        return now - self._seen.get(path, (b"", now))[1]


class Held(Lease):
    """The lease of a folder that this process alone writes into; its end gives the folder back."""

    def check(self) -> None:
        """Raises FileNotFoundError where the folder was moved, or taken over by a process that saw
        no sign of life from this one."""
        if not self.path.exists():
            raise FileNotFoundError(
                f"{self.path.parent} was moved, or another process has taken it over: this "
                "one writes nothing more"
            )

    def end(self, state: str = RELEASED) -> None:
        super().end(state)
        self.path.unlink(missing_ok=True)


def hold(folder: Path, say: Callable[[str], object], seconds: float = SECONDS) -> Held:
    """Takes a folder for this process, also from a dead process; refuses it while a living process
    holds it.

    Every process makes a file of a name that no other uses, and then looks for others' files. Of
    any two processes at least one sees the other's file, and gives way if the other lives.

    Args:
        folder: is there.
        say: gets a sentence before a wait: only time shows whether a process on another machine
            lives.
        seconds: the time of the lease.
    Raises: BlockingIOError: another process holds the folder.
    """
    while True:
        for other in folder.glob(f"*{_SUFFIX}"):
            _outlive(other, say, seconds)
        held = Held(folder / f"{uuid.uuid4().hex}{_SUFFIX}", seconds)
        if [held.path] == list(folder.glob(f"*{_SUFFIX}")):
            return held
        held.end()
        time.sleep(random.SystemRandom().uniform(0, _AGAIN))


def _outlive(path: Path, say: Callable[[str], object], seconds: float) -> None:
    """Waits until another's lease is over, and removes it; BlockingIOError if its owner lives."""
    watch, first, since, told = Watch(seconds), b"", time.monotonic(), False
    while not watch.is_over(path):
        data = _bytes(path)
        note = Note.parse(data)
        who = "another process" if note is None else str(note.owner)
        # A process that came at the same moment as this one gives way and removes its lease.
        stays = time.monotonic() - since > 2 * _AGAIN
        near = note is not None and note.owner.is_near()
        if stays and (near or (first and data and data != first)):
            raise BlockingIOError(
                f"{path.parent}: {who} is at work there; wait for its end, or choose another folder"
            )
        if data and not first:
            first = data
        elif stays and not told:
            told = True
            say(f"{path.parent}: waiting up to {seconds:.0f} s for a sign of life from {who}")
        time.sleep(_LOOK_EVERY)
    path.unlink(missing_ok=True)


def _bytes(path: Path) -> bytes:
    """The content of a file; nothing for a file that is away for a moment."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
