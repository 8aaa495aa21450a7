"""A counter of reads that wait for a device."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_WAIT = ("_local_scalar_dense", "is_nonzero", "nonzero", "equal")


class Reads(TorchDispatchMode):
    """Counts the times that Python reads a value, or a size that depends on one, from a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func.overloadpacket.__name__ in _WAIT
        return func(*args, **(kwargs or {}))
