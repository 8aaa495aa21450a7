"""The plan of a run under an assignment: at each call, the tensors to replace and the tensors to
round.

A trace met every call of a function in order. A run of the same model on such a batch meets the
same calls, so what to do at each call is decided once, from the trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import Module

from lpkernels.techniques.assignment.operations import (
    SAME_VALUES,
    Op,
    by_their_result,
    canonical,
    key_of,
)
from lpkernels.techniques.assignment.tracing.following import finished, followed
from lpkernels.techniques.assignment.tracing.makers import (
    ResultPlace,
    TracedCall,
    TracedOp,
    TracedParameter,
)


class PlannedResult(NamedTuple):
    """An Op's values in a call: tensor `number` of its result, or of its arguments, in place."""

    op: str
    place: ResultPlace
    number: int


@dataclass(frozen=True)
class PlannedCall:
    """One call.

    operation: its function's name.
    reads: for each tensor among its arguments the key of the parameter or result that has the same
        values; None for other tensors.
    results: the tensors that it makes for the assignment.
    passes: as of `TracedCall`.
    parts: where the call is several Ops, the Ops by their names inside the call.
    copies: where it makes no tensor of the assignment, the key of the tensor that its result
        copies.
    last: the parameters that no later call reads.
    by_its_result: whether its gradient is a function of its stored result.
    """

    operation: str
    reads: tuple[str | None, ...]
    results: tuple[PlannedResult, ...]
    passes: bool
    parts: Mapping[str, str] | None
    copies: str | None
    last: tuple[str, ...]
    by_its_result: bool

    @property
    def makes(self) -> bool:
        """Whether it makes tensors of the assignment."""
        return bool(self.results) or self.parts is not None


@dataclass(frozen=True)
class RunPlan:
    """A model's calls, each with the tensors of the assignment that it reads and makes.

    ops: the operations that the trace found. inputs: for each tensor of the network's input its Op,
    or None if nothing rounds it. calls: all calls in order. parameters: names of the parameters
    that calls read.
    """

    ops: tuple[Op, ...]
    inputs: tuple[str | None, ...]
    calls: tuple[PlannedCall, ...]
    parameters: tuple[str, ...]

    @cached_property
    def consumed(self) -> frozenset[str]:
        """The keys of results that other calls compute with."""
        return frozenset(self.times_read)

    @cached_property
    def times_read(self) -> Counter[str]:
        """How often other calls compute with each tensor, by key."""
        computing = [call for call in self.calls if call.makes]
        return Counter(key for call in computing for key in call.reads if key is not None)

    @cached_property
    def passed(self) -> frozenset[str]:
        """The keys of gradients that nothing rounds.

        The loss's own value has such a gradient. So has a scalar that nothing else reads, if the
        loss's gradient is passed on to it as it is or negated.
        """
        makers = {each.op: call for call in self.calls for each in call.results}
        scalars = {op.name for op in self.ops if op.numel == 1}
        found: list[str] = [self.ops[-1].name]
        for name in found:
            call = makers.get(name)
            for key in call.reads if call is not None and call.passes else ():
                read = "" if key is None else key.removesuffix(".Y")
                if read in scalars and self.times_read[f"{read}.Y"] == 1:
                    found.append(read)
        return frozenset(key_of(name, "grad_activation") for name in found)


def kind_of(value: Any) -> Any:
    """The sizes and types of the tensors in `value`, and its other values: they decide on the
    operations."""
    if isinstance(value, Tensor):
        return (value.shape, value.dtype)
    if isinstance(value, Mapping):
        return tuple((key, kind_of(each)) for key, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(kind_of(each) for each in value)
    return repr(value) if isinstance(value, bool | int | float | str) else type(value)


def planned(
    model: Module,
    loss: Callable[[Any, Any], Tensor] | None,
    batch: tuple[Any, Any],
    grad: bool,
) -> RunPlan:
    """The plan for batches such as this one; the model is left as found."""
    recorder, names = followed(model, loss, batch, grad=grad)
    ops, _ = finished(names)
    parameters = tuple(dict.fromkeys(name for op in ops for name in op.full_params))
    readers = {
        maker.name: number
        for number, met in enumerate(recorder.calls)
        for maker in met.reads
        if isinstance(maker, TracedParameter)
    }
    calls = tuple(
        _call(met, names, tuple(n for n in parameters if readers.get(n) == number))
        for number, met in enumerate(recorder.calls)
    )
    inputs = tuple(None if step is None else names.get(step) for step in recorder.inputs)
    return RunPlan(ops, inputs, calls, parameters)


def _call(met: TracedCall, names: Mapping[TracedOp, str], last: tuple[str, ...]) -> PlannedCall:
    results = tuple(
        PlannedResult(names[made.step], made.place, made.number)
        for made in met.made
        if made.step in names
    )
    parts = None
    if met.parts is not None and any(step in names for step in met.parts.values()):
        parts = {part: names[step] for part, step in met.parts.items() if step in names}
    reads = tuple(_key(x, names) for x in met.reads)
    copied = None
    if canonical(met.operation) in SAME_VALUES:
        copied = next((key for key in reads if key is not None), None)
    by_result = by_their_result(met.operation)
    return PlannedCall(met.operation, reads, results, met.passes, parts, copied, last, by_result)


def _key(maker: object, names: Mapping[TracedOp, str]) -> str | None:
    if isinstance(maker, TracedParameter):
        return key_of(maker.name, "weight")
    if isinstance(maker, TracedOp) and maker in names:
        return key_of(names[maker], "activation")
    return None
