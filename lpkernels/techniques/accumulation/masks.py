"""Gradients that know which products were lost: masks beside the straight-through gradient.

The gradient of an emulated sum passes straight through: as if nothing had been rounded. In a narrow
accumulator some products have no influence on the sum at all: their addition left it as it was
(swamped), or went beyond the format's largest value (overflowed). Here such products pass no
gradient on.

After Blumenfeld et al. 2024, "Towards cheaper inference in deep networks with lower bit-width
accumulators" (arXiv 2401.14110), which trains below 12-bit accumulators with gradients of this
kind. Differs: the events are those of the emulated additions themselves, counted by the kernel that
`measure` uses, in any rounding and format.

The cost is this: backward makes the sums of fprop again and looks at each addition, and it keeps a
bit for every product of some rows while the gradients of these rows are summed. The groups of a
convolution are made one after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn import functional as F

from lpkernels import nn
from lpkernels.arithmetic import Accumulator, Recipe, check_axes
from lpkernels.functional import packed_activations, seeds
from lpkernels.functional.conv import ConvGeometry, symmetric_padding
from lpkernels.functional.layer import EmulatedLayer, quantized, widened
from lpkernels.functional.linear import LinearGeometry
from lpkernels.functional.recording import first_order
from lpkernels.nn.calls import EmulatesCalls
from lpkernels.nn.emulated import Emulated
from lpkernels.rng import SITE_QUANTIZE, Role
from lpkernels.techniques.accumulation._events import OVERFLOWED, SWAMPED, masked_gradients


def mask_gradients(
    model: Module, masks: Sequence[str] = ("swamped", "overflowed"), *, recursive: bool = False
) -> Module:
    """Make emulated layers pass no gradient to products that their fprop sums lost, in place.

    Forward is as before, to the bit. In backward a product x_k w_k of an output counts only if no
    event of `masks` happened in its own addition, nor in the addition of its chunk's sum to the
    outer accumulator. dgrad and wgrad are float32 sums of the products that are left. The bias
    gradient is not masked, and neither are products that a module calls as functions.

    Args:
        model: a model, or layer, that ``lp.convert`` has converted.
        masks: "swamped", "overflowed" or both; none: the straight-through gradient again.
        recursive: an overflow masks all products of the sum up to it, not only its own: the sum
            before it is lost as well.

    Returns:
        The model. ``lp.revert`` turns its layers back as always.

    Raises:
        TypeError, ValueError: no Module, unknown masks; no layer to mask; a layer that sums dgrad
            or wgrad not natively (masked gradients are float32 sums).
        NotImplementedError: a layer other than Linear and Conv1d to Conv3d, or one that sums fprop
            in trees, compensated or in aligned blocks, or has delayed scales.
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
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, Emulated) and not isinstance(module, EmulatesCalls | nn.Embedding)
    ]
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
    kind = _KINDS.get(type(module), type(module) if type(module) in _KINDS.values() else None)
    what = f"mask_gradients: layer {name!r} ({type(module).__name__})"
    if kind is None:
        raise NotImplementedError(
            f"{what} is none of lp.nn's {', '.join(layer.__name__ for layer in _KINDS)}"
        )
    _check_sums(what, module.recipe)
    return kind


def _check_sums(what: str, recipe: Recipe) -> None:
    if recipe.scaling is not None:
        raise NotImplementedError(
            f"{what} has {recipe.scaling}, and masked layers find every scale in its own tensor; "
            "use a recipe without scaling"
        )
    if recipe.by_product is not None:
        raise NotImplementedError(
            f"{what} has operands with codes for each product or with scales that enter sums, and "
            "masked layers round every tensor once; use formats such as 'e4m3' or 'mxfp8'"
        )
    if not (recipe.dgrad.is_native and recipe.wgrad.is_native):
        raise ValueError(
            f"{what} sums dgrad in {recipe.dgrad} and wgrad in {recipe.wgrad}; masked gradients "
            "are float32 sums: use a recipe whose dgrad and wgrad are native"
        )
    fprop = recipe.fprop
    if fprop.order != "native" and not fprop.in_sequence:
        raise NotImplementedError(
            f"{what} sums fprop in {fprop}, which does not add one product after the other, and no "
            "kernel says which products it loses: use an accumulator in sequence or in chunks"
        )


class _Masked(Emulated):
    """The base of the masked layers; the layer of lp.nn follows it in the bases."""

    masks: tuple[str, ...] = ()
    recursive: bool = False
    _products: Callable[[Tensor], tuple[Tensor, Any, MatrixForm]]

    def forward(self, input: Tensor) -> Tensor:
        layer: Any = self
        recipe = self.recipe
        if not self.masks or recipe.fprop.order == "native":
            return super().forward(input)
        _check_sums(f"masked {type(self).__name__}", recipe)
        if recipe.input_range is not None:
            input, recipe = layer._rounded(input)
        batch = input if input.dim() >= layer.weight.dim() else input.unsqueeze(0)
        if recipe.axes:
            rank = batch.dim()
            check_axes(recipe, *[r._replace(input=rank, output=rank) for r in self._ranks()])
        seed = seeds.seed_for(recipe.is_stochastic, None)
        bias = None if layer.bias is None else widened(layer.bias)
        x, *products = self._products(widened(batch))
        options = (*products, seed, self.masks, self.recursive)
        y = _MaskedLayer.apply(x, widened(layer.weight), bias, recipe, *options)
        return y if batch is input else y.squeeze(0)


class MaskedLinear(_Masked, nn.Linear):
    """lp.nn.Linear with masked gradients; `mask_gradients` makes it."""

    _original = torch.nn.Linear

    def _products(self, x: Tensor) -> tuple[Tensor, Any, MatrixForm]:
        return x, LinearGeometry(), MatrixForm()


class _MaskedConv(_Masked):
    def _products(self, x: Tensor) -> tuple[Tensor, Any, MatrixForm]:
        """An input that is not padded by zeros on both sides alike is padded first; torch folds its
        gradient back."""
        layer: Any = self
        padding = layer.padding
        if layer.padding_mode != "zeros":
            x = F.pad(x, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
            padding = 0
        sizes = (layer.weight.shape[2:], layer.stride, layer.dilation)
        both, extra = symmetric_padding(type(self).__name__, padding, *sizes)
        x = F.pad(x, extra) if any(extra) else x
        geometry = ConvGeometry(layer.stride, both, layer.dilation, layer.groups)
        return x, geometry, ConvForm(geometry)


class MaskedConv1d(_MaskedConv, nn.Conv1d):
    """lp.nn.Conv1d with masked gradients; `mask_gradients` makes it."""

    _original = torch.nn.Conv1d


class MaskedConv2d(_MaskedConv, nn.Conv2d):
    """lp.nn.Conv2d with masked gradients; `mask_gradients` makes it."""

    _original = torch.nn.Conv2d


class MaskedConv3d(_MaskedConv, nn.Conv3d):
    """lp.nn.Conv3d with masked gradients; `mask_gradients` makes it."""

    _original = torch.nn.Conv3d


_KINDS: dict[type, type] = {
    nn.Linear: MaskedLinear,
    nn.Conv1d: MaskedConv1d,
    nn.Conv2d: MaskedConv2d,
    nn.Conv3d: MaskedConv3d,
}


class _MaskedLayer(torch.autograd.Function):
    """The forward pass of EmulatedLayer; masked float32 sums in backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, recipe: Recipe, geometry: Any, form: Any,
        seed: Tensor | None, masks: tuple[str, ...], recursive: bool,
    ) -> Tensor:  # fmt: skip
        with packed_activations(False):
            y = EmulatedLayer.forward(ctx, x, w, b, recipe, geometry, seed, "auto")
        # Both operands are kept: the masks of either gradient need them.
        ctx.save_for_backward(x, w, seed)
        ctx.form, ctx.masks, ctx.recursive = form, masks, recursive
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        recipe, form = ctx.recipe, ctx.form
        x, w, seed = ctx.saved_tensors
        xq, wq, g = (
            quantized(tensor, quantizer, seed, role, SITE_QUANTIZE, "auto")
            for tensor, quantizer, role in (
                (x, recipe.input, Role.INPUT),
                (w, recipe.weight, Role.WEIGHT),
                (grad_output, recipe.grad_output, Role.GRAD_OUTPUT),
            )
        )
        left, right = form.rows(xq, wq), wq.flatten(1).t()
        top = ctx.geometry.rows(g, w.shape[:1])
        options = (recipe.fprop, seed, ctx.masks, ctx.recursive)
        dx, dw = masked_products(left, right, top, *options)
        dx, dw = form.back(dx, x, w), dw.t().reshape(w.shape)
        dx = quantized(dx, recipe.grad_input, seed, Role.GRAD_INPUT, SITE_QUANTIZE, "auto")
        dw = quantized(dw, recipe.grad_weight, seed, Role.GRAD_WEIGHT, SITE_QUANTIZE, "auto")
        db = top.sum(0) if ctx.needs_input_grad[2] else None
        return dx, dw, db, None, None, None, None, None, None


MASKS = {"swamped": SWAMPED, "overflowed": OVERFLOWED}


class MatrixForm:
    """A layer as matrices, group by group along the columns: y (R, groups * O) from x (R, groups *
    K), where each group's K columns of x are multiplied with the same group's O columns of the
    flattened weights (K, groups * O). This one is a linear layer's.
    """

    def rows(self, x: Tensor, w: Tensor) -> Tensor:
        return x.flatten(0, -2)

    def back(self, dx: Tensor, x: Tensor, w: Tensor) -> Tensor:
        """The gradient of x from the gradient of its rows."""
        return dx.reshape(x.shape)


class ConvForm(MatrixForm):
    """A convolution as one product: it has a row for each position, and k runs over (c_in,
    kernel)."""

    def __init__(self, geometry: ConvGeometry) -> None:
        self.geometry = geometry

    def rows(self, x: Tensor, w: Tensor) -> Tensor:
        sides = [side for pad in self.geometry.padding[::-1] for side in (pad, pad)]
        x = F.pad(x, sides).transpose(0, 1)
        taps = list(self._taps(x.shape[2:], w.shape[2:]))
        # (C, taps, N, *positions): a copy for each tap.
        result = torch.stack([x[(slice(None), slice(None), *of_tap)] for of_tap in taps], 1)
        return result.flatten(2).flatten(0, 1).t()

    def _taps(self, image: Sequence[int], kernel: Sequence[int]) -> Iterator[tuple[slice, ...]]:
        """For each tap of the kernel, the elements of a padded image that it meets."""
        of = self.geometry
        along = [
            [slice(i * d, i * d + (n - 1 - d * (k - 1)) // s * s + 1, s) for i in range(k)]
            for n, k, s, d in zip(image, kernel, of.stride, of.dilation, strict=True)
        ]
        return itertools.product(*along)

    def back(self, dx: Tensor, x: Tensor, w: Tensor) -> Tensor:
        padding, sizes = self.geometry.padding, x.shape[2:]
        padded = [n + 2 * pad for n, pad in zip(sizes, padding, strict=True)]
        image = x.new_zeros(*x.shape[:2], *padded)
        taps = list(self._taps(padded, w.shape[2:]))
        positions = image[(slice(None), slice(None), *taps[0])].shape[2:] if taps else ()
        # (N, *positions, C, taps) -> (taps, N, C, *positions)
        parts = dx.reshape(x.shape[0], *positions, x.shape[1], len(taps)).movedim((-1, -2), (0, 2))
        for of_tap, part in zip(taps, parts, strict=True):
            image[(slice(None), slice(None), *of_tap)] += part
        inside = [slice(pad, pad + n) for n, pad in zip(sizes, padding, strict=True)]
        return image[(slice(None), slice(None), *inside)]


def masked_products(
    left: Tensor,
    right: Tensor,
    g: Tensor,
    acc: Accumulator,
    seed: Tensor | None,
    masks: Sequence[str],
    recursive: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of left (R, groups * K) and right (K, groups * O) by g (R, groups * O), from
    the products that none of the masks takes out, in float32 sums.
    """
    groups = max(1, left.shape[1] // max(1, len(right)))
    bits = sum(MASKS[name] for name in masks)
    d_left, d_right = [], []
    parts = zip(*(x.chunk(groups, 1) for x in (left, right, g)), strict=True)
    for group, (rows, columns, top) in enumerate(parts):
        # Draws are keyed by the column among those of all groups.
        found = masked_gradients(
            rows, columns, top, acc, seed,
            first_col=group * columns.shape[1], bits=bits, recursive=recursive,
        )  # fmt: skip
        d_left.append(found[0])
        d_right.append(found[1])
    if groups == 1:
        return d_left[0], d_right[0]
    return torch.cat(d_left, 1), torch.cat(d_right, 1)
