"""Facts about all values of an operand, gathered on the device in the pass that packs it.

The facts are four int32, each the maximum over the values that count, and `NONE` where there is no
such value. `ABSENT` taps never count. A kernel on the device reads the facts and decides by them;
the host never waits for them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpkernels.backends.triton._layout import ABSENT

#: Every finite |x| is below 2^(facts[HIGHEST] + 1); zeros are left out.
HIGHEST = tl.constexpr(0)
#: Every finite x is a multiple of 2^-facts[LOWEST]; the sign makes it a maximum too.
LOWEST = tl.constexpr(1)
#: The most significant bits of a finite value, from its leading to its last one.
WIDTH = tl.constexpr(2)
#: 1 if there is an infinity or a NaN.
SPECIAL = tl.constexpr(3)
COUNT = 4

#: Below every exponent and width, also after two of them are added.
NONE = tl.constexpr(-1024)

_ABSENT = tl.constexpr(ABSENT)
_INFINITY = tl.constexpr(0x7F800000)


def new_facts(device: torch.device) -> Tensor:
    """The facts of two operands without any value, (2, COUNT)."""
    return torch.full((2, COUNT), NONE.value, dtype=torch.int32, device=device)


@triton.jit
def _place(x):
    """The exponent of the leading bit of integers 1 .. 2^24 - 1."""
    return (tl.cast(tl.cast(x, tl.float32), tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def gather_facts(facts_ptr, x):
    """Extends the facts by the values of a float32 tile."""
    a = tl.cast(x, tl.int32, bitcast=True) & 0x7FFFFFFF
    counts = (a != 0) & (a < _INFINITY)
    special = (a >= _INFINITY) & (a != _ABSENT)
    # x is an integer of 24 bits times 2^unit, subnormals too.
    exponent = a >> 23
    unit = tl.maximum(exponent, 1) - 150
    integer = tl.where(exponent == 0, a, (a & 0x7FFFFF) | 0x800000)
    integer = tl.where(counts, integer, 1)
    leading, last = _place(integer), _place(integer & -integer)
    _widen(facts_ptr + HIGHEST, tl.where(counts, unit + leading, NONE))
    _widen(facts_ptr + LOWEST, tl.where(counts, -(unit + last), NONE))
    _widen(facts_ptr + WIDTH, tl.where(counts, leading - last + 1, NONE))
    _widen(facts_ptr + SPECIAL, tl.where(special, 1, NONE))


@triton.jit
def _widen(fact_ptr, values):
    tl.atomic_max(fact_ptr, tl.max(values), sem="relaxed")
