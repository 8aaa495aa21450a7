"""Targets as a user would write them, and a small model of lpkernels' layers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import lpkernels as lp
from lpkernels.nn import Linear


class Named:
    """An object that is no module and remembers every call, in an attribute that is set anew."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def set_precision(self, forward: int, backward: int) -> None:
        self.calls = [*self.calls, (forward, backward)]


class Refusing(Linear):
    """A layer of up to 6 bits, which keeps the widths that it was told in a buffer and a list."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes, recipe=lp.recipe("cpt_fu2021"))
        self.register_buffer("width", torch.tensor(16))
        self.told: list[int] = []

    def set_precision(self, forward_bits: Any, backward_bits: Any, **options: Any) -> None:
        self.told = [*self.told, forward_bits]
        self.width.fill_(forward_bits)
        if forward_bits > 6:
            raise ValueError(f"expected at most 6 bits, got {forward_bits}")
        super().set_precision(forward_bits, backward_bits, **options)


def layer(*sizes: int) -> Linear:
    return Linear(*sizes, recipe=lp.recipe("cpt_fu2021"))


def small_model(layer: Callable[..., nn.Module] = layer) -> nn.Sequential:
    """Two layers, the first between eight channels with a norm and dropout."""
    torch.manual_seed(0)
    return nn.Sequential(layer(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), layer(8, 3))


def bits_of(model: nn.Module) -> list[tuple[Any, Any]]:
    """The precision of every layer."""
    return [layer.precision for layer in model.modules() if isinstance(layer, Linear)]
