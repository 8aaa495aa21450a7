"""Formats, quantizers, accumulators and recipes of every legal kind, for hypothesis to draw."""

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from lpkernels.arithmetic import (
    MAX_ACCUMULATOR_RANDOM_BITS,
    MAX_ALIGNED_BITS,
    MAX_BLOCK,
    NATIVE,
    PRODUCTS,
    QUANTIZERS,
    Accumulator,
    Quantizer,
    Recipe,
    RunningRange,
)
from lpkernels.formats import FP32, AffineFormat, BlockFormat, FixedFormat, FloatFormat
from lpkernels.rng import RNGS
from lpkernels.rounding import MAX_RANDOM_BITS, ROUNDINGS

_AXES = st.integers(-64, 63)


@st.composite
def float_formats(draw: st.DrawFn, least_step: int = -149) -> FloatFormat:
    """Float formats whose smallest step is 2^least_step or more."""
    specials = draw(st.sampled_from(["ieee", "fn", "none"]))
    exp_bits = draw(st.integers(2 if specials == "ieee" else 1, 8))
    man_bits = draw(st.integers(1 if (specials, exp_bits) == ("fn", 1) else 0, 23))
    reserved = specials == "ieee" or (specials == "fn" and man_bits == 0)
    # With the lowest bias the format ends in float32's last binade.
    low, high = 2**exp_bits - 1 - reserved - 127, 1 - man_bits - least_step
    assume(low <= high)
    usual = 2 ** (exp_bits - 1) - 1
    biases = st.integers(low, high)
    return FloatFormat(
        exp_bits,
        man_bits,
        bias=draw(biases | st.none() if low <= usual <= high else biases),
        specials=specials,
        subnormals=draw(st.booleans()),
        overflow=draw(
            st.sampled_from([None, "saturate", "nan", *["infinity"] * (specials != "fn")])
        ),
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


# The elements of blocks have no smaller step than 2^-22.
block_formats = st.builds(
    BlockFormat,
    float_formats(least_step=-22) | st.sampled_from(["e4m3", "e4m3ieee", "e2m1", "fp4_e2m1"]),
    st.integers(1, 2**62),
    axis=_AXES,
)


def _tile() -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(2, 2**31), st.integers(1, 2**62))


@st.composite
def scaled_formats(draw: st.DrawFn) -> BlockFormat:
    """Block formats with every field, in the steps "exact"."""
    size = draw(st.integers(1, 2**62) | _tile() | st.sampled_from(["row", "tensor"]))
    scale = draw(st.sampled_from(["e8m0", "fp32", "e4m3fn", "bf16"]) | float_formats())
    rules = ("floor", "ceil", "even", "up") if scale == "e8m0" else ("nearest", "up")
    rule = draw(st.sampled_from(rules))
    narrow = not isinstance(size, str) and scale not in ("e8m0", "fp32", FP32)
    axes = {"tensor": st.just(-1)}.get(str(size), _AXES | st.just("k"))
    integers = st.builds(FixedFormat, st.integers(2, 24), st.integers(-100, 22))
    return BlockFormat(
        draw(float_formats(least_step=-22) | integers | st.sampled_from(["e4m3", "int8"])),
        size,
        scale=scale,
        axis=draw(st.sampled_from([-1, "k"]) if isinstance(size, tuple) else axes),
        rule=rule,
        tensor_scale=narrow and draw(st.booleans()),
        target=None
        if rule in ("floor", "ceil", "even")
        else draw(st.none() | st.floats(2.0**-126, 2.0**127, width=32)),
    )


formats = float_formats() | fixed_formats() | affine_formats() | block_formats
quantizers = st.builds(
    Quantizer,
    formats,
    st.sampled_from(ROUNDINGS),
    random_bits=st.none() | st.integers(1, MAX_RANDOM_BITS),
    rng=st.sampled_from(RNGS),
)


def _sums(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    """The arguments of an accumulator that an order or a block goes with."""
    floats, fmts = float_formats(), float_formats() | fixed_formats()
    modes = st.sampled_from(ROUNDINGS)
    if kind == "operands":
        block = draw(st.integers(1, MAX_BLOCK // 2)) * 2
        interleaved = draw(st.integers(1, 4))
        return {
            "fmt": draw(floats),
            "block": block,
            "operands": draw(st.tuples(floats, floats) | floats),
            "least_exponent": draw(st.none() | st.integers(-300, 300)),
            "interleaved": interleaved,
            "chunk": draw(st.integers(1, 99)) * block * interleaved,
        }
    given: dict[str, Any] = {"order": kind, "chunk": draw(st.none() | st.integers(1, 2**62))}
    if kind == "native":
        return given
    given |= {"fmt": draw(fmts), "product": draw(st.none() | fmts)}
    if given["product"] is not None:
        given["product_rounding"] = draw(modes)
    if kind == "block":
        given |= {"order": "sequential", "block": draw(st.integers(1, MAX_BLOCK))}
    return given


@st.composite
def accumulators(draw: st.DrawFn) -> Accumulator:
    kinds = ["sequential", "pairwise", "compensated", "native", "block", "operands"]
    kind = draw(st.sampled_from(kinds))
    given = _sums(draw, kind)
    if "block" in given:
        given["aligned_bits"] = draw(st.integers(1, MAX_ALIGNED_BITS))
    free = [m for m in ROUNDINGS if m != "stochastic" or kind != "compensated"]
    if kind != "native" or given["chunk"] is not None:
        given["rounding"] = draw(st.sampled_from(free))
    if given["chunk"] is not None:
        given["outer"] = draw(st.none() | float_formats() | fixed_formats())
        given["outer_rounding"] = draw(
            st.none() if kind == "native" else st.none() | st.sampled_from(ROUNDINGS)
        )
    return Accumulator(
        **given,
        random_bits=draw(st.integers(1, MAX_ACCUMULATOR_RANDOM_BITS)),
        rng=draw(st.sampled_from(RNGS)),
    )


_RANGES = st.builds(RunningRange, st.floats(0, 1, exclude_max=True, allow_nan=False), st.booleans())


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    given: dict[str, Any] = {name: draw(st.none() | quantizers) for name in QUANTIZERS}
    given |= {name: draw(st.just(NATIVE) | accumulators()) for name in PRODUCTS}
    if draw(st.booleans()):
        one_range = affine_formats(axes=st.none())
        given |= {"input": Quantizer(draw(one_range)), "input_range": draw(_RANGES)}
    return Recipe(**given)
