"""The files that a run goes on from: its last checkpoint, and the one before it.

A checkpoint ends with the SHA-256 of all its bytes before, as the comment of torch's zip file, and
is believed only where the two agree: torch.load itself takes damaged weights without a word.
"""

import contextlib
import errno
import hashlib
import os
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from lpkernels.experiments.training.config import RunConfig

CHECKPOINT = "checkpoint.pt"
#: The checkpoint before the last one, which a run goes on from where the last one is damaged.
PREVIOUS = "checkpoint.previous.pt"
_DIGITS = 64
_PIECE = 1 << 20
# The message of torch.save when the system lets it write no more.
_TORCH_FULL = ("PytorchStreamWriter", "unexpected pos")


class Checkpoint(NamedTuple):
    """A run's state, and the file that held it."""

    state: dict[str, Any]
    path: Path


def previous(path: Path) -> Path:
    """Where the checkpoint before that at `path` lies."""
    return path.with_name(PREVIOUS)


def has_checkpoint(folder: Path) -> bool:
    """Whether a run left a checkpoint in `folder`, whole or not."""
    return any((folder / name).exists() for name in (CHECKPOINT, PREVIOUS))


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Replaces the checkpoint at `path`, and keeps the former one beside it. On the disk is a whole
    checkpoint at any moment.

    Raises: OSError: the system lets nothing be written; both files are as they were.
    """
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("w+b") as file:
            torch.save(state, file)
            _seal(file)
        if path.exists():
            path.replace(previous(path))
        temporary.replace(path)
    except RuntimeError as error:
        if not any(words in str(error) for words in _TORCH_FULL):
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)
    _flush_folder(path.parent)


def _seal(file: BinaryIO) -> None:
    """Adds the digest as the comment of a zip file that has none (its last two bytes are the
    comment's length); then the file is on the disk."""
    file.seek(-2, os.SEEK_END)
    file.write(_DIGITS.to_bytes(2, "little"))
    file.write(_digest(file, file.tell()))
    file.flush()
    os.fsync(file.fileno())


def _digest(file: BinaryIO, size: int) -> bytes:
    """The digest of the first `size` bytes, where the file then stands."""
    found = hashlib.sha256()
    file.seek(0)
    while piece := file.read(min(_PIECE, size - file.tell())):
        found.update(piece)
    return found.hexdigest().encode()


def _flush_folder(folder: Path) -> None:
    """Sees to it that renamed files have their names on the disk, where the system can do that."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def read_checkpoint(path: Path) -> Checkpoint:
    """The last checkpoint that `write_checkpoint` wrote at `path`; where it is damaged or lost, the
    one before.

    Raises:
        FileNotFoundError: there is no checkpoint.
        ValueError: there is one, but no file is whole.
    """
    there = [each for each in (path, previous(path)) if each.exists()]
    if not there:
        raise FileNotFoundError(
            f"expected a checkpoint at {str(path)!r}; a run saves one per epoch and on ctrl-C"
        )
    for each in there:
        if _is_whole(each):
            return Checkpoint(torch.load(each, weights_only=True), each)
    names = " and ".join(each.name for each in there)
    raise ValueError(
        f"{path.parent}: expected a checkpoint of this version of lpkernels, but {names} "
        f"{'is' if len(there) == 1 else 'are'} damaged, cut short or something else; start the run "
        "again in another folder"
    )


def _is_whole(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END) - _DIGITS
        return size > 0 and _digest(file, size) == file.read()


def read_config(folder: str | Path) -> RunConfig:
    """The configuration of the run in `folder`, from its checkpoint; errors as in
    `read_checkpoint`."""
    return RunConfig.from_dict(read_checkpoint(Path(folder) / CHECKPOINT).state["config"])
