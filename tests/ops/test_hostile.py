"""Whatever the private operators are called with, the process lives."""

import re
import subprocess
import sys

import pytest


def run(every: int) -> str:
    """The output of the hostile calls, in a process of their own."""
    command = [sys.executable, "-m", "tests.ops.hostile", str(every)]
    ended = subprocess.run(command, capture_output=True, text=True)
    last = ended.stderr.splitlines()[-1:]
    assert ended.returncode == 0, f"ended with {ended.returncode} at: {last}"
    return ended.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="guard pages are made by Linux's mprotect")
@pytest.mark.parametrize("every", [19, pytest.param(1, marks=pytest.mark.slow)])
def test_hostile_calls_are_refused(every: int) -> None:
    made, refused = map(int, re.findall(r"\d+", run(every)))
    # A share of them is right by chance: another seed, a role, a format that is one.
    assert made > 1500 and 0.5 * made < refused < made
