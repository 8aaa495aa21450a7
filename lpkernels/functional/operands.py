"""The operands of a layer's products, and the codes in which backward's are kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic.by_product import Reading
from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.functional import _checks
from lpkernels.ops import Ints


class Operand(NamedTuple):
    """One side of a product: values or codes, with a quantizer or with scales.

    values: as the tensor lies, with the sum along axis -1 or -2.
    quantizer: the product rounds the values by it as it reads them; () where it does not.
    scale: (..., rows, segments), of `size` products each (0: all); None without scales of blocks.
    total: (..., rows) or (1,), the scales that multiply the outer sum; None without any.
    fmt: the integers of the format of scales of blocks; () without them.
    """

    values: Tensor
    quantizer: Ints = ()
    scale: Tensor | None = None
    size: int = 0
    total: Tensor | None = None
    fmt: Ints = ()


#: The left and the right operand of a product.
Pair = tuple[Operand, Operand]


class Source(NamedTuple):
    """A tensor of a layer, with the codes and the values that were made of it already.

    parts, values: by the key of a `Reading`.
    keeps: whether its codes will be kept for backward, so that values are made of them.
    operand: of the product that reads what was kept of the tensor.
    """

    tensor: Tensor
    parts: dict[str, ops.Parts]
    values: dict[str, Tensor]
    keeps: bool = False
    operand: Operand | None = None

    def release(self, reading: Reading) -> None:
        """Frees what was made for one product where the next reads codes of its own, so that they
        lie in the same memory: pages that are new to the process cost more than their rounding."""
        if reading.own and not reading.from_codes:
            self.parts.clear()
            self.values.clear()


class _Switch(threading.local):
    packs = True


_switch = _Switch()


@contextmanager
def packed_activations(on: bool) -> Iterator[None]:
    """Inside the block, layers pack the operands that they keep and their recipe rounds, or do not.

    By default they pack: an activation in e5m2 is kept in one byte, in e2m1 in half a byte, and
    unpacked in backward, bit for bit. Results and gradients are the same with packing on or off.
    (Native sums are the exception: their order depends on the strides, and an unpacked tensor is
    contiguous.) docs/layers.md, "What a layer keeps", says which operands are never packed, and
    which layers share codes. The block counts in forward, and belongs to the thread that entered
    it. Activation checkpointing computes a function again in backward: enter the block inside that
    function.

    Args:
        on: whether layers pack.
    """
    if not isinstance(on, bool):
        raise TypeError(f"packed_activations: expected True or False, got {on!r}")
    before, _switch.packs = _switch.packs, on
    try:
        yield
    finally:
        _switch.packs = before


def shared(codes: Tensor, source: Tensor) -> Tensor:
    """The codes that another layer keeps of source, if they have the bytes of codes; else codes.

    Only the bytes tell: `.data` and NumPy change a tensor without changing its version. The host
    does not wait for a device to compare them, so they are shared in the memory of the CPU alone.
    """
    # A tensor that is a leaf may be copied and stored, with all its attributes.
    if torch.compiler.is_compiling() or source.grad_fn is None or not ops.is_in_cpu_memory(codes):
        return codes
    earlier_codes = getattr(source, "_lpkernels_codes", None)
    if earlier_codes is not None and torch.equal(earlier_codes, codes):
        return earlier_codes
    source._lpkernels_codes = codes  # type: ignore[attr-defined]
    return codes


def residual_format(x: Tensor, ints: Ints) -> Ints:
    """The format in which x, rounded by a quantizer, is kept as codes, as packing takes it: its
    integers, or the row of the quantizer. () where x is kept itself."""
    if isinstance(ints, ops.Row):
        at_once = _checks.constant(ops.packs_at_once, x.device.type)
        return ints if _switch.packs and ints.kept_bits > 0 and x.numel() > 0 and at_once else ()
    if torch.compiler.is_compiling():
        is_kept = _checks.constant(_is_kept_in_a_graph, *ints)
        return ints[InQuantizer.FORMAT] if is_kept and packs(x) else ()
    codes = ops.rounds(ints).codes
    return codes.ints if codes is not None and codes.is_kept and packs(x) else ()


def _is_kept_in_a_graph(*ints: int) -> bool:
    codes = ops.rounds(ints).codes
    return codes is not None and codes.is_kept and codes.every_code


def packs(x: Tensor) -> bool:
    """Whether codes of x are kept in its place, where they are narrower."""
    if not _switch.packs or not x.numel() or x.is_meta:
        return False
    if x.is_cpu:
        return True
    if torch.compiler.is_compiling():
        return _checks.constant(ops.packs_at_once, x.device.type)
    return ops.packs_at_once(x.device.type) and not _captured(x)


def _captured(x: Tensor) -> bool:
    """Whether x's work goes into a CUDA graph, where packing cannot wait for the device."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()
