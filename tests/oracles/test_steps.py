"""steps="te" and "deepgemm" against the float32 operations of those programs, TransformerEngine and
DeepGEMM, written out in NumPy one by one; casts to eight and four bits are those of ml_dtypes.

tests/reference/test_scaled_vectors.py compares with results that the programs themselves gave, of
four inputs; here values are drawn. Signs of zeros are not compared: the programs lose some.
"""

from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.compare import assert_bit_equal
from tests.oracles.scaled_parts import scaled

F32 = NDArray[np.float32]
f32 = np.float32
LARGEST = np.finfo(f32).max
DTYPES = {
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
}  # fmt: skip


class Parts(NamedTuple):
    codes: F32
    scale: F32
    tensor_scale: F32


def cast(x: F32, element: str) -> F32:
    """To nearest even, saturating."""
    most = f32(ml_dtypes.finfo(DTYPES[element]).max)
    return np.clip(x, -most, most).astype(DTYPES[element]).astype(f32)


def toward_zero_at_ties(x: F32) -> F32:
    """DeepGEMM's cast to e2m1, by thresholds."""
    codes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], f32)
    above = np.searchsorted((codes[1:] + codes[:-1]) / 2, np.abs(x))
    return np.sign(x) * codes[above]


def largest(x: F32, tile: tuple[int, int]) -> F32:
    """Of each tile; a last one may be short."""
    rows, columns = (np.arange(0, n, step) for n, step in zip(x.shape, tile, strict=True))
    return np.maximum.reduceat(np.maximum.reduceat(np.abs(x), rows, 0), columns, 1)


def spread(s: F32, tile: tuple[int, int], shape: tuple[int, ...]) -> F32:
    """The number of each tile at each of its elements."""
    return s.repeat(tile[0], 0).repeat(tile[1], 1)[: shape[0], : shape[1]]


def mantissa_cleared(x: F32) -> F32:
    return (x.view(np.uint32) & np.uint32(0xFF800000)).view(f32)


def te_nvfp4(x: F32, tile: tuple[int, int], element: str) -> Parts:
    most = np.abs(x).max(initial=0)
    encode = np.minimum(f32(2688) / most, LARGEST)
    encode = f32(1) if most == 0 or encode == 0 else encode
    decode = f32(1) / encode
    s = cast(np.minimum(largest(x, tile) * (encode * f32(1 / 6)), LARGEST), "e4m3")
    by = np.minimum(f32(1) / (s * decode), LARGEST)
    return Parts(cast(x * spread(by, tile, x.shape), element), s, most / f32(2688))


def te_numbers(x: F32, tile: tuple[int, int], element: str, power: bool = False) -> Parts:
    a = largest(x, tile)
    encode = np.minimum(f32(ml_dtypes.finfo(DTYPES[element]).max) / a, LARGEST)
    encode = np.where(a == 0, f32(1), encode)
    encode = mantissa_cleared(encode) if power else encode
    codes = cast(x * spread(encode, tile, x.shape), element)
    return Parts(codes, f32(1) / encode, f32(1))


def te_powers(x: F32, tile: tuple[int, int], element: str) -> Parts:
    most = f32(ml_dtypes.finfo(DTYPES[element]).max)
    bits = (largest(x, tile) * (f32(1) / most)).view(np.uint32)
    exponent, mantissa = bits >> 23, bits & np.uint32(0x7FFFFF)
    up = np.where(exponent == 0, mantissa > 1 << 22, mantissa > 0)
    s = np.ldexp(1.0, (exponent + up).astype(int) - 127)
    return Parts(cast((x / spread(s, tile, x.shape)).astype(f32), element), s.astype(f32), f32(1))


def deepgemm(x: F32, tile: tuple[int, int], element: str, power: bool = False) -> Parts:
    most = f32(ml_dtypes.finfo(DTYPES[element]).max)
    s = np.maximum(largest(x, tile), f32(1e-4)) / most
    if power:
        whole = mantissa_cleared(s)
        s = np.where(whole == s, s, 2 * whole)
    y = x * spread(f32(1) / s, tile, x.shape)
    return Parts(toward_zero_at_ties(y) if element == "e2m1" else cast(y, element), s, f32(1))


def powers(steps: Callable[..., Parts]) -> Callable[..., Parts]:
    return lambda x, tile, element: steps(x, tile, element, power=True)


WHOLE = 10**6
#: A format's name, the tile that has a scale, the element and the steps.
CASES = {
    "nvfp4_te": ((1, 16), "e2m1", te_nvfp4),
    "nvfp4_2d_te": ((16, 16), "e2m1", te_nvfp4),
    "block32_e4m3_up_te": ((1, 32), "e4m3", te_powers),
    "block32_e5m2_up_te": ((1, 32), "e5m2", te_powers),
    **{
        f"{name}_{element}{scale}_te": (tile, element, steps)
        for element in ("e4m3", "e5m2")
        for name, tile in {
            "tensor": (WHOLE, WHOLE), "row": (1, WHOLE), "block128": (1, 128),
            "tile16x8": (16, 8),
        }.items()
        for scale, steps in {"_sfp32": te_numbers, "_se8m0_up": powers(te_numbers)}.items()
    },
    "block32_e2m1_sfp32_deepgemm": ((1, 32), "e2m1", deepgemm),
    "block32_e2m1_up_deepgemm": ((1, 32), "e2m1", powers(deepgemm)),
    "row_e4m3_deepgemm": ((1, WHOLE), "e4m3", deepgemm),
    "block128_e4m3_sfp32_deepgemm": ((1, 128), "e4m3", deepgemm),
    "block32_e4m3_up_deepgemm": ((1, 32), "e4m3", powers(deepgemm)),
    "tile16x8_e4m3_sfp32_deepgemm": ((16, 8), "e4m3", deepgemm),
    "tile128x128_e4m3_up_deepgemm": ((128, 128), "e4m3", powers(deepgemm)),
}  # fmt: skip


@st.composite
def finite_values(draw: st.DrawFn) -> F32:
    """Rows of finite values: exponents of all of float32 or near each other, ties, zeros."""
    shape = (draw(st.integers(1, 20)), draw(st.integers(1, 140)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    near, far = draw(st.sampled_from([(0, 1), (4, 4), (20, 3), (150, 1), (3, 150)]))
    exponents = draw(st.sampled_from([0, 0, -13, -120, -149, 100, 127]))
    exponents = exponents + rng.integers(-near, 1, (shape[0], 1)) + rng.integers(-far, 1, shape)
    values = rng.uniform(-2, 2, shape)
    ties = rng.integers(-32, 33, shape) / 16
    values = np.where(rng.random(shape) < draw(st.sampled_from([0, 0.5])), ties, values)
    values = np.where(rng.random(shape) < draw(st.sampled_from([0, 0.3, 1])), -0.0, values)
    return np.clip(np.ldexp(values, exponents), -LARGEST, LARGEST).astype(f32)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=30)
@given(finite_values())
def test_scales_and_codes_are_those_of_the_programs_operations(name: str, x: F32) -> None:
    tile, element, steps = CASES[name]
    tile = (min(tile[0], x.shape[0]), min(tile[1], x.shape[1]))
    with np.errstate(all="ignore"):
        want = steps(x, tile, element)
    got = scaled(x, name)
    assert_bit_equal(got.scale, want.scale, name)
    assert_bit_equal(np.asarray(got.tensor_scale), np.asarray(want.tensor_scale), name)
    assert_bit_equal(got.values + f32(0), want.codes + f32(0), name)
