"""Layers with a precision to set, as a user would write them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import lpkernels as lp


class Quantized(nn.Linear):
    """A linear layer whose operands are rounded to affine codes of `forward_bits`."""

    MOST = 16

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.bits: tuple[int, int] = (16, 16)
        self.table: Any = None
        self.seen: list[int] = []

    def set_precision(
        self, forward_bits: int, backward_bits: int, *, formats: Mapping[int, Any] | None = None
    ) -> None:
        if forward_bits > self.MOST:
            raise ValueError(f"expected at most {self.MOST} bits, got {forward_bits}")
        self.bits, self.table = (forward_bits, backward_bits), formats

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(self.bits[0])
        fmt = lp.AffineFormat(self.bits[0])
        if self.table is not None:
            fmt = self.table[self.bits[0]]
        return nn.functional.linear(lp.quantize(x, fmt), lp.quantize(self.weight, fmt), self.bias)


class Summing(Quantized):
    """A layer that has an accumulator to set as well."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.accumulator: Any = None

    def set_accumulator(self, accumulator: Any) -> None:
        self.accumulator = accumulator


class Separate(nn.Module):
    """A module that takes the bits of inputs and weights apart, and takes no formats."""

    def __init__(self) -> None:
        super().__init__()
        self.bits: tuple[Any, ...] = ()

    def set_precision(self, forward: tuple[int, int], backward: int) -> None:
        inputs, weights = forward
        self.bits = (inputs, weights, backward)


class Named:
    """An object that is no module and remembers every call, in an attribute that is set anew."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def set_precision(self, forward: int, backward: int) -> None:
        self.calls = [*self.calls, (forward, backward)]


def small_model(layer: type[Quantized] = Quantized) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(layer(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), layer(8, 3))


def layers_of(model: nn.Module) -> list[Any]:
    return [m for m in model.modules() if isinstance(m, Quantized)]


def bits_of(model: nn.Module) -> list[tuple[int, int]]:
    return [layer.bits for layer in layers_of(model)]
