"""Transposed convolution layers under a Recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from lpkernels import functional
from lpkernels.arithmetic import Ranks, Recipe
from lpkernels.functional.conv import ranks
from lpkernels.functional.torch_calls import own
from lpkernels.nn._running import RunningInput
from lpkernels.nn.conv import PaddingMode, Place, Size
from lpkernels.nn.emulated import Emulated, like_torch


class _ConvTranspose(RunningInput):
    """The common part of the three layers; the torch.nn class follows it in the bases."""

    _convolve: ClassVar[Callable[..., Tensor]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: PaddingMode = "zeros",
        device: Place = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "fp32",
    ) -> None:
        size = (in_channels, out_channels, kernel_size, stride, padding, output_padding)
        super().__init__(*size, groups, bias, dilation, padding_mode, device, dtype)
        self.recipe = recipe

    def _ranks(self) -> tuple[Ranks, ...]:
        layer: Any = self
        dims = len(layer.kernel_size)
        return (ranks(f"conv_transpose{dims}d", dims, layer.bias),)

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        layer: Any = self
        dims = len(layer.kernel_size)
        numbers = (layer.stride, layer.padding, layer.kernel_size, dims, layer.dilation)
        extra = layer._output_padding(input, output_size, *numbers)
        geometry = (layer.stride, layer.padding, extra, layer.groups, layer.dilation)
        x, recipe = self._rounded(input)
        operands = (x, layer.weight, layer.bias)
        return own(self._convolve, *operands, *geometry, recipe=recipe, **self._scales())


@like_torch
class ConvTranspose1d(_ConvTranspose, torch.nn.ConvTranspose1d):
    """``torch.nn.ConvTranspose1d`` computed by ``lpkernels.functional.conv_transpose1d``."""

    _convolve = staticmethod(functional.conv_transpose1d)


@like_torch
class ConvTranspose2d(_ConvTranspose, torch.nn.ConvTranspose2d):
    """``torch.nn.ConvTranspose2d`` computed by ``lpkernels.functional.conv_transpose2d``."""

    _convolve = staticmethod(functional.conv_transpose2d)


@like_torch
class ConvTranspose3d(_ConvTranspose, torch.nn.ConvTranspose3d):
    """``torch.nn.ConvTranspose3d`` computed by ``lpkernels.functional.conv_transpose3d``."""

    _convolve = staticmethod(functional.conv_transpose3d)


class _LazyConvTranspose(Emulated):
    """The constructor of the lazy forms, which take no in_channels."""

    def __init__(
        self,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: PaddingMode = "zeros",
        device: Place = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "fp32",
    ) -> None:
        size = (out_channels, kernel_size, stride, padding, output_padding)
        super().__init__(*size, groups, bias, dilation, padding_mode, device, dtype)
        self.recipe = recipe


@like_torch
class LazyConvTranspose1d(_LazyConvTranspose, torch.nn.LazyConvTranspose1d, ConvTranspose1d):  # type: ignore[misc]
    """``torch.nn.LazyConvTranspose1d`` that becomes ``lpkernels.nn.ConvTranspose1d``."""

    cls_to_become = ConvTranspose1d


@like_torch
class LazyConvTranspose2d(_LazyConvTranspose, torch.nn.LazyConvTranspose2d, ConvTranspose2d):  # type: ignore[misc]
    """``torch.nn.LazyConvTranspose2d`` that becomes ``lpkernels.nn.ConvTranspose2d``."""

    cls_to_become = ConvTranspose2d


@like_torch
class LazyConvTranspose3d(_LazyConvTranspose, torch.nn.LazyConvTranspose3d, ConvTranspose3d):  # type: ignore[misc]
    """``torch.nn.LazyConvTranspose3d`` that becomes ``lpkernels.nn.ConvTranspose3d``."""

    cls_to_become = ConvTranspose3d
