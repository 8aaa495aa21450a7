"""The fixed calls of tests/support/replay.py give the bits on record: a share of them in the
interpreter, all of them on a device."""

import pytest

from tests.support import replay


def test_replay_triton(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPKERNELS_BACKEND", "triton")
    listed = replay.calls(large=False)[::25] if device == "cpu" else replay.calls()
    lines, replayed = replay.changed(listed, device)
    assert not lines, "\n".join(lines)
    assert replayed > 0.8 * len(listed)
