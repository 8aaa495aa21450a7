"""Fixtures of tests of the CPU's kernels: instruction sets and threads. They need the kernels."""

from pathlib import Path

import pytest

from tests.support.processor import NEEDS_KERNELS, isas, threads

__all__ = ["isas", "threads"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # test_processor.py names its needs itself.
        if item.path.parent == Path(__file__).parent and item.path.name != "test_processor.py":
            item.add_marker(NEEDS_KERNELS)
