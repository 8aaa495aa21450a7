"""The place where this backend runs here: a CUDA device, or Triton's interpreter on the CPU."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from lpkernels import backends

# Nothing here can be imported without it.
collect_ignore_glob = [] if find_spec("triton") else ["*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("triton")
            # The interpreter computes with NumPy, which reports every NaN and overflow.
            item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))


@pytest.fixture
def device() -> str:
    """The device whose tensors the triton backend takes; the test is skipped, with the reason,
    where there is none."""
    reason = backends.status()["triton"]
    if reason != "available":
        pytest.skip(f"triton: {reason}")
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def compiler() -> None:
    """The test is skipped where kernels cannot be compiled: in the interpreter."""
    from lpkernels.backends.triton import _launch

    if _launch.interpreting():
        pytest.skip("Triton's interpreter compiles nothing")
