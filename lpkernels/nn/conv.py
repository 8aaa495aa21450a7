"""Convolution layers under a Recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels import functional
from lpkernels.arithmetic import Ranks, Recipe
from lpkernels.functional.conv import ranks
from lpkernels.functional.layer import widened
from lpkernels.functional.torch_calls import own
from lpkernels.nn._running import RunningInput
from lpkernels.nn.emulated import Emulated, like_torch

Size = int | tuple[int, ...]
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
Place = torch.device | str | None


class _Conv(RunningInput):
    """The common part of the convolution layers; the torch.nn class follows it in the bases."""

    _convolve: ClassVar[Callable[..., Tensor]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: Place = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "fp32",
    ) -> None:
        size = (in_channels, out_channels, kernel_size, stride, padding, dilation)
        super().__init__(*size, groups, bias, padding_mode, device, dtype)
        self.recipe = recipe

    def _ranks(self) -> tuple[Ranks, ...]:
        layer: Any = self
        dims = len(layer.kernel_size)
        return (ranks(f"conv{dims}d", dims, layer.bias),)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        layer: Any = self
        padding = layer.padding
        if layer.padding_mode != "zeros":
            x = input if self._arithmetic.is_torch else widened(input)
            input = F.pad(x, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
            padding = 0
        geometry = (layer.stride, padding, layer.dilation, layer.groups)
        x, recipe = self._rounded(input)
        scales = self._scales()
        return own(self._convolve, x, weight, bias, *geometry, recipe=recipe, **scales)


@like_torch
class Conv1d(_Conv, torch.nn.Conv1d):
    """``torch.nn.Conv1d`` computed by ``lpkernels.functional.conv1d``, padded as ``Conv2d``."""

    _convolve = staticmethod(functional.conv1d)


@like_torch
class Conv2d(_Conv, torch.nn.Conv2d):
    """``torch.nn.Conv2d`` computed by ``lpkernels.functional.conv2d``.

    With a padding_mode other than "zeros" the input is padded first: the recipe quantises the
    padded input, and where several of its gradients belong to one element they are added in
    float32.

    >>> layer = lp.nn.Conv2d(3, 8, 3, padding=1, recipe="hfp8_sun2019")
    >>> layer(torch.ones(1, 3, 5, 5)).shape
    torch.Size([1, 8, 5, 5])
    """

    _convolve = staticmethod(functional.conv2d)


@like_torch
class Conv3d(_Conv, torch.nn.Conv3d):
    """``torch.nn.Conv3d`` computed by ``lpkernels.functional.conv3d``, padded as ``Conv2d``."""

    _convolve = staticmethod(functional.conv3d)


class _LazyConv(Emulated):
    """The constructor of the lazy forms, which take no in_channels."""

    def __init__(
        self,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: Place = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "fp32",
    ) -> None:
        size = (out_channels, kernel_size, stride, padding, dilation)
        super().__init__(*size, groups, bias, padding_mode, device, dtype)
        self.recipe = recipe


@like_torch
class LazyConv1d(_LazyConv, torch.nn.LazyConv1d, Conv1d):  # type: ignore[misc]
    """``torch.nn.LazyConv1d`` that becomes ``lpkernels.nn.Conv1d`` with the first input."""

    cls_to_become = Conv1d


@like_torch
class LazyConv2d(_LazyConv, torch.nn.LazyConv2d, Conv2d):  # type: ignore[misc]
    """``torch.nn.LazyConv2d`` that becomes ``lpkernels.nn.Conv2d`` with the first input."""

    cls_to_become = Conv2d


@like_torch
class LazyConv3d(_LazyConv, torch.nn.LazyConv3d, Conv3d):  # type: ignore[misc]
    """``torch.nn.LazyConv3d`` that becomes ``lpkernels.nn.Conv3d`` with the first input."""

    cls_to_become = Conv3d
