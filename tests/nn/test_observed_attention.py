"""Attention as an observer makes it, part by part: a query whose keys are all masked."""

import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lpkernels.nn.observing.attention import dot_product_attention, multi_head_attention
from tests.loops import each

EMPTY = torch.tensor([[True, True, True], [False, False, False], [True, False, True]])


def matmul(a: Tensor, b: Tensor, name: str) -> Tensor:
    return a @ b


def linear(x: Tensor, w: Tensor, b: Tensor | None, name: str) -> Tensor:
    return F.linear(x, w, b)


@each("adds", [False, True])
def test_a_query_without_any_key_gets_what_torch_gives(adds: bool) -> None:
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    mask = torch.zeros(3, 3).masked_fill(~EMPTY, -math.inf) if adds else EMPTY
    found, weights = dot_product_attention(x, x, x, mask, matmul=matmul)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(x, x, x, mask))
    assert (weights[:, 1] == 0).all()
    found.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def parts_of(layer: nn.MultiheadAttention, x: Tensor, **options: Any) -> tuple[Any, Any]:
    """What the observer's parts compute, and what the layer does, with the same draws."""
    call = inspect.signature(F.multi_head_attention_forward).bind(
        x, x, x, 8, 2, layer.in_proj_weight, layer.in_proj_bias, None, None, False, layer.dropout,
        layer.out_proj.weight, layer.out_proj.bias, **options,
    )  # fmt: skip
    call.apply_defaults()
    torch.manual_seed(3)
    found = multi_head_attention(call.arguments, linear=linear, matmul=matmul)
    torch.manual_seed(3)
    return found, layer(x, x, x, **options)


@each("need_weights", [False, True])
def test_multi_head_attention_gives_it_nan_only_with_its_weights(need_weights: bool) -> None:
    layer, x = nn.MultiheadAttention(8, 2), torch.randn(3, 2, 8)
    options = {"attn_mask": ~EMPTY, "need_weights": need_weights}
    (found, weights), (want, of_torch) = parts_of(layer, x, **options)
    torch.testing.assert_close(found, want, equal_nan=True)
    assert found[1].isnan().all() if need_weights else found.isfinite().all()
    if need_weights:
        torch.testing.assert_close(weights, of_torch, equal_nan=True)


@each("average", [False, True])
def test_multi_head_attention_tells_its_weights_after_dropout_as_torch_does(average: bool) -> None:
    layer, x = nn.MultiheadAttention(8, 2, dropout=0.5), torch.randn(3, 2, 8)
    found, want = parts_of(layer, x, average_attn_weights=average)
    torch.testing.assert_close(found, want)
