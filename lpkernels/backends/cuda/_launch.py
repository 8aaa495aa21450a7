"""How every kernel of this backend is started: on the tensors' device, on torch's stream of it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from lpkernels import _build


def module() -> ModuleType:
    """lpkernels._C, whose functions that begin with ``cuda_`` start the kernels."""
    return _build.load_extension()


def on_device(x: Tensor) -> AbstractContextManager[Any]:
    """A context in which kernels start on x's device."""
    return torch.cuda.device(x.device)


def stream(x: Tensor) -> int:
    """torch's current stream of x's device."""
    return torch.cuda.current_stream(x.device).cuda_stream


class Seed:
    """A call's seed as kernels take it: a number, or a pointer to one on the device.

    The pointer lets a captured graph draw afresh; nothing is copied to the host.
    """

    def __init__(self, seed: Tensor | None, device: torch.device) -> None:
        on_host = seed is None or seed.device.type == "cpu"
        self.value = int(seed) % 2**64 if seed is not None and on_host else 0
        self.tensor = None if on_host or seed is None else seed.to(device)
        self.pointer = 0 if self.tensor is None else self.tensor.data_ptr()
