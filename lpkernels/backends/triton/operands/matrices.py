"""Matrices packed into operands: rounded, K-major, with the facts of their values."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.backends._tables import offsets
from lpkernels.backends.triton._config import operand_tile, padded_lanes
from lpkernels.backends.triton._launch import ALL_REGISTERS, EXACT, on_device, registers
from lpkernels.backends.triton._layout import PAD, Operand
from lpkernels.backends.triton.operands.facts import gather_facts
from lpkernels.backends.triton.rounding.bits import double, narrow
from lpkernels.backends.triton.rounding.round import round_to
from lpkernels.backends.triton.rounding.rule import Numbers, Rule, rule_of
from lpkernels.backends.triton.rounding.table import TableNumbers

_NOTHING = Numbers(0.0, 0.0, 0.0, 0.0, 0.0)


def read_rule(
    quantizer: tuple[int, ...], device: torch.device
) -> tuple[Rule | None, Numbers | TableNumbers]:
    """The rule of a quantizer of `Fused` for operands on a device, None for ()."""
    if not quantizer:
        return None, _NOTHING
    return rule_of(quantizer[InQuantizer.FORMAT], *quantizer[InQuantizer.RULE], device=device)


@triton.jit
def rounded_operand(x, N, R: tl.constexpr):
    """A float32 tile as an operand holds it: rounded if there is a rule, each NaN canonical."""
    if R is not None:
        return narrow(round_to(double(x), 0, N, R))
    else:
        return narrow(x)


@triton.jit(do_not_specialize=["lanes", "steps", "width", "lane_stride", "step_stride"])
def pack_operand_kernel(
    x_ptr, sources, out_ptr, facts_ptr, lanes, steps, width, lane_stride, step_stride, N,
    R: tl.constexpr, UNIT_LANES: tl.constexpr, UNIT_STEPS: tl.constexpr, TK: tl.constexpr,
    TL: tl.constexpr,
):  # fmt: skip
    """out[g][k][lane] = rounded x[sources[g] + lane * lane_stride + k * step_stride].

    Lanes from ``lanes`` to ``width`` become 0. Grid: one program for TK steps of TL lanes of one
    matrix, lanes fastest. UNIT_LANES, UNIT_STEPS: that stride is 1.
    """
    across = tl.cdiv(width, TL)
    along = tl.cdiv(steps, TK)
    tile = tl.program_id(0)
    lane = tl.cast(tile % across, tl.int64) * TL + tl.arange(0, TL)[None, :]
    k = tl.cast(tile // across % along, tl.int64) * TK + tl.arange(0, TK)[:, None]
    g = tl.cast(tile // across // along, tl.int64)

    at = (lane if UNIT_LANES else lane * lane_stride) + (k if UNIT_STEPS else k * step_stride)
    inside = (lane < lanes) & (k < steps)
    x = tl.load(x_ptr + tl.load(sources + g) + at, mask=inside, other=0.0)
    x = rounded_operand(x, N, R)
    gather_facts(facts_ptr, x)
    to = (g * steps + k) * width + lane
    tl.store(out_ptr + to, x, mask=(lane < width) & (k < steps))


def pack_operand(
    x: Tensor, batch: torch.Size, facts: Tensor, quantizer: tuple[int, ...]
) -> Operand:
    """The matrices of x, (..., lanes, K) float32 with any strides, broadcast to batch.

    A matrix that repeats along the batch is packed once. facts: of this operand.
    """
    lanes, steps = x.shape[-2:]
    strides = x.expand(*batch, lanes, steps).stride()[: len(batch)]
    sizes = [1 if stride == 0 else size for size, stride in zip(batch, strides, strict=True)]
    count, width = math.prod(sizes), padded_lanes(lanes)
    # Memory behind the last lane may be read; its values go nowhere.
    values = torch.empty(count * steps * width + PAD, dtype=torch.float32, device=x.device)
    sources = offsets(tuple(sizes), tuple(strides), x.device)
    rule, numbers = read_rule(quantizer, x.device)
    tk, tl_ = operand_tile(steps, width)
    programs = count * triton.cdiv(steps, tk) * triton.cdiv(width, tl_)
    if programs > 0:
        with on_device(x):
            pack_operand_kernel[(programs,)](
                x, sources, values, facts, lanes, steps, width, x.stride(-2), x.stride(-1),
                numbers, R=rule, UNIT_LANES=x.stride(-2) == 1, UNIT_STEPS=x.stride(-1) == 1,
                TK=tk, TL=tl_, **EXACT, **registers(ALL_REGISTERS),
            )  # fmt: skip
    places = offsets(tuple(batch), _packed_strides(sizes, steps * width), x.device)
    return Operand(values, places, None, None, width, facts, False, quantizer)


def _packed_strides(sizes: list[int], matrix: int) -> tuple[int, ...]:
    """The strides between packed matrices along every dimension of the batch; 0 where one matrix
    serves all."""
    strides: list[int] = []
    for size in reversed(sizes):
        strides.append(0 if size == 1 else matrix)
        matrix *= size
    return tuple(reversed(strides))
