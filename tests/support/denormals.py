"""A processor that flushes denormals, as some programs set it for speed."""

import contextlib
from collections.abc import Iterator

import pytest
import torch


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
