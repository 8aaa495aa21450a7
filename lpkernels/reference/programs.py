"""Scales and codes as TransformerEngine, torchao and DeepGEMM compute them.

Every line is one operation in float32, rounded to nearest even, in the order of the program.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lpkernels.formats import FP4_E2M1, BlockFormat, FixedFormat, FloatFormat
from lpkernels.formats.grids import Grid
from lpkernels.formats.integers import is_mx
from lpkernels.reference.blocks import Rounding, exact_scales, saturating
from lpkernels.reference.candidates import te_errors
from lpkernels.reference.values import Float64, widen
from lpkernels.rounding import round_array

Array: TypeAlias = NDArray[Any]

_ONE: Any = np.float32(1.0)
_MAX = np.finfo(np.float32).max
# The products of the largest e4m3 scale and the largest e2m1 code.
_NVFP4 = np.float32(448 * 6)


def scaled(
    values: Float64,
    largest: Float64,
    amax: Float64,
    fmt: BlockFormat,
    grid: Grid,
    rounding: Rounding,
) -> tuple[Float64, Float64, Float64]:
    """The scales s, the scales t of the tensor or its lines, and the values before they are rounded
    to codes."""
    x, a, of_tensor = (np.asarray(v, np.float32) for v in (values, largest, amax))
    if fmt.has_candidates:
        rows = grid.tall if isinstance(fmt.block_size, tuple) else 1
        s, t, shrunk = _te_candidates(x, a, of_tensor, fmt, rows)
        return widen(s), widen(t), widen(shrunk)
    if fmt.tensor_scale or isinstance(fmt.scale, FloatFormat):
        s, t, factor = _NVFP4_STEPS[fmt.steps](a, of_tensor, fmt)
        # Beside a tiny t torchao's factors may be infinite. It then takes the NaN of an x86
        # processor for this number.
        shrunk = np.where((x == 0) & np.isposinf(factor), np.float32(-1.5), x * factor)
        return widen(s), widen(t), widen(shrunk)
    s, shrunk = _STEPS[fmt.steps](x, a, fmt, rounding)
    wide = widen(shrunk)
    if has_one_zero(fmt):
        # Ties go toward zero. A tie has few bits, so that no value passes one here.
        wide = wide * (1 - 2.0**-40) if rounding.mode == "nearest_even" else wide
    return widen(s), np.ones_like(amax), wide


def has_one_zero(fmt: BlockFormat) -> bool:
    """Whether the program has no -0: DeepGEMM's FP4, whose ties go toward zero too."""
    return fmt.steps == "deepgemm" and fmt.element == FP4_E2M1


def _e4m3(x: Array) -> Array:
    fmt = saturating(FloatFormat(4, 3, specials="fn"))
    return round_array(widen(x), fmt, "nearest_even").astype(np.float32)


def _te_nvfp4(a: Array, amax: Array, fmt: BlockFormat) -> tuple[Array, Array, Array]:
    encode = _te_encode(amax, _NVFP4)
    s = _e4m3(np.minimum(a * (encode * (_ONE / np.float32(6))), _MAX))
    return s, amax / _NVFP4, _te_factor(s, encode)


def _te_encode(amax: Array, largest: Any) -> Array:
    encode = np.minimum(largest / amax, _MAX)
    return np.where((amax == 0) | (encode == 0), _ONE, encode)


def _te_factor(s: Array, encode: Array) -> Array:
    return np.minimum(_ONE / (s * (_ONE / encode)), _MAX)


def _te_candidates(
    x: Array, a: Array, amax: Array, fmt: BlockFormat, rows: int
) -> tuple[Array, Array, Array]:
    """NVFP4 with two candidates a block; rows: those of a tile, else 1."""
    assert isinstance(fmt.target, str)
    largest, top = np.float32(6 * fmt.largest_scale), np.float32(6)
    encode = _te_encode(amax, largest)
    # A block that is not finite has no codes.
    b = np.where(np.isfinite(a), (a / top) * encode, np.float32(np.nan))
    candidates = []
    for raised in (b, b * np.float32(1.5)):
        s = _e4m3(np.minimum(raised, np.float32(448)))
        shrunk = x * _te_factor(s, encode)
        q = round_array(widen(shrunk), saturating(FP4_E2M1), "nearest_even").astype(np.float32)
        v = ((q * s) * amax) / largest
        candidates.append((s, shrunk, te_errors(v - x, rows, fmt.target)))
    (s_6, shrunk_6, error_6), (s_4, shrunk_4, error_4) = candidates
    chosen = error_4 < error_6
    return np.where(chosen, s_4, s_6), amax / largest, np.where(chosen, shrunk_4, shrunk_6)


def _torchao_nvfp4(a: Array, amax: Array, fmt: BlockFormat) -> tuple[Array, Array, Array]:
    least = np.float32(2.0**-6)
    s = a / np.float32(6)
    if not fmt.tensor_scale:
        s = _e4m3(np.clip(s, least, np.float32(448)))
        return s, _ONE, _ONE / s
    t = amax / _NVFP4
    s = _e4m3(np.clip(s / t, least, np.float32(448)))
    return s, t, (_ONE / t) / s


_NVFP4_STEPS = {"te": _te_nvfp4, "torchao": _torchao_nvfp4}


def _te(x: Array, a: Array, fmt: BlockFormat, rounding: Rounding) -> tuple[Array, Array]:
    top = np.float32(fmt.element.max)
    if is_mx(fmt.to_ints()):
        quotient = a * (_ONE / top)
        bits = quotient.view(np.int32)
        code = (bits >> 23) + ((bits & 0x7FFFFF) != 0)
        code = np.where(bits < 1 << 23, bits > 1 << 22, code)
        code = np.where(np.isnan(a), 255, np.where(np.isinf(a), 254, code))
        s = _power_of_two(code)
        return s, x * (_ONE / s)
    encode = np.minimum(top / a, _MAX)
    encode = np.where((a == 0) | ~np.isfinite(a), _ONE, encode)
    if fmt.scale == "e8m0":
        encode = _without_mantissa(encode)
    return _ONE / encode, x * encode


def _power_of_two(code: NDArray[Any]) -> Array:
    """The value of a byte of e8m0."""
    values = np.ldexp(1.0, code.astype(np.int64) - 127)
    return np.where(code == 255, np.nan, values).astype(np.float32)


def _without_mantissa(x: Array) -> Array:
    return (np.ascontiguousarray(x).view(np.int32) & np.int32(-(1 << 23))).view(np.float32)


def _torchao(x: Array, a: Array, fmt: BlockFormat, rounding: Rounding) -> tuple[Array, Array]:
    if isinstance(fmt.element, FixedFormat):
        return _torchao_integers(x, a, fmt, rounding)
    if is_mx(fmt.to_ints()):
        finite = np.isfinite(a)
        s = exact_scales(widen(np.where(finite, a, np.float32(0))), fmt, np.ones(())).astype(
            np.float32
        )
        s = np.where(finite, s, np.float32(np.nan))
        return s, x / np.maximum(s, np.float32(2.0**-126))
    quotient = fmt.element.max / np.maximum(a.astype(np.float64), 1e-12)
    encode = quotient.astype(np.float32)
    if fmt.scale == "e8m0":
        encode = _without_mantissa(encode)
    return _ONE / encode, x * encode


def _torchao_integers(
    x: Array, a: Array, fmt: BlockFormat, rounding: Rounding
) -> tuple[Array, Array]:
    if fmt.target is not None:
        s = np.maximum(a / np.float32(fmt.target), np.float32(2.0**-23))
        return s, x * (_ONE / s)
    s = a / np.float32(fmt.element.max)
    if rounding.mode == "stochastic":
        return s, np.where(s == 0, np.float32(0), x / s)
    return s, x * (_ONE / np.maximum(s, np.float32(1e-12)))


def _deepgemm(x: Array, a: Array, fmt: BlockFormat, rounding: Rounding) -> tuple[Array, Array]:
    s = np.maximum(a, np.float32(1e-4)) / np.float32(fmt.element.max)
    if fmt.scale == "e8m0":
        bits = s.view(np.int32)
        code = (bits >> 23) + ((bits & 0x7FFFFF) != 0)
        s = _power_of_two(np.clip(code, 1, 254))
    return s, x * (_ONE / s)


_STEPS = {"te": _te, "torchao": _torchao, "deepgemm": _deepgemm}
