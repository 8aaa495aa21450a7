"""Fixtures of tests of the CPU's kernels: instruction sets and threads. They need the kernels."""

from pathlib import Path
from typing import Any

import pytest

from lpkernels.backends import cpu
from tests.support.processor import NEEDS_KERNELS, Isas, isas, threads

__all__ = ["isas", "threads"]


@pytest.fixture
def adapter() -> Any:
    return cpu.BACKEND


@pytest.fixture
def device() -> str:
    return "cpu"


@pytest.fixture
def ways(isas: Isas) -> Isas:
    return isas


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # test_processor.py names its needs itself.
        if item.path.parent == Path(__file__).parent and item.path.name != "test_processor.py":
            item.add_marker(NEEDS_KERNELS)
