"""The file a run goes on from, whole at any moment."""

from pathlib import Path
from typing import Any

import torch

from lpkernels.experiments.training.config import RunConfig

CHECKPOINT = "checkpoint.pt"


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Replaces the file at once."""
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    temporary.replace(path)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What `write_checkpoint` wrote.

    Raises: FileNotFoundError: there is no such file.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"expected a checkpoint at {str(path)!r}; a run saves one per epoch and on ctrl-C"
        )
    return torch.load(path, weights_only=True)


def read_config(folder: str | Path) -> RunConfig:
    """What the run in `folder` trains, by its checkpoint; errors as in `read_checkpoint`."""
    return RunConfig.from_dict(read_checkpoint(Path(folder) / CHECKPOINT)["config"])
