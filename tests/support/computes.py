"""A module that is written where it is used."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class Computes(nn.Module):
    """A function of the module and its inputs, with the submodules and parameters it is given."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)
