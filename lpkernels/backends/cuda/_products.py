"""Operands and products as csrc/cuda/product/sums.h has them: pointers, lines of offsets, sizes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lpkernels.backends import DrawKey, How, Scales
from lpkernels.backends._gpu import Matrices
from lpkernels.backends.cuda._launch import Seed, module, on_device, stream

#: Lanes of a packed operand are padded to a multiple of a tile's side.
PAD = 128


class Line(NamedTuple):
    """Offsets in elements: an int64 table on the device, or multiples of a step."""

    table: Tensor | None
    step: int

    def ints(self) -> list[int]:
        return [0 if self.table is None else self.table.data_ptr(), self.step]


def every(step: int) -> Line:
    """0, step, 2 step, ..."""
    return Line(None, step)


class Operand(NamedTuple):
    """Values in float32, each NaN 0x7fc00000, with the facts that packing found.

    Element (lane, step) of matrix g is ``values[batch[g] + lanes[lane] + steps[step]]``.
    """

    values: Tensor
    facts: Tensor
    #: Whether some elements are the NaN 0x7fc0dead: taps that fall outside and add nothing.
    absent: bool
    batch: Line
    lanes: Line
    steps: Line

    def ints(self) -> list[int]:
        lines = [*self.batch.ints(), *self.lanes.ints(), *self.steps.ints()]
        return [self.values.data_ptr(), self.facts.data_ptr(), int(self.absent), *lines]


class Sums(NamedTuple):
    """The outputs, M x N sums of K products for each of G matrices, and the keys of their draws.

    Output (i, j) of matrix g is ``out[batch[g] + rows[i] + cols[j]]``; its draws have row
    ``row_batch[g] + row_keys[i]`` and column ``col_batch[g] + col_keys[j]``; the bias has this
    column too.
    """

    out: Tensor
    batch: Line
    rows: Line
    cols: Line
    row_batch: Line
    row_keys: Line
    col_batch: Line
    col_keys: Line
    bias: Tensor | None
    #: (K,) the position that step k has in the contract's order; None: k.
    positions: Tensor | None
    #: (chunks + 1,) first step of every chunk; None: chunk c begins at step c * chunk.
    starts: Tensor | None
    #: G, M, N, K.
    sizes: tuple[int, int, int, int]
    #: Where the outermost sums start, laid out as ``out``; None: +0.
    initial: Tensor | None = None

    def lines(self) -> list[int]:
        keys = (self.row_batch, self.row_keys, self.col_batch, self.col_keys)
        return [i for line in (self.batch, self.rows, self.cols, *keys) for i in line.ints()]

    def tensors(self) -> list[int]:
        optional = (self.bias, self.positions, self.starts, self.initial)
        *pointers, initial = [0 if x is None else x.data_ptr() for x in optional]
        chunks = 0 if self.starts is None else len(self.starts) - 1
        return [self.out.data_ptr(), *pointers, chunks, initial]


def new_facts(device: torch.device) -> Tensor:
    """The empty facts of two operands, for packing to fill in."""
    return torch.zeros(2, 4, dtype=torch.int32, device=device)


def pack_matrices(x: Tensor, facts: Tensor, quantizer: tuple[int, ...]) -> Operand:
    """x (G, lanes, steps), any strides, rounded by `quantizer` where it is not ().

    Its batch is a line of as many entries as x has matrices.
    """
    count, lanes, steps = x.shape
    padded = -(-lanes // PAD) * PAD
    values = torch.empty(count * steps * padded, dtype=torch.float32, device=x.device)
    if values.numel():
        module().cuda_pack_operand(
            source=x.data_ptr(),
            sizes=[count, lanes, steps, padded],
            strides=list(x.stride()),
            to=values.data_ptr(),
            facts=facts.data_ptr(),
            quantizer=list(quantizer),
            stream=stream(x),
        )
    return Operand(values, facts, False, every(steps * padded), every(1), every(padded))


def multiply(left: Operand, right: Operand, sums: Sums, how: How) -> None:
    """Fill ``sums.out``. Runs inside `on_device`; the host waits for nothing."""
    out = sums.out
    sizes, ints = list(sums.sizes), list(how.acc)
    size = module().cuda_scratch_bytes(sizes=sizes[:3], accumulator=ints)
    scratch = torch.empty(size, dtype=torch.uint8, device=out.device)
    draws = Seed(how.seed, out.device)
    module().cuda_multiply(
        left=left.ints(),
        right=right.ints(),
        tensors=sums.tensors(),
        lines=sums.lines(),
        sizes=sizes,
        accumulator=ints,
        result=list(how.fused.result),
        seed=draws.value,
        device_seed=draws.pointer,
        role=how.role,
        scratch=scratch.data_ptr(),
        stream=stream(out),
    )


def multiply_matrices(work: Matrices, how: How, scales: Scales | None) -> None:
    """`GpuBackend.multiply_matrices`, without scales."""
    assert scales is None
    a, b, out, batch, bias, initial = work
    _, m, n, k = work.sizes
    with on_device(a):
        facts = new_facts(a.device)
        left = pack_matrices(a.reshape(a.shape[:-2].numel(), m, k), facts[0], how.fused.left)
        right = pack_matrices(b.reshape(b.shape[:-2].numel(), k, n).mT, facts[1], how.fused.right)
        left = left._replace(batch=broadcast(left.batch.step, a.shape[:-2], batch, a.device))
        right = right._replace(batch=broadcast(right.batch.step, b.shape[:-2], batch, a.device))
        sums = Sums(
            out=out,
            batch=every(m * n),
            rows=every(n),
            cols=every(1),
            row_batch=every(m),
            row_keys=every(1),
            col_batch=every(0),
            col_keys=every(1),
            bias=bias,
            positions=None,
            starts=None,
            sizes=work.sizes,
            initial=initial,
        )
        multiply(left, right, sums, how)


def broadcast(step: int, shape: torch.Size, batch: torch.Size, device: torch.device) -> Line:
    """Where each matrix of the batch lies among matrices of `shape`, `step` apart."""
    count = shape.numel()
    if count == 1:
        return every(0)
    if count == batch.numel():
        return every(step)
    table = torch.arange(count, dtype=torch.int64, device=device) * step
    return Line(table.view(shape).expand(batch).contiguous().view(-1), 0)


def accumulate(total: Tensor, addend: Tensor, how: How, key: DrawKey) -> None:
    """total (rows, cols) = round(total + addend) in the outer format, in place."""
    addend = addend.expand_as(total)
    with on_device(total):
        draws = Seed(how.seed, total.device)
        module().cuda_accumulate(
            total=total.data_ptr(),
            addend=addend.data_ptr(),
            sizes=list(total.shape),
            strides=list(addend.stride()),
            accumulator=list(how.acc),
            seed=draws.value,
            device_seed=draws.pointer,
            role=how.role,
            key=list(key),
            stream=stream(total),
        )
