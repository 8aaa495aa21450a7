"""The embedding layer under a Recipe."""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels import functional
from lpkernels.arithmetic import ANY_RANK, NO_PRODUCT, Ranks, Recipe
from lpkernels.functional.torch_calls import own
from lpkernels.nn.emulated import Emulated, like_torch


@like_torch
class Embedding(Emulated, torch.nn.Embedding):
    """``torch.nn.Embedding`` computed by ``lpkernels.functional.embedding``.

    Of the recipe only `weight`, `output`, `grad_output` and `grad_weight` matter. Layers by
    ``from_pretrained`` have torch's own arithmetic.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "fp32",
    ) -> None:
        lookup = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        super().__init__(num_embeddings, embedding_dim, *lookup, _weight, _freeze, device, dtype)
        self.recipe = recipe

    def _ranks(self) -> tuple[Ranks, ...]:
        return (Ranks("embedding", weight=2, output=ANY_RANK, no_k=NO_PRODUCT),)

    def forward(self, input: Tensor) -> Tensor:
        return own(
            functional.embedding,
            input,
            self.weight,
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
            recipe=self._arithmetic,
        )
