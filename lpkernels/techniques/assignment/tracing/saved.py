"""The tensors that operations keep for backward under an assignment, seen while a trace runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from lpkernels import functional
from lpkernels.nn.observing import PRODUCTS, Call
from lpkernels.techniques._nested import all_tensors
from lpkernels.techniques.assignment.operations import by_their_result
from lpkernels.techniques.assignment.tracing.makers import (
    Flow,
    Maker,
    TracedMemory,
    TracedOp,
    TracedParameter,
    memory,
)
from lpkernels.techniques.assignment.tracing.parts import in_parts

# So many values of a tensor say whether it is a copy of another one.
_SAMPLE = 16
# Rounding gives a stored result other values than the computed ones; so does this factor.
_OTHER = 1 + 2.0**-10


class SavedByAutograd:
    """The tensors that autograd saves in each call.

    flow, maker: who made a tensor's values. there: tensors that are in memory anyway.
    """

    def __init__(
        self,
        flow: Flow,
        maker: Callable[[Tensor], Maker | None],
        there: Iterable[Tensor],
    ) -> None:
        self._flow, self._maker = flow, maker
        self._there = {memory(x) for x in there}
        self._found: list[Tensor] = []
        self._numbers: dict[StorageWeakRef, int] = {}
        self._count = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around the run."""

        def save(x: Tensor) -> Tensor:
            self._found.append(x)
            return x

        with torch.autograd.graph.saved_tensors_hooks(save, lambda x: x):
            yield

    def mark(self) -> int:
        """Before a call."""
        return len(self._found)

    def since(self, mark: int) -> list[Tensor]:
        """The tensors that were saved since `mark` gave this number; each is told once."""
        found = self._found[mark:]
        del self._found[mark:]
        return found

    def note(
        self,
        call: Call,
        steps: Sequence[TracedOp],
        arguments: Mapping[str, Any],
        found: list[Tensor],
    ) -> None:
        """Notes the tensors that a call of one operation keeps. found: the tensors that autograd
        saved in it."""
        # An operation keeps the result that it computed, unless its gradient is a function of the
        # result: then it keeps the stored one.
        by_result = by_their_result(call.operation)
        operands = [*all_tensors(arguments).values()]
        keeps = self._keeps(call, found, operands, () if by_result else steps)
        for step in steps:
            step.keeps = keeps

    def note_parts(
        self, call: Call, parts: Mapping[str, TracedOp], arguments: Mapping[str, Any]
    ) -> None:
        """Notes, for a call of several operations, the tensors that each of them keeps when they
        are computed one after the other, as under an assignment."""
        operands = [*all_tensors(arguments).values()]
        for step in parts.values():
            step.keeps = []

        def store(x: Tensor, part: str) -> Tensor:
            if part not in parts:
                return x
            y = x * _OTHER
            # Where the operation has kept its computed result, it keeps the stored result.
            self._numbers[memory(y)] = self._number(x)
            for each in (x, y):
                self._flow.made(each, parts[part])
            operands.append(y)
            with torch.no_grad():
                parts[part].keeps = self._keeps(call, self.since(mark), operands, ())
            return y

        numbered = [str(i) for i in range(len(arguments)) if str(i) in arguments]
        named = {name: x for name, x in arguments.items() if name not in numbered}
        args = tuple(arguments[number] for number in numbered)
        # Under a recipe it is the function of this name here that computes the call.
        emulated = getattr(functional, call.operation, call.function)
        mark = self.mark()
        with torch.enable_grad():
            in_parts(call.operation, call.function, args, named, emulated, store)

    def _keeps(
        self, call: Call, found: list[Tensor], operands: list[Tensor], unstored: Sequence[TracedOp]
    ) -> list[TracedMemory]:
        keeps = []
        for x in found:
            maker = self._maker(x)
            if maker is not None and maker not in unstored:
                size = maker.numel if isinstance(maker, TracedParameter) else _elements(x)
                keeps.append(TracedMemory((maker,), self._number(x), size))
            elif memory(x) not in self._there:
                keeps.append(self._other(call.operation, x, operands))
        return keeps

    def _other(self, operation: str, x: Tensor, operands: list[Tensor]) -> TracedMemory:
        """A memory that holds no tensor of the assignment."""
        is_float = x.dtype == torch.float32 and x.numel() == _elements(x)
        if operation in PRODUCTS and x.device.type == "cpu" and is_float:
            # Products keep copies of their operands in another order, the zeros that they start
            # from, and masks; each of these is kept by itself.
            makers = [self._maker(each) for each in operands if _holds(each, x)]
            sources = tuple(dict.fromkeys(maker for maker in makers if maker is not None))
            if sources:
                return TracedMemory(sources, self._new_number(), x.numel())
        return TracedMemory((), self._number(x), x.untyped_storage().nbytes())

    def _number(self, x: Tensor) -> int:
        where = memory(x)
        if where not in self._numbers:
            self._numbers[where] = self._new_number()
        return self._numbers[where]

    def _new_number(self) -> int:
        self._count += 1
        return self._count


def _elements(x: Tensor) -> int:
    """Of the memory that x is in."""
    return x.untyped_storage().nbytes() // x.element_size()


def _holds(operand: Tensor, x: Tensor) -> bool:
    """Whether x can be kept in the operand's format, as far as a sample tells: its values are some
    of the operand's, zeros, or powers of two, which stand in masks and are in every format."""
    flat = x.detach().flatten()
    flat = flat[(flat != 0) & (torch.frexp(flat)[0].abs() != 0.5)]
    sample = flat[:: max(1, flat.numel() // _SAMPLE)]
    return operand.dtype == x.dtype and bool(torch.isin(sample, operand.detach()).all())
