"""Normalising layers under a Recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lpkernels import functional
from lpkernels.arithmetic import ANY_RANK, NO_PRODUCT, Ranks, Recipe
from lpkernels.functional.torch_calls import own
from lpkernels.nn.emulated import Emulated, like_torch

Place = torch.device | str | None
Sizes = int | list[int] | torch.Size


def _affine_ranks(layer: Any, name: str, rank: int, input: int = ANY_RANK) -> tuple[Ranks, ...]:
    """The ranks of a layer with a weight and a bias of this rank, or without one of them."""
    # RMSNorm has no bias.
    tensors = (layer.weight, getattr(layer, "bias", None))
    weight, bias = (None if each is None else rank for each in tensors)
    return (Ranks(name, input, weight, bias, input, NO_PRODUCT),)


class _BatchNormCalls(TorchFunctionMode):
    """A mode inside which calls of torch's batch_norm are emulated."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is F.batch_norm:
            return own(functional.batch_norm, *args, **(kwargs or {}), recipe=self.recipe)
        return func(*args, **(kwargs or {}))


class _BatchNorm(Emulated):
    """torch.nn's own forward, which keeps the statistics, with the function it ends in emulated."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Place = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        recipe: Recipe | str = "fp32",
    ) -> None:
        flags = (eps, momentum, affine, track_running_stats, device, dtype)
        # torch 2.13 has a bias to leave away.
        more = {} if bias else {"bias": bias}
        super().__init__(num_features, *flags, **more)
        self.recipe = recipe

    def _ranks(self) -> tuple[Ranks, ...]:
        return _affine_ranks(self, "batch_norm", 1)

    def forward(self, input: Tensor) -> Tensor:
        with _BatchNormCalls(self._arithmetic):
            return super().forward(input)


@like_torch
class BatchNorm1d(_BatchNorm, torch.nn.BatchNorm1d):
    """``torch.nn.BatchNorm1d`` computed by ``lpkernels.functional.batch_norm``.

    `bias` False leaves the bias away, for which torch must know this argument (torch 2.13).
    """


@like_torch
class BatchNorm2d(_BatchNorm, torch.nn.BatchNorm2d):
    """``torch.nn.BatchNorm2d`` computed by ``lpkernels.functional.batch_norm``.

    `bias` False leaves the bias away, for which torch must know this argument (torch 2.13).
    """

    def _ranks(self) -> tuple[Ranks, ...]:
        return _affine_ranks(self, "batch_norm", 1, 4)


@like_torch
class BatchNorm3d(_BatchNorm, torch.nn.BatchNorm3d):
    """``torch.nn.BatchNorm3d`` computed by ``lpkernels.functional.batch_norm``.

    `bias` False leaves the bias away, for which torch must know this argument (torch 2.13).
    """

    def _ranks(self) -> tuple[Ranks, ...]:
        return _affine_ranks(self, "batch_norm", 1, 5)


@like_torch
class LayerNorm(Emulated, torch.nn.LayerNorm):
    """``torch.nn.LayerNorm`` computed by ``lpkernels.functional.layer_norm``."""

    def __init__(
        self,
        normalized_shape: Sizes,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Place = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "fp32",
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)
        self.recipe = recipe

    def _ranks(self) -> tuple[Ranks, ...]:
        return _affine_ranks(self, "layer_norm", len(self.normalized_shape))

    def forward(self, input: Tensor) -> Tensor:
        weights = (self.weight, self.bias)
        sizes = self.normalized_shape
        return own(functional.layer_norm, input, sizes, *weights, self.eps, recipe=self._arithmetic)


@like_torch
class RMSNorm(Emulated, torch.nn.RMSNorm):
    """``torch.nn.RMSNorm`` computed by ``lpkernels.functional.rms_norm``."""

    def __init__(
        self,
        normalized_shape: Sizes,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Place = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "fp32",
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)
        self.recipe = recipe

    def _ranks(self) -> tuple[Ranks, ...]:
        return _affine_ranks(self, "rms_norm", len(self.normalized_shape))

    def forward(self, x: Tensor) -> Tensor:
        sizes = self.normalized_shape
        return own(functional.rms_norm, x, sizes, self.weight, self.eps, recipe=self._arithmetic)


@like_torch
class GroupNorm(Emulated, torch.nn.GroupNorm):
    """``torch.nn.GroupNorm`` computed by ``lpkernels.functional.group_norm``.

    `bias` False leaves the bias away, for which torch must know this argument (torch 2.13).
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Place = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        recipe: Recipe | str = "fp32",
    ) -> None:
        # torch 2.13 has a bias to leave away.
        more = {} if bias else {"bias": bias}
        super().__init__(num_groups, num_channels, eps, affine, device, dtype, **more)
        self.recipe = recipe

    def _ranks(self) -> tuple[Ranks, ...]:
        return _affine_ranks(self, "group_norm", 1)

    def forward(self, input: Tensor) -> Tensor:
        weights = (self.weight, self.bias)
        groups = self.num_groups
        return own(
            functional.group_norm, input, groups, *weights, self.eps, recipe=self._arithmetic
        )
