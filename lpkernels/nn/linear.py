"""Linear layers under a Recipe."""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels import functional
from lpkernels.arithmetic import Ranks, Recipe
from lpkernels.functional.bilinear import ranks as bilinear_ranks
from lpkernels.functional.torch_calls import own
from lpkernels.nn._running import RunningInput
from lpkernels.nn.emulated import Emulated, like_torch


@like_torch
class Linear(RunningInput, torch.nn.Linear):
    """``torch.nn.Linear`` computed by ``lpkernels.functional.linear``.

    >>> layer = lp.nn.Linear(4, 2, recipe=lp.Recipe(input="e4m3fn", weight="e4m3fn", fprop="e5m10"))
    >>> layer(torch.ones(3, 4)).shape
    torch.Size([3, 2])
    >>> layer.recipe = "bf16_mixed"
    >>> layer
    Linear(in_features=4, out_features=2, bias=True, recipe=bf16_mixed)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "fp32",
    ) -> None:
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.recipe = recipe

    def _ranks(self) -> tuple[Ranks, ...]:
        return (Ranks("linear", weight=2, bias=None if self.bias is None else 1),)

    def forward(self, input: Tensor) -> Tensor:
        x, recipe = self._rounded(input)
        scales = self._scales()
        return own(functional.linear, x, self.weight, self.bias, recipe=recipe, **scales)


@like_torch
class LazyLinear(torch.nn.LazyLinear, Linear):
    """``torch.nn.LazyLinear`` that becomes ``lpkernels.nn.Linear`` with the first input."""

    cls_to_become = Linear

    def __init__(
        self,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "fp32",
    ) -> None:
        super().__init__(out_features, bias=bias, device=device, dtype=dtype)
        self.recipe = recipe


@like_torch
class Bilinear(Emulated, torch.nn.Bilinear):
    """``torch.nn.Bilinear`` computed by ``lpkernels.functional.bilinear``."""

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "fp32",
    ) -> None:
        sizes = (in1_features, in2_features, out_features)
        super().__init__(*sizes, bias=bias, device=device, dtype=dtype)
        self.recipe = recipe

    def _ranks(self) -> tuple[Ranks, ...]:
        return bilinear_ranks(self.bias)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        operands = (input1, input2, self.weight, self.bias)
        return own(functional.bilinear, *operands, recipe=self._arithmetic)
