"""Checkpoints: whole at any moment, and data alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lpkernels.experiments.training.checkpoints import read_checkpoint, write_checkpoint


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    write_checkpoint(path, {"step": 3, "weight": torch.arange(4.0)})
    found = read_checkpoint(path)
    assert found["step"] == 3 and torch.equal(found["weight"], torch.arange(4.0))
    assert [each.name for each in tmp_path.iterdir()] == ["a.pt"]


def test_a_write_that_ends_early_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pt"
    write_checkpoint(path, {"step": 3})

    def half(state: Any, to: Path) -> None:
        Path(to).write_bytes(b"PK half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(path, {"step": 4})
    assert read_checkpoint(path) == {"step": 3}


class Running:
    """Runs when it is unpickled."""

    def __reduce__(self) -> Any:
        return print, ("a checkpoint ran code",)


def test_a_checkpoint_runs_no_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.pt"
    torch.save({"step": Running()}, path)
    with pytest.raises(Exception, match="Weights only load failed"):
        read_checkpoint(path)
    assert capsys.readouterr().out == ""


def test_a_missing_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected a checkpoint at .*none\.pt"):
        read_checkpoint(tmp_path / "none.pt")
