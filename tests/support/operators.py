"""The operators that run in tests, and those of them that wait for a device."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_OURS = "lpkernels::_"
_WAIT = ("_local_scalar_dense", "is_nonzero", "nonzero", "equal")


class Operators(TorchDispatchMode):
    """Notes the operators that run, in order, such as aten::mm and lpkernels::_multiply."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        #: The operators of lpkernels by name, such as add_bias; a product by its kind.
        self.emulated: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        self.names.append(name)
        if name.startswith(_OURS):
            self.emulated.append(args[0] if name == f"{_OURS}multiply" else name[len(_OURS) :])
        return func(*args, **(kwargs or {}))


class Reads(TorchDispatchMode):
    """Counts the times that Python reads a value, or a size that depends on one, from a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ in _WAIT
        return func(*args, **(kwargs or {}))
