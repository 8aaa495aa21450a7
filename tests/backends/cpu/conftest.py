"""What tests of the CPU's kernels get: instruction sets and threads. They need the kernels."""

from pathlib import Path

import pytest

from tests.support.processor import NEEDS_KERNELS, isas, threads

__all__ = ["isas", "threads"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # Those of the processor say for themselves what they need.
        if item.path.parent == Path(__file__).parent and item.path.name != "test_processor.py":
            item.add_marker(NEEDS_KERNELS)
