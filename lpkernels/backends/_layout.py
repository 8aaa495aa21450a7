"""Shapes and strides of tensors as the kernels of csrc read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.backends._protocol import Update, UpdateTensors
from lpkernels.backends._tables import offsets
from lpkernels.formats.grids import Grid, grid_of, misfit
from lpkernels.formats.integers import AFFINE, BLOCK, KIND, Ints, takes_scales
from lpkernels.formats.integers import axis as axis_of
from lpkernels.rounding import STOCHASTIC

# The layout, beside the ElementTypes, of an update's values that are codes: kCodes of
# csrc/cpu/elementwise/update.h.
CODES = 4
_SPATIAL = 3
_WITH_SCALES = (AFFINE, BLOCK)
# The offset of a matrix that is the only one.
NO_OFFSET = torch.zeros(1, dtype=torch.int64, device="cpu")


def _is_dense(x: Tensor) -> bool:
    """Whether x fills one piece of memory, in whatever order of its dimensions: empty_like keeps
    the strides of such tensors alone."""
    return torch.empty_like(x, device="meta").stride() == x.stride()


def laid_out(x: Tensor, out: Tensor | None, quantizer: Ints) -> tuple[Tensor, Tensor | None]:
    """Both tensors of a rounding, dense and in one order, row-major where an element's result
    depends on its place in the tensor. Where out is another tensor then, it is to be copied."""
    if x.is_contiguous() and (out is None or out.stride() == x.stride()):
        return x, out
    by_place = takes_scales(quantizer) or quantizer[InQuantizer.ROUNDING] == STOCHASTIC
    if by_place or (out is not None and out.stride() != x.stride()) or not _is_dense(x):
        x = x.contiguous()
    if out is not None and out.stride() != x.stride():
        out = torch.empty_like(x, dtype=out.dtype)
    return x, out


def kernel_sizes(x: Tensor, fmt: Ints) -> Sequence[int]:
    """The sizes of a contiguous tensor as csrc/cpu reads them: the grid of a block format, else
    `axis_sizes`."""
    if fmt[KIND] not in _WITH_SCALES:
        return (1, x.numel(), 1)
    return _block_sizes(x.shape, fmt) if fmt[KIND] == BLOCK else axis_sizes(x.shape, fmt)


@lru_cache(maxsize=4096)
def _block_sizes(shape: torch.Size, fmt: Ints) -> Grid:
    check_fits(fmt, shape)
    return grid_of(shape, fmt) if math.prod(shape) else Grid(0, 0, 0, 1, 1)


def axis_sizes(shape: torch.Size, fmt: Ints) -> list[int]:
    """(outer, length, inner) around the axis of a block or affine format; one line for others.

    Raises: ValueError: shape lacks the axis.
    """
    axis = axis_of(fmt)
    if axis is None:
        # The whole tensor is one slice of an affine format.
        return [1, 1, math.prod(shape)] if fmt[KIND] == AFFINE else [1, math.prod(shape), 1]
    check_fits(fmt, shape)
    rank = len(shape)
    axis %= rank
    return [math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])]


def check_fits(fmt: Ints, shape: torch.Size) -> None:
    """Raises: ValueError: the format has no blocks or slices in a tensor of this shape. Public
    functions check it before; compiled graphs that read a format as they run cannot."""
    wrong = misfit(fmt, len(shape))
    if wrong is not None:
        raise wrong.error("rounding", "a format", f"the tensor has shape {tuple(shape)}")


def batch_offsets(x: Tensor, batch: torch.Size) -> Tensor:
    """Where each matrix of the broadcast batch starts in x, in elements."""
    strides = x.expand(*batch, *x.shape[-2:]).stride()[: len(batch)]
    return offsets(tuple(batch), strides, NO_OFFSET.device) if batch else NO_OFFSET


def by_batch(
    left: Tensor, right: Tensor, shape: torch.Size
) -> tuple[Tensor, int, tuple[Tensor, Tensor]]:
    """The left operand of a matmul of this result's shape, the number of matrices, and where each
    starts in both operands.

    With one right matrix and dense left ones, the batch is more rows, which have the same ids:
    right is packed once for all.
    """
    batch = shape[:-2]
    if not batch:
        return left, 1, (NO_OFFSET, NO_OFFSET)
    if right.dim() == 2 and left.is_contiguous():
        return left.view(math.prod(shape[:-1]), left.shape[-1]), 1, (NO_OFFSET, NO_OFFSET)
    return left, batch.numel(), (batch_offsets(left, batch), batch_offsets(right, batch))


def five(strides: Sequence[int]) -> Sequence[int]:
    """The strides of an image or kernel: two leading dimensions, then three spatial ones. A
    spatial dimension that the tensor lacks has the stride 0 and stands first."""
    return (*strides[:2], *[0] * (_SPATIAL + 2 - len(strides)), *strides[2:])


def update_dtypes(tensors: UpdateTensors) -> list[torch.dtype]:
    """The dtypes of gradients, masters, both states and weights; float32 stands for an absent
    kind."""
    masters = tensors.masters or tensors.weights
    kinds = (tensors.gradients, masters, tensors.first, tensors.second, tensors.weights)
    return [kind[0].dtype if kind else torch.float32 for kind in kinds]


def update_parameters(update: Update) -> list[int]:
    """Ten integers for every parameter, as csrc/module/update.h reads them: addresses (0 for an
    absent tensor), the number of elements, position and origin."""
    positions, weights = update.positions, update.tensors.weights
    addresses = [[x.data_ptr() for x in kind] or [0] * len(positions) for kind in update.tensors]
    elements = [x.numel() for x in weights]
    rows = zip(*addresses, elements, positions, update.origins, strict=True)
    return [value for row in rows for value in row]


def add_steps(steps: Sequence[Tensor], skips: Tensor | None) -> None:
    """Adds 1 to every count of steps, or 0 where `skips` is true; the host does not read it."""
    if steps:
        one = torch.ones((), dtype=torch.float32, device=steps[0].device)
        torch._foreach_add_(list(steps), one if skips is None else one - skips.to(one))
