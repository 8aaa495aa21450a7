"""The kernel of a product, chosen by facts of whole operands and by facts of its tiles' blocks."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench.certificates.facts import FACTS, Blocks, operands, range_of
from bench.predict.costs import per_product
from bench.predict.counts import cuda_count
from bench.predict.cuda_plans import EXACT, may_use_tensor_cores, tier
from bench.predict.ranges import Range
from bench.predict.shapes import Shape
from bench.predict.tracing import sum_of
from lpkernels.arithmetic import Accumulator, as_accumulator
from lpkernels.formats import FP32

#: The sums that kernels are chosen for, on the same operands.
SUMS = ("e6m9_chunk64", "native_chunk64:outer=e6m9")
#: What kernels are chosen by: facts of whole operands; facts of whole operands, if tensor cores
#: took operands scaled by a power of two; facts of each tile's blocks.
BY = ("tensor", "scaled", "block")
# Values of half precision lie below 2^16.
_HALF_TOP = 16


@dataclass
class Tally:
    """Sums over the products of one pass. macs, instructions: multiply-adds by kernel, and
    instructions, for each of `BY`. tiles: tiles by the kernel that is chosen by block. faster: how
    many tiles have fewer instructions with that kernel than with the one by whole operands."""

    products: int = 0
    macs: dict[str, Counter[str]] = field(default_factory=lambda: {by: Counter() for by in BY})
    instructions: dict[str, float] = field(default_factory=lambda: dict.fromkeys(BY, 0.0))
    tiles: Counter[str] = field(default_factory=Counter)
    faster: int = 0


def _scaled(x: Range) -> Range:
    """The range whose largest values lie right below what half precision holds."""
    return Range(x.width, x.lowest + _HALF_TOP - x.highest, _HALF_TOP)


@functools.lru_cache(maxsize=1 << 16)
def kernel_of(
    acc: Accumulator, shape: Shape, facts: tuple[int, ...], *, scaled: bool = False
) -> str:
    """The kernel for operands with these facts, first those of the left one, then the right one's.

    scaled: what tensor cores read may be scaled. Operands with infinities, NaN or subnormals have
    no certificate, but float32 sums take them.
    """
    (left, ours), (right, theirs) = range_of(facts[:FACTS]), range_of(facts[FACTS:])
    if not (ours and theirs):
        return "float32" if acc.fmt == FP32 else EXACT
    if scaled and may_use_tensor_cores(acc):
        left, right = _scaled(left), _scaled(right)
    return tier(acc, shape._replace(left=left, right=right), fast_doubles=True)


def instructions_of(kernel: str, shape: Shape, acc: Accumulator) -> float:
    """Instructions of a product, the ends of chunks shared out.

    Raises: KeyError: the exact kernel, whose instructions are not counted.
    """
    count = cuda_count(kernel, acc, tables=shape.tables)
    return per_product(count, shape, 0 if acc.chunk is None else shape.chunks(acc.chunk))


def look(tally: Tally, acc: Accumulator, shape: Shape, left: Blocks, right: Blocks) -> None:
    """Adds one product to the tally."""
    tally.products += 1
    facts = tuple(torch.cat([left.whole, right.whole]).tolist())
    for by in ("tensor", "scaled"):
        kernel = kernel_of(acc, shape, facts, scaled=by == "scaled")
        tally.macs[by][kernel] += shape.macs
        tally.instructions[by] += shape.macs * instructions_of(kernel, shape, acc)
    most = instructions_of(kernel_of(acc, shape, facts), shape, acc)
    tiles = (shape.matrices, len(left.sizes), len(right.sizes), FACTS)
    pairs = [left.blocks[:, :, None].expand(tiles), right.blocks[:, None].expand(tiles)]
    outputs = (left.sizes[:, None] * right.sizes).expand(tiles[:-1]).flatten()
    kinds, which = torch.cat(pairs, -1).view(-1, 2 * FACTS).unique(dim=0, return_inverse=True)
    made, times = torch.bincount(which, outputs.double()), torch.bincount(which)
    for found, size, count in zip(kinds.tolist(), made.tolist(), times.tolist(), strict=True):
        kernel, macs = kernel_of(acc, shape, tuple(found)), int(size) * shape.k
        instructions = instructions_of(kernel, shape, acc)
        tally.macs["block"][kernel] += macs
        tally.instructions["block"] += macs * instructions
        tally.tiles[kernel] += count
        tally.faster += count * (instructions < most)


class Looking(TorchDispatchMode):
    """Looks at every product that is made inside. found: tallies by pass and sums."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[str, str], Tally] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        made = sum_of(func, args, result)
        if made is not None:
            first, second = (x.detach() for x in args[1:3])
            self._look(*made, first, second)
        return result

    def _look(self, gemm: str, call: Any, first: Tensor, second: Tensor) -> None:
        for product in operands(call, first, second):
            for sums in SUMS:
                tally = self.found.setdefault((gemm, sums), Tally())
                look(tally, as_accumulator(sums), *product)
