"""How every kernel of this backend is started.

Kernels are always compiled without contraction, because fused multiply-adds would turn the rounding
rules into the identity. They run on the tensors' own device, on torch's current stream of it.
"""

from __future__ import annotations

import functools
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
from torch import Tensor

# No contraction of a * b + c. Triton contracts by default.
EXACT = {"enable_fp_fusion": False}
#: The most registers that a thread can have.
ALL_REGISTERS = 255


# The oldest version that the tests ran with.
_OLDEST = (3, 6)


def require_version(version: str = triton.__version__) -> None:
    """Raises ImportError where Triton is too old."""
    if tuple(map(int, version.split(".")[:2])) < _OLDEST:
        raise ImportError(
            f"it needs Triton {'.'.join(map(str, _OLDEST))} or newer, found {version}; torch "
            "2.11 for CUDA brings one"
        )


def interpreting() -> bool:
    """Whether kernels run in Triton's interpreter, on the host: TRITON_INTERPRET=1 at import."""
    return bool(triton.knobs.runtime.interpret) or os.environ.get("TRITON_INTERPRET") == "1"


def registers(most: int) -> dict[str, int]:
    """The option that allows a kernel this many registers a thread; without it NVIDIA's compiler
    spills some. Empty for other GPUs and for 0."""
    return {} if torch.version.hip is not None or most == 0 else {"maxnreg": most}


def on_device(x: Tensor) -> AbstractContextManager[Any]:
    """A context in which kernels start on x's device."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def seed_on(seed: Tensor | None, device: torch.device) -> Tensor:
    """The call's seed as a one-element int64 tensor on device; 0 if the call draws nothing.

    It is a tensor and not a number, because numbers would compile a kernel for each seed, and a
    captured graph would draw the same bits at every replay.
    """
    if seed is None:
        return _undrawn(device)
    return seed.to(device, non_blocking=True).reshape(1)


@functools.cache
def _undrawn(device: torch.device) -> Tensor:
    """The seed of all calls that draw nothing, made once for each device."""
    return torch.zeros(1, dtype=torch.int64, device=device)
