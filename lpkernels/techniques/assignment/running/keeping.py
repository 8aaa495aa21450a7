"""The memory kept for backward under an assignment: codes, one set for each of its tensors."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from lpkernels.arithmetic import Quantizer
from lpkernels.formats import AffineFormat, BlockFormat
from lpkernels.functional.unchecked import packed, unpacked


@dataclass(frozen=True)
class Memory:
    """Bytes kept for backward at the moment of a step when they were most.

    packed: codes of tensors of the assignment. whole: all else that operations keep (statistics of
    norms, masks, indices, results that are no tensor of the assignment), each memory once.
    The parameters themselves, buffers and the network's inputs are there anyway, and not counted.
    """

    packed: int = 0
    whole: int = 0

    def __str__(self) -> str:
        return f"{self.packed:,} bytes of codes and {self.whole:,} others"

    @property
    def bytes(self) -> int:
        """Codes and all else, in bytes."""
        return self.packed + self.whole

    @property
    def bits(self) -> int:
        """Codes and all else, in bits."""
        return 8 * self.bytes


class Meter:
    """How much is kept now, and the most that was kept so far."""

    def __init__(self) -> None:
        self.packed = self.whole = 0
        self.most = Memory()
        # The tensor that was unpacked last, and its codes.
        self.last: tuple[Codes, Tensor] | None = None
        self._users: dict[StorageWeakRef, int] = {}

    def reset(self) -> None:
        """Starts the search for the most anew."""
        self.most = Memory(self.packed, self.whole)

    def add_whole(self, where: StorageWeakRef, size: int) -> None:
        if where not in self._users:
            self.whole += size
        self._users[where] = self._users.get(where, 0) + 1

    def drop_whole(self, where: StorageWeakRef, size: int) -> None:
        self._users[where] -= 1
        if not self._users[where]:
            del self._users[where]
            self.whole -= size

    def note(self) -> None:
        """Notes how much is kept, between two calls: a result that a call holds until it is rounded
        is not kept."""
        if self.packed + self.whole > self.most.bytes:
            self.most = Memory(self.packed, self.whole)


class Codes:
    """The codes of one memory, made when the first operation keeps it."""

    def __init__(self, quantizer: Quantizer, meter: Meter) -> None:
        self._fmt = quantizer.fmt.to_ints()
        self._meter = meter
        self._codes: Tensor | None = None
        self._numel = 0

    def make(self, x: Tensor) -> bool:
        """Makes the codes of all of x's memory, unless they are there; False where a value has no
        code."""
        if self._codes is not None:
            return True
        numel = x.untyped_storage().nbytes() // x.element_size()
        flat = x.detach().as_strided((numel,), (1,), 0)
        try:
            self._codes = packed(flat, self._fmt)
        except ValueError:
            return False
        self._numel = numel
        self._meter.packed += self._codes.nbytes
        return True

    def view(self, like: MemoryView) -> Tensor:
        last = self._meter.last
        if last is None or last[0] is not self:
            assert self._codes is not None
            # The operation before may have asked for the same: backward goes back the same way.
            last = self._meter.last = (self, unpacked(self._codes, self._fmt, self._numel))
        return like.within(last[1].to(like.dtype))

    def __del__(self) -> None:
        if self._codes is not None:
            self._meter.packed -= self._codes.nbytes


@dataclass(frozen=True)
class MemoryView:
    """A place in a memory."""

    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @classmethod
    def of(cls, x: Tensor) -> MemoryView:
        """The place of x."""
        return cls(x.shape, x.stride(), int(x.storage_offset()), x.dtype)

    def within(self, x: Tensor) -> Tensor:
        """That place in x's memory."""
        return x.as_strided(self.size, self.stride, self.offset)


class SavedTensor:
    """The object that autograd holds in place of one tensor: it has the tensor, or codes."""

    def __init__(self, x: Tensor, meter: Meter | None, codes: Codes | None = None) -> None:
        self.value = x if codes is None else None
        self._codes, self._view = codes, MemoryView.of(x)
        self._where = StorageWeakRef(x.untyped_storage())
        self._size = x.untyped_storage().nbytes()
        self._meter = meter if codes is None else None
        if self._meter is not None:
            self._meter.add_whole(self._where, self._size)

    def is_in(self, where: StorageWeakRef) -> bool:
        """Whether it is held itself, in this memory."""
        return self.value is not None and self._where == where

    def become(self, other: SavedTensor) -> None:
        """From now on it stands for the other's tensor."""
        mine = dict(vars(self))
        vars(self).update(vars(other))
        # It drops the value that the other no longer holds.
        vars(other).update(mine)

    def tensor(self) -> Tensor:
        """The tensor that autograd asked to keep."""
        if self._codes is None:
            assert self.value is not None
            return self.value
        return self._codes.view(self._view)

    def __del__(self) -> None:
        if self._meter is not None:
            self._meter.drop_whole(self._where, self._size)


@dataclass
class StoredTensor:
    """A tensor of the assignment in memory: its version there, and its codes."""

    version: int
    codes: Codes


@dataclass
class Keeper:
    """Decides for one forward pass in which form each tensor that an operation keeps is kept.

    there: memories that are there anyway. flag: becomes True where a value has no code. packs:
    whether codes stand for anything; without, operations keep the rounded tensors.
    """

    meter: Meter
    there: set[StorageWeakRef]
    flag: Tensor
    packs: bool
    _stored: dict[StorageWeakRef, StoredTensor] = field(default_factory=dict)
    # The saved tensors that may be the result of the call that runs.
    _pending: list[weakref.ref[SavedTensor]] = field(default_factory=list)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Around the forward pass."""
        self.meter.last = None
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
            where = StorageWeakRef(y.untyped_storage())
            self._stored[where] = StoredTensor(y._version, Codes(quantizer, self.meter))

    def copies(self, y: Tensor, quantizer: Quantizer) -> None:
        """y holds the values of such a tensor, as a view or in memory of its own."""
        where = StorageWeakRef(y.untyped_storage())
        if where not in self._stored and where not in self.there:
            self.stores(y, quantizer)

    def settles(self, result: Tensor, y: Tensor) -> None:
        """Where the call kept its result, y is kept from now on: the result as it was stored,
        rounded."""
        where = StorageWeakRef(result.untyped_storage())
        for each in self._pending:
            kept = each()
            if kept is None or kept.value is None or not kept.is_in(where):
                continue
            if kept.value.shape == y.shape:
                kept.become(self._kept(y.detach(), self.meter))
            elif result.stride() == y.stride():
                view = MemoryView.of(kept.value)
                kept.become(self._kept(view.within(y.detach()), self.meter))

    def _keep(self, x: Tensor) -> SavedTensor:
        if StorageWeakRef(x.untyped_storage()) in self.there:
            return SavedTensor(x, None)
        kept = self._kept(x, self.meter)
        if kept.value is not None:
            self._pending.append(weakref.ref(kept))
        return kept

    def _kept(self, x: Tensor, meter: Meter) -> SavedTensor:
        stored = self._stored.get(StorageWeakRef(x.untyped_storage()))
        if stored is None or stored.version != x._version or not self._coded(stored, x):
            return SavedTensor(x, meter)
        return SavedTensor(x, meter, stored.codes)

    def _coded(self, stored: StoredTensor, x: Tensor) -> bool:
        if stored.codes.make(x):
            return True
        self.flag.fill_(True)
        return False


def _packs(y: Tensor, quantizer: Quantizer) -> bool:
    """Whether codes can stand for y's memory, and are smaller."""
    fmt: Any = quantizer.fmt
    if isinstance(fmt, AffineFormat | BlockFormat) or not y.numel():
        return False
    if fmt.bits >= 8 * y.element_size() or y.layout is not torch.strided:
        return False
    return y.numel() * y.element_size() == y.untyped_storage().nbytes()
