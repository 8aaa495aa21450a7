"""A warning, once, of operands with values that the formats of their accumulator lack: no tensor
core could hold such values, and no hardware makes these sums.

The search takes place in tensors on the CPU, in the first product of every operator, pair of
formats and pair of shapes, until MOST products were searched; later products cost one look into a
set. Tensors on a GPU are not searched, because they would have to be waited for.
"""

from __future__ import annotations

import warnings

from torch import Tensor

from lpkernels.arithmetic import Quantizer, accumulator_from_ints
from lpkernels.arithmetic.integers import InAccumulator
from lpkernels.backends import How, Product
from lpkernels.formats import FloatFormat
from lpkernels.ops._quantize import quantize_directly

# Bounds the set of shapes, and the time that a program with ever new shapes spends on searches.
MOST = 256

_SIDES = ("left", "right")

# The shapes that were looked at, and the formats that a warning has named.
_looked: set[tuple[object, ...]] = set()
_warned: set[FloatFormat] = set()


def look_once(product: Product, how: How) -> None:
    """Warns if the operands, once rounded, hold a value that the operand formats of how.acc lack.

    Does nothing if there are no operand formats, or the tensors lie on a GPU.
    """
    op, first, second = product.kind, product.left, product.right
    if len(how.acc) <= InAccumulator.PLAIN or not first.is_cpu:
        return
    key = (op, how.acc[InAccumulator.PLAIN :], first.shape, second.shape)
    if key in _looked or len(_looked) >= MOST:
        return
    _looked.add(key)
    formats = accumulator_from_ints(tuple(how.acc)).operands
    assert formats is not None
    sides = list(zip(_SIDES, formats, strict=True))
    operands, roundings = (first, second), how.fused[:2]
    for (side, fmt), x, ints in zip(
        sides[::-1] if op == "conv_wgrad" else sides, operands, roundings, strict=True
    ):
        if fmt in _warned:
            continue
        value = _lacking(quantize_directly(x, ints) if ints else x, fmt)
        if value is not None:
            _warned.add(fmt)
            _warn(op, side, fmt, value)


def _lacking(x: Tensor, fmt: FloatFormat) -> float | None:
    """A value of x that fmt lacks; no format lacks NaN here."""
    values = quantize_directly(x, Quantizer(fmt, "toward_zero").to_ints())
    lacking = (values != x) & (x == x)
    return x[lacking][0].item() if bool(lacking.any()) else None


def _warn(op: str, side: str, fmt: FloatFormat, value: float) -> None:
    warnings.warn(
        f"{op}: the {side} operand holds {value!r}, which {fmt} lacks, the format that the "
        "accumulator aligns it by (operands): no tensor core could hold it, and these sums are "
        f"those of none. Round it first, by the recipe's quantizers or lp.quantize(x, '{fmt}'). "
        "Said once for this format; not looked for on a GPU",
        UserWarning,
        stacklevel=2,
    )
