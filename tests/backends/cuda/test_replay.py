"""The fixed calls of tests/support/replay.py give the bits on record."""

from typing import Any

import pytest
import torch

from lpkernels import backends
from lpkernels.backends.cuda import BACKEND
from tests.support import replay

#: The least part of the calls that this backend makes. The others ask for orders, blocks and
#: elementwise work that only Triton has on a GPU.
SHARE = 0.4


def test_the_backend_has_its_share_of_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """This shows without a device, where another backend makes what this one does not refuse."""

    def select(name: str, op: str, device: torch.device) -> Any:
        if reason := BACKEND.unsupported(op, torch.device("cuda")):
            raise NotImplementedError(reason)
        return backends.get("cpu")

    monkeypatch.setattr(backends, "select", select)
    listed = replay.calls()[::3]
    _, made = replay.changed(listed)
    assert made > SHARE * len(listed)


@pytest.mark.cuda
def test_replay_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := BACKEND.why_not():
        pytest.skip(reason)
    monkeypatch.setenv("LPKERNELS_BACKEND", "cuda")
    listed = replay.calls()
    lines, made = replay.changed(listed, "cuda")
    assert not lines, "\n".join(lines)
    assert made > SHARE * len(listed)
