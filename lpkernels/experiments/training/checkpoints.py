"""The files that a run goes on from: its last checkpoint, and the one before it.

A checkpoint ends with the SHA-256 of all its bytes before, as the comment of torch's zip file, and
is believed only where the two agree: torch.load itself takes damaged weights without a word.
"""

import contextlib
import hashlib
import io
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lpkernels.experiments.training.config import RunConfig

CHECKPOINT = "checkpoint.pt"
#: The checkpoint before the last one, which a run goes on from where the last one is damaged.
PREVIOUS = "checkpoint.previous.pt"
# The length of a digest, in hexadecimal digits.
_DIGITS = 64


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
    buffer = io.BytesIO()
    torch.save(state, buffer)
    # The last two bytes of a zip file are the length of its comment, which is the digest.
    content = buffer.getvalue()[:-2] + _DIGITS.to_bytes(2, "little")
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content + _digest(content))
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            path.replace(previous(path))
        temporary.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        # The new names are on the disk too, where the system can do that.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def read_checkpoint(path: Path) -> Checkpoint:
    """The last checkpoint that `write_checkpoint` wrote at `path`; where it is damaged or lost, the
    one before.

    Raises:
        FileNotFoundError: there is no checkpoint.
        ValueError: there is one, but no file is whole.
    """
    files = [file for file in (path, previous(path)) if file.exists()]
    if not files:
        raise FileNotFoundError(
            f"expected a checkpoint at {str(path)!r}; a run saves one per epoch and on ctrl-C"
        )
    for file in files:
        content = file.read_bytes()
        if content[:-_DIGITS] and _digest(content[:-_DIGITS]) == content[-_DIGITS:]:
            return Checkpoint(torch.load(io.BytesIO(content), weights_only=True), file)
    names = " and ".join(file.name for file in files)
    raise ValueError(
        f"{path.parent}: expected a checkpoint of this version of lpkernels, but {names} "
        f"{'is' if len(files) == 1 else 'are'} damaged, cut short or something else; start the run "
        "again in another folder"
    )


def read_config(folder: str | Path) -> RunConfig:
    """The configuration of the run in `folder`, from its checkpoint; errors as in
    `read_checkpoint`."""
    return RunConfig.from_dict(read_checkpoint(Path(folder) / CHECKPOINT).state["config"])
