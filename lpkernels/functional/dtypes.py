"""The dtypes of layers: operands are widened to float32, and a result is rounded to 16 bits where
all operands have them.

torch.compile computes 16-bit values between operators in float32 and leaves their roundings out. In
its graphs an operator, which it cannot look into, rounds before each cast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import Quantizer
from lpkernels.formats import BF16, FP16
from lpkernels.functional.recording import apply
from lpkernels.rng import SITE_OUTPUT, Role

_QUANTIZERS = {
    torch.bfloat16: Quantizer(BF16).to_ints(),
    torch.float16: Quantizer(FP16).to_ints(),
}


def result_dtype(*operands: Tensor | None) -> torch.dtype:
    """The dtype of a layer's result: that of its operands where all have one of 16 bits, else
    float32.

    operands: the first is a tensor. Masks, running statistics and scales are none.
    """
    first, *others = [x.dtype for x in operands if x is not None]
    is_shared = first in _QUANTIZERS and all([dtype is first for dtype in others])
    return first if is_shared else torch.float32


def narrowed(y: Tensor, dtype: torch.dtype) -> Tensor:
    """A float32 y in `result_dtype`, rounded to nearest even; its gradient is widened exactly. A y
    of another dtype is the result of torch's own function, and stays."""
    if dtype is torch.float32 or y.dtype is not torch.float32:
        return y
    return _in_a_graph(y, dtype) if torch.compiler.is_compiling() else y.to(dtype)


def widened(x: Tensor) -> Tensor:
    """A float16 or bfloat16 tensor as float32, exactly; its gradient returns in its dtype, rounded
    to nearest even."""
    if x.dtype is torch.float32:
        return x
    return _in_a_graph(x, torch.float32) if torch.compiler.is_compiling() else x.float()


def widened_all(x: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """`widened` of the three tensors of a layer."""
    if x.dtype is not torch.float32:
        x = widened(x)
    if w.dtype is not torch.float32:
        w = widened(w)
    if b is not None and b.dtype is not torch.float32:
        b = widened(b)
    return x, w, b


def _in_a_graph(x: Tensor, dtype: torch.dtype) -> Tensor:
    y: Tensor = apply(_Cast, x, dtype)
    return y


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    narrow = x.dtype if dtype is torch.float32 else dtype
    return ops.quantize(x, _QUANTIZERS[narrow], None, Role.OUTPUT, SITE_OUTPUT).to(dtype)


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = x.dtype
        return _cast(x, dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _cast(grad, ctx.dtype), None
