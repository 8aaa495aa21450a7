"""A counter of what waits for a device."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Reads(TorchDispatchMode):
    """Counts the times that Python reads a value from a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))
