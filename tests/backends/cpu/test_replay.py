"""The fixed calls of tests/support/replay.py give the bits on record, on every instruction set."""

import pytest

from tests.support import replay
from tests.support.processor import Isas


def test_replay_cpu(isas: Isas) -> None:
    listed = replay.calls()
    for isa in isas:
        lines, made = replay.changed(listed)
        assert not lines, "\n".join([f"{len(lines)} calls moved on {isa}:", *lines])
        assert made == len(listed)


@pytest.mark.slow
def test_replay_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPKERNELS_BACKEND", "reference")
    listed = replay.calls()
    lines, made = replay.changed(listed)
    assert not lines, "\n".join(lines)
    assert made == len(listed)


def test_replay_prints_the_call_whose_bits_moved() -> None:
    first, second, *_ = replay.calls()
    lines, made = replay.changed([first._replace(digest="0" * 12), second])
    assert lines == [f"{first.digest} in the place of {'0' * 12}: {first.text}"]
    assert made == 2
