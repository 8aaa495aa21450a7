"""Multi-head attention under a Recipe."""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels import functional
from lpkernels.arithmetic import Ranks, Recipe, check_axes
from lpkernels.functional.multi_head import apart, ranks
from lpkernels.functional.tabled import tabled
from lpkernels.functional.torch_calls import own
from lpkernels.nn.emulated import Emulated, is_traced, like_torch, recipe_name
from lpkernels.recipes import as_recipe


@like_torch
class MultiheadAttention(Emulated, torch.nn.MultiheadAttention):
    """``torch.nn.MultiheadAttention`` computed by
    ``lpkernels.functional.multi_head_attention_forward``, in training and in evaluation.

    The recipe is for the projections, out_proj's among them, and for both products of the
    attention; `attention_recipe` gives these two products a recipe of their own. As in torch,
    out_proj holds parameters and is never called. Nested tensors are taken by a recipe that is
    torch's arithmetic only.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "fp32",
    ) -> None:
        flags = (dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first)
        super().__init__(embed_dim, num_heads, *flags, device=device, dtype=dtype)
        self.recipe = recipe

    # The recipe of the attention's products where it differs from the layer's, and its traced form.
    _attention: tuple[Recipe, Recipe] | None = None

    @property
    def attention_recipe(self) -> Recipe:
        """How the layer multiplies query and key, and weights and value, between its projections.

        It is `recipe`, unless a Recipe or a name is assigned; assigning `recipe` takes it back.
        """
        return self._recipe if self._attention is None else self._attention[0]

    @attention_recipe.setter
    def attention_recipe(self, recipe: Recipe | str) -> None:
        its = as_recipe(recipe)
        if its.axes:
            check_axes(its, self._ranks()[1])
        self._refuse_scaling(its)
        self._attention = (its, tabled(its))

    def _assign(self, recipe: Recipe) -> None:
        super()._assign(recipe)
        vars(self).pop("_attention", None)

    def _forget(self) -> None:
        super()._forget()
        vars(self).pop("_attention", None)

    def extra_repr(self) -> str:
        shown = super().extra_repr()
        its = self._attention
        return shown if its is None else f"{shown}, attention_recipe={recipe_name(its[0])}"

    def _ranks(self) -> tuple[Ranks, ...]:
        return ranks(self.in_proj_bias, self.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        inner = None if self._attention is None else self._attention[is_traced()]
        if self._arithmetic.is_torch and (inner is None or inner.is_torch):
            masks = (key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
            return super().forward(query, key, value, *masks)
        transposed = self.batch_first and query.dim() == 3
        if transposed:
            query, key, value = (x.transpose(0, 1) for x in apart(query, key, value))
        y, weights = own(
            functional.multi_head_attention_forward,
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            self.in_proj_weight,
            self.in_proj_bias,
            self.bias_k,
            self.bias_v,
            self.add_zero_attn,
            self.dropout,
            self.out_proj.weight,
            self.out_proj.bias,
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            use_separate_proj_weight=not self._qkv_same_embed_dim,
            q_proj_weight=self.q_proj_weight,
            k_proj_weight=self.k_proj_weight,
            v_proj_weight=self.v_proj_weight,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
            recipe=self._arithmetic,
            attention_recipe=inner,
        )
        return y.transpose(0, 1) if transposed else y, weights
