"""Calls of the backend that launch every kernel of products in every way in which it is
compiled."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch

from lpkernels.arithmetic import Accumulator, Quantizer, accumulator
from lpkernels.backends import NOT_FUSED, Fused, How, Scales, matmul_of
from lpkernels.backends.planning import triton_tiers as _tiers
from lpkernels.backends.planning.triton_splits import Share
from lpkernels.backends.triton import BACKEND, _products
from lpkernels.backends.triton.rounding.rule import rule_of
from lpkernels.formats import parse_format
from lpkernels.rounding import ROUNDINGS
from tests.backends import by_hand
from tests.backends.triton.every.rules import FEW, SEED, Call, drawn, kinds, some_rules
from tests.backends.triton.kernel_keys import certified_key
from tests.cases import ConvCase
from tests.support.products import PASSES, convolve, tensors_of

#: This shape gives a tile of the largest shape.
_SHAPE = (16, 64, 512)


def _matmul(acc: Accumulator, fused: Fused = NOT_FUSED, *, swapped: bool = False) -> Any:
    m, k, n = _SHAPE[::-1] if swapped else _SHAPE
    operands = (torch.zeros(m, k), torch.zeros(k, n), torch.zeros(n))
    return by_hand.matmul(BACKEND, *operands, acc.to_ints(), SEED, 1, fused)


def _start(acc: Accumulator) -> Any:
    """A product whose sums start elsewhere than at +0."""
    m, k, n = _SHAPE
    operands = (torch.zeros(m, k), torch.zeros(k, n), None)
    return by_hand.matmul(BACKEND, *operands, acc.to_ints(), SEED, 1, initial=torch.zeros(m, n))


def _by_scale(acc: Accumulator, float32: bool) -> Any:
    """A product of codes with scales, which are rounded where they are float32."""
    m, k, n = _SHAPE
    scales = Scales(torch.ones(m, k // 16), torch.ones(n, k // 32), 16, 32, float32)
    product = matmul_of(torch.zeros(m, k), torch.zeros(k, n))
    return BACKEND.multiply(product, How(acc.to_ints(), SEED, 1), scales)


def _scaled(*orders: str, **options: Any) -> Iterator[Call]:
    acc = Accumulator("e5m4", chunk="scale", **options)
    yield partial(_by_scale, acc, False)
    for order in orders:
        yield partial(_by_scale, replace(acc, scale_order=order), True)


#: A padded and strided convolution of 64 channels to 48 on 40 x 24, with tiles of the largest
#: shape; a 1 x 1 convolution without padding, which has tables and no absent tap.
_STRIDED = ConvCase((2, 64, 40, 24), (48, 64, 3, 3), (2, 2), (1, 1), (1, 1))
_POINTWISE = ConvCase((2, 16, 20, 20), (32, 16, 1, 1), (1, 1), (0, 0), (1, 1))


def _convolve(name: str, case: ConvCase, acc: Accumulator) -> Any:
    x, w, dy, _ = tensors_of(case, torch.zeros)
    return convolve(BACKEND, name, case, (x, w, dy, None), acc, seed=SEED)


def _shared(inner: Call) -> Any:
    """A call whose products share chunks; the last pass of them adds to sums of the first."""
    with mock.patch.object(_products, "share", lambda *_: Share(2, 5)):
        return inner()


def _calls(accs: list[Accumulator]) -> Iterator[Call]:
    """A product of each accumulator, and one in every layout in which operands and outputs lie."""
    for acc in accs:
        yield partial(_matmul, acc)
    yield partial(_matmul, accs[0], swapped=True)
    for name in PASSES:
        yield partial(_convolve, name, _STRIDED, accs[0])
    yield partial(_convolve, "fprop", _POINTWISE, accs[0])


def exact_calls() -> Iterator[Call]:
    """`exact.sequential` and packing: every rule in each of its four places."""
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
    for fmt, mode in itertools.product(FEW, ROUNDINGS):
        if mode != "stochastic":
            ints = Quantizer(fmt, mode).to_ints()
            yield partial(_matmul, Accumulator("e5m0"), Fused((), ints, ()))
    ints = Quantizer("e5m2").to_ints()
    yield partial(_matmul, Accumulator("e5m0"), Fused(ints, ints, ints))
    for draws in drawn():
        yield partial(_matmul, Accumulator("e5m0", "stochastic", **draws))
        options = draws | {"product": "e4m3", "product_rounding": "stochastic", "chunk": 7}
        yield partial(_matmul, Accumulator("e5m0", "stochastic", **options))
    yield from _calls([accumulator("e5m0"), accumulator("e5m0_chunk7")])
    yield from _calls([accumulator("e5m0:product=e4m3:product_rounding=to_odd")])
    yield from _starts()
    yield from _scaled("product", "left", "right")


def _starts(**options: Any) -> Iterator[Call]:
    """Sums that start at an initial value: in the inner sum and, with draws, in the outer one."""
    if options.get("order") != "pairwise":
        yield partial(_start, Accumulator("e5m4", **options))
    for draws in drawn():
        outer = {"chunk": 20, "outer": "e5m3", "outer_rounding": "stochastic"}
        yield partial(_start, Accumulator("e5m4", **options, **outer, **draws))


#: The tiers that come first in some kernel.
FIRST = (
    _tiers.HALF, _tiers.BRAIN, _tiers.PLAIN, _tiers.FUSED, _tiers.SPLIT, _tiers.RANGE,
    _tiers.DIRECTED, _tiers.FIXED, _tiers.FUSED64, _tiers.CUT,
)  # fmt: skip


def _of_tier(tier: int) -> dict[tuple[int, ...], list[Accumulator]]:
    """By the tiers of each kernel in which this tier is the first, an accumulator for each
    `certified_key` that they have together, on the GPUs that have them."""
    found: dict[Any, Accumulator] = {}
    formats = [*map(parse_format, ("e5m10", "e8m7", "e8m23", "e6m9", "e6m12")), *kinds()]
    formats += map(parse_format, ("e5m22_nosub", "e5m11_nosub", "e4m5_b130", "e4m5_b130_nosub"))
    for fmt, mode, draws in itertools.product(formats, ROUNDINGS, drawn()):
        if mode != "stochastic" and draws != {"random_bits": 8, "rng": "fast"}:
            continue
        options = draws | {"random_bits": min(draws["random_bits"], 20)}
        acc = Accumulator(fmt, mode, **options)
        ints = acc.to_ints()
        rule = rule_of(ints[8:16], ints[2], ints[4], ints[5])[0]
        for nvidia in (True, False):
            for group in _tiers.groups(_tiers.tiers(ints, nvidia=nvidia)):
                if group[0] == tier:
                    keys = tuple(certified_key(kind, rule) for kind in group)
                    found.setdefault((group, keys, nvidia), acc)
    of: dict[tuple[int, ...], list[Accumulator]] = {}
    for (group, *_), acc in found.items():
        of.setdefault(group, []).append(acc)
    return of


def tier_calls(tier: int) -> Iterator[Call]:
    """Calls of the certified kernels that begin with a tier: rules, addresses, chunks."""
    of = _of_tier(tier)
    for acc in dict.fromkeys(itertools.chain(*of.values())):
        yield partial(_matmul, acc)
    # Where NVIDIA's GPUs have the tier for other formats too, the last accumulator is one of these.
    for first in dict.fromkeys(acc for accs in of.values() for acc in (accs[0], accs[-1])):
        yield from _variants(first, tier)


def _variants(first: Accumulator, tier: int) -> Iterator[Call]:
    yield from _calls([first])
    kinds = [{"chunk": 64}]
    if tier not in (_tiers.HALF, _tiers.BRAIN):
        kinds += [{"product": "e4m3"}, {"product": "e4m3", "chunk": 64}]
    for options in kinds:
        yield partial(_matmul, Accumulator(first.fmt, first.rounding, **options))
        if "chunk" in options:
            acc = Accumulator(first.fmt, first.rounding, **options | {"chunk": 8})
            yield from map(partial(partial, _shared), _calls([acc]))
    if tier == _tiers.FUSED and first.fmt.subnormals:
        for options in _some_outer():
            yield partial(_matmul, Accumulator("e6m9", chunk=64, **options))


def _some_outer() -> Iterator[dict[str, Any]]:
    """Outer additions in every mode of every kind of format, and every field of draws."""
    for fmt, mode in itertools.product(FEW, ROUNDINGS):
        yield {"outer": fmt, "outer_rounding": mode}
    for draws in drawn():
        yield {"outer": "e5m4", "outer_rounding": "stochastic", **draws}


def finish_calls() -> Iterator[Call]:
    """Bias and result after a certified kernel."""
    for i, options in enumerate(_some_outer()):
        fmt, mode = FEW[i % len(FEW)], ROUNDINGS[i % 6]
        ints = Quantizer(fmt, mode).to_ints()
        yield partial(_matmul, Accumulator("e6m9", chunk=64, **options), Fused((), (), ints))
        call = partial(_matmul, Accumulator("e6m9", chunk=8, **options), Fused((), (), ints))
        yield partial(_shared, call)
    for draws in drawn():
        yield partial(_matmul, Accumulator("e6m9", "stochastic", **draws | {"random_bits": 3}))
    yield from _calls([Accumulator("e6m9"), Accumulator("e6m9", chunk=64)])
    for outer in ("e6m9", "fp32"):
        calls = _calls([Accumulator("e6m9", chunk=8, outer=outer)])
        yield from map(partial(partial, _shared), calls)


def order_calls(kind: str) -> Iterator[Call]:
    """Trees, Kahan's sums and aligned blocks: every mode of every kind of format."""
    options: dict[str, Any] = {"order": kind}
    if kind == "aligned":
        options = {"block": 4, "aligned_bits": 24}
    modes = tuple(m for m in ROUNDINGS if kind != "compensated" or m != "stochastic")
    accs = [Accumulator(f, m, **options) for f, m in itertools.product(FEW, modes)]
    if kind != "compensated":
        accs += [Accumulator("e5m4", "stochastic", **options, **draws) for draws in drawn()]
    rounded = options | {"product": "e4m3", "product_rounding": "stochastic"}
    accs += [Accumulator("e5m4", **rounded, **draws) for draws in drawn()]
    accs += [Accumulator("e5m4", chunk=21, outer="e6m9", **options)]
    yield from _calls(accs)
    yield from _starts(**options)
    yield from _scaled(**options)


def operand_calls() -> Iterator[Call]:
    """Blocks aligned by their operands: every mode of every kind of format, in float32 and in
    float64; operands below float32's exponents; in turns."""
    fp8: dict[str, Any] = {"block": 32, "aligned_bits": 13, "operands": "e4m3fn"}
    low = {"block": 4, "aligned_bits": 24, "operands": "e4m3_b140"}
    turns = {"block": 2, "aligned_bits": 25, "operands": "fp16", "chunk": 20, "interleaved": 2}
    formats = ("e5m10", "e5m0", "e8m13", "e4m3_sat", "e5m2_nosub", "e4m3fn")
    accs = [Accumulator(f, m, **fp8) for f, m in itertools.product(formats, ROUNDINGS)]
    accs += [Accumulator("e5m4", "stochastic", **fp8, **draws) for draws in drawn()]
    accs += [Accumulator("e8m13", "toward_zero", chunk=128, outer="fp32", **fp8)]
    yield from _calls(accs)
    for options in (low, turns):
        accs = [Accumulator("e5m4", m, **options) for m in ROUNDINGS]
        yield from _calls(accs)
    yield from _starts(**fp8)
    yield from _scaled(**fp8)
    yield from _starts(block=16, aligned_bits=25, operands="fp16")


def native_calls() -> Iterator[Call]:
    """tl.dot: every type of operands, every outer rule."""
    for fmt, mode in itertools.product((*FEW, "e4m3_sat", "e4m3fn", "e6m9_nosub"), ROUNDINGS):
        yield partial(_matmul, Accumulator("fp32", mode, order="native", chunk=64, outer=fmt))
    acc, double = (accumulator(f"native_chunk64:outer={outer}") for outer in ("e6m9", "fp32"))
    for name, one in itertools.product(("e5m2", "bf16", "fixed8_f4"), (acc, double)):
        ints = Quantizer(name).to_ints()
        yield partial(_matmul, one, Fused(ints, ints, ints))
    yield from _calls([acc, double])
