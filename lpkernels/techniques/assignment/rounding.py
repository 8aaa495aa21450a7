"""The tensors of an assignment while it runs: how they are rounded and counted, on the way forward
and, as gradients, on the way back; and how backward keeps them, as codes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from lpkernels.arithmetic import Quantizer
from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.formats import AffineFormat, BlockFormat
from lpkernels.functional.recording import first_order
from lpkernels.functional.seeds import seed_for
from lpkernels.functional.unchecked import check_axis, pack, rounded, unpack
from lpkernels.techniques.assignment.graph import Assignment

# The counts of `lp.quantize`: overflow, underflow, zeros, nonfinite.
_COUNTS = 4


class Count(NamedTuple):
    """The counts from rounding one tensor's elements in one step.

    overflow: elements whose magnitude is at least the overflow threshold of the format, infinities
        among them, and NaN. underflow: elements that are not zero and are rounded to zero.
    nonfinite: infinities and NaN alone.
    numel: elements rounded, in all batches of the step together.
    """

    overflow: int
    underflow: int
    nonfinite: int
    numel: int

    @property
    def overflow_ratio(self) -> float:
        """Share of the elements."""
        return self.overflow / self.numel if self.numel else 0.0


class RoundingTable:
    """How each tensor is rounded, by key; a promotion writes here, and nothing else changes.

    counting: whether `rounded` counts overflow and underflow, in one tensor on each device, with a
    row of four for each key.
    """

    def __init__(self, assignment: Assignment, counting: bool) -> None:
        self.rows = {key: row for row, key in enumerate(assignment.tensors)}
        self.counting = counting
        self._counters: dict[torch.device, Tensor] = {}
        self._numel = [0] * len(self.rows)
        self.write(assignment)

    def write(self, assignment: Assignment) -> None:
        """Takes over the formats of the assignment."""
        self.quantizers = {key: assignment.format_of(key) for key in self.rows}
        self._lowered = {k: (q.to_ints(), q.is_stochastic) for k, q in self.quantizers.items()}

    def check_axis(self, key: str, x: Tensor) -> None:
        """Raises: ValueError: x lacks the axis of the format of this tensor."""
        check_axis("assign", key, x.shape, self._lowered[key][0][InQuantizer.FORMAT])

    def rounded(self, x: Tensor, key: str, *, in_place: bool = False) -> Tensor:
        """x in its format, float32 where x's dtype does not hold it; in_place: in x's memory."""
        self.check_axis(key, x)
        x = x.detach()
        with torch._C.DisableTorchFunction():
            counts = None
            if self.counting:
                row = self.rows[key]
                counts = self._counts(x.device).select(0, row)
                self._numel[row] += x.numel()
            return rounded(x, *self._lowered[key], counts, x if in_place else None)

    def passed(self, x: Tensor, key: str) -> Tensor:
        """x itself: the loss's own gradient, which is never rounded.

        Where its format rounds stochastically a seed is drawn all the same, so that the draws of
        the tensors behind it do not depend on which of them are the loss.
        """
        seed_for(self._lowered[key][1], None)
        return x

    def _counts(self, device: torch.device) -> Tensor:
        if device not in self._counters:
            shape = (len(self.rows), _COUNTS)
            self._counters[device] = torch.zeros(shape, dtype=torch.int64, device=device)
        return self._counters[device]

    def take_counts(self) -> Callable[[], dict[str, Count]]:
        """The function that reads the counts so far, from a copy on its way to the host that
        nothing waits for; counting starts anew."""
        copies: list[tuple[Tensor, torch.cuda.Event | None]] = []
        for counters in self._counters.values():
            # From the GPU torch copies into pinned memory; the event says when all is there.
            copy = counters.to("cpu", non_blocking=True, copy=True)
            stream = torch.cuda.current_stream(counters.device) if counters.is_cuda else None
            copies.append((copy, stream.record_event() if stream is not None else None))
            counters.zero_()
        numel, self._numel = self._numel, [0] * len(self.rows)
        return partial(_read_counts, tuple(self.rows), copies, numel)


def _read_counts(
    keys: tuple[str, ...],
    copies: list[tuple[Tensor, torch.cuda.Event | None]],
    numel: list[int],
) -> dict[str, Count]:
    total = torch.zeros((len(keys), _COUNTS), dtype=torch.int64, device="cpu")
    for copy, arrival in copies:
        if arrival is not None:
            arrival.synchronize()
        total += copy
    return {
        key: Count(overflow + nonfinite, underflow, nonfinite, elements)
        for key, (overflow, underflow, _, nonfinite), elements in zip(
            keys, total.tolist(), numel, strict=True
        )
        if elements
    }


_Back = Callable[[Tensor], Tensor] | None


class Rounded(torch.autograd.Function):
    """x rounded as the tensor `key`, or x itself without a key; in x's memory if `in_place`. Its
    gradient as `back` rounds it, or as it is."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, table: RoundingTable, key: str | None, back: _Back, in_place: bool
    ) -> Tensor:
        ctx.back, ctx.dtype = back, x.dtype
        if key is not None:
            y = table.rounded(x, key, in_place=in_place)
        elif not in_place:
            y = x.view_as(x)
        if not in_place:
            return y
        # A function that changes x in place must get x itself, not a view that a Function made.
        ctx.mark_dirty(x)
        return x

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gradient = grad if ctx.back is None else ctx.back(grad).to(ctx.dtype)
        return gradient, None, None, None, None


class Flagged(torch.autograd.Function):
    """The loss; its gradient is NaN where the flag says that a value had no code."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, flag: Tensor) -> Tensor:
        ctx.flag = flag
        return loss.clone()

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad.masked_fill(ctx.flag, torch.nan), None


class Memory(NamedTuple):
    """Bytes kept for backward at the moment of a step when they were most.

    packed: codes of tensors of the assignment. whole: all else that operations keep (statistics of
    norms, masks, indices, results that are no tensor of the assignment), each memory once.
    The parameters themselves, buffers and the network's inputs live without backward too, and are
    not counted.
    """

    packed: int = 0
    whole: int = 0

    @property
    def bytes(self) -> int:
        """Codes and all else, in bytes."""
        return self.packed + self.whole


class Meter:
    """How much is kept now, and the most that was kept so far."""

    def __init__(self) -> None:
        self.packed = self.whole = 0
        self.most = Memory()
        # The codes that were unpacked last, and their values.
        self.unpacked: tuple[Codes, Tensor] | None = None
        self._storages: weakref.WeakValueDictionary[StorageWeakRef, _Share] = (
            weakref.WeakValueDictionary()
        )

    def __reduce__(self) -> tuple[type[Meter], tuple[()]]:
        # Between steps nothing is kept: a copy counts anew.
        return Meter, ()

    def share_of(self, x: Tensor) -> _Share:
        """The share of x's memory, which all that keep it hold together."""
        where = StorageWeakRef(x.untyped_storage())
        share = self._storages.get(where)
        if share is None:
            share = self._storages[where] = _Share(self, "whole", x.untyped_storage().nbytes())
        return share

    def reset(self) -> None:
        """Starts the search for the most anew."""
        self.most = Memory(self.packed, self.whole)

    def note(self) -> None:
        """Notes how much is kept, between two calls: a result that a call holds until it is rounded
        is not kept."""
        if self.packed + self.whole > self.most.bytes:
            self.reset()


class _Share:
    """Bytes that the meter counts as long as this object lives."""

    def __init__(self, meter: Meter, kind: str, size: int) -> None:
        self._meter, self._kind, self._size = meter, kind, size
        setattr(meter, kind, getattr(meter, kind) + size)

    def __del__(self) -> None:
        setattr(self._meter, self._kind, getattr(self._meter, self._kind) - self._size)


class Codes:
    """The codes of all of a memory.

    Raises: ValueError: a value of x's memory has no code.
    """

    def __init__(self, x: Tensor, quantizer: Quantizer, meter: Meter) -> None:
        self._fmt, self._meter = quantizer.fmt.to_ints(), meter
        self._numel = x.untyped_storage().nbytes() // x.element_size()
        self._codes = pack(x.detach().as_strided((self._numel,), (1,), 0), self._fmt)
        self._share = _Share(meter, "packed", self._codes.nbytes)

    def values(self, dtype: torch.dtype) -> Tensor:
        """The values of the whole memory."""
        # The operation before may have asked for the same: backward goes back the same way.
        if self._meter.unpacked is None or self._meter.unpacked[0] is not self:
            self._meter.unpacked = self, unpack(self._codes, self._fmt, (self._numel,))
        return self._meter.unpacked[1].to(dtype)


@dataclass
class Stored:
    """A tensor of the assignment, as its version in its memory. Its codes are made when the first
    operation keeps it."""

    version: int
    quantizer: Quantizer
    codes: Codes | None = None


class SavedTensor:
    """The object that autograd holds in place of one tensor: it has the tensor, or codes."""

    def __init__(self, x: Tensor, codes: Codes | None = None, share: _Share | None = None) -> None:
        self.value = x if codes is None else None
        self._codes, self._share = codes, share
        self._where = StorageWeakRef(x.untyped_storage())
        self._place = (x.shape, x.stride(), int(x.storage_offset()))
        self._dtype = x.dtype

    def is_in(self, where: StorageWeakRef) -> bool:
        """Whether it is held itself, in this memory."""
        return self.value is not None and self._where == where

    def become(self, other: SavedTensor) -> None:
        """From now on it stands for the other's tensor."""
        vars(self).update(vars(other))

    def place_in(self, x: Tensor) -> Tensor:
        """The tensor's place in x's memory."""
        return x.as_strided(*self._place)

    def tensor(self) -> Tensor:
        """The tensor that autograd asked to keep."""
        if self._codes is None:
            assert self.value is not None
            return self.value
        return self.place_in(self._codes.values(self._dtype))


@dataclass
class Keeper:
    """Decides for one forward pass whether a tensor that an operation keeps is held as codes.

    resident: memories that live anyway, such as parameters. flag: becomes True where a value has no
    code. packs: whether codes stand for anything; without, operations keep the rounded tensors.
    """

    meter: Meter
    resident: set[StorageWeakRef]
    flag: Tensor
    packs: bool
    # By memory.
    _stored: dict[StorageWeakRef, Stored] = field(default_factory=dict)
    # The saved tensors that may be the result of the call that runs.
    _pending: list[weakref.ref[SavedTensor]] = field(default_factory=list)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Around the forward pass."""
        self.meter.unpacked = None
        with torch.autograd.graph.saved_tensors_hooks(self._keep, SavedTensor.tensor):
            yield
        self.meter.note()
        # From here on codes live as long as the graph.
        self._stored.clear()
        self._pending.clear()

    def starts(self) -> None:
        """A call starts."""
        self._pending.clear()
        self.meter.note()

    def stores(self, y: Tensor, quantizer: Quantizer) -> None:
        """y is a tensor of the assignment, rounded."""
        if self.packs and _packs(y, quantizer):
            self._stored[StorageWeakRef(y.untyped_storage())] = Stored(y._version, quantizer)

    def copies(self, y: Tensor, quantizer: Quantizer) -> None:
        """y holds the values of a tensor of the assignment, as a view or in memory of its own."""
        where = StorageWeakRef(y.untyped_storage())
        if where not in self._stored and where not in self.resident:
            self.stores(y, quantizer)

    def settles(self, result: Tensor, y: Tensor) -> None:
        """Where the call kept its own result for backward, y, the rounded result, takes its
        place."""
        where = StorageWeakRef(result.untyped_storage())
        for reference in self._pending:
            saved = reference()
            if saved is None or saved.value is None or not saved.is_in(where):
                continue
            if saved.value.shape == y.shape:
                saved.become(self._saved(y.detach()))
            elif result.stride() == y.stride():
                saved.become(self._saved(saved.place_in(y.detach())))

    def _keep(self, x: Tensor) -> SavedTensor:
        if StorageWeakRef(x.untyped_storage()) in self.resident:
            return SavedTensor(x)
        saved = self._saved(x)
        if saved.value is not None:
            self._pending.append(weakref.ref(saved))
        return saved

    def _saved(self, x: Tensor) -> SavedTensor:
        stored = self._stored.get(StorageWeakRef(x.untyped_storage()))
        if stored is not None and stored.version == x._version:
            try:
                stored.codes = stored.codes or Codes(x, stored.quantizer, self.meter)
                return SavedTensor(x, stored.codes)
            except ValueError:
                self.flag.fill_(True)
        return SavedTensor(x, share=self.meter.share_of(x))


def _packs(y: Tensor, quantizer: Quantizer) -> bool:
    """Whether codes can stand for y's memory, and are smaller."""
    fmt: Any = quantizer.fmt
    if isinstance(fmt, AffineFormat | BlockFormat) or not y.numel():
        return False
    if fmt.bits >= 8 * y.element_size() or y.layout is not torch.strided:
        return False
    return y.numel() * y.element_size() == y.untyped_storage().nbytes()
