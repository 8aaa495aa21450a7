"""How tensors lie, and their sizes around an axis, for the adapters of the CPU and of Triton."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.formats.grids import misfit
from lpkernels.formats.integers import AFFINE, BLOCK, KIND, Ints
from lpkernels.formats.integers import axis as axis_of
from lpkernels.rounding import STOCHASTIC


def _is_dense(x: Tensor) -> bool:
    """Whether x fills one piece of memory, in whatever order of its dimensions: empty_like keeps
    the strides of such tensors alone."""
    return torch.empty_like(x, device="meta").stride() == x.stride()


def laid_out(x: Tensor, out: Tensor | None, quantizer: Ints) -> tuple[Tensor, Tensor | None]:
    """Both tensors of a rounding, dense and in one order, row-major where an element's result
    depends on its place in the tensor. Where out is another tensor then, it is to be copied."""
    if x.is_contiguous() and (out is None or out.stride() == x.stride()):
        return x, out
    by_place = quantizer[KIND] in (AFFINE, BLOCK) or quantizer[InQuantizer.ROUNDING] == STOCHASTIC
    if by_place or (out is not None and out.stride() != x.stride()) or not _is_dense(x):
        x = x.contiguous()
    if out is not None and out.stride() != x.stride():
        out = torch.empty_like(x, dtype=out.dtype)
    return x, out


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
