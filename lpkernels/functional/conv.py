"""Convolutions in one, two and three dimensions under a Recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels.arithmetic import TORCH, Ranks, Recipe, check_axes
from lpkernels.functional import _checks, seeds
from lpkernels.functional._families import member
from lpkernels.functional.layer import Sum, emulated_layer, widened_all
from lpkernels.functional.running import Scales
from lpkernels.functional.torch_calls import CONVOLUTIONS, own
from lpkernels.ops import Convolution, Product, fprop_of, is_direct
from lpkernels.recipes import as_recipe

Size = int | Sequence[int]


@dataclass(frozen=True)
class SlidingGeometry:
    """The numbers of convolutions and of transposed ones.

    ``output_padding`` has a number for each dimension of a transposed convolution; else it is ().
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    output_padding: tuple[int, ...] = ()
    final: ClassVar[bool] = True
    two_activations: ClassVar[bool] = False
    matmuls: ClassVar[bool] = False
    rounds: ClassVar[bool] = True

    def conv(self) -> Convolution:
        return Convolution(self.stride, self.padding, self.dilation, self.groups)

    def rows(self, g: Tensor, shape: torch.Size) -> Tensor:
        # [N, C, *] -> [N * positions, C]
        return g.movedim(1, -1).flatten(0, -2)

    def factors(
        self, product: str, left: Tensor, right: Tensor, shape: torch.Size
    ) -> tuple[Tensor, Tensor]:
        return left, right

    def shaped(self, y: Tensor, shape: torch.Size) -> Tensor:
        return y


class ConvGeometry(SlidingGeometry):
    """y (N, C_out, *) = x (N, C_in, *) conv w (C_out, C_in / groups, *) + b in 1 to 3 dimensions.

    Order of the sums within a group: (c_in, kernel) forward, (c_out, kernel) for the input's
    gradient, (n, output position) for the gradients of weight and bias. A tap on padding adds
    nothing, but its position counts.
    """

    def fprop(self, x: Tensor, w: Tensor, b: Tensor | None, how: Sum) -> Tensor:
        return how.of(fprop_of(x, w, b, self.conv()))

    def dgrad(self, g: Tensor, w: Tensor, shape: torch.Size, how: Sum) -> Tensor:
        return how.of(Product("conv_dgrad", g, w, shape, self.conv()))

    def wgrad(self, x: Tensor, g: Tensor, shape: torch.Size, how: Sum) -> Tensor:
        return how.of(Product("conv_wgrad", x, g, shape, self.conv()))


def check_dimensions(
    function: str, dims: int, x: Tensor, weight: Tensor, bias: Tensor | None, layout: str
) -> bool:
    """All are operands; x has the dimensions of one or several images, weight those of layout.

    Returns whether operators may run directly.
    """
    direct = _checks.operands(function, x=x, weight=weight, bias=bias)
    if x.dim() not in (dims + 1, dims + 2) or weight.dim() != dims + 2:
        names = "DHW"[-dims:] if dims > 1 else "L"
        raise ValueError(
            f"{function}: x has shape {tuple(x.shape)} and weight {tuple(weight.shape)}; x must be "
            f"(N, C_in, {', '.join(names)}) or (C_in, ...), weight {layout}"
        )
    return direct


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
    function: str, dims: int, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int
) -> bool:
    """Returns whether operators may run directly."""
    direct = check_dimensions(function, dims, x, weight, bias, "(C_out, C_in / groups, ...)")
    c_out, c_in = weight.shape[0], x.shape[-dims - 1]
    if not isinstance(groups, int) or groups < 1 or c_out % groups or c_in % groups:
        raise ValueError(
            f"{function}: groups={groups!r} with C_in={c_in} and C_out={c_out}; "
            "expected an int that divides both"
        )
    if weight.shape[1] * groups != c_in:
        raise ValueError(
            f"{function}: x has C_in={c_in} but weight has C_in / groups={weight.shape[1]} with "
            f"groups={groups}; weight must be ({c_out}, {c_in // groups}, ...) or x have "
            f"{weight.shape[1] * groups} channels"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"{function}: bias has shape {tuple(bias.shape)} but weight has C_out={c_out}; "
            f"bias must be ({c_out},)"
        )
    return direct


def _check_output(
    function: str,
    sizes: Sequence[int],
    kernel: Sequence[int],
    padded: Sequence[int],
    dilation: Sequence[int],
) -> None:
    """Checks that every padded size holds the kernel at least once, and that the kernel has
    taps."""
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    if any(k < 1 for k in kernel) or any(n < span for n, span in zip(padded, spans, strict=True)):
        raise ValueError(
            f"{function}: the kernel {tuple(kernel)} (dilation {tuple(dilation)}) spans "
            f"{tuple(spans)} but the padded input is {tuple(padded)}, from {tuple(sizes)}; "
            "use a smaller kernel or more padding"
        )


def as_sizes(function: str, name: str, value: Size, dims: int, least: int) -> tuple[int, ...]:
    """``dims`` ints, each at least ``least``, from an int, or from one or ``dims`` ints."""
    values = (value,) if isinstance(value, int | float) else tuple(value)
    if not all(isinstance(v, int) for v in values):
        raise TypeError(f"{function}: {name}={value!r}; expected an int or {dims} ints")
    if len(values) == 1:
        values = values * dims
    if len(values) != dims or any(v < least for v in values):
        raise ValueError(
            f"{function}: {name}={value!r}; expected an int or {dims} ints, each at least {least}"
        )
    return values


def symmetric_padding(
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
    return as_sizes(function, "padding", padding, dims, 0), [0] * (2 * dims)


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
    strides = as_sizes(name, "stride", stride, dims, 1)
    dilations = as_sizes(name, "dilation", dilation, dims, 1)
    paddings, extra = symmetric_padding(name, padding, kernel, strides, dilations)
    padded = [n + 2 * p + e for n, p, e in zip(sizes, paddings, extra[::-2], strict=True)]
    _check_output(name, sizes, kernel, padded, dilations)
    geometry = ConvGeometry(strides, paddings, dilations, groups)
    return geometry, extra if any(extra) else []


_kept_geometry = lru_cache(maxsize=4096, typed=True)(_geometry)


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

    The sums run in the order of k, within a group: over (c_in, kernel) forward, (c_out, kernel) for
    the input's gradient, (n, output position) for the gradients of weight and bias. A tap on
    padding adds nothing, whatever the weight there, but its position counts for chunks and draws.

    Args:
        x: (N, C_in, *) or (C_in, *), with L, (H, W) or (D, H, W) in place of the star; dtypes as in
            ``linear``.
        weight: (C_out, C_in / groups, *kernel), bias: (C_out,) or None, as in ``linear``.
        stride, dilation: an int or one per dimension.
        padding: the same, or "valid" (none), or "same" (stride 1 only). Where "same" pads one side
            more, that side is padded with zeros first, as torch does: these zeros are part of the
            input that the recipe quantises, and their taps are products with zero.
        groups: divides C_in and C_out.
        recipe, generator, backend, scales: as in ``linear``; torch's own function is
            https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.NAME.html.

    Returns:
        (N, C_out, *), without N if x had none; float32.

    Raises: as ``linear``; ValueError: a stride, padding, dilation or groups that does not fit.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch:
        return own(CONVOLUTIONS[dims], x, weight, bias, stride, padding, dilation, groups)
    name = f"conv{dims}d"
    direct = _check_operands(name, dims, x, weight, bias, groups)
    if backend != "auto" or generator is not None:
        _checks.call(name, backend, generator)
    if recipe.axes:
        check_axes(recipe, ranks(name, dims, bias))
    numbers = (name, x.shape[-dims:], weight.shape[2:], stride, padding, dilation, groups)
    if torch.compiler.is_compiling():
        geometry, extra = _geometry(*numbers)
    else:
        try:
            geometry, extra = _kept_geometry(*numbers)
        except TypeError:
            # A list is no key; a number of a wrong type is refused here.
            geometry, extra = _geometry(*numbers)
    seed = seeds.seed_for(True, generator) if recipe.is_stochastic else None
    image, w, b = widened_all(x if x.dim() == dims + 2 else x.unsqueeze(0), weight, bias)
    image = F.pad(image, extra) if extra else image
    direct = direct and (seed is None or is_direct(seed))
    y = emulated_layer(image, w, b, recipe, geometry, seed, backend, scales, direct)
    return y if x.dim() == dims + 2 else y.squeeze(0)


conv1d = member("conv1d", _conv, 1)
conv2d = member("conv2d", _conv, 2)
conv3d = member("conv3d", _conv, 3)
