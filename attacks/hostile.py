"""Every call of the private operators with one wrong argument: `tests/ops/hostile.py`, whole."""

from typing import Any

from tests.ops.hostile import counted


def run() -> dict[str, Any]:
    calls, refused = counted(1)
    # A signal would have ended the process that makes the calls, and is an AssertionError.
    return {"calls": calls, "refused": refused, "signals": 0}
