"""The fixed calls of tests/support/replay.py give the bits on record."""

import pytest

from lpkernels.backends.cuda import BACKEND
from tests.support import replay


@pytest.mark.cuda
def test_replay_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := BACKEND.why_not():
        pytest.skip(reason)
    monkeypatch.setenv("LPKERNELS_BACKEND", "cuda")
    listed = replay.calls()
    lines, made = replay.changed(listed, "cuda")
    assert not lines, "\n".join(lines)
    assert made > 0.8 * len(listed)
