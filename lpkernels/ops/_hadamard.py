"""The operator of Hadamard transforms with random signs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lpkernels.arithmetic.hadamard import (
    check_transform,
    signs_of,
    transform_from_int,
    transform_to_int,
)
from lpkernels.ops._descriptions import require, select
from lpkernels.ops._operator import define, without_grad

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _result(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=torch.float32, device=x.device)


def _transformed(a: Any) -> Tensor:
    chosen = select(a.backend, "hadamard", a.x.device)
    if a.x.numel() == 0:
        return _result(a.x)
    size, signs = transform_from_int(a.transform)
    assert size is not None
    return chosen.hadamard(without_grad(a.x), size, signs_of(size, signs), a.axis % a.x.dim())


def _check(x: Tensor, transform: int, axis: int) -> None:
    size, signs = transform_from_int(transform)
    check_transform("lpkernels::_hadamard", size, signs)
    require(x.dtype in _FLOATS, "hadamard", "float16, bfloat16 or float32", x.dtype)
    require(-x.dim() <= axis < x.dim(), "hadamard", f"an axis of {x.dim()} dimensions", axis)
    expected = f"a length along axis {axis} that {size} divides"
    require(x.shape[axis] % (size or 1) == 0, "hadamard", expected, tuple(x.shape))


_hadamard = define(
    "_hadamard(x, int transform, int axis, backend) -> Tensor",
    lambda a: _result(a.x),
    _transformed,
    lambda a: _check(a.x, a.transform, a.axis),
)


def hadamard(x: Tensor, size: int, signs: str | int, axis: int, backend: str = "auto") -> Tensor:
    """Every run of size values along axis as x D H / sqrt(size), rounded once to bfloat16.

    Args:
        x:    float16, bfloat16 or float32, of any shape and strides.
        size: 16, 32, 64 or 128; it divides x's length along axis.
        signs: D: "te" or a seed, as a Quantizer takes it.
    Returns:  a new contiguous float32 tensor of x's shape. `reference.hadamard` says what becomes
        of zeros, infinities and NaN.
    Raises:  TypeError, ValueError: another size, signs, dtype or axis, or a length that size does
        not divide.
    """
    transform = transform_to_int(*check_transform("hadamard", size, signs))
    _check(x, transform, axis)
    return _hadamard(x, transform, axis, backend)
