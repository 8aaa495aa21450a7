"""From operations to groups of tensors that are demoted together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from lpkernels.techniques.assignment.ops import Op, checked_ops

Kind = Literal["weight", "activation", "grad_activation", "grad_weight"]
#: What a tensor of training is, and how its key ends: the paper's P, Y, GY and GP.
SUFFIXES: dict[Kind, str] = {
    "weight": "P",
    "activation": "Y",
    "grad_activation": "GY",
    "grad_weight": "GP",
}


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of training.

    key: "<Op>.Y" and "<Op>.GY" of an Op's result and its gradient, "<parameter>.P" and
        "<parameter>.GP" of a parameter and its gradient.
    kind: "weight", "activation", "grad_activation" or "grad_weight".
    numel: its elements.
    group: the index of its group.
    known: whether the operation that makes it, or reads it first, is known.
    """

    key: str
    kind: Kind
    numel: int
    group: int
    known: bool = True


@dataclass(frozen=True)
class Group:
    """Tensors that are demoted together, in the order of the operations."""

    index: int
    tensors: tuple[TensorSpec, ...]

    @property
    def numel(self) -> int:
        """Elements of all its tensors."""
        return sum(tensor.numel for tensor in self.tensors)


def key_of(name: str, kind: Kind) -> str:
    """The key of a tensor of the Op or the parameter called `name`."""
    return f"{name}.{SUFFIXES[kind]}"


def group(ops: Sequence[Op]) -> tuple[Group, ...]:
    """The groups, from index 0 on, each with at least one tensor.

    The operations are taken in their order. An input of the network and a GEMM open a group. Every
    result and its gradient go into the group opened last; a parameter and its gradient go into the
    group of the Op's first input, because it is read with that input. So the weight of a
    convolution is with its input, the scale of a norm with what it normalises, and after a join
    (Add, concatenation) the results belong to the GEMM that ran last. A parameter that several Ops
    share goes where the first puts it. An Op that reads parameters alone (an embedding) opens no
    group, unless it is the first.

    Source: Lee, Sharma, Aiken 2023 (arXiv 2301.13464), Algorithm 1, first part; branches as in
        their released code, which takes the order of execution.
    Raises: TypeError, ValueError: Ops that do not fit together.
    """
    tensors: dict[str, TensorSpec] = {}
    home: dict[str, int] = {}
    index = -1
    for op in checked_ops("group", ops):
        if op.is_gemm or not (op.inputs or op.params) or index < 0:
            index += 1
        home[op.name] = index
        _add(tensors, op.name, ("activation", "grad_activation"), op.numel, index, op.known)
        reads = home[op.inputs[0]] if op.inputs else index
        for name, numel in op.full_params.items():
            _add(tensors, name, ("weight", "grad_weight"), numel, reads, op.known)
    return regroup(tensors.values())


def regroup(tensors: Iterable[TensorSpec]) -> tuple[Group, ...]:
    """Groups by the index that each tensor says."""
    found: dict[int, list[TensorSpec]] = {}
    for tensor in tensors:
        found.setdefault(tensor.group, []).append(tensor)
    return tuple(Group(index, tuple(found[index])) for index in sorted(found))


def _add(
    tensors: dict[str, TensorSpec],
    name: str,
    kinds: tuple[Kind, Kind],
    numel: int,
    index: int,
    known: bool,
) -> None:
    for kind in kinds:
        key = key_of(name, kind)
        # A parameter is where the first Op that reads it puts it.
        tensors.setdefault(key, TensorSpec(key, kind, numel, index, known))
