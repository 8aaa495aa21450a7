"""An optimizer's step of parameters, one pass over each: csrc/common/update.h in Triton.

The step is float32, an operation at a time; `lpkernels.reference.updates` has the rule, its order
and its constants.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from lpkernels.arithmetic import Sgd, Step, step_from_numbers
from lpkernels.arithmetic.updates import ROUNDING_INTS
from lpkernels.backends import Update
from lpkernels.backends.triton._launch import EXACT, on_device
from lpkernels.backends.triton._roundings import Known
from lpkernels.backends.triton.elementwise.codes import codec_of, decode, encode
from lpkernels.backends.triton.elementwise.quantize import (
    BY_FLOAT64,
    lifts_of_seed,
    rounded_by,
    store_rounded,
    way,
)
from lpkernels.backends.triton.rounding.bits import double, narrow, single, value_of, widened
from lpkernels.backends.triton.rounding.draws import mix64
from lpkernels.backends.triton.rounding.rule import STOCHASTIC, Numbers, rule_of
from lpkernels.rng import SITE_QUANTIZE

_BLOCK = 1024
# With four warps a thread would step eight elements, and spill in some steps of Adam.
_WARPS = 8
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_SITE = tl.constexpr(SITE_QUANTIZE)
_PLACES = 5
_CODES = {8: torch.uint8, 16: torch.int16, 32: torch.int32}


class Place(NamedTuple):
    """How the values of one tensor are rounded and how they lie; compiled in."""

    rounds: bool
    by: int
    #: The width of codes, 0 where the tensor has the values themselves.
    width: int
    #: A Rule and a Codec.
    rule: Known
    codec: Known


class Options(NamedTuple):
    """The options that decide the operations of a step; they are compiled in."""

    adam: bool
    decays: bool
    states: int
    way: bool
    maximize: bool
    #: Adam's 1 - beta1 is 1/2 or more.
    near_one: bool
    begins: bool


class Constants(NamedTuple):
    """The options of a step that need no count of steps, in float32."""

    decay: float
    first: float
    first_less: float
    second: float
    second_weight: float
    eps: float
    size: float


@triton.jit
def power(base, exponent):
    """base^exponent in float64 by squaring, from the exponent's last bit on."""
    result = base * 0.0 + 1.0
    while exponent > 0:
        result = tl.where((exponent & 1) != 0, result * base, result)
        base = base * base
        exponent = exponent >> 1
    return result


@triton.jit
def double_of(bits):
    return value_of(tl.cast(bits, tl.int64))


@triton.jit
def derived(seed, key):
    """The seed of one use of a seed; key is not 0."""
    return mix64(seed + tl.cast(key, tl.uint64) * _GOLDEN)


@triton.jit
def load_values(ptr, index, inside, P: tl.constexpr):
    """float32 values, as they are or from their codes."""
    if P.width == 0:
        return widened(tl.load(ptr + index, mask=inside, other=0.0))
    else:
        code = tl.load(ptr + index, mask=inside, other=0).to(tl.int64)
        return narrow(decode(code & ((1 << P.width) - 1), P.codec))


@triton.jit
def store_values(ptr, index, x, inside, P: tl.constexpr):
    if P.width == 0:
        store_rounded(ptr + index, x, inside)
    else:
        code, _ = encode(double(x), P.codec)
        TYPE: tl.constexpr = ptr.dtype.element_ty
        tl.store(ptr + index, code.to(TYPE), mask=inside)


@triton.jit
def rounded(x, index, first, seed, key, N, P: tl.constexpr):
    """x in the format of its place; every NaN is 0x7fc00000."""
    if P.rounds:
        lifts = 0
        if P.rule.mode == STOCHASTIC:
            lifts = lifts_of_seed(index, first, derived(seed, key), _SITE, P.rule)
        if P.by == BY_FLOAT64:
            x = double(x)
        x = single(rounded_by(x, lifts, N, P.rule, P.by))
    return narrow(x)


@triton.jit
def sgd_step(g, w, buffer, C, S: tl.constexpr):
    if S.decays:
        g = g + w * C.decay
    if S.states > 0:
        buffer = g if S.begins else buffer * C.first + g * C.first_less
        g = g + buffer * C.first if S.way else buffer
    # A constant -0.0 would be +0.
    return w - g * C.size, buffer


@triton.jit
def adam_step(g, w, m, v, size, root, C, S: tl.constexpr):
    if S.decays:
        if S.way:
            w = w * C.decay
        else:
            g = g + w * C.decay
    apart = g - m
    m = g + apart * C.first_less if S.near_one else m + apart * C.first
    v = v * C.second + (g * C.second_weight) * g
    denominator = tl.sqrt_rn(v) * root + C.eps
    return w + tl.div_rn(m * size, denominator), m, v


@triton.jit(do_not_specialize=["position", "lr", "beta1", "beta2", "k0", "k1", "k2", "k3", "k4"])
def update_kernel(
    g_ptr, w_ptr, master_ptr, first_ptr, second_ptr, step_ptr, counts_ptr, seed_ptr, found_ptr,
    scale_ptr, count, origin, position, lr, beta1, beta2, k0, k1, k2, k3, k4, n0, n1, n2, n3, n4, C,
    S: tl.constexpr, P0: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, P3: tl.constexpr,
    P4: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One parameter. A program owns BLOCK neighbouring elements; grid: all of them.

    origin: the index of the parameter's first element, if it is a part of a larger parameter. Draws
    and the bounds of the programs' blocks go by the larger parameter, so that the random words of a
    block have one row key. Where working copy and master are one, w_ptr is None and master_ptr is
    the parameter. lr, beta1 and beta2 are the bits of float64 numbers.
    """
    aligned = origin - tl.cast(origin, tl.int64) % BLOCK
    first = tl.cast(tl.program_id(0), tl.int64) * BLOCK + aligned
    lane = tl.arange(0, BLOCK)
    index = first + lane
    # Where the block begins in memory; draws have their place in the whole, memory the lane alone.
    base = first - origin
    low = tl.maximum(-base, 0).to(tl.int32)
    high = tl.minimum(count - base, BLOCK).to(tl.int32)
    inside = (lane >= low) & (lane < high)
    g_ptr, master_ptr = g_ptr + base, master_ptr + base
    if S.states > 0:
        first_ptr = first_ptr + base
    if S.states > 1:
        second_ptr = second_ptr + base
    if found_ptr is not None:
        inside = inside & (tl.load(found_ptr) == 0)
    seed = tl.cast(tl.full([], 0, tl.int64), tl.uint64)
    if seed_ptr is not None:
        seed = derived(tl.cast(tl.load(seed_ptr), tl.uint64, bitcast=True), position + 1)
    g = load_values(g_ptr, lane, inside, P0)
    if scale_ptr is not None:
        g = tl.div_rn(g, tl.load(scale_ptr) + tl.zeros_like(g))
    g = rounded(g, index, first, seed, k0, n0, P0)
    before = load_values(master_ptr, lane, inside, P1)
    zero = tl.zeros_like(before)
    m = load_values(first_ptr, lane, inside, P2) if S.states > 0 and not S.begins else zero
    v = load_values(second_ptr, lane, inside, P3) if S.states > 1 and not S.begins else zero
    # Triton takes -x for 0 - x, which is +0 where x is +0.
    signed = g * -1.0 if S.maximize else g
    if S.adam:
        number = tl.load(step_ptr).to(tl.int64) + 1
        size = single(double_of(lr) / (1.0 - power(double_of(beta1), number)) * -1.0)
        root = single(1.0 / tl.sqrt(1.0 - power(double_of(beta2), number)))
        after, m, v = adam_step(signed, before, m, v, size, root, C, S)
    else:
        after, m = sgd_step(signed, before, m, C, S)
    asked = inside & (((g == 0.0) & (after == before)) == 0)
    master = rounded(after, index, first, seed, k1, n1, P1)
    unchanged = asked & (master == before)
    if S.states > 0:
        store_values(first_ptr, lane, rounded(m, index, first, seed, k2, n2, P2), inside, P2)
    if S.states > 1:
        store_values(second_ptr, lane, rounded(v, index, first, seed, k3, n3, P3), inside, P3)
    store_values(master_ptr, lane, master, inside, P1)
    if w_ptr is not None:
        working = rounded(master, index, first, seed, k4, n4, P4)
        store_values(w_ptr + base, lane, working, inside, P4)
    tl.atomic_add(counts_ptr, tl.sum(asked.to(tl.int64), axis=0), sem="relaxed")
    tl.atomic_add(counts_ptr + 1, tl.sum(unchanged.to(tl.int64), axis=0), sem="relaxed")


def update(update: Update) -> None:
    """As `lpkernels.backends.Backend.update`, a launch for each parameter."""
    tensors, positions, origins, rounding, numbers, begins, seed, skips, scale = update
    step = step_from_numbers(numbers)
    masters = tensors.masters or tensors.weights
    kinds = (tensors.gradients, masters, tensors.first, tensors.second, tensors.weights)
    parts = [rounding[i * ROUNDING_INTS :][:ROUNDING_INTS] for i in range(_PLACES)]
    pairs = [_place(part, kind) for part, kind in zip(parts, kinds, strict=True)]
    places, values = tuple(place for place, _ in pairs), [number for _, number in pairs]
    named = {f"P{i}": place for i, place in enumerate(places)}
    options, constants = _options(step, begins), _constants(step)
    doubles = [_bits(x) for x in (numbers[1], *numbers[3:5])]
    for i, weight in enumerate(tensors.weights):
        count = weight.numel()
        if count == 0:
            continue
        kept = [
            _words(kind[i], place) if kind else None
            for kind, place in zip(kinds[1:4], places[1:4], strict=True)
        ]
        with on_device(weight):
            update_kernel[(triton.cdiv(origins[i] % _BLOCK + count, _BLOCK),)](
                tensors.gradients[i], weight if tensors.masters else None, *kept,
                tensors.steps[i] if tensors.steps else None, tensors.counts[i], seed, skips, scale,
                count, origins[i], positions[i], *doubles, *(part[0] for part in parts), *values,
                constants, S=options, **named, BLOCK=_BLOCK, num_warps=_WARPS, **EXACT,
            )  # fmt: skip
    if tensors.steps:
        # The host does not wait to know whether the step is skipped.
        one = torch.ones((), dtype=torch.float32, device=tensors.steps[0].device)
        torch._foreach_add_(list(tensors.steps), one if skips is None else one - skips.to(one))


def _place(part: tuple[int, ...], kind: Sequence[Tensor]) -> tuple[Place, Numbers]:
    rule, numbers = rule_of(part[2:10], *part[10:13])
    assert isinstance(numbers, Numbers)
    coded = bool(kind) and kind[0].dtype == torch.uint8
    codec = codec_of(part[2:10])
    by = way(part[2:10], torch.float32, torch.float32)
    width = codec.width if coded else 0
    return Place(bool(part[1]), by, width, Known(rule), Known(codec)), numbers


def _words(kept: Tensor, place: Place) -> Tensor:
    """Codes as integers of their width."""
    return kept.view(_CODES[place.width]) if place.width else kept


def _options(step: Step, begins: bool) -> Options:
    if isinstance(step, Sgd):
        way_, near_one = step.nesterov, False
    else:
        way_, near_one = step.decoupled, not np.float32(1 - step.beta1) < np.float32(0.5)
    decays = step.weight_decay != 0
    adam = not isinstance(step, Sgd)
    return Options(adam, decays, step.states, way_, step.maximize, near_one, begins)


def _constants(step: Step) -> Constants:
    if isinstance(step, Sgd):
        own = (step.weight_decay, step.momentum, 1 - step.dampening, 0.0, 0.0, 0.0, step.lr)
        return Constants(*map(_single, own))
    decay = 1 - step.lr * step.weight_decay if step.decoupled else step.weight_decay
    weight = np.float32(1 - step.beta1)
    less = float(weight - np.float32(1.0))
    second, second_weight, eps = map(_single, (step.beta2, 1 - step.beta2, step.eps))
    return Constants(_single(decay), float(weight), less, second, second_weight, eps, 0.0)


def _single(x: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(x))


def _bits(x: float) -> int:
    """The bits of a float64 number: Triton passes numbers as float32."""
    return int(struct.unpack("<q", struct.pack("<d", x))[0])
