"""Layers with delayed scales for tests: recipes, codes by torch's own casts, steps."""

from typing import Any

import torch
from torch import Tensor

import lpkernels as lp

ROLES = ("input", "weight", "grad_output")


def recipe(scaling: lp.DelayedScaling, **fields: Any) -> lp.Recipe:
    operands = {"input": "tensor_e4m3_te", "weight": "tensor_e4m3_te"}
    return lp.Recipe(**{**operands, "grad_output": "tensor_e5m2_te", "scaling": scaling, **fields})


SHORT = lp.DelayedScaling(4)
PLAIN = recipe(SHORT)
# Every sum has one order, whatever the compiler makes of the rest.
SUMS = recipe(
    SHORT, grad_output="tensor_e5m2_te:stochastic", fprop="fp32", dgrad="fp32", wgrad="fp32"
)


def quantized(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The values of x's codes by torch's own cast, which is right within the format's range."""
    most = torch.finfo(dtype).max
    codes = (x * scale).clamp(-most, most).to(dtype).float()
    return codes * (1 / scale)


E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def trained(layer: Any, *x: Tensor, steps: int = 3) -> Any:
    """The layer after steps that change its scales, not its weights."""
    for i in range(steps):
        layer(*(each * (i + 1) for each in x)).square().sum().backward()
        lp.nn.update_scales(layer)
    layer.zero_grad()
    return layer
