"""The rounding of all tensors of an assignment while it runs: formats, counts, and the nodes of the
graph that round values on the way forward and gradients on the way back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.functional.recording import first_order
from lpkernels.functional.seeds import seed_for
from lpkernels.functional.unchecked import check_axis, rounded
from lpkernels.techniques.assignment.graph import Assignment

# What `lp.quantize` counts: overflow, underflow, zeros, nonfinite.
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
            arrival = None
            if counters.is_cuda:
                shape, dtype = counters.shape, counters.dtype
                copy = torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)
                copy.copy_(counters, non_blocking=True)
                arrival = torch.cuda.Event()
                arrival.record(torch.cuda.current_stream(counters.device))
            else:
                copy = counters.clone()
            copies.append((copy, arrival))
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
