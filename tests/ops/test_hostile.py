"""Whatever the private operators are called with, the process lives."""

import sys

import pytest

from tests.ops.hostile import counted


@pytest.mark.skipif(sys.platform != "linux", reason="guard pages are made by Linux's mprotect")
@pytest.mark.parametrize("every", [19, pytest.param(1, marks=pytest.mark.slow)])
def test_hostile_calls_are_refused(every: int) -> None:
    made, refused = counted(every)
    # A share of them is right by chance: another seed, a role, a format that is one.
    assert made > 1500 and 0.5 * made < refused < made
