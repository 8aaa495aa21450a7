"""The operator of Hadamard transforms with random signs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lpkernels import backends
from lpkernels.arithmetic.hadamard import (
    check_transform,
    signs_of,
    transform_from_int,
    transform_to_int,
)
from lpkernels.ops import _checks
from lpkernels.ops._operator import define, without_grad

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _result(x: Tensor, *call: Any) -> Tensor:
    return torch.empty(x.shape, dtype=torch.float32, device=x.device)


def _transformed(x: Tensor, transform: int, axis: int, backend: str) -> Tensor:
    chosen = backends.select(backend, "hadamard", x.device)
    if x.numel() == 0:
        return _result(x)
    size, signs = transform_from_int(transform)
    assert size is not None
    return chosen.hadamard(without_grad(x), size, signs_of(size, signs), axis % x.dim())


def _guard(x: Tensor, transform: int, axis: int, *call: Any) -> None:
    size, signs = transform_from_int(transform)
    check_transform("lpkernels::_hadamard", size, signs)
    _checks.require(x.dtype in _FLOATS, "hadamard", "float16, bfloat16 or float32", x.dtype)
    right = -x.dim() <= axis < x.dim()
    _checks.require(right, "hadamard", f"an axis of {x.dim()} dimensions", axis)
    expected = f"a length along axis {axis} that {size} divides"
    _checks.require(x.shape[axis] % (size or 1) == 0, "hadamard", expected, tuple(x.shape))


_hadamard = define(
    "_hadamard(Tensor x, int transform, int axis, str backend) -> Tensor",
    _result,
    _transformed,
    _guard,
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
    _guard(x, transform, axis)
    return _hadamard(x, transform, axis, backend)
