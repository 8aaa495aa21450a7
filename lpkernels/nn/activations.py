"""Softmax and GELU under a Recipe."""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels import functional
from lpkernels.arithmetic import ANY_RANK, NO_PRODUCT, Ranks, Recipe
from lpkernels.functional.torch_calls import own
from lpkernels.nn.emulated import Emulated, like_torch


@like_torch
class Softmax(Emulated, torch.nn.Softmax):
    """``torch.nn.Softmax`` computed by ``lpkernels.functional.softmax``; with dim None by torch."""

    def __init__(self, dim: int | None = None, *, recipe: Recipe | str = "fp32") -> None:
        super().__init__(dim)
        self.recipe = recipe

    def _ranks(self) -> tuple[Ranks, ...]:
        return (Ranks("softmax", ANY_RANK, output=ANY_RANK, no_k=NO_PRODUCT),)

    def forward(self, input: Tensor) -> Tensor:
        if self._arithmetic.is_torch or self.dim is None:
            return super().forward(input)
        return own(functional.softmax, input, self.dim, recipe=self._arithmetic)


@like_torch
class GELU(Emulated, torch.nn.GELU):
    """``torch.nn.GELU`` computed by ``lpkernels.functional.gelu``."""

    def __init__(self, approximate: str = "none", *, recipe: Recipe | str = "fp32") -> None:
        super().__init__(approximate)
        self.recipe = recipe

    def _ranks(self) -> tuple[Ranks, ...]:
        return (Ranks("gelu", ANY_RANK, output=ANY_RANK, no_k=NO_PRODUCT),)

    def forward(self, input: Tensor) -> Tensor:
        call = {"approximate": self.approximate, "recipe": self._arithmetic}
        return own(functional.gelu, input, **call)
