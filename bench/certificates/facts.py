"""What packing for csrc/cuda finds out about an operand: facts of all of it, and of each block of
lanes.

The lanes of an operand are the rows of its product's outputs, or their columns. A block is the 128
lanes that one tile reads, over all of K. Facts are four maxima over values that are neither zero
nor absent (Facts of product/sums.h): significant bits, the last place negated, the exponent above
the value, and whether a value is infinite, NaN or subnormal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

import lpkernels as lp
from bench.predict.plans import ceil_div
from bench.predict.ranges import Range
from bench.predict.shapes import Call, Shape, products
from lpkernels.arithmetic import quantizer_from_ints
from lpkernels.backends import Convolution
from lpkernels.backends._conv_geometry import (
    Frame,
    Geometry,
    count,
    geometry_of,
    grid,
    outer_sum,
    three,
)
from lpkernels.backends._conv_phases import dgrad, dgrad_frame
from lpkernels.backends._conv_tables import (
    Tables,
    fprop,
    fprop_frame,
    tables,
    wgrad,
    wgrad_frame,
)

#: Lanes of a tile on each side.
BLOCK = 128
FACTS = 4
# An exponent below all others says that there is no value.
_NONE = -1024
Sizes = tuple[int, ...]
_CPU = torch.device("cpu")


class Blocks(NamedTuple):
    """Facts of one operand. whole: (4,), those of all that was packed. blocks: (G, B, 4), those of
    each block of lanes of each matrix. sizes: (B,), how many lanes each block has."""

    whole: Tensor
    blocks: Tensor
    sizes: Tensor


def facts_of(x: Tensor) -> Tensor:
    """The facts of float32 values (...): (..., 4) int16."""
    bits = x.contiguous().view(torch.int32) & 0x7FFFFFFF
    exponent, integer = bits >> 23, bits & 0x7FFFFF | 0x800000
    # The last bit that is set is a power of two, which is exact in float32.
    place = torch.frexp((integer & -integer).float()).exponent - 1
    special = ((exponent == 0) | (exponent == 255)).to(torch.int32)
    facts = torch.stack([24 - place, 150 - exponent - place, exponent - 126, special], dim=-1)
    return torch.where(bits[..., None] == 0, _NONE, facts).to(torch.int16)


def range_of(facts: tuple[int, ...]) -> tuple[Range, bool]:
    """The range that csrc/cuda/product/plan.h makes of facts, and whether every value is plain."""
    width, last, highest, special = facts
    if width == _NONE:
        return Range(1, 0, 0), True
    return Range(width, -last, highest), special != 1


def operands(call: Call, first: Tensor, second: Tensor) -> Iterator[tuple[Shape, Blocks, Blocks]]:
    """The products of a call on cuda, each with what its left and its right operand hold.

    first, second: the tensors of the call, in the operator's order, not rounded yet.
    """
    shapes = products(call, "cuda")
    if not shapes:
        return
    pair = [
        facts_of(_rounded(x, ints))
        for x, ints in zip((first, second), call.quantizers, strict=True)
    ]
    made = {
        "matmul": _matmul, "conv_fprop": _fprop, "conv_dgrad": _dgrad, "conv_wgrad": _wgrad,
    }[call.op](call, *pair)  # fmt: skip
    for shape, (left, right) in zip(shapes, made, strict=True):
        yield shape, left, right


def _rounded(x: Tensor, ints: tuple[int, ...]) -> Tensor:
    """x as it is read by a product that itself applies the quantizer of these integers."""
    if not ints:
        return x
    quantizer = quantizer_from_ints(ints)
    return lp.quantize(x, quantizer.fmt, quantizer.rounding)


def _highest(facts: Tensor) -> Tensor:
    """The highest of facts (..., 4): (4,)."""
    return facts.reshape(-1, FACTS).amax(0)


def _sizes(lanes: int) -> Tensor:
    return torch.tensor([min(BLOCK, lanes - first) for first in range(0, lanes, BLOCK)])


def _blocks(lanes: Tensor, whole: Tensor) -> Blocks:
    """The blocks of the facts (G, L, 4) of lanes."""
    g, n, _ = lanes.shape
    padded = torch.full((g, ceil_div(n, BLOCK) * BLOCK, FACTS), _NONE, dtype=lanes.dtype)
    padded[:, :n] = lanes
    return Blocks(whole, padded.view(g, -1, BLOCK, FACTS).amax(2), _sizes(n))


def _matmul(call: Call, a: Tensor, b: Tensor) -> Iterator[tuple[Blocks, Blocks]]:
    (shape,) = products(call, "cuda")
    rows, columns = a.amax(-2), b.amax(-3)
    if shape.matrices == 1:
        rows, columns = rows.reshape(1, -1, FACTS), columns.reshape(1, -1, FACTS)
    else:
        batch = call.result[:-2]
        rows = rows.expand(*batch, -1, -1).reshape(-1, shape.m, FACTS)
        columns = columns.expand(*batch, -1, -1).reshape(-1, shape.n, FACTS)
    yield _blocks(rows, _highest(a)), _blocks(columns, _highest(b))


def _geometry(call: Call, x: Sizes, w: Sizes, y: Sizes) -> Geometry:
    return geometry_of(x, w, y, Convolution(*call.geometry, call.groups))


def _framed(facts: Tensor, frame: Frame) -> Tensor:
    """The facts (N, C, *spatial, 4) of an image as its frame has them: (values of the frame, 4)."""
    images, channels, *spatial = facts.shape[:-1]
    size = three(spatial, 1)
    facts = facts.view(images, channels, *size, FACTS)
    ends = (frame.size[0], frame.size[1], frame.line)
    spans = [
        range(max(0, -before), min(n, end - before))
        for n, before, end in zip(size, frame.before, ends, strict=True)
    ]
    for dim, span in enumerate(spans, start=2):
        facts = facts.narrow(dim, span.start, len(span))
    places = frame.places(
        *(torch.tensor(span) + before for span, before in zip(spans, frame.before, strict=True))
    )
    steps = grid((images, channels), (frame.image_step, frame.channel_step), _CPU)
    found = torch.full((images * frame.image_step, FACTS), _NONE, dtype=facts.dtype)
    found[outer_sum(*steps, places)] = facts.reshape(-1, FACTS)
    return found


def _gathered(image: Tensor, product: Tables) -> Blocks:
    """The blocks of the lanes that a product finds in a framed image."""
    values = product.lanes[:, None] + product.steps
    lanes = torch.stack([image[batch + values].amax(1) for batch in product.batch])
    return _blocks(lanes, _highest(image))


def _by_group(image: Tensor, groups: int) -> Tensor:
    """The facts (N, C, ...) of an image, with those of the channels of a group made one: each
    output reads all channels of its group alike."""
    return image.view(image.shape[0], groups, -1, *image.shape[2:]).amax(2)


def _fprop(call: Call, x: Tensor, w: Tensor) -> Iterator[tuple[Blocks, Blocks]]:
    g = _geometry(call, call.left, call.right, call.result)
    weights = w.reshape(g.groups, g.out_channels, -1, FACTS).amax(2)
    one = g._replace(in_channels=1)
    image = _framed(_by_group(x, g.groups), fprop_frame(one))
    for product in tables(fprop, one, _CPU):
        yield _gathered(image, product), _blocks(weights, _highest(w))


def _dgrad(call: Call, dy: Tensor, w: Tensor) -> Iterator[tuple[Blocks, Blocks]]:
    g = _geometry(call, call.result, call.right, call.left)
    # (groups, C_in, taps): one set for all output channels of a group.
    steps = w.reshape(g.groups, g.out_channels, g.in_channels, g.taps, FACTS).amax(1)
    one = g._replace(out_channels=1)
    image = _framed(_by_group(dy, g.groups), dgrad_frame(one))
    for product in tables(dgrad, one, _CPU):
        met = count(g.taps, _CPU) if product.positions is None else product.positions
        yield _gathered(image, product), _blocks(steps[:, :, met].amax(2), _highest(w))


def _wgrad(call: Call, x: Tensor, dy: Tensor) -> Iterator[tuple[Blocks, Blocks]]:
    g = _geometry(call, call.left, call.result, call.right)
    rows = dy.movedim(1, 0).reshape(g.groups, g.out_channels, -1, FACTS).amax(2)
    # Each output sums over all images alike.
    one = g._replace(batch=1)
    image = _framed(x.amax(0, keepdim=True), wgrad_frame(one))
    for product in tables(wgrad, one, _CPU):
        yield _blocks(rows, _highest(dy)), _gathered(image, product)
