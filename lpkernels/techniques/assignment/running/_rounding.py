"""The rounding of all tensors of an assignment while it runs: formats, counts, and the nodes of the
graph that round values on the way forward and gradients on the way back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from lpkernels.arithmetic import Quantizer
from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.functional.recording import first_order
from lpkernels.functional.seeds import seed_for
from lpkernels.functional.unchecked import check_axis, rounded
from lpkernels.techniques.assignment.assignment import Assignment
from lpkernels.techniques.assignment.operations import key_of

# What `lp.quantize` counts: overflow, underflow, zeros, nonfinite.
_COUNTS = 4


@dataclass(frozen=True)
class Count:
    """The counts from rounding one tensor's elements in one step.

    overflow: elements whose magnitude is at least the overflow threshold of the format, infinities
        among them, and NaN. underflow: elements that are not zero and are rounded to zero.
    nonfinite: infinities and NaN alone.
    numel: elements rounded; those of all batches of the step, where it has several.
    """

    overflow: int
    underflow: int
    nonfinite: int
    numel: int

    @property
    def overflow_ratio(self) -> float:
        """Share of the elements."""
        return self.overflow / self.numel if self.numel else 0.0

    @property
    def underflow_ratio(self) -> float:
        """Share of the elements."""
        return self.underflow / self.numel if self.numel else 0.0


@dataclass
class CopiedCounts:
    """The counts of one step on their way to the host.

    rows: for each device the copy of its counters, and the event of the copy's arrival, if it has
        one.
    """

    rows: list[tuple[Tensor, torch.cuda.Event | None]]
    numel: list[int]


class RoundingTable:
    """How each tensor is rounded, by key; a promotion writes here, and nothing else changes.

    counters are one tensor on each device, a row of four for each key.
    """

    def __init__(self, assignment: Assignment, counting: bool) -> None:
        self.keys = tuple(assignment.tensors)
        self.rows = {key: row for row, key in enumerate(self.keys)}
        self.quantizers: list[Quantizer] = []
        self.counting = counting
        self._counters: dict[torch.device, tuple[Tensor, list[Tensor]]] = {}
        self._numel = [0] * len(self.keys)
        self.write(assignment)

    def write(self, assignment: Assignment) -> None:
        """Takes over the formats of the assignment."""
        self.quantizers = [assignment.format_of(key) for key in self.keys]
        self._lowered = [(q.to_ints(), q.is_stochastic) for q in self.quantizers]

    def check_parameters(self, model: Module) -> None:
        """Raises: ValueError: a parameter lacks the axis of its format or of its gradient's."""
        for name, parameter in model.named_parameters():
            for key in (key_of(name, "weight"), key_of(name, "grad_weight")):
                if key in self.rows:
                    self._check_axis(key, parameter)

    def _check_axis(self, key: str, x: Tensor) -> None:
        ints, _ = self._lowered[self.rows[key]]
        check_axis("assign", key, x.shape, ints[InQuantizer.FORMAT])

    def rounded(self, x: Tensor, key: str, *, in_place: bool = False) -> Tensor:
        """x in its format, float32 where x's dtype does not hold it; in_place: in x's memory."""
        row = self.rows[key]
        self._check_axis(key, x)
        x = x.detach()
        counts = None
        if self.counting:
            counts = self._counts(x.device)[row]
            self._numel[row] += x.numel()
        with torch._C.DisableTorchFunction():
            return rounded(x, *self._lowered[row], counts, x if in_place else None)

    def passed(self, x: Tensor, key: str) -> Tensor:
        """x itself: the loss's own gradient, which is never rounded.

        Where its format rounds stochastically a seed is drawn all the same, so that the draws of
        the tensors behind it do not depend on which of them are the loss.
        """
        seed_for(self._lowered[self.rows[key]][1], None)
        return x

    def _counts(self, device: torch.device) -> list[Tensor]:
        if device not in self._counters:
            rows = torch.zeros((len(self.keys), _COUNTS), dtype=torch.int64, device=device)
            self._counters[device] = (rows, list(rows.unbind()))
        return self._counters[device][1]

    def copied(self) -> CopiedCounts:
        """The counts so far, as a copy that nothing waits for; counting starts anew."""
        rows: list[tuple[Tensor, torch.cuda.Event | None]] = []
        for counters, _ in self._counters.values():
            if counters.is_cuda:
                there = torch.empty(
                    counters.shape, dtype=counters.dtype, device="cpu", pin_memory=True
                )
                there.copy_(counters, non_blocking=True)
                arrived = torch.cuda.Event()
                arrived.record(torch.cuda.current_stream(counters.device))
                rows.append((there, arrived))
            else:
                rows.append((counters.clone(), None))
            counters.zero_()
        numel, self._numel = self._numel, [0] * len(self.keys)
        return CopiedCounts(rows, numel)

    def as_copied(self, counts: Mapping[str, Count]) -> CopiedCounts:
        """A copy whose `read` gives these counts."""
        rows = torch.zeros((len(self.keys), _COUNTS), dtype=torch.int64, device="cpu")
        numel = [0] * len(self.keys)
        for key, c in counts.items():
            values = [c.overflow - c.nonfinite, c.underflow, 0, c.nonfinite]
            rows[self.rows[key]] = torch.tensor(values, dtype=torch.int64, device="cpu")
            numel[self.rows[key]] = c.numel
        return CopiedCounts([(rows, None)], numel)

    @contextmanager
    def not_counting(self) -> Iterator[None]:
        """Inside it, rounding counts nothing."""
        before, self.counting = self.counting, False
        try:
            yield
        finally:
            self.counting = before

    def read(self, copied: CopiedCounts) -> dict[str, Count]:
        """The counts of a copy by key; the copy has had a step's time to arrive."""
        total = torch.zeros((len(self.keys), _COUNTS), dtype=torch.int64, device="cpu")
        for there, arrived in copied.rows:
            if arrived is not None:
                arrived.synchronize()
            total += there
        lists = total.tolist()
        return {
            key: Count(overflow + nonfinite, underflow, nonfinite, numel)
            for key, (overflow, underflow, _, nonfinite), numel in zip(
                self.keys, lists, copied.numel, strict=True
            )
            if numel
        }


Back = Callable[[Tensor], Tensor] | None


class Rounded(torch.autograd.Function):
    """x rounded as the tensor `key`, in x's memory if `in_place`; its gradient as `back` rounds it,
    or as it is."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, table: RoundingTable, key: str, back: Back, in_place: bool = False
    ) -> Tensor:
        ctx.back, ctx.dtype = back, x.dtype
        y = table.rounded(x, key, in_place=in_place)
        if not in_place:
            return y
        ctx.mark_dirty(x)
        return x

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _gradient(ctx, grad), None, None, None, None


class Branch(torch.autograd.Function):
    """x itself, with a rounded gradient: it is one consumer's share of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, back: Back, dirty: bool) -> Tensor:
        ctx.back, ctx.dtype = back, x.dtype
        if not dirty:
            return x.view_as(x)
        # A function that changes x in place must get x itself, not a view that a Function made.
        ctx.mark_dirty(x)
        return x

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _gradient(ctx, grad), None, None


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


def _gradient(ctx: Any, grad: Tensor) -> Tensor:
    back: Back = ctx.back
    return grad if back is None else back(grad).to(ctx.dtype)
