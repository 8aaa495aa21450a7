"""A network and its loss as data: operations in the order they run, and what each reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kept:
    """A memory that operations keep for backward.

    keys: of the tensor whose values it holds; of several where its values are in the formats of all
        of them, as zeros are; () if it holds those of no tensor of an assignment.
    number: its own; operations that keep the same memory have the same number.
    size: its elements; without keys its bytes.
    """

    keys: tuple[str, ...]
    number: int
    size: int


@dataclass(frozen=True)
class Op:
    """One operation, whose result is one tensor.

    name: its own among all Ops.
    is_gemm: a linear layer, a convolution or a product of two activations.
    inputs: the Ops whose results it reads, in the order of its arguments. A view of a result is
        that result: views are no Ops. The network's input is an Op without inputs.
    params: elements of the parameters it reads, by name. A name with a dot is a parameter's full
        one (".scale" that of the parameter "scale"): Ops with the same one share it. A name
        without is the Op's own: "weight" of the Op "conv1" is "conv1.weight".
    numel: elements of its result, the batch counted; 1 of a scalar loss.
    operation: what it computes, as `trace` names it ("conv2d", "relu"); `amp_like` reads it.
    known: False: nobody knows what it computes, so its tensors stay in high precision.
    keeps: what backward reads of it, which `kept_memory` counts; None: nobody knows. It depends on
        how the operation is computed, so Ops are equal whatever they keep.

    Raises: TypeError, ValueError: a field of another type, or a size below zero.
    """

    name: str
    is_gemm: bool
    inputs: tuple[str, ...]
    params: Mapping[str, int] = field(default_factory=dict)
    numel: int = 0
    operation: str = ""
    known: bool = True
    keeps: tuple[Kept, ...] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"Op: name must be text that is not empty, got {self.name!r}")
        if isinstance(self.inputs, str) or not all(isinstance(x, str) for x in self.inputs):
            raise TypeError(
                f"Op {self.name!r}: inputs must be names of Ops, as a tuple, got {self.inputs!r}"
            )
        for what, numel in {"numel": self.numel, **self.params}.items():
            if isinstance(numel, bool) or not isinstance(numel, int) or numel < 0:
                raise ValueError(
                    f"Op {self.name!r}: {what} must be a number of elements, an int of at least 0, "
                    f"got {numel!r}"
                )
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "params", dict(self.params))

    @property
    def full_params(self) -> dict[str, int]:
        """Elements of the parameters by their full names."""
        return {
            name.removeprefix(".") if "." in name else f"{self.name}.{name}": numel
            for name, numel in self.params.items()
        }


def checked_ops(function: str, ops: Sequence[Op]) -> list[Op]:
    """The Ops as a list.

    Raises: TypeError: something else than Ops. ValueError: none at all, two of one name, an input
        that no earlier Op makes, or a shared parameter of two sizes.
    """
    ops = list(ops)
    if not ops:
        raise ValueError(f"{function}: expected at least one Op, got none")
    seen: set[str] = set()
    sizes: dict[str, int] = {}
    for op in ops:
        if not isinstance(op, Op):
            raise TypeError(f"{function}: expected Ops, got {type(op).__name__}: {op!r}")
        if op.name in seen:
            raise ValueError(f"{function}: two Ops are called {op.name!r}; a name is for one")
        for name in op.inputs:
            if name not in seen:
                raise ValueError(
                    f"{function}: {op.name!r} reads {name!r}, which is no earlier Op; give the Ops "
                    "in the order they run"
                )
        for name, numel in op.full_params.items():
            if sizes.setdefault(name, numel) != numel:
                raise ValueError(
                    f"{function}: parameter {name!r} has {sizes[name]} elements before and "
                    f"{numel} in {op.name!r}"
                )
        seen.add(op.name)
    return ops
