"""The notes of a trace: operations without names, the calls that make them, and the makers of
tensors' values, by the memory that holds the values.

A view shares memory with its tensor, so it needs no entry; a view that is changed in place gives
the tensor and all its other views a new maker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from lpkernels.nn.observing import Run, tensors


@dataclass(eq=False)
class TracedOp:
    """One operation, before it has a name.

    run: the module that called it; None: it is an input of the network.
    part: its name within the call, where the call is several operations.
    params: the parameters it reads.
    keeps: the memories that its call keeps for backward; None: nobody looked.
    """

    run: Run | None
    operation: str
    part: str
    is_gemm: bool
    known: bool
    numel: int
    inputs: list[TracedOp] = field(default_factory=list)
    params: list[TracedParameter] = field(default_factory=list)
    keeps: list[TracedMemory] | None = None


@dataclass(frozen=True)
class TracedMemory:
    """A memory that is kept for backward, as `ops.Kept` tells it, with makers for keys."""

    makers: tuple[Maker, ...]
    number: int
    size: int


@dataclass(frozen=True)
class TracedParameter:
    """A parameter as the maker of values; number is its place in the model."""

    name: str
    numel: int
    number: int


Maker = TracedOp | TracedParameter


class Flow:
    """The makers of all values that depend on the network's inputs or parameters.

    A weak reference to a storage keeps its address from being used again, and nothing else alive.
    """

    def __init__(self) -> None:
        self._makers: dict[StorageWeakRef, Maker] = {}
        # Storages of values without a gradient (comparisons, indices) that depend on these.
        self._dependent: set[StorageWeakRef] = set()

    def maker(self, tensor: Tensor) -> Maker | None:
        """The maker of a tensor's values; None if they depend neither on inputs nor on
        parameters."""
        return self._makers.get(memory(tensor))

    def made(self, tensor: Tensor, maker: Maker) -> None:
        self._makers[memory(tensor)] = maker

    def depends(self, tensor: Tensor) -> bool:
        """Whether a tensor's values would be others with other inputs or parameters."""
        where = memory(tensor)
        return where in self._makers or where in self._dependent

    def note_dependent(self, tensor: Tensor) -> None:
        self._dependent.add(memory(tensor))


def memory(tensor: Tensor) -> StorageWeakRef:
    """The storage, as a key.

    Raises: NotImplementedError: a sparse tensor.
    """
    if tensor.is_sparse or tensor.layout.__str__() == "torch.jagged":
        raise NotImplementedError(
            f"trace: a tensor of layout {tensor.layout} is not followed; take dense ones"
        )
    return StorageWeakRef(tensor.untyped_storage())


ResultPlace = Literal["result", "argument"]


class TracedResult(NamedTuple):
    """A step's values: tensor `number` of the call's result, or of its arguments, in place."""

    step: TracedOp
    place: ResultPlace
    number: int


@dataclass(eq=False)
class TracedCall:
    """One call.

    reads: who made each of the tensors among its arguments, in the order of `all_tensors`.
    passes: whether all of these tensors have one element and get the result's gradient, as it is or
        negated.
    parts: the steps of a call that is several, by their names within it.
    """

    operation: str
    function: Callable[..., Any]
    reads: list[Maker | None]
    passes: bool
    made: list[TracedResult] = field(default_factory=list)
    parts: Mapping[str, TracedOp] | None = None


def all_tensors(values: Mapping[str, Any]) -> dict[str, Tensor]:
    """As `tensors`, inside mappings too (a model's output may be one)."""
    found: dict[str, Tensor] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= all_tensors({f"{name}.{key}": each for key, each in value.items()})
        elif isinstance(value, list | tuple):
            found |= all_tensors({f"{name}.{i}": each for i, each in enumerate(value)})
        else:
            found |= tensors({name: value})
    return found


def changed(value: Any, change: Callable[[int, Tensor], Tensor]) -> Any:
    """value with change(number, tensor) for each tensor; containers without changes stay."""
    return _Walk(change).of(value)


class _Walk:
    def __init__(self, change: Callable[[int, Tensor], Tensor]) -> None:
        self._change = change
        self._number = -1
        # Tensors so far that became another one.
        self._others = 0

    def of(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            self._number += 1
            new = self._change(self._number, value)
            self._others += new is not value
            return new
        if isinstance(value, Mapping):
            before = self._others
            found = {key: self.of(each) for key, each in value.items()}
            if self._others == before:
                return value
            return found if type(value) is dict else type(value)(**found)
        if isinstance(value, list | tuple):
            before = self._others
            listed = [self.of(each) for each in value]
            if self._others == before:
                return value
            return type(value)(*listed) if hasattr(value, "_fields") else type(value)(listed)
        return value
