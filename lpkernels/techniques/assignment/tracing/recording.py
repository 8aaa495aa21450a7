"""The visitor that turns calls of functions into steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from lpkernels.nn.observing import PRODUCTS, Call, Run, Visitor
from lpkernels.techniques._nested import all_tensors
from lpkernels.techniques.assignment.operations import (
    KNOWN,
    PASSES_GRADIENTS,
    SAME_VALUES,
    canonical,
)
from lpkernels.techniques.assignment.tracing.makers import (
    Flow,
    Maker,
    ResultPlace,
    TracedCall,
    TracedOp,
    TracedParameter,
    TracedResult,
    memory,
)
from lpkernels.techniques.assignment.tracing.parts import PARTS, CallInputs, give

# Products that are several in one call, step after step or with functions between.
_SEVERAL = {
    *("lstm", "gru", "rnn_tanh", "rnn_relu"),
    *("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
    *("scaled_dot_product_attention", "multi_head_attention_forward"),
    *("_native_multi_head_attention", "_transformer_encoder_layer_fwd"),
}
_GEMMS = PRODUCTS - _SEVERAL
# Functions that give a tensor's values to Python.
_READS_VALUES = frozenset(
    """
    bool int float complex index item tolist numpy array equal allclose is_nonzero contains
    """.split()
)
# Functions with a result that has as many elements as values say.
_SIZED_BY_VALUES = frozenset("nonzero argwhere unique unique_consecutive".split())


class Recorder(Visitor):
    """steps: the operations so far, in order, whether the loss depends on them or not.
    calls: all calls of functions so far, whether they are operations or not.
    """

    def __init__(
        self,
        model: Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        self.steps: list[TracedOp] = []
        self.calls: list[TracedCall] = []
        self._flow = Flow()
        self._entered: dict[int, tuple[list[Tensor], list[int], CallInputs]] = {}
        self._parameters = {
            id(p): TracedParameter(name, p.numel(), number)
            for number, (name, p) in enumerate(model.named_parameters())
        }
        for parameter in model.parameters():
            self._flow.made(parameter, self._parameters[id(parameter)])
        self._add_inputs(args, kwargs)

    def _add_inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        given = all_tensors({str(i): x for i, x in enumerate(args)} | dict(kwargs))
        floats = {name: x for name, x in given.items() if x.is_floating_point()}
        self.inputs: list[TracedOp | None] = []
        for name, x in given.items():
            if name not in floats:
                self.inputs.append(None)
                continue
            part = name if len(floats) > 1 else ""
            step = TracedOp(None, "input", part, False, True, x.numel())
            self.steps.append(step)
            self.inputs.append(step)
            self._flow.made(x, step)

    def step_of(self, loss: Tensor) -> TracedOp:
        """The step that made the loss.  Raises: ValueError: no step made it."""
        maker = self._flow.maker(loss)
        if not isinstance(maker, TracedOp):
            raise ValueError(
                "trace: the loss does not depend on what the model computes; give "
                "loss(output, target) that uses the output"
            )
        return maker

    def steps_of(self, output: Any) -> list[TracedOp]:
        """The makers of the tensors that the model returns."""
        makers = [self._flow.maker(x) for x in all_tensors({"": output}).values()]
        return [maker for maker in makers if isinstance(maker, TracedOp)]

    def before(self, call: Call, arguments: Mapping[str, Any]) -> None:
        found = all_tensors(arguments)
        makers = {name: self._maker(x) for name, x in found.items()}
        passes = _passes_gradients(call.operation, arguments, found.values())
        self.calls.append(TracedCall(call.operation, list(makers.values()), passes))
        reads = CallInputs(dict(arguments), {n: m for n, m in makers.items() if m is not None})
        kept = list(found.values())
        self._entered[call.number] = (kept, [x._version for x in kept], reads)

    def after(self, call: Call, result: Any) -> None:
        entered, versions, reads = self._entered.pop(call.number)
        name = canonical(call.operation)
        self._refuse_values(call, name, entered, result)
        # zeros_like, new_zeros and their like read only the shape and type of a tensor.
        reads_no_values = name.endswith("_like") or name.startswith("new_")
        if reads_no_values or not any(self._flow.depends(x) for x in entered):
            return
        made = self._made(name, result, entered, versions)
        floats = [x for x in made if x.is_floating_point() or x.is_complex()]
        if len(floats) < len(made):
            for x in made:
                self._flow.note_dependent(x)
        if floats and reads.makers:
            before = len(self.steps)
            self._record(call, name, reads, result, floats)
            if len(self.steps) > before:
                self._place(result, entered, floats)

    def _place(self, result: Any, entered: list[Tensor], made: list[Tensor]) -> None:
        """Notes where the last call has its new values: in its result or in its arguments."""
        met = self.calls[-1]
        # A function that works in place may return the tensor that it changed.
        places: tuple[tuple[ResultPlace, Any], ...] = (("argument", entered), ("result", result))
        for place, given in places:
            for index, x in enumerate(all_tensors({"": given}).values()):
                step = self._flow.maker(x)
                if any(x is each for each in made) and isinstance(step, TracedOp):
                    met.made.append(TracedResult(step, place, index))
            if met.made:
                return

    def _maker(self, x: Tensor) -> Maker | None:
        # Parameters may share one storage, of which each is a part.
        return self._parameters.get(id(x)) or self._flow.maker(x)

    def _refuse_values(self, call: Call, name: str, entered: list[Tensor], result: Any) -> None:
        told = name in _READS_VALUES and not isinstance(result, Tensor)
        deciding = entered if told else _deciding_sizes(name, entered, result)
        if any(self._flow.depends(x) for x in deciding):
            does = "reads a value" if told else "makes a tensor of a size"
            raise NotImplementedError(
                f"trace: {where(call.run)} {does} that depends on the network's inputs or "
                f"parameters ({call.operation}), so what it computes may change from step to step; "
                "compute it with tensors of fixed sizes (torch.where), or leave it out of forward"
            )

    def _made(
        self, name: str, result: Any, entered: list[Tensor], versions: list[int]
    ) -> list[Tensor]:
        """The tensors with new values: in new memory, else the ones changed in place."""
        places = {memory(x) for x in entered}
        results = all_tensors({"result": result}).values()
        new = {memory(x): x for x in results if memory(x) not in places}
        if new:
            return list(new.values())
        pairs = zip(entered, versions, strict=True)
        return list({memory(x): x for x, version in pairs if x._version != version}.values())

    def _record(
        self, call: Call, name: str, reads: CallInputs, result: Any, floats: list[Tensor]
    ) -> None:
        makers = list(dict.fromkeys(reads.makers.values()))
        if name in SAME_VALUES and len(makers) == 1:
            for x in floats:
                self._flow.made(x, makers[0])
            return
        if name in PARTS:
            steps = PARTS[name](call.run, reads, result)
            if steps is not None:
                self.steps += steps.all
                self.calls[-1].parts = {step.part or step.operation: step for step in steps.all}
                for x, step in zip(all_tensors({"": result}).values(), steps.results, strict=True):
                    self._flow.made(x, step)
                return
        gemm = name in _GEMMS
        known = gemm or name in KNOWN
        for x in floats:
            step = TracedOp(call.run, name, "", gemm, known, x.numel())
            give(step, makers)
            self.steps.append(step)
            self._flow.made(x, step)


def _deciding_sizes(name: str, entered: list[Tensor], result: Any) -> list[Tensor]:
    """The tensors whose values decide how many elements the result has."""
    if name == "getitem":
        return [x for x in entered[1:] if x.dtype == torch.bool]
    if name == "masked_select":
        return entered[1:]
    one = name == "where" and not isinstance(result, Tensor)
    return entered if one or name in _SIZED_BY_VALUES else []


def _passes_gradients(name: str, arguments: Mapping[str, Any], read: Iterable[Tensor]) -> bool:
    # A third argument in its place is the operand of an old form, whose second one is a factor.
    plain = arguments.get("alpha", 1) == 1 and "2" not in arguments
    return plain and canonical(name) in PASSES_GRADIENTS and all(x.numel() == 1 for x in read)


def where(run: Run) -> str:
    """A module as errors name it."""
    return "the loss, or what runs around the model," if run.module is None else str(run)
