"""The notes of a trace: operations without names, the calls that make them, and the makers of
tensors' values, by the memory that holds the values.

A view shares memory with its tensor, so it needs no entry; a view that is changed in place gives
the tensor and all its other views a new maker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from lpkernels.nn.observing import Run


@dataclass(eq=False)
class TracedOp:
    """One operation, before it has a name.

    run: the module that called it; None: it is an input of the network.
    part: its name within the call, where the call is several operations.
    params: the parameters it reads.
    """

    run: Run | None
    operation: str
    part: str
    is_gemm: bool
    known: bool
    numel: int
    inputs: list[TracedOp] = field(default_factory=list)
    params: list[TracedParameter] = field(default_factory=list)


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
    reads: list[Maker | None]
    passes: bool
    made: list[TracedResult] = field(default_factory=list)
    parts: Mapping[str, TracedOp] | None = None
