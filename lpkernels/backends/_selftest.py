"""The handful of values that every backend rounds before its first use.

A compiler that contracts ``a * b + c`` into one rounding, or that reorders float operations, turns
the fast rounding primitives into the identity without any other sign. So does a process that
flushes subnormals. These values change when either has happened.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends import How, Rounding, matmul_of
from lpkernels.formats import FloatFormat

if TYPE_CHECKING:
    from lpkernels.backends import Backend

_FP16 = FloatFormat(5, 10)
_E5M2 = FloatFormat(5, 2)
_F32 = torch.float32

# (format, mode, value, result, dtype of the value): ties, sticky bits, the subnormal floor, zero's
# sign, overflow, NaN.
_CASES = (
    (_FP16, "nearest_even", 1 + 2**-11, 1.0, _F32),
    (_FP16, "nearest_even", 1 + 3 * 2**-11, 1 + 2**-9, _F32),
    (_FP16, "nearest_even", 1 + 2**-11 + 2**-23, 1 + 2**-10, _F32),
    (_FP16, "nearest_away", -1 - 2**-11, -1 - 2**-10, _F32),
    (_FP16, "toward_zero", 1.0 + 2**-10 - 2**-23, 1.0, _F32),
    (_FP16, "toward_positive", 1.0 + 2**-23, 1 + 2**-10, _F32),
    (_FP16, "toward_negative", 2.0**-149, 0.0, _F32),
    (_FP16, "to_odd", 1.0 + 2**-23, 1 + 2**-10, _F32),
    (_FP16, "stochastic", 1 + 2**-10, 1 + 2**-10, _F32),
    (_E5M2, "nearest_even", 2.0**-17, 0.0, _F32),
    (_E5M2, "nearest_even", 3 * 2.0**-17, 2.0**-15, _F32),
    (_E5M2, "nearest_even", -(2.0**-60), -0.0, _F32),
    (_E5M2, "nearest_even", 61440.0, math.inf, _F32),
    (_E5M2, "toward_zero", 1e30, 57344.0, _F32),
    (_E5M2, "nearest_even", math.nan, math.nan, _F32),
    # Rounded to float32 first it would be a tie.
    (_FP16, "nearest_even", 1 + 2**-11 + 2**-40, 1 + 2**-10, torch.float64),
)
_COPIES = 19  # more than one vector register and a remainder


def run(backend: Backend, device: torch.device) -> str:
    """Runs the test: "" if `backend` rounds these values as it must, else what went wrong."""
    seed = torch.zeros((), dtype=torch.int64, device="cpu")
    for fmt, mode, value, expected, dtype in _CASES:
        x = torch.full((_COPIES,), value, dtype=dtype, device=device)
        out = torch.empty(_COPIES, dtype=torch.float32, device=device)
        draws = seed if mode == "stochastic" else None
        backend.quantize(Rounding(x, Quantizer(fmt, mode).to_ints(), draws, out=out))
        if fault := _fault(f"{dtype} {value!r} to {fmt} {mode}", out, expected):
            return fault
    if backend.unsupported("matmul", device):
        return ""
    # 1 + 2^-11 + 2^-11 stays 1 when each step is rounded; a sum that is not, or a contracted one,
    # gives 1 + 2^-10.
    a = torch.tensor([[1.0, 2**-11, 2**-11]] * 3, dtype=torch.float32, device=device)
    b = torch.ones(3, _COPIES, dtype=torch.float32, device=device)
    out = backend.multiply(matmul_of(a, b), How(Accumulator(_FP16).to_ints()))
    return _fault(f"1 + 2^-11 + 2^-11 summed in {_FP16}", out, 1.0)


def _fault(what: str, out: Tensor, expected: float) -> str:
    # In text -0.0 differs from 0.0 and NaN equals NaN.
    wrong = set(map(repr, out.flatten().tolist())) - {repr(expected)}
    if not wrong:
        return ""
    return (
        f"its self-test failed: {what} must give {expected!r}, got {wrong.pop()}; the usual cause "
        "is a build with floating-point contraction or fast-math (use -ffp-contract=off, no "
        "-ffast-math; nvcc -fmad=false)"
    )
