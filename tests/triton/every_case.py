"""Every way in which the backend's kernels are compiled: the accumulators, quantizers and layouts
whose launches, taken together, make every branch of every kernel.

`kernel_keys` says what decides a kernel's instructions. The four roundings of a product (of
sums, of products, of outer sums, of the result) are code that shares nothing but registers, and so
is how operands and outputs are addressed: each takes every value of its own, and every kernel of
sums meets every address and every combination of rounded products and chunks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends import NOT_FUSED, Fused
from lpkernels.backends.planning import triton_tiers as _tiers
from lpkernels.backends.triton import BACKEND
from lpkernels.backends.triton._quantize import way
from lpkernels.backends.triton._rule import rule_of
from lpkernels.formats import AffineFormat, BlockFormat, FixedFormat, FloatFormat
from lpkernels.rounding import ROUNDINGS
from tests.triton.kernel_keys import fast_key, float32_key, key, rule_key
from tests.triton.launches import Launch, recorded
from tests.updates import FORMATS, STEPS, rounding_of, tensors_of

Format = FloatFormat | FixedFormat
Call = Callable[[], Any]

#: A format of each kind.
_FEW = ("e5m10", "e5m0", "fixed16_f8", "fixed12_f6_wrap")
_SEED = torch.tensor(5)
#: A tile of the largest shape; rows and columns exchanged.
_SHAPE, _SWAPPED = (16, 64, 512), (512, 64, 16)


def all_formats() -> Iterator[Format]:
    """Float formats of every size and kind, and the kinds of fixed ones."""
    kinds = itertools.product(
        ("ieee", "fn", "none"), ("infinity", "saturate", "nan"), (True, False)
    )
    for specials, overflow, subnormals in kinds:
        for exp_bits, man_bits, bias in itertools.product(range(1, 9), range(24), (None, -3, 130)):
            try:
                yield FloatFormat(
                    exp_bits, man_bits, bias=bias, specials=specials, overflow=overflow,
                    subnormals=subnormals,
                )  # fmt: skip
            except ValueError:
                continue
    for overflow, signed, bits in itertools.product(
        ("saturate", "wrap"), (True, False), range(2, 25)
    ):
        yield FixedFormat(bits, bits // 2, signed=signed, overflow=overflow)


def _kinds() -> list[Format]:
    """The formats of `all_formats` that usual recipes have first, then what they leave out."""
    first: list[Format] = [FloatFormat(5, 10), FloatFormat(6, 9), FixedFormat(16, 8)]
    few = [
        f for f in all_formats() if isinstance(f, FixedFormat) or (f.exp_bits == 5 and f.bias > 0)
    ]
    return first + [f for f in few if isinstance(f, FixedFormat) or f.man_bits in (0, 3, 4, 10)]


def some_rules(modes: tuple[str, ...] = ROUNDINGS) -> list[tuple[Format, str]]:
    """A format and a mode for each `rule_key` there is."""
    found: dict[Any, tuple[Format, str]] = {}
    for fmt, mode in itertools.product(_kinds(), modes):
        rule = rule_of(fmt.to_ints(), ROUNDINGS.index(mode))[0]
        found.setdefault(rule_key(rule), (fmt, mode))
    return list(found.values())


def _drawn() -> Iterator[dict[str, Any]]:
    """Fields of draws and generators."""
    for bits, rng in itertools.product((8, 13, 24), ("fast", "philox")):
        yield {"random_bits": bits, "rng": rng}


# Calls


def _matmul(
    acc: Accumulator,
    fused: Fused = NOT_FUSED,
    shape: tuple[int, int, int] = _SHAPE,
    bias: bool = True,
) -> Any:
    m, k, n = shape
    addend = torch.zeros(n) if bias else None
    return BACKEND.matmul(
        torch.zeros(m, k), torch.zeros(k, n), addend, acc.to_ints(), _SEED, 1, fused
    )


def _start(acc: Accumulator) -> Any:
    """A product whose sums start elsewhere than at +0."""
    m, k, n = _SHAPE
    operands = (torch.zeros(m, k), torch.zeros(k, n), None)
    return BACKEND.matmul(*operands, acc.to_ints(), _SEED, 1, initial=torch.zeros(m, n))


def _convolve(name: str, acc: Accumulator) -> Any:
    """Padded and strided, 64 channels to 48 on 40 x 24: tiles of the largest shape."""
    x, w, dy = torch.zeros(2, 64, 40, 24), torch.zeros(48, 64, 3, 3), torch.zeros(2, 48, 20, 12)
    rest = ([2, 2], [1, 1], [1, 1], 1, acc.to_ints(), _SEED, 1)
    operands = {
        "fprop": (x, w, None),
        "dgrad": (dy, w, list(x.shape)),
        "wgrad": (x, dy, list(w.shape)),
    }
    return getattr(BACKEND, f"conv_{name}")(*operands[name], *rest)


def _pointwise(acc: Accumulator) -> Any:
    """1 x 1 without padding: tables, and no absent tap."""
    x, w = torch.zeros(2, 16, 20, 20), torch.zeros(32, 16, 1, 1)
    return BACKEND.conv_fprop(x, w, None, [1, 1], [0, 0], [1, 1], 1, acc.to_ints(), _SEED, 1)


#: Where operands and outputs lie.
_LAYOUTS: dict[str, Callable[[Accumulator], Any]] = {
    "swapped": partial(_matmul, shape=_SWAPPED),
    "fprop": partial(_convolve, "fprop"),
    "dgrad": partial(_convolve, "dgrad"),
    "wgrad": partial(_convolve, "wgrad"),
    "pointwise": _pointwise,
}


def _calls(accs: list[Accumulator], layouts: bool = True) -> Iterator[Call]:
    for acc in accs:
        yield partial(_matmul, acc)
    for layout in _LAYOUTS.values() if layouts else ():
        yield partial(layout, accs[0])


def wide_calls() -> Iterator[Call]:
    """`_wide`, `finish_kernel` and packing: every rule in each of its four places."""
    rules = some_rules()
    results = [rule for rule in rules if rule[1] != "stochastic"]
    for i, (fmt, mode) in enumerate(rules):
        (product, product_mode), (outer, outer_mode) = (
            rules[(i + shift) % len(rules)] for shift in (31, 53)
        )
        ints = Quantizer(*results[i % len(results)]).to_ints()
        acc = Accumulator(
            fmt, mode, product=product, product_rounding=product_mode, chunk=7, outer=outer,
            outer_rounding=outer_mode,
        )  # fmt: skip
        yield partial(_matmul, acc, Fused((), (), ints))
    for fmt, mode in itertools.product(_FEW, ROUNDINGS):
        if mode != "stochastic":
            ints = Quantizer(fmt, mode).to_ints()
            yield partial(_matmul, Accumulator("e5m0"), Fused((), ints, ()))
    ints = Quantizer("e5m2").to_ints()
    yield partial(_matmul, Accumulator("e5m0"), Fused(ints, ints, ints))
    for draws in _drawn():
        yield partial(_matmul, Accumulator("e5m0", "stochastic", **draws))
        acc = Accumulator(
            "e5m0", "stochastic", product="e4m3", product_rounding="stochastic", chunk=7, **draws
        )
        yield partial(_matmul, acc)
    yield from _calls([Accumulator("e5m0"), Accumulator("e5m0", chunk=7)])
    yield from _calls([Accumulator("e5m0", product="e4m3", product_rounding="to_odd")])
    yield from _starts()


def _starts(**options: Any) -> Iterator[Call]:
    """Sums that start at initial: in the inner sum and, drawn, in the outer one."""
    if options.get("order") != "pairwise":
        yield partial(_start, Accumulator("e5m4", **options))
    for draws in _drawn():
        outer = {"chunk": 20, "outer": "e5m3", "outer_rounding": "stochastic"}
        yield partial(_start, Accumulator("e5m4", **options, **outer, **draws))


def _of_tier(tier: int) -> list[Accumulator]:
    """An accumulator for each `fast_key` of a tier, on the GPUs that have it."""
    found: dict[Any, Accumulator] = {}
    formats = [FloatFormat(5, 10), FloatFormat(8, 7), FloatFormat(8, 23), FloatFormat(6, 9)]
    formats += [FloatFormat(6, 12), *_kinds(), FloatFormat(5, 22, subnormals=False)]
    formats += [FloatFormat(5, 11, subnormals=False), FloatFormat(4, 5, bias=130)]
    formats += [FloatFormat(4, 5, bias=130, subnormals=False)]
    for fmt, mode, draws in itertools.product(formats, ROUNDINGS, _drawn()):
        if mode != "stochastic" and draws != {"random_bits": 8, "rng": "fast"}:
            continue
        options = draws | {"random_bits": min(draws["random_bits"], 20)}
        acc = Accumulator(fmt, mode, **options)
        ints = acc.to_ints()
        rule = rule_of(ints[8:16], ints[2], ints[4], ints[5])[0]
        for nvidia in (True, False):
            if tier in _tiers.tiers(ints, nvidia=nvidia):
                found.setdefault((fast_key(tier, rule), nvidia), acc)
    return list(dict.fromkeys(found.values()))


def tier_calls(tier: int) -> Iterator[Call]:
    """A certified kernel: every rule that it has, every address, rounded products and chunks."""
    accs = _of_tier(tier)
    for acc in accs:
        yield partial(_matmul, acc)
    # Where NVIDIA's GPUs have the tier for other formats, the last of them.
    for first in dict.fromkeys((accs[0], accs[-1])):
        yield from _variants(first, tier)


def _variants(first: Accumulator, tier: int) -> Iterator[Call]:
    yield from _calls([first])
    kinds = [{"chunk": 64}]
    if tier not in (_tiers.HALF, _tiers.BRAIN):
        kinds += [{"product": "e4m3"}, {"product": "e4m3", "chunk": 64}]
    for options in kinds:
        yield partial(_matmul, Accumulator(first.fmt, first.rounding, **options))
    if tier == _tiers.FUSED and first.fmt.subnormals:
        for options in _some_outer():
            yield partial(_matmul, Accumulator("e6m9", chunk=64, **options))


def _some_outer() -> Iterator[dict[str, Any]]:
    """Outer additions in every mode of every kind of format, and every field of draws."""
    for fmt, mode in itertools.product(_FEW, ROUNDINGS):
        yield {"outer": fmt, "outer_rounding": mode}
    for draws in _drawn():
        yield {"outer": "e5m4", "outer_rounding": "stochastic", **draws}


def finish_calls() -> Iterator[Call]:
    """Bias and result after a certified kernel."""
    for i, options in enumerate(_some_outer()):
        fmt, mode = _FEW[i % len(_FEW)], ROUNDINGS[i % 6]
        ints = Quantizer(fmt, mode).to_ints()
        yield partial(_matmul, Accumulator("e6m9", chunk=64, **options), Fused((), (), ints))
    for draws in _drawn():
        yield partial(_matmul, Accumulator("e6m9", "stochastic", **draws | {"random_bits": 3}))
    yield from _calls([Accumulator("e6m9"), Accumulator("e6m9", chunk=64)])


def order_calls(kind: str) -> Iterator[Call]:
    """Trees, Kahan's sums and aligned blocks: every mode of every kind of format."""
    options: dict[str, Any] = {"order": kind}
    if kind == "aligned":
        options = {"block": 4, "aligned_bits": 24}
    modes = tuple(m for m in ROUNDINGS if kind != "compensated" or m != "stochastic")
    accs = [Accumulator(f, m, **options) for f, m in itertools.product(_FEW, modes)]
    if kind != "compensated":
        accs += [Accumulator("e5m4", "stochastic", **options, **draws) for draws in _drawn()]
    accs += [
        Accumulator("e5m4", product="e4m3", product_rounding="stochastic", **options, **draws)
        for draws in _drawn()
    ]
    accs += [Accumulator("e5m4", chunk=21, outer="e6m9", **options)]
    yield from _calls(accs)
    yield from _starts(**options)


def operand_calls() -> Iterator[Call]:
    """Blocks aligned by their operands: every mode of every kind of format, in float32 and in
    float64; operands below float32's exponents; in turns."""
    fp8: dict[str, Any] = {"block": 32, "aligned_bits": 13, "operands": "e4m3fn"}
    low = {"block": 4, "aligned_bits": 24, "operands": "e4m3_b140"}
    turns = {"block": 2, "aligned_bits": 25, "operands": "fp16", "chunk": 20, "interleaved": 2}
    formats = ("e5m10", "e5m0", "e8m13", "e4m3_sat", "e5m2_nosub", "e4m3fn")
    accs = [Accumulator(f, m, **fp8) for f, m in itertools.product(formats, ROUNDINGS)]
    accs += [Accumulator("e5m4", "stochastic", **fp8, **draws) for draws in _drawn()]
    accs += [Accumulator("e8m13", "toward_zero", chunk=128, outer="fp32", **fp8)]
    yield from _calls(accs)
    for options in (low, turns):
        accs = [Accumulator("e5m4", m, **options) for m in ROUNDINGS]
        yield from _calls(accs)
    yield from _starts(**fp8)
    yield from _starts(block=16, aligned_bits=25, operands="fp16")


def native_calls() -> Iterator[Call]:
    """tl.dot: every type of operands, every outer rule."""
    for fmt, mode in itertools.product((*_FEW, "e4m3_sat", "e4m3fn", "e6m9_nosub"), ROUNDINGS):
        yield partial(_matmul, Accumulator("fp32", mode, order="native", chunk=64, outer=fmt))
    acc = Accumulator("fp32", order="native", chunk=64, outer="e6m9")
    double = Accumulator("fp32", order="native", chunk=64, outer="fp32")
    for name, one in itertools.product(("e5m2", "bf16", "fixed8_f4"), (acc, double)):
        ints = Quantizer(name).to_ints()
        yield partial(_matmul, one, Fused(ints, ints, ints))
    yield from _calls([acc, double])


def _quantize(quantizer: Quantizer, source: torch.dtype, shape: tuple[int, ...] = (64, 256)) -> Any:
    target = torch.float64 if source == torch.float64 else torch.float32
    out = torch.zeros(shape, dtype=target)
    BACKEND.quantize(torch.zeros(shape, dtype=source), quantizer.to_ints(), _SEED, 1, 4, out)


_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def _in_float32() -> list[Quantizer]:
    """A quantizer for each way of rounding in float32 and each `float32_key`."""
    found: dict[Any, Quantizer] = {}
    even = [f for f in all_formats() if isinstance(f, FloatFormat) and f.exp_bits == 8]
    even = [f for f in even if f.man_bits in (0, 3, 4, 7)]
    for fmt, mode, bits in itertools.product((*_kinds(), *even), ROUNDINGS, (8, 32)):
        if isinstance(fmt, FloatFormat):
            quantizer = Quantizer(fmt, mode, random_bits=bits if mode == "stochastic" else None)
            ints = quantizer.to_ints()
            by = way(ints[:-4], torch.float32, torch.float32)
            if by:
                found.setdefault((by, float32_key(rule_of(ints[:-4], *ints[-4:-1])[0])), quantizer)
    return list(found.values())


def quantize_calls() -> Iterator[Call]:
    """Every rule of elements, in float32 and in float64, and every type."""
    for quantizer in _in_float32():
        yield partial(_quantize, quantizer, torch.float32)
    for fmt, mode in itertools.product(_FEW, ROUNDINGS):
        yield partial(_quantize, Quantizer(fmt, mode), torch.float64)
    for source in _TYPES:
        yield partial(_quantize, Quantizer("e5m2"), source)
        for draws in (*_drawn(), {"random_bits": 32, "rng": "fast"}):
            yield partial(_quantize, Quantizer("e5m2", "stochastic", **draws), source)
            if source != torch.float16:
                yield partial(_quantize, Quantizer("e8m7", "stochastic", **draws), source)


def slice_calls() -> Iterator[Call]:
    """Affine formats and blocks: every mode, type and shape of a tile."""
    affine = [AffineFormat(8), AffineFormat(8, symmetric=True), AffineFormat(4, axis=1)]
    blocks = [BlockFormat("e4m3"), BlockFormat("e2m1", 7, axis=0), BlockFormat("e5m2", 4096)]
    for fmt, mode in itertools.product((*affine, *blocks), ROUNDINGS):
        yield partial(_quantize, Quantizer(fmt, mode), torch.float32, (64, 4000))
    for fmt, source in itertools.product((*affine, *blocks), _TYPES):
        yield partial(_quantize, Quantizer(fmt, "stochastic"), source, (64, 4000))


def counting_calls() -> Iterator[Call]:
    """Counts alone and beside values, with a histogram and without, of every kind of format; given
    ranges."""
    affine = [AffineFormat(8), AffineFormat(8, symmetric=True), AffineFormat(4, axis=1)]
    blocks = [BlockFormat("e4m3"), BlockFormat("e2m1", 7, axis=0), BlockFormat("e5m2", 4096)]
    x, counts = torch.zeros(64, 4000), torch.zeros(260, dtype=torch.int64)
    for fmt, mode in itertools.product((*affine, *blocks, *_FEW), ROUNDINGS):
        ints = Quantizer(fmt, mode).to_ints()
        yield partial(BACKEND.quantize_counting, x, ints, _SEED, 1, 2, x.clone(), counts[:4], None)
    for fmt, source in itertools.product((affine[0], blocks[0], _FEW[0]), _TYPES):
        ints, out = Quantizer(fmt).to_ints(), torch.zeros(64, 4000)
        for into, added in ((out, counts), (None, counts), (None, counts[:4])):
            call = (x.to(source), ints, None, 1, 2, into, added, None)
            yield partial(BACKEND.quantize_counting, *call)
    limits = torch.zeros(2, 1, dtype=torch.float64)
    ints = Quantizer(affine[0]).to_ints()
    yield partial(BACKEND.quantize_counting, x, ints, None, 1, 2, x.clone(), None, limits)


def code_calls() -> Iterator[Call]:
    """pack and unpack."""
    formats: list[Any] = [
        FloatFormat(2, 1, specials="none"), FloatFormat(8, 23), FloatFormat(5, 2),
        FloatFormat(4, 3, specials="fn"), FloatFormat(5, 2, subnormals=False), FloatFormat(8, 0),
        FixedFormat(24, 10), FixedFormat(8, 4, signed=False), BlockFormat("e4m3"),
        BlockFormat("e2m1", 7, axis=0),
    ]  # fmt: skip
    for fmt in formats:
        ints, x = fmt.to_ints(), torch.zeros(64, 4000)
        yield partial(BACKEND.pack, x, ints)
        yield partial(BACKEND.unpack, torch.zeros(10**6, dtype=torch.uint8), ints, [64, 4000])


def accumulate_calls() -> Iterator[Call]:
    """One rounded addition: every rule, every field of draws."""
    accs = [Accumulator(fmt, mode) for fmt, mode in some_rules()]
    accs += [Accumulator("e5m4", "stochastic", **draws) for draws in _drawn()]
    for acc in accs:
        arguments = ((0, 0), acc.to_ints(), _SEED, 1, 2, 3)
        yield partial(BACKEND.accumulate, torch.zeros(64, 256), torch.zeros(64, 256), *arguments)


def update_calls() -> Iterator[Call]:
    """Every step, and every way to round and to keep values."""
    cases = [(step, FORMATS["fp32_master"], begins) for step in STEPS.values() for begins in (0, 1)]
    cases += [(STEPS["adamw"], formats, 0) for formats in FORMATS.values()]
    for step, formats, begins in cases:
        tensors = tensors_of(step, formats, [(64, 33)])
        rounding, numbers = rounding_of(formats).to_ints(), step.to_numbers()
        found, scale = torch.tensor(False), torch.tensor(2.0)
        rest = ([3], [0], rounding, numbers, bool(begins))
        yield partial(BACKEND.update, tensors, _SEED, found, scale, *rest)
    yield partial(BACKEND.update, tensors, None, None, None, *rest)


#: Name -> its kernels, and what launches them, among others.
GROUPS: dict[str, tuple[tuple[str, ...], Callable[[], Iterator[Call]]]] = {
    **{name: (("fast_kernel",), partial(tier_calls, t)) for t, name in enumerate(_tiers.NAMES)},
    "wide": (("wide_kernel", "pack_kernel", "frame_kernel"), wide_calls),
    "finish": (("finish_kernel",), finish_calls),
    "pairwise": (("pairwise_kernel",), partial(order_calls, "pairwise")),
    "compensated": (("compensated_kernel",), partial(order_calls, "compensated")),
    "aligned": (("aligned_kernel",), partial(order_calls, "aligned")),
    "operands": (("by_operands_kernel",), operand_calls),
    "native": (("native_kernel",), native_calls),
    "quantize": (("quantize_kernel",), quantize_calls),
    "slices": (("range_kernel", "line_kernel", "quantize_blocks_kernel"), slice_calls),
    "counting": (("count_kernel", "count_blocks_kernel", "count_lines_kernel"), counting_calls),
    "codes": (
        ("pack_kernel", "unpack_kernel", "pack_blocks_kernel", "unpack_blocks_kernel"), code_calls,
    ),
    "accumulate": (("accumulate_kernel",), accumulate_calls),
    "update": (("update_kernel",), update_calls),
}  # fmt: skip


def launches(group: str, target: str) -> list[Launch]:
    """Of one group all that are compiled apart on a target."""
    names, calls = GROUPS[group]
    found: dict[Any, Launch] = {}
    for call in calls():
        with recorded(target) as made:
            call()
        for launch in made:
            tier = launch.constant("TIER")
            if launch.name in names and (tier is None or _tiers.NAMES[tier] == group):
                found.setdefault(key(launch), launch)
    return list(found.values())
