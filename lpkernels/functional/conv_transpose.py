"""Transposed convolutions in one, two and three dimensions under a Recipe."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels.arithmetic import TORCH, Recipe
from lpkernels.functional import seeds
from lpkernels.functional._families import member
from lpkernels.functional.conv import Size, SlidingGeometry, as_sizes, check_dimensions, ranks
from lpkernels.functional.layer import Sum, emulated_layer, widened
from lpkernels.functional.running import Scales
from lpkernels.functional.torch_calls import gradient_of_convolution, own
from lpkernels.ops import Product, fprop_of
from lpkernels.recipes import as_recipe

_TORCH_CONV = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


class ConvTransposeGeometry(SlidingGeometry):
    """y (N, C_out, *) is the dgrad of the convolution with w (C_in, C_out / groups, *) that maps
    y's shape to the shape of x (N, C_in, *).

    So dx is that convolution of dy, and dw its wgrad. Order of the sums within a group: (c_in,
    kernel) forward, (c_out, kernel) for the input's gradient, (n, input position) for the weight's,
    (n, output position) for the bias'. The draws have the keys of the convolution's passes.
    """

    def output_shape(self, x: Tensor, w: Tensor) -> list[int]:
        parts = zip(
            x.shape[2:],
            w.shape[2:],
            self.stride,
            self.padding,
            self.output_padding,
            self.dilation,
            strict=True,
        )
        spatial = [(n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, k, s, p, e, d in parts]
        return [x.shape[0], w.shape[1] * self.groups, *spatial]

    def fprop(self, x: Tensor, w: Tensor, b: Tensor | None, how: Sum) -> Tensor:
        conv = self.conv()
        if how.acc.is_native:
            stride, padding, dilation, groups = conv
            numbers = (stride, padding, self.output_padding, groups, dilation)
            with how.by_torch(x):
                return own(_TORCH_CONV[len(stride)], x, w, b, *numbers)
        product = Product("conv_dgrad", x, w, self.output_shape(x, w), conv)
        return how.of(product) if b is None else how.add_bias(how.rounding(()).of(product), b, 1)

    def dgrad(self, g: Tensor, w: Tensor, shape: torch.Size, how: Sum) -> Tensor:
        if how.acc.is_native:
            return self._torchs_gradient(0, g, g.new_empty(1).expand(shape), w, how)
        dx = how.of(fprop_of(g, w, None, self.conv()))
        # An output_padding of the stride or more makes room for positions that x does not have.
        if dx.shape != shape:
            dx = dx[tuple(slice(n) for n in shape)].contiguous()
        return dx

    def wgrad(self, x: Tensor, g: Tensor, shape: torch.Size, how: Sum) -> Tensor:
        if how.acc.is_native:
            return self._torchs_gradient(1, g, x, g.new_empty(1).expand(shape), how)
        # The convolution's input is g, and its product's left factor x.
        return how.exchanged().of(Product("conv_wgrad", g, x, shape, self.conv()))

    def _torchs_gradient(self, which: int, g: Tensor, x: Tensor, w: Tensor, how: Sum) -> Tensor:
        with how.by_torch(g):
            return gradient_of_convolution(which, g, x, w, self.conv(), self.output_padding)


def _check_operands(
    function: str, dims: int, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int
) -> None:
    check_dimensions(function, dims, x, weight, bias, "(C_in, C_out / groups, ...)")
    c_in = weight.shape[0]
    if not isinstance(groups, int) or groups < 1 or c_in % groups:
        raise ValueError(
            f"{function}: groups={groups!r} with C_in={c_in}; expected an int that divides it"
        )
    if x.shape[-dims - 1] != c_in:
        raise ValueError(
            f"{function}: x has C_in={x.shape[-dims - 1]} but weight has C_in={c_in}; weight must "
            f"be (C_in, C_out / groups, ...) or x have {c_in} channels"
        )
    c_out = weight.shape[1] * groups
    if bias is not None and bias.shape != (c_out,):
        raise ValueError(
            f"{function}: bias has shape {tuple(bias.shape)} but the output has C_out={c_out} "
            f"channels; bias must be ({c_out},)"
        )


def _check_output(function: str, geometry: ConvTransposeGeometry, x: Tensor, w: Tensor) -> None:
    limits = zip(geometry.output_padding, geometry.stride, geometry.dilation, strict=True)
    if any(extra >= max(s, d) for extra, s, d in limits):
        raise ValueError(
            f"{function}: output_padding={geometry.output_padding} must be smaller than "
            f"stride={geometry.stride} or dilation={geometry.dilation} in every dimension"
        )
    out = geometry.output_shape(x, w)[2:]
    if 0 in x.shape[2:] or 0 in w.shape[2:] or any(n < 1 for n in out):
        raise ValueError(
            f"{function}: an input of size {tuple(x.shape[2:])} and a kernel of "
            f"{tuple(w.shape[2:])} give an output of size {tuple(out)} with "
            f"padding={geometry.padding}; every size must be at least 1: use less padding"
        )


def _conv_transpose(
    dims: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
    *,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
    scales: Scales | None = None,
) -> Tensor:
    """``torch.nn.functional.NAME`` with every operand and every sum rounded as the recipe says.

    The result is the input's gradient of the convolution with this weight, in ``recipe.fprop``: its
    sums run over (c_in, kernel) within a group, and a tap that falls between strides or outside
    adds nothing, but its position counts for chunks and draws. The input's gradient is that
    convolution of the output's, in ``recipe.dgrad``, over (c_out, kernel); the weight's gradient
    sums over (n, input position) and the bias' over (n, output position), both in ``recipe.wgrad``.

    Args:
        x: (N, C_in, *) or (C_in, *), as in ``conv2d``; dtypes as in ``linear``.
        weight: (C_in, C_out / groups, *kernel), bias: (C_out,) or None, as in ``linear``.
        stride, padding, dilation: an int or one per dimension.
        output_padding: the same, positions more on one side of the output, fewer than the stride or
            the dilation.
        groups: divides C_in.
        recipe, generator, backend, scales: as in ``linear``; torch's own function is
            https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.NAME.html.

    Returns:
        (N, C_out, *), without N if x had none; float32.

    Raises: as ``linear``; ValueError: a stride, padding, output_padding, dilation or groups that
        does not fit.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch:
        numbers = (stride, padding, output_padding, groups, dilation)
        return own(_TORCH_CONV[dims], x, weight, bias, *numbers)
    name = f"conv_transpose{dims}d"
    _check_operands(name, dims, x, weight, bias, groups)
    geometry = ConvTransposeGeometry(
        as_sizes(name, "stride", stride, dims, 1),
        as_sizes(name, "padding", padding, dims, 0),
        as_sizes(name, "dilation", dilation, dims, 1),
        groups,
        as_sizes(name, "output_padding", output_padding, dims, 0),
    )
    batch = widened(x if x.dim() == dims + 2 else x.unsqueeze(0))
    _check_output(name, geometry, batch, weight)
    seed = seeds.seed_of_call(name, recipe, generator, backend, ranks(name, dims, bias))
    b = None if bias is None else widened(bias)
    y = emulated_layer(batch, widened(weight), b, recipe, geometry, seed, backend, scales)
    return y if x.dim() == dims + 2 else y.squeeze(0)


conv_transpose1d = member("conv_transpose1d", _conv_transpose, 1)
conv_transpose2d = member("conv_transpose2d", _conv_transpose, 2)
conv_transpose3d = member("conv_transpose3d", _conv_transpose, 3)
