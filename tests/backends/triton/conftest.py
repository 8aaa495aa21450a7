"""The place where this backend runs here: a CUDA device, or Triton's interpreter on the CPU."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from lpkernels import backends

# Nothing here can be imported without it.
collect_ignore_glob = [] if find_spec("triton") else ["*.py"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mine = {item for item in items if Path(__file__).parent in item.path.parents}
    for item in mine:
        item.add_marker("triton")
        # The interpreter computes with NumPy, which reports every NaN and overflow.
        item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
    if os.environ.get("TRITON_INTERPRET") == "1":
        # Tests that ask for no device read plans, launches or compiled kernels. They run without
        # the interpreter, which compiles nothing and would only repeat them.
        left_out = {item for item in mine if "device" not in item.fixturenames}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def device() -> str:
    """The device whose tensors the triton backend takes; the test is skipped, with the reason,
    where there is none."""
    reason = backends.status()["triton"]
    if reason != "available":
        pytest.skip(f"triton: {reason}")
    return "cuda" if torch.cuda.is_available() else "cpu"
