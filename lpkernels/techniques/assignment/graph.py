"""A network and its loss as plain data: operations, the tensors of training, groups of these, and
the assignment of "high" or "low" precision to every tensor, with its formats and pins."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from lpkernels import schemas
from lpkernels._table import Tabular, TextTable
from lpkernels.arithmetic import Quantizer, as_quantizer
from lpkernels.formats import Format
from lpkernels.formats.checks import set_fields
from lpkernels.techniques import checks

Kind = Literal["weight", "activation", "grad_activation", "grad_weight"]
#: The kinds of tensors of training, and the ends of their keys: the paper's P, Y, GY and GP.
SUFFIXES: dict[Kind, str] = dict(zip(get_args(Kind), ("P", "Y", "GY", "GP"), strict=True))
Rounding = Quantizer | Format | str
Globs = str | Iterable[str]

_WHAT = "lpkernels assignment"
# An error names this many keys.
_NAMED = 3
# The paper's formats of weights and activations.
_VALUES = ("fp_6_9_0:nearest_away", "fp_4_3_4:nearest_away")


@dataclass(frozen=True)
class Op:
    """One operation, whose result is one tensor.

    name: its own among all Ops.
    is_gemm: a linear layer, a convolution or a product of two activations.
    inputs: the Ops whose results it reads, in the order of its arguments. A view of a result is
        that result: views are no Ops. The network's input is an Op without inputs.
    params: elements of the parameters it reads, by name. A name with a dot is the parameter's full
        name (".scale" for the parameter "scale"): Ops with the same full name share the parameter.
        A name without a dot is the Op's own: "weight" of the Op "conv1" is "conv1.weight".
    numel: elements of its result, the batch counted; 1 of a scalar loss.
    operation: what it computes, as `trace` names it ("conv2d", "relu").
    known: False: this module does not know the operation, so its tensors stay in high precision.

    Raises: TypeError, ValueError: a field of another type, or a size below zero.
    """

    name: str
    is_gemm: bool
    inputs: tuple[str, ...]
    params: Mapping[str, int] = field(default_factory=dict)
    numel: int = 0
    operation: str = ""
    known: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"Op: name must be text that is not empty, got {self.name!r}")
        if isinstance(self.inputs, str) or not all(isinstance(x, str) for x in self.inputs):
            raise TypeError(
                f"Op {self.name!r}: inputs must be names of Ops, as a tuple, got {self.inputs!r}"
            )
        for what, numel in {"the result": self.numel, **self.params}.items():
            checks.whole(f"Op {self.name!r}: elements of {what}", numel, 0)
        set_fields(self, inputs=tuple(self.inputs), params=dict(self.params))

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
    names: set[str] = set()
    sizes: dict[str, int] = {}
    for op in ops:
        if not isinstance(op, Op):
            raise TypeError(f"{function}: expected Ops, got {type(op).__name__}: {op!r}")
        if op.name in names:
            raise ValueError(f"{function}: two Ops are called {op.name!r}; a name is for one")
        for name in op.inputs:
            if name not in names:
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
        names.add(op.name)
    return ops


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
    """Tensors that are demoted together.

    index: the group's number.
    tensors: a TensorSpec for each, in the order of the operations.
    """

    index: int
    tensors: tuple[TensorSpec, ...]

    @property
    def numel(self) -> int:
        """Elements of all its tensors."""
        return sum(tensor.numel for tensor in self.tensors)

    @property
    def ends(self) -> tuple[str, str]:
        """The names of the first and the last Op whose result is in the group; "-" for none."""
        results = [t.key.removesuffix(".Y") for t in self.tensors if t.kind == "activation"]
        return (results[0], results[-1]) if results else ("-", "-")


def key_of(name: str, kind: Kind) -> str:
    """The key of a tensor of the Op or the parameter called `name`."""
    return f"{name}.{SUFFIXES[kind]}"


def group(ops: Sequence[Op]) -> tuple[Group, ...]:
    """The groups, from index 0 on, each with at least one tensor.

    The operations are taken in their order. An input of the network and a GEMM open a group. Every
    result and its gradient go into the group opened last; a parameter and its gradient go into the
    group of the Op's first input, because it is read with that input. So the weight of a
    convolution is with its input, the scale of a norm with the norm's input, and after a join (Add,
    concatenation) the results belong to the GEMM that ran last. A parameter that several Ops share
    goes where the first puts it. An Op that reads parameters alone (an embedding) opens no group,
    unless it is the first.

    Args: ops: of `trace`.

    Source: Lee, Sharma, Aiken 2023 (arXiv 2301.13464), Algorithm 1, first part; branches as in
        their released code, which takes the order of execution.
    Raises: TypeError, ValueError: Ops that do not fit together.

    >>> from lpkernels.techniques.assignment import group, trace
    >>> model, loss = torch.nn.Linear(4, 2), torch.nn.functional.cross_entropy
    >>> batch = torch.randn(8, 4), torch.arange(8) % 2
    >>> [len(each.tensors) for each in group(trace(model, loss, batch))]
    [6, 6]
    """
    tensors: dict[str, TensorSpec] = {}
    home: dict[str, int] = {}
    index = -1

    def add(name: str, kinds: tuple[Kind, Kind], numel: int, index: int, known: bool) -> None:
        for kind in kinds:
            key = key_of(name, kind)
            # A parameter is where the first Op that reads it puts it.
            tensors.setdefault(key, TensorSpec(key, kind, numel, index, known))

    for op in checked_ops("group", ops):
        if op.is_gemm or not (op.inputs or op.params) or index < 0:
            index += 1
        home[op.name] = index
        add(op.name, ("activation", "grad_activation"), op.numel, index, op.known)
        reads = home[op.inputs[0]] if op.inputs else index
        for name, numel in op.full_params.items():
            add(name, ("weight", "grad_weight"), numel, reads, op.known)
    return regroup(tensors.values())


def regroup(tensors: Iterable[TensorSpec]) -> tuple[Group, ...]:
    """Groups by the index that each tensor says."""
    members: dict[int, list[TensorSpec]] = {}
    for tensor in tensors:
        members.setdefault(tensor.group, []).append(tensor)
    return tuple(Group(index, tuple(members[index])) for index in sorted(members))


class Pair(NamedTuple):
    """How a tensor is rounded in high and in low precision."""

    high: Quantizer
    low: Quantizer


@dataclass(frozen=True, init=False)
class Formats:
    """High and low precision of each kind of tensor.

    Without arguments these are the paper's formats: 16 bits (6 of exponent, 9 of mantissa) or 8
    (weights and activations have 4 and 3, gradients of activations 5 and 2), rounded to nearest,
    ties away from zero. Weights and activations saturate; gradients overflow to infinity, which a
    loss scaler sees. Gradients of weights keep 16 bits in low precision too.

    Source: Lee, Sharma, Aiken 2023 (arXiv 2301.13464), formats as in their released code; those of
        8 bits are of Sun et al. 2019 (HFP8).

    Args:
        weight, activation, grad_activation, grad_weight: (high, low), each a Quantizer, a format or
            text such as "fp8_e5m2:stochastic"; one alone is both. Rounding is to nearest even
            unless a Quantizer says otherwise.

    Raises: TypeError, ValueError: no format, one whose bits depend on the shape (BlockFormat), or a
        low one of more bits than the high one.
    """

    weight: Pair
    activation: Pair
    grad_activation: Pair
    grad_weight: Pair

    def __init__(
        self,
        *,
        weight: Rounding | Iterable[Rounding] = _VALUES,
        activation: Rounding | Iterable[Rounding] = _VALUES,
        grad_activation: Rounding | Iterable[Rounding] = (
            "fp_6_9_0_backward:nearest_away",
            "fp_5_2_0_backward:nearest_away",
        ),
        grad_weight: Rounding | Iterable[Rounding] = "fp_6_9_0_backward:nearest_away",
    ) -> None:
        roundings = (weight, activation, grad_activation, grad_weight)
        for kind, pair in zip(get_args(Kind), roundings, strict=True):
            set_fields(self, **{kind: _pair(kind, pair)})

    @classmethod
    def same(cls, high: Rounding, low: Rounding | None = None) -> Formats:
        """The same two formats for all kinds; without `low`, high precision alone, as
        Formats.same("fp32")."""
        pair = (high, high if low is None else low)
        return cls(weight=pair, activation=pair, grad_activation=pair, grad_weight=pair)

    def of(self, kind: Kind, low: bool) -> Quantizer:
        """How a tensor of that kind is rounded."""
        pair: Pair = getattr(self, kind)
        return pair.low if low else pair.high

    def bits(self, tensor: TensorSpec, low: bool) -> int:
        """Bits of the whole tensor."""
        return tensor.numel * int(self.of(tensor.kind, low).fmt.bits)


def _pair(kind: str, roundings: Rounding | Iterable[Rounding]) -> Pair:
    both = [roundings, roundings] if isinstance(roundings, Rounding) else list(roundings)
    if len(both) != 2:
        raise ValueError(f"Formats: {kind} must be (high, low), got {len(both)} of them")
    try:
        pair = Pair(*map(as_quantizer, both))
    except (TypeError, ValueError) as error:
        raise type(error)(f"Formats: {kind}: {error}") from error
    for quantizer in pair:
        if not isinstance(quantizer.fmt.bits, int):
            raise ValueError(
                f"Formats: {kind}: the bits of {quantizer} depend on the tensor's shape; take a "
                "format whose codes have one width"
            )
    high, low = (int(quantizer.fmt.bits) for quantizer in pair)
    if low > high:
        raise ValueError(
            f"Formats: {kind}: low precision {pair.low} has {low} bits, more than the {high} of "
            f"{pair.high}; give (high, low)"
        )
    return pair


#: The paper's formats.
PAPER = Formats()


@dataclass(frozen=True, init=False)
class Pins:
    """Tensors whose precision no rule changes, by globs of their keys ("conv1.*", "*.GY").

    Args:
        high: stay in high precision.
        low: are in low precision from the start, whatever the budget, and never promoted.
    Raises: TypeError: no text.
    """

    high: tuple[str, ...]
    low: tuple[str, ...]

    def __init__(self, *, high: Globs = (), low: Globs = ()) -> None:
        for name, globs in {"high": high, "low": low}.items():
            globs = (globs,) if isinstance(globs, str) else tuple(globs)
            for glob in globs:
                if not isinstance(glob, str):
                    raise TypeError(f"Pins: {name} must be globs of keys, got {glob!r}")
            set_fields(self, **{name: globs})


#: No tensor is pinned.
NO_PINS = Pins()


def pinned_keys(groups: Sequence[Group], pins: Pins) -> tuple[frozenset[str], frozenset[str]]:
    """The keys of the tensors that stay high (those of unknown operations among them), and of the
    tensors that stay low, whatever the rule.

    Raises: ValueError: a glob that matches nothing, or a tensor that would be held high and low.
    """
    tensors = [tensor for group in groups for tensor in group.tensors]
    keys = [tensor.key for tensor in tensors]
    high = {key for glob in pins.high for key in _matching("high", glob, keys)}
    high |= {tensor.key for tensor in tensors if not tensor.known}
    low = {key for glob in pins.low for key in _matching("low", glob, keys)}
    if high & low:
        raise ValueError(
            f"pins: {names_of(high & low)} would be held high and low; hold a tensor once, and no "
            "tensor of an unknown operation low"
        )
    return frozenset(high), frozenset(low)


def _matching(field: str, glob: str, keys: Sequence[str]) -> list[str]:
    matches = [key for key in keys if fnmatchcase(key, glob)]
    if not matches:
        raise ValueError(
            f"pins: {field}={glob!r} matches no tensor; there are {len(keys)}, such as "
            f"{names_of(keys)}"
        )
    return matches


def names_of(keys: Iterable[str]) -> str:
    """The first of some keys, as errors name them."""
    keys = sorted(keys)
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return ", ".join(map(repr, keys[:_NAMED])) + more


@dataclass(frozen=True)
class Assignment(Tabular):
    """The precision of every tensor of a network's training. `demote` and others make it.

    groups: all tensors.
    low: keys of the tensors in low precision.
    low_groups: indices of the groups that were demoted, in that order; () where no rule by groups
        made the assignment. A promotion takes tensors out of `low` and leaves this as it is.
    formats: the formats of high and low precision.
    pins: the tensors that were asked to be held.

    Memory is the sum over all tensors, as the paper counts it: no peak, no liveness.
    """

    groups: tuple[Group, ...]
    low: frozenset[str]
    low_groups: tuple[int, ...] = ()
    formats: Formats = PAPER
    pins: Pins = NO_PINS

    @cached_property
    def tensors(self) -> dict[str, TensorSpec]:
        """All tensors by key."""
        return {tensor.key: tensor for group in self.groups for tensor in group.tensors}

    @cached_property
    def unknown(self) -> tuple[str, ...]:
        """The operations that are not known, such as recurrent layers. Tensors inside them are no
        tensors here, so `ratio` and every number of bits leave them out."""
        results = (t for t in self.tensors.values() if t.kind == "activation" and not t.known)
        return tuple(result.key.removesuffix(".Y") for result in results)

    @cached_property
    def held(self) -> frozenset[str]:
        """The keys of the tensors that stay in their precision, by a pin or as unknown."""
        return frozenset().union(*pinned_keys(self.groups, self.pins))

    @cached_property
    def numel(self) -> int:
        """Elements of all tensors."""
        return sum(group.numel for group in self.groups)

    @cached_property
    def low_numel(self) -> int:
        """Elements of the tensors in low precision."""
        return sum(self.tensors[key].numel for key in self.low)

    @property
    def ratio(self) -> float:
        """The low-precision ratio: elements in low precision over all; 0 where there are none.

        Tensors whose format is the same in low precision (the paper's gradients of weights) count
        too.
        """
        return self.low_numel / self.numel if self.numel else 0.0

    @cached_property
    def bits(self) -> int:
        """Bits of all tensors, each in its format."""
        return sum(map(self._bits, self.groups))

    @cached_property
    def high_bits(self) -> int:
        """Bits if every tensor were in high precision."""
        return sum(self.formats.bits(tensor, False) for tensor in self.tensors.values())

    @property
    def bit_ratio(self) -> float:
        """2 * (high_bits - bits) / high_bits: 1 where all bits are halved, as the paper plots it.

        It lies below `ratio` where low precision of some kind is as wide as high precision.
        """
        return 2 * (self.high_bits - self.bits) / self.high_bits if self.high_bits else 0.0

    def is_low(self, key: str) -> bool:
        """Whether the tensor is in low precision.

        Raises: ValueError: no tensor has that key.
        """
        return self._tensor(key).key in self.low

    def format_of(self, key: str) -> Quantizer:
        """How the tensor is rounded.

        Raises: ValueError: no tensor has that key.
        """
        return self.formats.of(self._tensor(key).kind, key in self.low)

    def promoted(self, keys: Iterable[str]) -> Assignment:
        """The same assignment with these tensors in high precision.

        Raises: ValueError: no tensor has that key.
        """
        return replace(self, low=self.low - {self._tensor(key).key for key in keys})

    def check(self, groups: Sequence[Group], *, batch: bool = True) -> None:
        """Checks that the assignment is of the network with these groups.

        batch: at their batch size; False: at whatever batch size.
        Raises: ValueError: tensors that only one of the two has, or of other sizes.
        """
        model = {tensor.key: tensor for group in groups for tensor in group.tensors}
        missing, extra = model.keys() - self.tensors.keys(), self.tensors.keys() - model.keys()
        if missing or extra:
            lacking = {"it lacks ": missing, "the model lacks ": extra}
            difference = " and ".join(who + names_of(keys) for who, keys in lacking.items() if keys)
            raise ValueError(
                f"assignment: it is of another model: {difference}; trace the model and demote its "
                "own groups"
            )
        weights = ("weight", "grad_weight")
        other = [
            tensor
            for key, tensor in model.items()
            if (tensor.kind, tensor.numel) != (self.tensors[key].kind, self.tensors[key].numel)
            and (batch or tensor.kind in weights)
        ]
        if other:
            what = "model" if any(tensor.kind in weights for tensor in other) else "batch"
            key = other[0].key
            raise ValueError(
                f"assignment: it is of another {what}: {len(other)} tensors have other sizes; "
                f"{key!r} has {self.tensors[key].numel} elements in it and {other[0].numel} in the "
                "model; trace with the batch it was made for, or make it again"
            )

    def save(self, path: str | Path) -> None:
        """Writes it as JSON. Each tensor has a line of its own, so that a change of it shows as
        that line."""
        kinds = get_args(Kind)
        values = {
            "what": _WHAT,
            "schema": schemas.SCHEMA,
            "formats": {kind: list(map(str, getattr(self.formats, kind))) for kind in kinds},
            "pins": {name: list(getattr(self.pins, name)) for name in ("high", "low")},
            "low_groups": list(self.low_groups),
        }
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in values.items()]
        rows = ",\n".join(
            f"  {json.dumps([t.key, t.kind, t.numel, t.group, t.known, t.key in self.low])}"
            for t in self.tensors.values()
        )
        text = ",\n".join([*lines, f'"tensors": [\n{rows}\n]'])
        Path(path).write_text(f"{{{text}}}\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path, groups: Sequence[Group] | None = None) -> Assignment:
        """Reads what `save` wrote.

        groups: the groups of the assignment's model, group(trace(model, loss, batch)). None: not
            checked.
        Raises:
            FileNotFoundError: no such file.
            ValueError: the file is not of an assignment, contradicts itself, or is of another
                model, batch or schema.
        """
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: expected the JSON of {_WHAT!r}: {error}") from error
        if not isinstance(values, dict) or values.get("what") != _WHAT:
            raise ValueError(f'{path}: expected a JSON object with {{"what": {_WHAT!r}}}')
        schemas.check(values, path)
        try:
            rows = [(TensorSpec(*row[:5]), row[5]) for row in values["tensors"]]
            assignment = cls(
                regroup(tensor for tensor, _ in rows),
                frozenset(tensor.key for tensor, is_low in rows if is_low),
                tuple(values["low_groups"]),
                Formats(**{kind: tuple(pair) for kind, pair in values["formats"].items()}),
                Pins(**values["pins"]),
            )
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"{path}: a field is missing or of another type: {error}") from error
        if groups is not None:
            assignment.check(groups)
        return assignment

    def _tensor(self, key: str) -> TensorSpec:
        if key not in self.tensors:
            raise ValueError(
                f"assignment: no tensor has the key {key!r}; keys are such as "
                f"{', '.join(map(repr, list(self.tensors)[:4]))}"
            )
        return self.tensors[key]

    def _bits(self, group: Group) -> int:
        return sum(self.formats.bits(tensor, tensor.key in self.low) for tensor in group.tensors)

    def _table(self) -> TextTable:
        """Group by group: its first and last result, elements, the share that is low, and bits."""
        rows = [("group", "from", "to", "tensors", "elements", "low", "bits")]
        for group in self.groups:
            low = sum(tensor.numel for tensor in group.tensors if tensor.key in self.low)
            share = f"{low / group.numel:.0%}" if group.numel else "-"
            sizes = (str(len(group.tensors)), f"{group.numel:,}", share, f"{self._bits(group):,}")
            rows.append((str(group.index), *group.ends, *sizes))
        of = f"of {self.high_bits:,}" if self.high_bits else "of none"
        notes = [
            f"low-precision ratio {self.ratio:.4f}, {self.bits:,} bits {of} in high precision, bit "
            f"ratio {self.bit_ratio:.4f}"
        ]
        if self.unknown:
            notes.append(f"without what is computed inside {', '.join(self.unknown)}")
        return TextTable(rows, (1, 2), notes)
