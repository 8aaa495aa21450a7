"""Elementwise work that the cpu and the triton backend share: rounding, counting and codes of every
kind of format, Hadamard transforms and steps of optimizers. A module in the folder of each imports
these tests, and takes that folder's fixtures, as those of shared_products.py."""

import math
from itertools import chain, product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lpkernels.arithmetic import Adam, Quantizer, Step
from lpkernels.arithmetic.hadamard import HADAMARD_SIZES, signs_of
from lpkernels.backends import BINS, COUNTS
from lpkernels.formats import AffineFormat, BlockFormat, FloatFormat, parse_format
from lpkernels.formats.grids import misfit, tensor_scale_shape
from lpkernels.formats.integers import block_by_block
from lpkernels.ops import UpdateTensors, packed_bytes
from lpkernels.rng import RNGS
from lpkernels.rounding import MAX_RANDOM_BITS, ROUNDINGS
from tests.backends import by_hand
from tests.backends.scaled_cases import BLOCK_FORMATS
from tests.backends.shared_products import INTERPRETED
from tests.backends.table_cases import tables
from tests.cases import EVERY_FORMAT, formats_named, hard_values
from tests.compare import assert_bit_equal
from tests.support import elements, strategies, updates
from tests.support.elements import (
    END_FORMATS,
    REFERENCE,
    SEED,
    SITE,
    WIDTHS,
    Format,
    assert_codes_or_refused,
    assert_counted,
    assert_quantized,
    flushing,
    quantized,
    ranges,
    tensor_values,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
ONLY = settings(suppress_health_check=list(HealthCheck))
#: The interpreter takes one in so many cases, and is given fewer values.
SELDOM = 3 if INTERPRETED else 1
COUNT = 6 if INTERPRETED else 60
EVERY = [*EVERY_FORMAT, *END_FORMATS, *tables()]


@pytest.mark.parametrize("fmt", EVERY, ids=str)
def test_every_format(fmt: Format, adapter: Any, device: str, ways: Any) -> None:
    """Values, counts and codes of hard float32 values, in every mode and with draws of each
    width."""
    x, turn = torch.from_numpy(elements.float32_values(fmt, COUNT)), EVERY.index(fmt)
    x = x[:1500] if INTERPRETED else x
    for number, quantizer in enumerate(elements.quantizers(fmt)):
        if (number + turn) % SELDOM == 0:
            assert_quantized(adapter, x, quantizer, device, on=ways)
        if (number + turn) % SELDOM**2 == 0:
            way = ((COUNTS + BINS, bool(number % 2)), (COUNTS, bool(number % 2)))
            assert_counted(adapter, x, quantizer, device, ways=way, on=ways)


@pytest.mark.parametrize("fmt", [*EVERY[::SELDOM], *WIDTHS[::SELDOM]], ids=str)
def test_codes_of_every_format(fmt: Format, adapter: Any, device: str, ways: Any) -> None:
    """Every code of 16 bits or fewer, codes of hard values, and the values that have none, of
    which the first is named."""
    count = 2 ** min(fmt.bits, 10 if INTERPRETED else 16)
    drawn = torch.Generator().manual_seed(1)
    stream = torch.randint(0, 256, (-(-count * fmt.bits // 8),), generator=drawn).byte()
    want = REFERENCE.unpack(stream, fmt.to_ints(), (count,))
    good, hard = elements.codable(fmt, 33), torch.from_numpy(elements.float32_values(fmt, 2))
    for way in ways:
        got = adapter.unpack(stream.to(device), fmt.to_ints(), [count])
        assert_bit_equal(got, want, f"{way} {fmt}")
        for values in (good[:1], good[:7], good):
            assert_codes_or_refused(adapter, values, fmt, device)
        for value in (*hard[: 9 // SELDOM], torch.tensor(float("nan"))):
            x = torch.cat([good[:20], value.view(1), good[:1], value.view(1)])
            assert_codes_or_refused(adapter, x, fmt, device)


class RoundingCall(NamedTuple):
    """Values of a kind, where they lie, and how they are rounded and counted."""

    quantizer: Quantizer
    dtype: torch.dtype
    layout: str
    kind: str
    seed: int

    def values(self) -> Tensor:
        fmt, generator = self.quantizer.fmt, np.random.default_rng(self.seed)
        if self.kind == "bits":
            words = generator.integers(0, 2**32, 100, dtype=np.uint32)
            x = torch.from_numpy(words.view(np.float32))
        else:
            hard = generator.permutation(hard_values(fmt, 20, self.seed))[:200]
            x = torch.from_numpy(hard[: len(hard) // 20 * 20])
        return strategies.LAYOUTS[self.layout](x.to(self.dtype).view(-1, 20))


_MODES = st.tuples(
    st.sampled_from(ROUNDINGS), st.none() | st.integers(1, MAX_RANDOM_BITS), st.sampled_from(RNGS)
)
_FORMATS = strategies.float_formats() | strategies.fixed_formats() | st.sampled_from(tables())
ROUNDING_CALLS = st.builds(
    RoundingCall,
    st.builds(lambda fmt, how: Quantizer(fmt, how[0], random_bits=how[1], rng=how[2]),
              _FORMATS, _MODES),
    st.sampled_from(DTYPES), st.sampled_from(list(strategies.LAYOUTS)),
    st.sampled_from(["hard", "hard", "bits"]), st.integers(0, 2**32),
)  # fmt: skip


@pytest.mark.parametrize("times", [1, pytest.param(40, marks=pytest.mark.slow)])
def test_any_rounding(times: int, adapter: Any, device: str, ways: Any) -> None:
    @settings(ONLY, max_examples=times * (25 if INTERPRETED else 300))
    @given(call=ROUNDING_CALLS)
    def check(call: RoundingCall) -> None:
        x, quantizer = call.values(), call.quantizer
        some = flushing(ways) if call.seed % 4 == 0 and not INTERPRETED else ways
        assert_quantized(adapter, x, quantizer, device, f"{call}", on=some)
        assert_counted(adapter, x, quantizer, device, name=f"{call}", on=ways)
        rounded = quantized(x, quantizer)
        for _ in ways:
            assert_codes_or_refused(adapter, rounded, quantizer.fmt, device)

    check()


@pytest.mark.parametrize("name", ["fixed6_f2", "ufixed6_f2"])
def test_every_value_of_fixed_point_has_its_code(name: str, adapter: Any, device: str, ways: Any):
    fmt = parse_format(name)
    lowest = -32 if fmt.signed else 0
    values = (torch.arange(64) + lowest) / 4
    for _ in ways:
        assert_codes_or_refused(adapter, values, fmt, device)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "name", ["e4m3", "e5m2_sat", "fp8_e4m3", "e3m2_nosub", "e5m0", "e4m7", "fixed8_f4_wrap"]
)
def test_16_bit_patterns(name: str, dtype: torch.dtype, adapter: Any, device: str, ways: Any):
    """All 65536 patterns are rounded into float32 and into the same type, where every NaN has the
    same bits."""
    fmt, x = parse_format(name), elements.patterns(dtype)
    x = x[::29] if INTERPRETED else x
    for number, quantizer in enumerate(elements.quantizers(fmt)):
        if number % SELDOM:
            continue
        want = elements.expected(x.float().numpy(), quantizer)
        for way in ways:
            assert_bit_equal(quantized(x, quantizer, adapter, device), want, f"{way} {quantizer}")
            if isinstance(fmt, FloatFormat) and fmt.fits_in(5, 10):
                got = quantized(x, quantizer, adapter, device, dtype).cpu().view(torch.int16)
                assert_bit_equal(got, elements.narrowed(want, dtype), f"{way} {quantizer}")
    assert_counted(adapter, x, Quantizer(fmt, "stochastic"), device, on=ways)


#: Formats with a scale. The last block's steps lie far above those of a mantissa, so no 32-bit rule
#: takes it.
SCALED = [
    *elements.TENSOR_FORMATS,
    *formats_named("affine1 affine16_axis1 block32_axis0_e4m3 block1_e1m3none"),
    *formats_named("block8_e4m3none_b-112"),
]  # fmt: skip
MODES = ["stochastic", "nearest_even", *(m for m in ROUNDINGS[1:] if m != "stochastic")]


@pytest.mark.parametrize("fmt", SCALED, ids=str)
def test_affine_and_block_formats(fmt: Any, adapter: Any, device: str, ways: Any) -> None:
    """Every shape meets every kind of values; formats take turns with the combinations."""
    turn = SCALED.index(fmt)
    shapes = [(1, 1, 1), (2, 70, 3), (3, 2, 66), (2, 40, 1), (1, 1, 3001)]
    for i, (shape, kind) in enumerate(product(shapes[: 4 if INTERPRETED else 5], elements.KINDS)):
        x = tensor_values(shape, kind).to(DTYPES[i // 2 % len(DTYPES)])
        quantizer = Quantizer(fmt, MODES[i % len(MODES)])
        if i % 2 == turn % 2 or not INTERPRETED:
            assert_quantized(adapter, x, quantizer, device, kind, on=ways)
        if i % 5 == turn % 5 or not INTERPRETED:
            assert_counted(adapter, x, quantizer, device, name=kind, on=ways)
            if isinstance(fmt, AffineFormat):
                limits = ranges(x, fmt)
                assert_counted(adapter, x, quantizer, device, limits, kind, on=ways)


@pytest.mark.parametrize("fmt", ["e4m3", "e2m1", "e7m0_b-1"])
@pytest.mark.parametrize("axis", [0, 1])
def test_float64_beyond_float32_shares_a_scale(
    fmt: str, axis: int, adapter: Any, device: str, ways: Any
) -> None:
    """A block holds magnitudes that only float64 has, large and tiny, beside ordinary ones."""
    values = [2.0**1000, 1.0, 2.0**100, -(2.0**80), 2.0**-1060, -0.0, 1e-320, -3.0]
    x = torch.tensor(values, dtype=torch.float64).repeat(2, 1)
    x[1, :4] = torch.tensor([2.0**-140, -(2.0**-300), 2.0**-149, 2.0**-600], dtype=torch.float64)
    for rounding in MODES:
        for by in (BlockFormat(fmt, 4, axis=axis), AffineFormat(8)):
            assert_quantized(adapter, x, Quantizer(by, rounding), device, rounding, on=ways)


def assert_scaled(
    adapter: Any, x: Tensor, quantizer: Quantizer, device: str, ways: Any,
    amax: float | None = None, name: str = "",
) -> None:  # fmt: skip
    """Values with and without counts, codes, scales, the product of the three parts, and the stream
    where blocks are packed."""
    name = f"{name} {quantizer} {tuple(x.shape)} {x.dtype} {amax}"
    limits = None
    if amax is not None:
        lines = math.prod(tensor_scale_shape(x.shape, quantizer.fmt.to_ints()))
        limits = torch.full((lines,), amax, dtype=torch.float64)
    there = (x.to(device), None if limits is None else limits.to(device))
    assert_counted(adapter, x, quantizer, device, limits, name, ((COUNTS + BINS, True),), on=ways)
    call, ints = (quantizer.to_ints(), torch.tensor(SEED), 0, SITE), quantizer.fmt.to_ints()
    want = by_hand.scaled(REFERENCE, x, *call, limits)
    values, moved = by_hand.dequantize(REFERENCE, *want, ints), [part.to(device) for part in want]
    for way in ways:
        out = torch.empty(x.shape, device=device)
        by_hand.quantize(adapter, there[0], *call, out, None, there[1])
        assert_bit_equal(out, values, f"{way} {name}")
        got = by_hand.scaled(adapter, there[0], *call, there[1])
        for part, one, other in zip(("codes", "scales", "t"), got, want, strict=True):
            assert_bit_equal(one, other, f"{way} {part} {name}")
        assert_bit_equal(by_hand.dequantize(adapter, *moved, ints), values, f"{way} {name}")
        if block_by_block(ints) and not any(part.isnan().any() for part in want):
            stream = by_hand.pack_scaled(adapter, *moved[:2], ints)
            packed = by_hand.pack_scaled(REFERENCE, *want[:2], ints)
            assert_bit_equal(stream, packed, f"{way} stream {name}")
            back = adapter.unpack(stream, ints, list(x.shape))
            assert_bit_equal(back, values, f"{way} stream {name}")


def values_in(shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> Tensor:
    """The kinds of `tensor_values`, in float64 beyond float32, and more: near float32's ends, ties,
    any bits."""
    x = tensor_values(shape, kind if kind in elements.KINDS else "normal")
    if kind == "tiny" and dtype == torch.float64:
        return x.double() * 2.0**-180
    if kind == "patterns":
        bits = np.random.default_rng(9).integers(0, 2**32, x.numel(), dtype=np.uint32)
        x = torch.from_numpy(bits.view(np.float32)).view(shape)
    more = {"huge": lambda: x * 1e38, "ties": lambda: (x * 4).round() / 4}
    return more.get(kind, lambda: x)().to(dtype)


KINDS = ("normal", "wide", "special", "tiny", "huge", "ties", "patterns")


@pytest.mark.parametrize("fmt", BLOCK_FORMATS, ids=str)
def test_every_block_format(fmt: BlockFormat, adapter: Any, device: str, ways: Any) -> None:
    """Formats take turns with kinds of values, modes, types, shapes and largest values; any bytes
    are a stream."""
    turn, ints, rng = BLOCK_FORMATS.index(fmt), fmt.to_ints(), np.random.default_rng(11)
    modes = ROUNDINGS if fmt.steps == "exact" else ("nearest_even", "stochastic")
    modes = ("nearest_even",) if fmt.has_candidates else modes
    shapes = ((2, 5, 37), (33, 18)) if INTERPRETED else ((3, 70, 5), (40, 132), (1, 3001), (5, 64))
    shapes = [shape for shape in shapes if misfit(ints, len(shape)) is None]
    for i in range(turn, turn + (2 if INTERPRETED else 7)):
        x = values_in(shapes[i % len(shapes)], KINDS[i % 7], DTYPES[i % 4])
        assert_scaled(adapter, x, Quantizer(fmt, modes[i % len(modes)]), device, ways)
    # Of other formats Triton is given the codes and the scales apart.
    for shape in shapes[:2] if adapter.name == "cpu" or block_by_block(ints) else ():
        stream = torch.from_numpy(rng.integers(0, 256, packed_bytes(ints, shape), np.uint8))
        want = REFERENCE.unpack(stream, ints, shape)
        for way in ways:
            got = adapter.unpack(stream.to(device), ints, list(shape))
            assert_bit_equal(got, want, f"{way} {fmt} {shape}")


@pytest.mark.parametrize("name", elements.UNDERFLOWING)
def test_scales_that_underflow(name: str, adapter: Any, device: str, ways: Any) -> None:
    for largest in elements.SMALL[::SELDOM]:
        for quantizer in (Quantizer(name), Quantizer(name, "stochastic"))[: 3 - SELDOM]:
            x = elements.small_tensor(largest)
            assert_scaled(adapter, x, quantizer, device, ways, name=f"{largest}")


@pytest.mark.parametrize(
    "name",
    ["nvfp4", "tensor_e4m3", "nvfp4_te", "tensor_int8_torchao", "nvfp4_46_row", "nvfp4_row_te"],
)
@pytest.mark.parametrize("amax", [0.75, 0.0, 1e-42, 1e39, 2.0**-200, -1.0, np.inf, np.nan])
def test_an_amax_stands_in_place_of_the_largest_value(
    name: str, amax: float, adapter: Any, device: str, ways: Any
) -> None:
    """Of the last three nothing can be made."""
    x = values_in((3, 37), "special", torch.float32)
    assert_scaled(adapter, x, Quantizer(name), device, ways, amax)


@pytest.mark.parametrize(
    "count, longest", [(None, None), pytest.param(3000, 300, marks=pytest.mark.slow)]
)
def test_any_scaled_call(count: Any, longest: Any, adapter: Any, device: str, ways: Any) -> None:
    usual, most = (15, 40) if INTERPRETED else (100, 70)

    @settings(ONLY, max_examples=count or usual)
    @given(call=strategies.scaled_calls(longest=longest or most))
    def check(call: strategies.ScaledCall) -> None:
        x = strategies.LAYOUTS[call.layout](call.x)
        where = flushing(ways) if call.flushed and not INTERPRETED else ways
        with np.errstate(all="ignore"):
            assert_scaled(adapter, x, call.quantizer, device, where, call.amax, f"{call.layout}")

    check()


#: Blocks with short last ones, one value, none of a byte's width, along any axis.
PACKED = formats_named("""
    mxfp8_up mxfp4 mxfp6_e2m3 mxint8 block5_axis0_e2m1 block7_axis1_e2m3 block1_e5m2
    block3_axis1_e1m3none block1500_e5m2
""")


@pytest.mark.parametrize("fmt", PACKED, ids=str)
def test_codes_of_blocks(fmt: BlockFormat, adapter: Any, device: str, ways: Any) -> None:
    """Values, blocks of NaN, values whose scale leaves no code, and none at all."""
    for shape in ((1, 1, 1), (2, 5, 33), (0, 3, 2)):
        x = tensor_values(shape, "special")
        tiny = quantized(x.nan_to_num(1.0, -2.0, -3.0), Quantizer(fmt)) * 2.0**-126
        for values in (quantized(x, Quantizer(fmt)), x, torch.full(shape, float("nan")), tiny):
            for _ in ways:
                assert_codes_or_refused(adapter, values, fmt, device)


@pytest.mark.parametrize("size", HADAMARD_SIZES)
@pytest.mark.parametrize("dtype", DTYPES[:2] + DTYPES[3:], ids=str)
def test_hadamard_transforms(
    size: int, dtype: torch.dtype, adapter: Any, device: str, ways: Any
) -> None:
    """Runs that are hard to round, along and across, and where they lie otherwise in memory."""
    signs = signs_of(size, 3)
    x = torch.cat([torch.from_numpy(x) for _, x in elements.hard_runs(size, signs)]).to(dtype)
    x = x[:: size // 16 if dtype == torch.float32 else size // 4] if INTERPRETED else x
    want = REFERENCE.hadamard(x, size, signs, 1)
    layouts = list(strategies.LAYOUTS.values())[: 1 if INTERPRETED else 4]
    every = ways if INTERPRETED else chain(ways, flushing(ways))
    for way, layout in ((way, layout) for way in every for layout in layouts):
        got = adapter.hadamard(layout(x).to(device), size, signs, 1)
        assert got.is_contiguous()
        assert_bit_equal(got, want, f"{way} {size}")
        across = adapter.hadamard(x.t().contiguous().to(device), size, signs, 0)
        assert_bit_equal(across, want.t(), f"{way} {size} across")


# A group of lanes and a little more, several spans and a little more, a few elements, none.
SHAPES = ((7, 5), (1030,), (1,), (0,), (3, 11, 16))
# Places where a tensor may begin in a larger one: anywhere in a word of draws, and before a border
# of a thread's share and of a row key.
ORIGINS = (6, 65_533, (1 << 34) - 1, 3, (1 << 32) - 500)
ALL_FORMATS = updates.FORMATS | ({} if INTERPRETED else updates.LOOPS)
# The interpreter makes every step in one kind of formats.
UPDATES = [
    (name, kind)
    for name, kind in product(updates.STEPS, ALL_FORMATS)
    if not INTERPRETED or kind == "drawn" or name in ("momentum", "adamw")
]


def updated(
    adapter: Any, device: str, tensors: UpdateTensors, step: Step, formats: Any, **options: Any
) -> UpdateTensors:
    own = UpdateTensors(*([x.to(device) for x in kind] for kind in updates.copied(tensors)))
    call = updates.call_of(step, formats, len(own.weights), device=device, **options)
    by_hand.update(adapter, own, *call)
    return UpdateTensors(*([x.cpu() for x in kind] for kind in own))


def check_update(adapter: Any, device: str, ways: Any, *case: Any, **options: Any) -> None:
    want = updates.run(*case, "reference", **options)
    for _ in ways:
        updates.assert_same(updated(adapter, device, *case, **options), want)


@pytest.mark.parametrize("name, kind", UPDATES)
def test_updates(name: str, kind: str, adapter: Any, device: str, ways: Any) -> None:
    """Every step in all formats, with scales that round quotients and that do not; some are of
    parts of tensors."""
    step, formats = updates.STEPS[name], ALL_FORMATS[kind]
    tensors = updates.tensors_of(step, formats, SHAPES, special=True)
    scale = 3.0 if name in ("adamw", "momentum") else 1024.0
    check_update(adapter, device, ways, tensors, step, formats, scale=scale)
    if name == "adamw":
        check_update(adapter, device, ways, tensors, step, formats, origins=ORIGINS)


@pytest.mark.parametrize("begins", [False, True], ids=["goes on", "begins"])
@pytest.mark.parametrize("step", updates.steps_to_zeros().values(), ids=updates.steps_to_zeros())
def test_updates_of_zeros(step: Step, begins: bool, adapter: Any, device: str, ways: Any) -> None:
    """Zeros have the signs of the reference; a first step does not read its states."""
    formats = updates.FORMATS["fp32"]
    tensors = updates.tensors_of(step, formats, [(16,)], values=updates.signed_zeros)
    for state in (*tensors.first, *tensors.second) if begins else ():
        state.fill_(torch.nan)
    check_update(adapter, device, ways, tensors, step, formats, begins=begins)


def test_an_average_by_halves_is_made_from_the_gradient(
    adapter: Any, device: str, ways: Any
) -> None:
    """The formula of torch's lerp changes at a weight of one half."""
    step, formats = Adam(1e-2, beta1=0.5), updates.FORMATS["fp32"]
    tensors = updates.tensors_of(step, formats, [(99,)])
    check_update(adapter, device, ways, tensors, step, formats)


@pytest.mark.parametrize("found", [True, False])
@pytest.mark.parametrize("name", updates.STEPS)
def test_updates_leave_everything_as_it_is_by_their_flag(
    name: str, found: bool, adapter: Any, device: str, ways: Any
) -> None:
    step, formats = updates.STEPS[name], updates.FORMATS["bytes"]
    tensors = updates.tensors_of(step, formats, [(33,), (5, 5)], special=True)
    want = tensors if found else updates.run(tensors, step, formats, "reference")
    for _ in ways:
        got = updated(adapter, device, tensors, step, formats, found=found)
        updates.assert_same(got, want)
    assert found or not torch.equal(want.weights[0], tensors.weights[0])
