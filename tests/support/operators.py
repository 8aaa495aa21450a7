"""The operators that run in tests."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Operators(TorchDispatchMode):
    """Notes the operators that run, in order, such as aten::mm and lpkernels::_matmul."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))

    @property
    def emulated(self) -> list[str]:
        """The operators of lpkernels, such as matmul, add_bias and conv_fprop."""
        prefix = "lpkernels::_"
        return [name.removeprefix(prefix) for name in self.names if name.startswith(prefix)]
