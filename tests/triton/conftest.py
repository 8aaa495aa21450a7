"""Where this backend runs here: a CUDA device, or Triton's interpreter on the CPU."""

import pytest
import torch

from lpkernels import backends


@pytest.fixture
def device() -> str:
    """The device whose tensors the triton backend takes; skips, with the reason, where none."""
    reason = backends.status()["triton"]
    if reason != "available":
        pytest.skip(f"triton: {reason}")
    return "cuda" if torch.cuda.is_available() else "cpu"
