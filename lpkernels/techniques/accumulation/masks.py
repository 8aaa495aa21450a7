"""Gradients that know which products were lost: masks beside the straight-through gradient.

The gradient of an emulated sum passes straight through: as if nothing had been rounded. In a narrow
accumulator some products have no influence on the sum at all: their addition left it as it was
(swamped), or went beyond the format's largest value (overflowed). Here such products pass no
gradient on.

After Blumenfeld et al. 2024, "Towards cheaper inference in deep networks with lower bit-width
accumulators" (arXiv 2401.14110), which trains below 12-bit accumulators with gradients of this
kind. Differs: the events are those of the emulated additions themselves, counted by the kernel that
`measure` uses, in any rounding and format.

Cost: backward looks at every multiply-add of fprop again and multiplies M x K x N masks in float32:
memory traffic of a few bytes for each multiply-add, where a native gradient needs next to none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import Module
from torch.nn import functional as F

from lpkernels import nn
from lpkernels.arithmetic import Recipe
from lpkernels.functional import seeds
from lpkernels.functional._layer import EmulatedLayer, quantized, widened
from lpkernels.functional.conv import ConvGeometry
from lpkernels.functional.linear import LinearGeometry
from lpkernels.nn._emulated import Emulated
from lpkernels.rng import SITE_QUANTIZE, Role
from lpkernels.techniques.accumulation._events import OVERFLOWED, SWAMPED, bits_of

MASKS = {"swamped": SWAMPED, "overflowed": OVERFLOWED}
# Multiply-adds whose masks are held at a time.
_PIECE = 1 << 22


def mask_gradients(
    model: Module, masks: Sequence[str] = ("swamped", "overflowed"), *, recursive: bool = False
) -> Module:
    """Make emulated layers pass no gradient to products that their fprop sums lost, in place.

    Forward is as before, to the bit. In backward a product x_k w_k of an output counts only if its
    addition was none of `masks`, and neither was that of its chunk's sum to the outer accumulator;
    dgrad and wgrad are float32 sums of the products that are left. The bias gradient is not masked.

    Args:
        model: a model, or layer, that ``lp.convert`` has converted.
        masks: "swamped", "overflowed" or both; none: the straight-through gradient again.
        recursive: an overflow masks all products of the sum up to it, not its own alone: what was
            summed before is lost as well.

    Returns:
        The model. ``lp.revert`` turns its layers back as always.

    Raises:
        TypeError, ValueError: no Module, unknown masks; no layer to mask; a layer whose dgrad or
            wgrad is not native, because masked gradients are float32 sums, or whose fprop sums
            trees, compensated or in aligned blocks.
        NotImplementedError: a layer other than Linear and Conv2d, or a Conv2d with groups or
            another padding_mode than "zeros".
    """
    if not isinstance(model, Module):
        raise TypeError(
            f"mask_gradients: model must be a torch.nn.Module, got {type(model).__name__}"
        )
    unknown = [m for m in ((masks,) if isinstance(masks, str) else masks) if m not in MASKS]
    if unknown or isinstance(masks, str):
        raise ValueError(
            f"mask_gradients: masks must be a sequence of {', '.join(MASKS)}, got {masks!r}"
        )
    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, Emulated)]
    if not layers:
        raise ValueError(
            "mask_gradients: the model has no emulated layer; lp.convert(model, recipe) makes them"
        )
    kinds = [_masked_class(name, module) for name, module in layers]
    for (_, module), kind in zip(layers, kinds, strict=True):
        module.__class__ = kind
        module.masks, module.recursive = tuple(masks), recursive  # type: ignore[assignment]
    return model


def _masked_class(name: str, module: Any) -> type:
    kinds = {nn.Linear: MaskedLinear, nn.Conv2d: MaskedConv2d}
    kind = kinds.get(type(module), type(module) if type(module) in kinds.values() else None)
    what = f"mask_gradients: layer {name!r} ({type(module).__name__})"
    if kind is None:
        raise NotImplementedError(f"{what} is neither lp.nn.Linear nor lp.nn.Conv2d")
    if kind is MaskedConv2d and (module.groups != 1 or module.padding_mode != "zeros"):
        raise NotImplementedError(
            f"{what} has groups={module.groups} and padding_mode={module.padding_mode!r}; masks "
            "need groups=1 and zeros"
        )
    if kind is MaskedConv2d and isinstance(module.padding, str):
        raise NotImplementedError(
            f"{what} has padding={module.padding!r}; masks need it in numbers"
        )
    _check_sums(what, module.recipe)
    return kind


def _check_sums(what: str, recipe: Recipe) -> None:
    if not (recipe.dgrad.is_native and recipe.wgrad.is_native):
        raise ValueError(
            f"{what} sums dgrad in {recipe.dgrad} and wgrad in {recipe.wgrad}; masked gradients "
            "are float32 sums: use a recipe whose dgrad and wgrad are native"
        )
    if recipe.fprop.order != "native" and not recipe.fprop.in_sequence:
        raise ValueError(
            f"{what} sums fprop in {recipe.fprop}; masks say which product was lost in a sum, so "
            "they need products added one by one: order='sequential' without block"
        )


class MaskedLinear(nn.Linear):
    """lp.nn.Linear with masked gradients; `mask_gradients` makes it."""

    _original = torch.nn.Linear
    masks: tuple[str, ...] = ()
    recursive: bool = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.masks or self.recipe.fprop.order == "native":
            return super().forward(x)
        rows = x if x.dim() > 1 else x.unsqueeze(0)
        y = _masked(self, rows, LinearGeometry(), _LinearRows())
        return y if x.dim() > 1 else y.squeeze(0)


class MaskedConv2d(nn.Conv2d):
    """lp.nn.Conv2d with masked gradients; `mask_gradients` makes it."""

    _original = torch.nn.Conv2d
    masks: tuple[str, ...] = ()
    recursive: bool = False

    def forward(self, input: Tensor) -> Tensor:
        if not self.masks or self.recipe.fprop.order == "native":
            return super().forward(input)
        batch = input if input.dim() == 4 else input.unsqueeze(0)
        layer: Any = self
        geometry = ConvGeometry(layer.stride, layer.padding, layer.dilation, 1)
        y = _masked(self, batch, geometry, _ConvRows(geometry))
        return y if input.dim() == 4 else y.squeeze(0)


def _masked(layer: Any, x: Tensor, geometry: Any, rows: Any) -> Tensor:
    recipe = layer.recipe
    _check_sums(f"masked {type(layer).__name__}", recipe)
    seed = seeds.seed_for(recipe.is_stochastic, None)
    bias = None if layer.bias is None else widened(layer.bias)
    operands = (widened(x), widened(layer.weight), bias)
    return _MaskedLayer.apply(*operands, recipe, geometry, rows, seed, layer.masks, layer.recursive)


class _LinearRows:
    """A linear layer as one product of rows (R, K) with columns (K, O)."""

    def rows(self, x: Tensor, w: Tensor) -> Tensor:
        return x.flatten(0, -2)

    def columns(self, w: Tensor) -> Tensor:
        return w.t()

    def outputs(self, g: Tensor) -> Tensor:
        return g.flatten(0, -2)

    def back(self, dx: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return dx.reshape(x.shape)


class _ConvRows:
    """A convolution as the same: a row for each position, unfolded, k over (c_in, kh, kw)."""

    def __init__(self, geometry: ConvGeometry) -> None:
        names = ("stride", "padding", "dilation")
        self.numbers = {name: getattr(geometry, name) for name in names}

    def rows(self, x: Tensor, w: Tensor) -> Tensor:
        taps = F.unfold(x, w.shape[2:], **self.numbers)
        return taps.transpose(1, 2).flatten(0, 1)

    def columns(self, w: Tensor) -> Tensor:
        return w.flatten(1).t()

    def outputs(self, g: Tensor) -> Tensor:
        return g.movedim(1, -1).flatten(0, -2)

    def back(self, dx: Tensor, x: Tensor, w: Tensor) -> Tensor:
        taps = dx.reshape(len(x), -1, dx.shape[1]).transpose(1, 2)
        return F.fold(taps, x.shape[2:], w.shape[2:], **self.numbers)


class _MaskedLayer(torch.autograd.Function):
    """The forward pass of EmulatedLayer; masked float32 sums in backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, recipe: Recipe, geometry: Any, rows: Any,
        seed: Tensor | None, masks: tuple[str, ...], recursive: bool,
    ) -> Tensor:  # fmt: skip
        y = EmulatedLayer.forward(ctx, x, w, b, recipe, geometry, seed, "auto")
        # Both operands: the masks of either gradient need them.
        ctx.save_for_backward(x, w, seed)
        ctx.rows, ctx.masks, ctx.recursive = rows, masks, recursive
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        recipe, rows = ctx.recipe, ctx.rows
        x, w, seed = ctx.saved_tensors
        xq = quantized(x, recipe.input, seed, Role.INPUT, SITE_QUANTIZE, "auto")
        wq = quantized(w, recipe.weight, seed, Role.WEIGHT, SITE_QUANTIZE, "auto")
        g = quantized(
            grad_output, recipe.grad_output, seed, Role.GRAD_OUTPUT, SITE_QUANTIZE, "auto"
        )
        left, right, top = rows.rows(xq, wq), rows.columns(wq), rows.outputs(g)
        dx, dw = _masked_products(left, right, top, recipe.fprop, seed, ctx.masks, ctx.recursive)
        dx, dw = rows.back(dx, x, w), dw.t().reshape(w.shape)
        dx = quantized(dx, recipe.grad_input, seed, Role.GRAD_INPUT, SITE_QUANTIZE, "auto")
        dw = quantized(dw, recipe.grad_weight, seed, Role.GRAD_WEIGHT, SITE_QUANTIZE, "auto")
        db = top.sum(0) if ctx.needs_input_grad[2] else None
        return dx, dw, db, None, None, None, None, None, None


def _masked_products(
    left: Tensor,
    right: Tensor,
    g: Tensor,
    acc: Any,
    seed: Tensor | None,
    masks: tuple[str, ...],
    recursive: bool,
) -> tuple[Tensor, Tensor]:
    """dgrad (R, K) and wgrad (K, O) of left (R, K) @ right (K, O), without the masked products."""
    bits = sum(MASKS[name] for name in masks)
    d_left, d_right = torch.zeros_like(left), torch.zeros_like(right)
    step = max(1, _PIECE // max(1, right.numel()))
    for start in range(0, len(left), step):
        part = slice(start, start + step)
        products, chunks = bits_of(left[part], right, acc, seed, start)
        lost = _lost(products, chunks, bits, acc.chunk, recursive)
        passed = g[part].unsqueeze(1) * ~lost
        d_left[part] = (passed * right).sum(2)
        d_right += (passed * left[part].unsqueeze(2)).sum(0)
    return d_left, d_right


def _lost(
    products: Tensor, chunks: Tensor | None, bits: int, chunk: int | None, recursive: bool
) -> Tensor:
    """Which products (R, K, O) pass no gradient, from the bits of their additions."""
    lost = (products & bits) != 0
    recursive = recursive and bool(bits & OVERFLOWED)
    length = products.shape[1]
    if recursive:
        for start in range(0, length, chunk or length):
            part = slice(start, start + (chunk or length))
            lost[:, part] |= _before((products[:, part] & OVERFLOWED) != 0)
    if chunks is not None and chunk is not None:
        outer = (chunks & bits) != 0
        if recursive:
            outer |= _before((chunks & OVERFLOWED) != 0)
        lost |= outer.repeat_interleave(chunk, dim=1)[:, :length]
    return lost


def _before(over: Tensor) -> Tensor:
    """Whether an overflow came at the step or after it."""
    return over.flip(1).to(torch.uint8).cummax(1).values.flip(1).bool()
