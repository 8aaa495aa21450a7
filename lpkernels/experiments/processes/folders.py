"""The folder of a run or a sweep belongs to one command at a time."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# The system gives the lock back when its process ends, however it ends. The file says who has it.
_LOCK = ".lock"


def this_process() -> str:
    """This process in words."""
    return f"process {os.getpid()} on {platform.node()}"


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Inside the block the folder belongs to this thread, which may own it several times. It is
    made where there is none, with those above it, and removed again if the block leaves it empty.

    Raises: BlockingIOError: another process, or another thread, owns the folder.
    """
    from filelock import FileLock, Timeout

    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / _LOCK
    lock = FileLock(path, timeout=0, is_singleton=True)
    try:
        lock.acquire()
    except Timeout as error:
        owner = path.read_text(encoding="utf-8", errors="replace") or "another process"
        raise BlockingIOError(
            f"{folder}: {owner} is at work there; wait for its end, or choose another folder"
        ) from error
    outermost = lock.lock_counter == 1
    try:
        if outermost:
            path.write_text(this_process(), encoding="utf-8")
        yield
    finally:
        if outermost:
            path.unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):
            for empty in missing:
                empty.rmdir()
