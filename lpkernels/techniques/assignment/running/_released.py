"""Training under an assignment as the code that Lee et al. released does it, in every rounding.

Source: github.com/wonyeol/mixed-prec-train, commit 5ac37b2, of Lee, Sharma, Aiken 2023 (arXiv
2301.13464). Ours: NaN stays NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from lpkernels.formats import FloatFormat
from lpkernels.functional.recording import first_order
from lpkernels.nn.observing.functions import name_of
from lpkernels.techniques.assignment.assignment import Assignment
from lpkernels.techniques.assignment.operations import Kind, Like, check_like
from lpkernels.techniques.assignment.promotion import FORWARD, Promoter
from lpkernels.techniques.assignment.running._rounding import Count, RoundingTable
from lpkernels.techniques.assignment.running._session import Session
from lpkernels.techniques.assignment.tracing.recording import copied_split


def check_released(assignment: Assignment, like: Like, fan_out: Any, promote: Any) -> None:
    """Raises: ValueError: options of `assign` that do not go together with `like`."""
    check_like("assign", like)
    if assignment.like != like:
        raise ValueError(
            f"assign: the assignment is of a trace with like={assignment.like!r}, got {like=}; "
            "give the same to trace, demote and assign"
        )
    if like is None:
        return
    if fan_out == "sum":
        raise ValueError(
            'assign: like="release" rounds each share of a gradient, got fan_out="sum"; leave out '
            "fan_out, or like"
        )
    if isinstance(promote, Promoter):
        raise ValueError(
            'assign: like="release" has the promotion of the released code, got a Promoter; give '
            "promote as a number or None"
        )
    for kind in get_args(Kind):
        _check_formats(assignment, kind)


def _check_formats(assignment: Assignment, kind: Kind) -> None:
    overflow = "saturate" if kind in FORWARD else "infinity"
    for quantizer in getattr(assignment.formats, kind):
        fmt = quantizer.fmt
        is_float = isinstance(fmt, FloatFormat) and fmt.subnormals and fmt.specials == "none"
        if not is_float or fmt.overflow != overflow or quantizer.rounding != "nearest_away":
            raise ValueError(
                f'assign: like="release" rounds {kind} to nearest, ties away, in a float format '
                f'without codes for infinity and NaN (specials="none") and with overflow='
                f"{overflow!r}, got {quantizer}; take such formats, or leave out like"
            )


def overflow_ratio(count: Count, like: Like) -> float:
    """The ratio of a count, which the released code divides in float32."""
    if like is None:
        return count.overflow_ratio
    return float(np.float32(count.overflow) / np.float32(max(count.numel, 1)))


def released_promoter(assignment: Assignment, promote: float | None) -> Promoter:
    """A promoter whose threshold is a float32."""
    made = Promoter(assignment, promote)
    return made if promote is None else Promoter(assignment, float(np.float32(promote)))


class ReleasedTable(RoundingTable):
    """The released code rounds as the formats say, but for two points. Below the smallest normal
    value it first adds this value in float32, so a magnitude just under a tie goes up. And every
    zero is +0."""

    def rounded(self, x: Tensor, key: str, *, in_place: bool = False) -> Tensor:
        fmt: Any = self.quantizers[self.rows[key]].fmt
        with torch._C.DisableTorchFunction():
            before = _summed(x.detach(), fmt.min_normal)
            y = super().rounded(x.copy_(before) if in_place else before, key, in_place=in_place)
            return y.add_(0.0)


def _summed(x: Tensor, least: float) -> Tensor:
    """x; values below `least` as their float32 sum with it leaves them. (It may leave zero: these
    are rounded to zero either way, and stay, so that they count as underflow.)"""
    size = x.abs()
    left = (size + least) - least
    return torch.where((size < least) & (left != 0), left.copysign(x), x)


class _LogSoftmax(torch.autograd.Function):
    """The logarithms that `compute` gives; their gradient is computed operation by operation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, compute: Callable[[], Tensor], axis: int) -> Tensor:
        y = compute()
        ctx.save_for_backward(y)
        ctx.axis = axis
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (y,) = ctx.saved_tensors
        return grad - y.exp() * grad.sum(ctx.axis, keepdim=True), None, None


class ReleasedSession(Session):
    """A forward pass of the released code: the parts of a split are results, ReLU's backward reads
    the result before rounding, and log-softmax's backward the rounded one by its formula."""

    def see(
        self, function: Callable[..., Any], args: Any, kwargs: Any, compute: Callable[..., Any]
    ) -> Any:
        def changed(*args: Any, **kwargs: Any) -> Any:
            if name_of(function) == "log_softmax":
                x, axis = _operand(*args, **kwargs)
                return _LogSoftmax.apply(x, lambda: compute(*args, **kwargs), axis)
            return copied_split(function, compute(*args, **kwargs))

        return super().see(function, args, kwargs, changed)

    def log_softmax(self, x: Tensor, axis: int) -> Tensor:
        y: Tensor = _LogSoftmax.apply(x, lambda: torch.log_softmax(x, axis), axis)
        return y

    def result(self, x: Tensor, op: str, *, in_place: bool = False) -> Tensor:
        if in_place and self._keeper is not None and not self._settles:
            # Backward may read the result as it was.
            self._keeper.settles(x, x.detach().clone())
        return super().result(x, op, in_place=in_place)


def _operand(input: Tensor, dim: int | None = None, *_: Any, **__: Any) -> tuple[Tensor, int]:
    """The operand and the axis of a call of log_softmax."""
    # torch's choice where the call says nothing.
    return input, (0 if input.dim() in (0, 1, 3) else 1) if dim is None else dim
