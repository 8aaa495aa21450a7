"""The instruction sets that the CPU kernels run here, as the kernels themselves say it; threads.

No other library is asked about the processor: its classes of processors may be others, and may say
nothing about the instructions that the kernels need.
"""

import contextlib
from collections.abc import Iterator

import pytest
import torch

from lpkernels.backends import cpu

NEEDS_KERNELS = pytest.mark.skipif(
    not cpu.BACKEND.available(), reason=f"cpu backend: {cpu.BACKEND.why_not()}"
)

#: The names that LPKERNELS_ISA takes, for processors of each kind. Each instruction set has all
#: those before it.
FAMILIES = {
    "x86-64": ("scalar", "avx2", "avx512", "avx512fp16"),
    "aarch64": ("scalar", "neon", "neonfp16"),
}
ISAS = tuple(dict.fromkeys(name for names in FAMILIES.values() for name in names))


def runs(isa: str) -> bool:
    """Whether LPKERNELS_ISA may name it on this processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LPKERNELS_ISA", isa)
        try:
            chosen = cpu.BACKEND.isa()
        except ValueError as error:
            if f"LPKERNELS_ISA={isa}: this processor runs" not in str(error):
                raise
            return False
    assert chosen == isa
    return True


def choose(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the kernels of this instruction set, as a user would, or skips the test."""
    if not runs(isa):
        pytest.skip(f"this processor does not run {isa}")
    monkeypatch.setenv("LPKERNELS_ISA", isa)
    assert cpu.BACKEND.isa() == isa


class Isas:
    """The instruction sets that this processor runs: a loop over it chooses one after the other.

    A test computes the reference once, and goes through them inside. What fails there is reported
    with the variable's value (`tests/conftest.py`); the instruction sets that the processor lacks
    are reported as skipped by tests/backends/cpu/test_processor.py.

    A `for` must go over it: itertools.product would take all its elements before the first case.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._names = [name for name in ISAS if runs(name)]

    def __iter__(self) -> Iterator[str]:
        for name in self._names:
            self._monkeypatch.setenv("LPKERNELS_ISA", name)
            yield name
        self._monkeypatch.delenv("LPKERNELS_ISA")


@pytest.fixture
def isas(monkeypatch: pytest.MonkeyPatch) -> Isas:
    return Isas(monkeypatch)


class Threads:
    """One, two and three threads: a loop over it sets one number after the other."""

    def __iter__(self) -> Iterator[str]:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            yield f"{count} threads"


@pytest.fixture
def threads() -> Iterator[Threads]:
    """Puts the number of threads back when the test ends."""
    before = torch.get_num_threads()
    yield Threads()
    torch.set_num_threads(before)


@contextlib.contextmanager
def flushed() -> Iterator[None]:
    """A block in which the processor takes and gives subnormal numbers as zeros; skips where it has
    no such mode."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no mode that flushes denormals")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
