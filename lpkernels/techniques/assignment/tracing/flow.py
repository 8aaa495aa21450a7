"""Who made the values of a tensor: a table by the memory they are in.

Views share memory with what they view, so a view needs no entry, and one that was changed in place
gives all views its new maker.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from lpkernels.nn.observing import Run


@dataclass(eq=False)
class Step:
    """One operation, before it has a name.

    run: the module that called it; None: it is an input of the network.
    part: its name within the call, where that is several.
    params: those it reads.
    keeps: what its call keeps for backward; None: nobody looked.
    """

    run: Run | None
    operation: str
    part: str
    is_gemm: bool
    known: bool
    numel: int
    inputs: list[Step] = field(default_factory=list)
    params: list[Parameter] = field(default_factory=list)
    keeps: list[Keep] | None = None


@dataclass(frozen=True)
class Keep:
    """A memory that is kept for backward, as `ops.Kept` tells it, with makers for keys."""

    makers: tuple[Maker, ...]
    number: int
    size: int


@dataclass(frozen=True)
class Parameter:
    """A parameter as the maker of values; number is its place in the model."""

    name: str
    numel: int
    number: int


Maker = Step | Parameter


class Flow:
    """The makers of all values that depend on the network's inputs or parameters.

    A weak reference to a storage keeps its address from being used again, and nothing else alive.
    """

    def __init__(self) -> None:
        self._makers: dict[StorageWeakRef, Maker] = {}
        # Storages of values without a gradient (comparisons, indices) that depend on these.
        self._dependent: set[StorageWeakRef] = set()

    def maker(self, tensor: Tensor) -> Maker | None:
        """None: it depends on neither."""
        return self._makers.get(memory(tensor))

    def made(self, tensor: Tensor, maker: Maker) -> None:
        self._makers[memory(tensor)] = maker

    def depends(self, tensor: Tensor) -> bool:
        """Whether its values would be others with other inputs or parameters."""
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
