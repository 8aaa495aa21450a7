"""Convolutions and transposed ones in one, two and three dimensions under a Recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels.arithmetic import TORCH, Ranks, Recipe, check_axes
from lpkernels.arithmetic.products import output_size
from lpkernels.functional import _checks, seeds
from lpkernels.functional._families import member
from lpkernels.functional.call import Sum
from lpkernels.functional.layer import emulated_layer
from lpkernels.functional.running import Scales
from lpkernels.functional.torch_calls import CONVOLUTIONS, gradient_of_convolution, own
from lpkernels.ops import Convolution, Product, fprop_of, is_direct
from lpkernels.recipes import as_recipe

Size = int | Sequence[int]


_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@dataclass(frozen=True)
class _SlidingGeometry:
    """The numbers of convolutions and of transposed ones, and the spatial sizes of the result.

    ``output_padding`` has a number for each dimension of a transposed convolution; else it is ().
    """

    conv: Convolution
    output: tuple[int, ...]
    output_padding: tuple[int, ...] = ()
    final: ClassVar[bool] = True
    two_activations: ClassVar[bool] = False
    matmuls: ClassVar[bool] = False
    rounds: ClassVar[bool] = True
    name: ClassVar[str] = "a convolution"

    def rows(self, g: Tensor, shape: torch.Size) -> Tensor:
        # [N, C, *] -> [N * positions, C]
        return g.movedim(1, -1).flatten(0, -2)

    def factors(
        self, product: str, left: Tensor, right: Tensor, shape: torch.Size
    ) -> tuple[Tensor, Tensor]:
        return left, right


class ConvGeometry(_SlidingGeometry):
    """y (N, C_out, *) = x (N, C_in, *) conv w (C_out, C_in / groups, *) + b, in 1 to 3
    dimensions."""

    def fprop(
        self, x: Tensor, w: Tensor, b: Tensor | None, shape: torch.Size | None, how: Sum
    ) -> Tensor:
        size = (x.shape[0], w.shape[0], *self.output)
        return how.of(Product("conv_fprop", x, w, size, self.conv, b))

    def dgrad(self, g: Tensor, w: Tensor, shape: torch.Size, how: Sum) -> Tensor:
        return how.of(Product("conv_dgrad", g, w, shape, self.conv))

    def wgrad(self, g: Tensor, x: Tensor, shape: torch.Size, how: Sum) -> Tensor:
        # The product's first operand is x.
        return how.swapped().of(Product("conv_wgrad", x, g, shape, self.conv))


class ConvTransposeGeometry(_SlidingGeometry):
    """y (N, C_out, *) is the dgrad of the convolution with w (C_in, C_out / groups, *) that maps
    y's shape to the shape of x (N, C_in, *).

    So dx is that convolution of dy, and dw its wgrad. The sums have the order and the draws the
    keys of the convolution's passes: docs/contract.md, "The order of k" and "Draws".
    """

    def fprop(
        self, x: Tensor, w: Tensor, b: Tensor | None, shape: torch.Size | None, how: Sum
    ) -> Tensor:
        stride, padding, dilation, groups = self.conv
        if how.is_native:
            torchs, extra = _TRANSPOSED[len(stride)], self.output_padding
            with how.by_torch(x):
                return own(torchs, x, w, b, stride, padding, extra, groups, dilation)
        size = (x.shape[0], w.shape[1] * groups, *self.output)
        product = Product("conv_dgrad", x, w, size, self.conv)
        return how.of(product) if b is None else how.add_bias(how.rounding(()).of(product), b, 1)

    def dgrad(self, g: Tensor, w: Tensor, shape: torch.Size, how: Sum) -> Tensor:
        if how.is_native:
            return self._torchs_gradient(0, g, g.new_empty(1).expand(shape), w, how)
        dx = how.of(fprop_of(g, w, None, self.conv))
        # An output_padding of the stride or more makes room for positions that x does not have.
        if dx.shape != shape:
            dx = dx[tuple(slice(n) for n in shape)].contiguous()
        return dx

    def wgrad(self, g: Tensor, x: Tensor, shape: torch.Size, how: Sum) -> Tensor:
        if how.is_native:
            return self._torchs_gradient(1, g, x, g.new_empty(1).expand(shape), how)
        # The convolution's input is g, and its product's left factor x.
        return how.exchanged().of(Product("conv_wgrad", g, x, shape, self.conv))

    def _torchs_gradient(self, which: int, g: Tensor, x: Tensor, w: Tensor, how: Sum) -> Tensor:
        with how.by_torch(g):
            return gradient_of_convolution(which, g, x, w, self.conv, self.output_padding)


# No hardware has blocks along (c_in, kh, kw) of windows that overlap.
_NO_K = (
    "one pixel of a convolution is in several sums, and would need a scale for each. Leave "
    "convolutions to another recipe (exclude= of lp.convert), or give blocks along channels for "
    "fprop and dgrad, and along the batch for wgrad, under native sums: "
    'input="block32_axis1_e4m3_up", weight="block32_axis1_e4m3_up", '
    'grad_output="block32_axis1_e4m3_up", dgrad_weight="block32_axis0_e4m3_up", '
    'wgrad_input="block32_axis0_e4m3_up", wgrad_grad_output="block32_axis0_e4m3_up"'
)


def _check_operands(
    function: str,
    dims: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    groups: int,
    transposed: bool = False,
) -> bool:
    """Returns whether operators may run directly."""
    direct = is_direct(x, weight, bias, dtype=torch.float32)
    if not direct:
        _checks.operands(function, x=x, weight=weight, bias=bias)
    fits = x.dim() in (dims + 1, dims + 2) and weight.dim() == dims + 2
    fits = fits and isinstance(groups, int) and groups > 0 and not weight.shape[0] % groups
    if fits:
        channels = (weight.shape[0], weight.shape[1] * groups)
        c_in, c_out = channels if transposed else channels[::-1]
        fits = x.shape[-dims - 1] == c_in and (bias is None or bias.shape == (c_out,))
    if not fits:
        shapes = [None if t is None else tuple(t.shape) for t in (x, weight, bias)]
        sizes = ", ".join("DHW"[-dims:]) if dims > 1 else "L"
        rows, columns = ("C_in", "C_out") if transposed else ("C_out", "C_in")
        raise ValueError(
            f"{function}: x, weight and bias have the shapes {shapes}, and groups={groups!r}; "
            f"expected (N, C_in, {sizes}) or without N, ({rows}, {columns} / groups, ...), "
            "(C_out,), and an int that divides C_in and C_out"
        )
    return direct


def _as_sizes(function: str, name: str, value: Size, dims: int, least: int) -> tuple[int, ...]:
    """``dims`` ints, each at least ``least``, from an int, or from one or ``dims`` ints."""
    values = (value,) if isinstance(value, int | float) else tuple(value)
    integers = all(isinstance(v, int) for v in values)
    values = values * dims if len(values) == 1 else values
    if not integers or len(values) != dims or any(v < least for v in values):
        raise (ValueError if integers else TypeError)(
            f"{function}: {name}={value!r}; expected an int or {dims} ints, each at least {least}"
        )
    return values


def _symmetric_padding(
    function: str,
    padding: Size | str,
    kernel: Sequence[int],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[tuple[int, ...], list[int]]:
    """The symmetric padding, and what F.pad adds before it on the right, last dimension first."""
    dims = len(kernel)
    if padding == "same":
        if any(s != 1 for s in stride):
            raise ValueError(
                f'{function}: padding="same" needs stride 1, got stride={stride}; '
                "give the padding as ints"
            )
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        extra = [n for total in reversed(totals) for n in (0, total % 2)]
        return tuple(total // 2 for total in totals), extra
    if isinstance(padding, str):
        if padding != "valid":
            raise ValueError(
                f'{function}: padding={padding!r}; expected "same", "valid", an int or {dims} ints'
            )
        padding = 0
    return _as_sizes(function, "padding", padding, dims, 0), [0] * (2 * dims)


def ranks(name: str, dims: int, bias: object) -> Ranks:
    """The ranks of a convolution's tensors; an image alone is rounded as a batch of one."""
    return Ranks(name, dims + 2, dims + 2, None if bias is None else 1, dims + 2, _NO_K)


def _geometry(
    name: str,
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Size,
    padding: Size | str,
    dilation: Size,
    groups: int,
) -> tuple[ConvGeometry, list[int]]:
    """The geometry of a convolution of an image of these sizes, and the padding on one side alone
    that F.pad adds before it.

    Raises: TypeError, ValueError: numbers that do not fit.
    """
    dims = len(sizes)
    strides = _as_sizes(name, "stride", stride, dims, 1)
    dilations = _as_sizes(name, "dilation", dilation, dims, 1)
    paddings, extra = _symmetric_padding(name, padding, kernel, strides, dilations)
    padded = [n + 2 * p + e for n, p, e in zip(sizes, paddings, extra[::-2], strict=True)]
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    if any(k < 1 for k in kernel) or any(n < span for n, span in zip(padded, spans, strict=True)):
        raise ValueError(
            f"{name}: the kernel {tuple(kernel)} (dilation {dilations}) spans {tuple(spans)} but "
            f"the padded input is {tuple(padded)}, from {tuple(sizes)}; use a smaller kernel or "
            "more padding"
        )
    conv = Convolution(strides, paddings, dilations, groups)
    output = output_size(padded, kernel, strides, (0,) * dims, dilations)
    return ConvGeometry(conv, tuple(output)), extra if any(extra) else []


_cached_geometry = lru_cache(maxsize=4096, typed=True)(_geometry)


def _conv(
    dims: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
    scales: Scales | None = None,
) -> Tensor:
    """``torch.nn.functional.NAME`` with every operand and every sum rounded as the recipe says.

    The sums run in the order of k (docs/contract.md). A tap on padding adds nothing, whatever the
    weight there, but its position counts for chunks and draws.

    Args:
        x: (N, C_in, *) or (C_in, *), with L, (H, W) or (D, H, W) in place of the star; dtypes as in
            ``linear``.
        weight: (C_out, C_in / groups, *kernel), bias: (C_out,) or None, as in ``linear``.
        stride, dilation: an int or one per dimension.
        padding: the same, or "valid" (none), or "same" (stride 1 only). Where "same" pads one side
            more, as torch does, these zeros are part of the input that the recipe quantises.
        groups: divides C_in and C_out.
        recipe, generator, backend, scales: as in ``linear``; torch's own function is
            https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.NAME.html.

    Returns: (N, C_out, *), without N if x had none; the dtype as in ``linear``.
    Raises: as ``linear``; ValueError: a stride, padding, dilation or groups that does not fit.
    """
    if type(recipe) is not Recipe:
        recipe = as_recipe(recipe)
    if recipe.is_torch:
        return own(CONVOLUTIONS[dims], x, weight, bias, stride, padding, dilation, groups)
    name = f"conv{dims}d"
    direct = _check_operands(name, dims, x, weight, bias, groups)
    if backend != "auto" or generator is not None:
        _checks.call(name, backend, generator)
    if recipe.axes:
        check_axes(recipe, ranks(name, dims, bias))
    # A list is no key of the cache.
    stride = tuple(stride) if isinstance(stride, list) else stride
    padding = tuple(padding) if isinstance(padding, list) else padding
    dilation = tuple(dilation) if isinstance(dilation, list) else dilation
    geometry_of = _geometry if torch.compiler.is_compiling() else _cached_geometry
    geometry, extra = geometry_of(
        name, x.shape[-dims:], weight.shape[2:], stride, padding, dilation, groups
    )
    seed = seeds.seed_for(True, generator) if recipe.is_stochastic else None
    image = x if x.dim() == dims + 2 else x.unsqueeze(0)
    image = F.pad(image, extra) if extra else image
    direct = direct and (seed is None or is_direct(seed))
    y = emulated_layer(image, weight, bias, recipe, geometry, seed, backend, scales, direct)
    return y if x.dim() == dims + 2 else y.squeeze(0)


conv1d = member("conv1d", _conv, 1)
conv2d = member("conv2d", _conv, 2)
conv3d = member("conv3d", _conv, 3)


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

    The result is the input's gradient of the convolution with this weight, in ``recipe.fprop``; the
    input's gradient is that convolution of the output's, in ``recipe.dgrad``. docs/contract.md,
    "The order of k", has the sums. A tap that falls between strides or outside adds nothing, but
    its position counts for chunks and draws.

    Args:
        x: (N, C_in, *) or (C_in, *), as in ``conv2d``; dtypes as in ``linear``.
        weight: (C_in, C_out / groups, *kernel), bias: (C_out,) or None.
        stride, padding, dilation: an int or one per dimension.
        output_padding: the same, positions more on one side of the output, fewer than the stride or
            the dilation.
        groups: divides C_in.
        recipe, generator, backend, scales: as in ``linear``; torch's own function is
            https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.NAME.html.

    Returns: (N, C_out, *), without N if x had none; the dtype as in ``linear``.
    Raises: as ``linear``; ValueError: a stride, padding, output_padding, dilation or groups that
        does not fit.
    """
    if type(recipe) is not Recipe:
        recipe = as_recipe(recipe)
    if recipe.is_torch:
        torchs = _TRANSPOSED[dims]
        return own(torchs, x, weight, bias, stride, padding, output_padding, groups, dilation)
    name = f"conv_transpose{dims}d"
    _check_operands(name, dims, x, weight, bias, groups, transposed=True)
    conv = Convolution(
        _as_sizes(name, "stride", stride, dims, 1),
        _as_sizes(name, "padding", padding, dims, 0),
        _as_sizes(name, "dilation", dilation, dims, 1),
        groups,
    )
    extra = _as_sizes(name, "output_padding", output_padding, dims, 0)
    parts = zip(x.shape[-dims:], weight.shape[2:], *conv[:3], extra, strict=True)
    size = tuple((n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, k, s, p, d, e in parts)
    geometry = ConvTransposeGeometry(conv, size, extra)
    image = x if x.dim() == dims + 2 else x.unsqueeze(0)
    if any(e >= max(s, d) for e, s, d in zip(extra, conv.stride, conv.dilation, strict=True)):
        raise ValueError(
            f"{name}: output_padding={extra} must be smaller than stride={conv.stride} or "
            f"dilation={conv.dilation} in every dimension"
        )
    if 0 in image.shape[2:] or 0 in weight.shape[2:] or any(n < 1 for n in size):
        raise ValueError(
            f"{name}: an input of size {tuple(image.shape[2:])} and a kernel of "
            f"{tuple(weight.shape[2:])} give an output of size {size} with "
            f"padding={conv.padding}; every size must be at least 1: use less padding"
        )
    seed = seeds.seed_of_call(name, recipe, generator, backend, ranks(name, dims, bias))
    y = emulated_layer(image, weight, bias, recipe, geometry, seed, backend, scales)
    return y if x.dim() == dims + 2 else y.squeeze(0)


conv_transpose1d = member("conv_transpose1d", _conv_transpose, 1)
conv_transpose2d = member("conv_transpose2d", _conv_transpose, 2)
conv_transpose3d = member("conv_transpose3d", _conv_transpose, 3)
