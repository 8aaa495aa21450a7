"""What hypothesis draws: formats of every legal kind, calls of `lp.scaled`, accumulators."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.formats import (
    FP32,
    AffineFormat,
    BlockFormat,
    FixedFormat,
    FloatFormat,
    parse_format,
)
from lpkernels.formats.integers import takes_amax
from lpkernels.rng import RNGS
from lpkernels.rounding import MAX_RANDOM_BITS, ROUNDINGS

_AXES = st.integers(-64, 63)


@st.composite
def float_formats(draw: st.DrawFn, least_step: int = -149) -> FloatFormat:
    """Float formats whose smallest step is 2^least_step or more."""
    specials = draw(st.sampled_from(["ieee", "fn", "none", "fnuz", "p3109"]))
    one_zero = specials in ("fnuz", "p3109")
    signed = not one_zero or draw(st.booleans())
    exp_bits = draw(st.integers(2 if specials == "ieee" else 1, 8))
    least = 1 if (specials, exp_bits) == ("fn", 1) else 0
    if one_zero:
        least = max(0, 3 - signed - exp_bits)
    man_bits = draw(st.integers(least, 16 - signed - exp_bits if one_zero else 23))
    reserved = specials == "ieee" or (specials == "fn" and man_bits == 0)
    # With the lowest bias the format ends in float32's last binade.
    low, high = 2**exp_bits - 1 - reserved - 127, 1 - man_bits - least_step
    assume(low <= high)
    usual = 2 ** (exp_bits - 1) - (not one_zero)
    biases = st.integers(low, high)
    return FloatFormat(
        exp_bits,
        man_bits,
        bias=draw(biases | st.none() if low <= usual <= high else biases),
        specials=specials,
        subnormals=draw(st.booleans()),
        overflow=draw(
            st.sampled_from([None, "saturate", "nan", *["infinity"] * (specials[:2] != "fn")])
        ),
        signed=signed,
    )


@st.composite
def fixed_formats(draw: st.DrawFn) -> FixedFormat:
    word_bits = draw(st.integers(1, 24))
    return FixedFormat(
        word_bits,
        draw(st.integers(word_bits - 128, 149)),
        signed=draw(st.booleans()),
        overflow=draw(st.sampled_from(["saturate", "wrap"])),
    )


@st.composite
def affine_formats(draw: st.DrawFn, axes: st.SearchStrategy[Any] = _AXES) -> AffineFormat:
    symmetric = draw(st.booleans())
    bits = draw(st.integers(2 if symmetric else 1, 16))
    return AffineFormat(bits, symmetric=symmetric, axis=draw(st.none() | axes))


# The elements of blocks have a sign, and no smaller step than 2^-22.
_elements = float_formats(least_step=-22).filter(lambda fmt: fmt.signed)


@st.composite
def scaled_formats(draw: st.DrawFn) -> BlockFormat:
    """Block formats with every field, in the steps "exact"."""
    tile = st.tuples(st.integers(2, 2**31), st.integers(1, 2**62))
    size = draw(st.integers(1, 2**62) | tile | st.sampled_from(["row", "tensor"]))
    scale = draw(st.sampled_from(["e8m0", "fp32", "e4m3fn", "bf16"]) | float_formats())
    rules = ("floor", "ceil", "even", "up") if scale == "e8m0" else ("nearest", "up")
    rule = draw(st.sampled_from(rules))
    narrow = not isinstance(size, str) and scale not in ("e8m0", "fp32", FP32)
    axes = {"tensor": st.just(-1)}.get(str(size), _AXES | st.just("k"))
    integers = st.builds(FixedFormat, st.integers(2, 24), st.integers(-100, 22))
    kinds = [False, True, "row"] if isinstance(size, int) else [False, True]
    tensor_scale = narrow and draw(st.sampled_from(kinds))
    if isinstance(scale, str):
        scale = FP32 if scale == "fp32" else scale if scale == "e8m0" else parse_format(scale)
    targets = st.none()
    if tensor_scale and scale.max >= 2.0**-126:
        targets = st.floats(2.0**-126, scale.max, width=32)
    if tensor_scale and rule == "nearest" and draw(st.booleans()):
        metric = draw(st.sampled_from(["4or6mae", "4or6mse"]))
        axis = draw(st.sampled_from([-1, "k"]) if isinstance(size, tuple) else axes)
        return BlockFormat("e2m1", size, scale=scale, axis=axis, tensor_scale=tensor_scale,
                           scale_target=draw(st.none() | targets), target=metric)  # fmt: skip
    return BlockFormat(
        draw(_elements | integers | st.sampled_from(["e4m3", "int8"])),
        size,
        scale=scale,
        axis=draw(st.sampled_from([-1, "k"]) if isinstance(size, tuple) else axes),
        rule=rule,
        tensor_scale=tensor_scale,
        scale_target=draw(st.none() | targets),
        target=None
        if rule in ("floor", "ceil", "even")
        else draw(st.none() | st.floats(2.0**-126, 2.0**127, width=32)),
    )


def fitting(fmt: BlockFormat, rank: int, most: int = 5) -> BlockFormat:
    """The format with an axis of tensors of this rank, and blocks of at most so many values, or
    tiles of so many rows and so many columns."""
    size = fmt.block_size
    if fmt.axis == "k":
        fmt = replace(fmt, axis=-1)
    elif not isinstance(size, tuple) and size != "tensor":
        fmt = replace(fmt, axis=fmt.axis % rank)
    if isinstance(size, int):
        return replace(fmt, block_size=1 + size % most)
    if isinstance(size, tuple):
        return replace(fmt, block_size=(2 + size[0] % (most - 1), 1 + size[1] % most))
    return fmt


AMAX = st.none() | st.sampled_from([0.0, 1.0, 1e-44, 3e38, np.inf, np.nan, -1.0])

#: Tensors of the same values that lie otherwise in memory.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": lambda x: x,
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "every second": lambda x: torch.stack([x, -x], -1)[..., 0],
    "not aligned": lambda x: torch.cat([x.new_ones(1), x.flatten()])[1:].view(x.shape),
}
_SPECIAL = [0, 1 << 31, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000]
_PROGRAMS = [
    parse_format(name)
    for name in (
        "nvfp4_46_te", "nvfp4_46_2d_mse_te", "nvfp4_row_te", "nvfp4_46_row_te",
        "nvfp4_te", "nvfp4_2d_te", "nvfp4_torchao", "block16_e2m1_se4m3fn_torchao",
        "tensor_e4m3_te", "row_e5m2_te", "block32_e4m3_up_te", "tile128x128_e4m3_up_te",
        "tensor_int8_torchao", "block32_e2m1_even_torchao", "tile128x128_e4m3_up_torchao",
        "row_int8_to127.5_torchao", "block32_int4_sfp32_to7.5_torchao", "row_e4m3_deepgemm",
        "block32_e2m1_sfp32_deepgemm", "tile128x128_e4m3_up_deepgemm",
    )
]  # fmt: skip


def modes_of(fmt: BlockFormat) -> st.SearchStrategy[str]:
    """The roundings that a format takes."""
    if fmt.has_candidates:
        return st.just("nearest_even")
    return st.sampled_from(ROUNDINGS if fmt.steps == "exact" else ["nearest_even", "stochastic"])


class ScaledCall(NamedTuple):
    """A tensor, where its values lie, and the arguments that `lp.scaled` rounds it with."""

    x: Tensor
    layout: str
    quantizer: Quantizer
    amax: float | None
    flushed: bool  # whether the process flushes denormals


def _tensor(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Tensor:
    """float32 of any bits, or near 1, among them blocks of zeros, and in the kind "special" zeros,
    the ends of float32, infinities and NaN."""
    if kind == "any":
        bits = rng.integers(0, 2**32, shape, np.uint32)
    else:
        around = rng.integers(1, 250)
        exponents = rng.integers(max(around - 20, 0), min(around + 12, 254), shape, np.uint32)
        bits = exponents << 23 | rng.integers(0, 2**23, shape, np.uint32)
        bits |= rng.integers(0, 2, shape, np.uint32) << 31
    if kind == "special":
        bits = np.where(rng.random(shape) < 0.05, rng.choice(np.uint32(_SPECIAL), shape), bits)
    bits[..., rng.random(shape[-1]) < 0.2] = rng.choice([0, 1 << 31])
    return torch.from_numpy(bits.astype(np.uint32).view(np.float32))


@st.composite
def scaled_calls(draw: st.DrawFn, longest: int = 70) -> ScaledCall:
    """Calls of every block format, mode and type; the last dimension is `longest` at most."""
    shape = (*draw(st.lists(st.integers(1, 5), max_size=2)), draw(st.integers(1, longest)))
    fmt = draw(scaled_formats() | st.sampled_from(_PROGRAMS))
    exact = fmt.steps == "exact"
    if isinstance(fmt.block_size, tuple):
        shape = (draw(st.integers(1, 9)), *shape)
    if exact:
        fmt = fitting(fmt, len(shape), draw(st.sampled_from([5, 40])))
    rng = np.random.default_rng(draw(st.integers(0, 2**40)))
    x = _tensor(rng, shape, draw(st.sampled_from(["near", "special", "any"])))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]))
    mode = draw(modes_of(fmt))
    bits = draw(st.none() | st.integers(1, MAX_RANDOM_BITS))
    return ScaledCall(
        x.double() * 2.0 ** draw(st.integers(-200, 100)) if dtype.itemsize == 8 else x.to(dtype),
        draw(st.sampled_from(list(LAYOUTS))),
        Quantizer(fmt, mode, random_bits=bits, rng=draw(st.sampled_from(RNGS))),
        draw(AMAX) if takes_amax(fmt.to_ints()) else None,
        draw(st.booleans()),
    )


_FORMATS = ["fp32", "bf16", "fp16", "e8m13", "e4m3fn", "e4m3none_sat", "e5m2_nosub", "e3m0"]
_OPERANDS = ["fp16", "bf16", "e4m3fn", "e5m2", "tf32", "e2m1_nosub"]


@st.composite
def accumulators(draws) -> Accumulator:
    block = draws(st.integers(1, 9))
    interleaved = draws(st.sampled_from([1, 2, 3])) if block % 2 == 0 else 1
    chunk = draws(st.sampled_from([None, 1, 2])) if interleaved == 1 else draws(st.integers(1, 2))
    chunk = chunk and chunk * interleaved * block
    bits = draws(st.integers(1, 40) | st.none())
    return Accumulator(
        draws(st.sampled_from(_FORMATS)),
        draws(st.sampled_from(ROUNDINGS)),
        chunk=chunk,
        outer=chunk and draws(st.sampled_from([*_FORMATS, "fixed12_f3"])),
        block=block,
        aligned_bits=bits,
        operands=draws(st.tuples(*[st.sampled_from(_OPERANDS)] * 2)),
        least_exponent=bits and draws(st.sampled_from([None, -140, -21, -3, 4])),
        interleaved=interleaved,
        random_bits=draws(st.sampled_from([1, 8, 24])),
    )
