"""The operators that run in tests."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_OURS = "lpkernels::_"


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
