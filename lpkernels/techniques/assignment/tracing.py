"""trace: the operations of a model and its loss, from one run of both.

A view shares memory with its tensor, so the maker of a tensor's values is found by the memory that
holds them; a view that is changed in place gives the tensor and all its other views a new maker.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Module

from lpkernels.nn.observing import EVERYTHING, PRODUCTS, Call, Run, Visitor, observe
from lpkernels.nn.observing.observer import arguments, left_as_found
from lpkernels.nn.observing.visiting import all_tensors
from lpkernels.nn.scaling import is_leaf
from lpkernels.nn.selecting import check_model
from lpkernels.techniques.assignment.graph import Op, key_of
from lpkernels.techniques.assignment.operations import (
    BY_THEIR_RESULT,
    KNOWN,
    PARTS,
    PASSES_GRADIENTS,
    SAME_VALUES,
    Part,
    canonical,
)

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

#: From the model's output and the target to a scalar.
Loss = Callable[[Any, Any], Tensor]


def trace(model: Module, loss: Loss, batch: tuple[Any, Any]) -> tuple[Op, ...]:
    """The operations that the model and its loss compute on one batch, as data.

    It runs both once, forward, in the mode the model is in, and follows every call of a function
    of torch: which results it reads, which parameters, and how many elements it makes. Parameters,
    gradients, buffers, training mode and random states are left as found. Operations that the loss
    does not depend on are left out, and so are operations on constants and whole numbers alone.

    - Matrix products and convolutions are GEMMs, whatever their operands. Attention in one call
      and torch's multi-head attention are their products and the softmax between: "scores",
      "softmax", "values", "in_proj_q", "in_proj_k", "in_proj_v", "out_proj". cross_entropy is
      "log_softmax" and "nll_loss".
    - Views are no Ops, nor are copies of the same values (contiguous, clone, casts): an Op that
      reads a view reads the tensor behind it. So the halves of a split are the tensor that was
      split; the paper's release counts them as new ones.
    - An operation in place makes a new result, as if it were not in place.
    - An Op has the name of the module that makes it, if the module makes no other Op and has no
      modules in it; else "<module>.<operation>". The second Op of a name ends in "_1". Operations
      around the model are "loss.<operation>", and the network's inputs are "input" or
      "input.<name>". Whole numbers as inputs, such as tokens, are no Op, for nothing rounds them.
    - Parameters have the names of `named_parameters`. Labels, buffers and constants are no tensors
      of an assignment.
    - An operation that is not known, such as a recurrent layer, whose steps are in one call, is
      held in high precision; one warning names all of them.

    A converted model has the Ops of the plain model (but that transformers' Conv1D calls addmm, and
    linear once it is converted). A run follows one way through the Python code, so reading a value
    that depends on the network's floating-point inputs or parameters is refused. Decisions by whole
    numbers (masks, lengths) are taken as this batch takes them; another batch may give other Ops,
    which `Assignment.check` finds out.

    Args:
        model: any module, converted or not.
        loss: from the model's output and the target to a scalar.
        batch: (input, target): the input a tensor, a tuple of arguments or a dict of keyword
            arguments; numel of the Ops counts its examples. Anything that loss takes as target.

    Raises:
        TypeError: no module, or no pair as batch.
        ValueError: a loss that is no scalar, or does not depend on what the model computes.
        NotImplementedError: control flow by values, TorchScript, a compiled module; it says where.

    >>> from lpkernels.techniques.assignment import trace
    >>> model, loss = torch.nn.Linear(4, 2), torch.nn.functional.cross_entropy
    >>> batch = torch.randn(8, 4), torch.arange(8) % 2
    >>> [op.name for op in trace(model, loss, batch)]
    ['input', 'linear', 'loss.log_softmax', 'loss.nll_loss']
    """
    steps = trace_calls(model, loss, batch).steps
    unknown = [f"{step.operation} ({step.name})" for step in steps if not step.known]
    if unknown:
        warnings.warn(
            "trace: held in high precision, for what they compute is not known: "
            + ", ".join(unknown),
            stacklevel=2,
        )
    return tuple(step.op for step in steps)


@dataclass(frozen=True)
class TracedParameter:
    """A parameter as the maker of values; number is its place in the model."""

    name: str
    numel: int
    number: int

    @property
    def key(self) -> str:
        """The key of the parameter."""
        return key_of(self.name, "weight")


@dataclass(eq=False)
class TracedOp:
    """One operation of a run.

    run: the module that called it; None: it is an input of the network.
    part: its name within the call, where the call is several operations.
    inputs, params: the operations and the parameters that it reads.
    name: the Op's name; "" until the run has ended, and for ever if the loss does not need it.
    """

    run: Run | None
    operation: str
    part: str
    is_gemm: bool
    known: bool
    numel: int
    inputs: list[TracedOp] = field(default_factory=list)
    params: list[TracedParameter] = field(default_factory=list)
    name: str = ""

    @property
    def key(self) -> str | None:
        """The key of the result; None if the loss does not need it."""
        return key_of(self.name, "activation") if self.name else None

    @property
    def op(self) -> Op:
        """The operation as data."""
        # Some functions take parameters in another order than the model has them. A dot says that
        # a name is the full one, and no name within the Op.
        params = {
            p.name if "." in p.name else f".{p.name}": p.numel
            for p in sorted(self.params, key=lambda p: p.number)
        }
        inputs = tuple(step.name for step in self.inputs)
        return Op(self.name, self.is_gemm, inputs, params, self.numel, self.operation, self.known)

    def reads(self, makers: Iterable[Maker]) -> TracedOp:
        """Adds the makers of its operands; returns the operation itself."""
        for maker in makers:
            if isinstance(maker, TracedOp):
                if maker not in self.inputs:
                    self.inputs.append(maker)
            elif maker not in self.params:
                self.params.append(maker)
        return self


Maker = TracedOp | TracedParameter


@dataclass(eq=False)
class TracedCall:
    """One call.

    operation: its function's name.
    reads: the maker of each tensor among its arguments, in the order of `all_tensors`.
    passes: whether all of these tensors have one element and get the result's gradient, as it is or
        negated.
    in_place: whether it changes arguments, and makes no tensor with memory of its own.
    results: the operations whose values the call makes, by the number of the tensor in its result,
        or among its arguments where it works in place.
    parts: where the call is several operations, these by their names inside the call.
    last_reads: the keys of the parameters that no later call reads.
    """

    operation: str
    reads: list[Maker | None]
    passes: bool
    in_place: bool = False
    results: dict[int, TracedOp] = field(default_factory=dict)
    parts: dict[str, TracedOp] = field(default_factory=dict)
    last_reads: list[str] = field(default_factory=list)

    @cached_property
    def keys(self) -> list[str | None]:
        """For each tensor among the arguments the key of the parameter or result that has the same
        values; None for other tensors."""
        return [None if maker is None else maker.key for maker in self.reads]

    @property
    def makes(self) -> bool:
        """Whether it makes tensors of the assignment."""
        return bool(self.results or self.parts)

    @cached_property
    def copies(self) -> str | None:
        """Where it makes no tensor of the assignment, the key of the tensor that its result
        copies."""
        if self.makes or canonical(self.operation) not in SAME_VALUES:
            return None
        return next((key for key in self.keys if key is not None), None)

    @cached_property
    def by_its_result(self) -> bool:
        """Whether its gradient is a function of its stored result."""
        return bool(self.parts) or canonical(self.operation) in BY_THEIR_RESULT


@dataclass(frozen=True)
class Trace:
    """One run of a model and its loss, which every run on such a batch repeats call by call.

    steps: the operations that the loss depends on, in order, with their names.
    inputs: for each tensor of the network's input its operation; None where nothing rounds it.
    calls: all calls in order.
    """

    steps: tuple[TracedOp, ...]
    inputs: tuple[TracedOp | None, ...]
    calls: tuple[TracedCall, ...]

    def __post_init__(self) -> None:
        needed = set(self.parameters)
        readers = {
            maker: call
            for call in self.calls
            for maker in call.reads
            if isinstance(maker, TracedParameter) and maker in needed
        }
        for parameter, call in readers.items():
            call.last_reads.append(parameter.key)
        for call in self.calls:
            call.results = {at: step for at, step in call.results.items() if step.name}
            call.parts = {name: step for name, step in call.parts.items() if step.name}

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """The operations as data."""
        return tuple(step.op for step in self.steps)

    @cached_property
    def parameters(self) -> tuple[TracedParameter, ...]:
        """The parameters that the operations read."""
        return tuple(dict.fromkeys(p for step in self.steps for p in step.params))

    @cached_property
    def times_read(self) -> Counter[str]:
        """How often other operations compute with each tensor, by key."""
        computing = [call for call in self.calls if call.makes]
        return Counter(key for call in computing for key in call.keys if key is not None)

    @cached_property
    def unrounded_gradients(self) -> frozenset[str]:
        """The keys of gradients that nothing rounds.

        The loss's own value has such a gradient. So has a scalar that nothing else reads, if the
        loss's gradient is passed on to it as it is or negated.
        """
        calls = {step: call for call in self.calls for step in call.results.values()}
        passed = [self.steps[-1]]
        for step in passed:
            call = calls.get(step)
            for maker in call.reads if call is not None and call.passes else ():
                if isinstance(maker, TracedOp) and maker.key is not None and maker.numel == 1:
                    if self.times_read[maker.key] == 1:
                        passed.append(maker)
        return frozenset(key_of(step.name, "grad_activation") for step in passed)


def trace_calls(
    model: Module, loss: Loss | None, batch: tuple[Any, Any], *, grad: bool = True
) -> Trace:
    """One run as `trace` describes it. Without a loss the model runs alone, and its operations are
    those that its output depends on. grad: whether the run records a graph."""
    check_model("trace", model)
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise TypeError(
            f"trace: batch must be (input, target), got {type(batch).__name__}"
            f"{f' of {len(batch)}' if isinstance(batch, tuple | list) else ''}"
        )
    args, kwargs = arguments(batch[0])
    recorder = _Recorder(model, args, kwargs)
    with (
        left_as_found(model, [*args, *kwargs.values()]),
        torch.set_grad_enabled(grad),
        observe(model, recorder, operations=EVERYTHING),
    ):
        output = model(*args, **kwargs)
        value = None if loss is None else loss(output, batch[1])
    if loss is None:
        ends = recorder.steps_of(output)
    elif isinstance(value, Tensor) and value.numel() == 1:
        ends = recorder.steps_of(value)
    else:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"trace: the loss must be a scalar tensor, got {got}; take a mean, say")
    if loss is not None and not ends:
        raise ValueError(
            "trace: the loss does not depend on what the model computes; give loss(output, target) "
            "that uses the output"
        )
    steps = _needed(recorder.steps, ends)
    _give_names(steps)
    inputs = (step if step is not None and step.name else None for step in recorder.inputs)
    return Trace(tuple(steps), tuple(inputs), tuple(recorder.calls))


def _needed(steps: Sequence[TracedOp], ends: Iterable[TracedOp]) -> list[TracedOp]:
    """The steps that the ends depend on, the network's inputs among them, and the ends."""
    waiting = list(ends)
    needed = set(waiting)
    while waiting:
        new = [step for step in waiting.pop().inputs if step not in needed]
        needed.update(new)
        waiting += new
    return [step for step in steps if step in needed]


def _give_names(steps: Sequence[TracedOp]) -> None:
    calls = Counter(step.run for step in steps)
    names: set[str] = set()
    for step in steps:
        first = step.name = _name(step, calls[step.run] == 1)
        number = 0
        while step.name in names:
            number += 1
            step.name = f"{first}_{number}"
        names.add(step.name)


def _name(step: TracedOp, is_alone: bool) -> str:
    """is_alone: it is the only step of this run of its module."""
    what = step.part or step.operation
    run = step.run
    if run is None:
        return f"input.{what}" if step.part else "input"
    if run.module is None:
        return f"loss.{what}"
    if is_alone and run.name and is_leaf(run.module):
        return run.name
    return f"{run.name}.{what}" if run.name else what


class _Recorder(Visitor):
    """Turns the calls of a run into operations.

    steps: the operations so far, in order, whether the loss depends on them or not.
    calls: all calls of functions so far, whether they are operations or not.
    """

    def __init__(self, model: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.steps: list[TracedOp] = []
        self.calls: list[TracedCall] = []
        self.inputs: list[TracedOp | None] = []
        # The makers of all values that depend on the network's inputs or parameters, by memory;
        # None for values without a gradient (comparisons, indices). A weak reference to a storage
        # keeps its address from being used again, and nothing else alive.
        self._makers: dict[StorageWeakRef, Maker | None] = {}
        # By the number of a call that runs: itself, its arguments, and the versions of its tensors.
        self._entered: dict[int, tuple[TracedCall, Mapping[str, Any], list[int]]] = {}
        # Several parameters may be parts of one storage.
        self._parameters: dict[int, TracedParameter] = {}
        for number, (name, p) in enumerate(model.named_parameters()):
            parameter = self._parameters[id(p)] = TracedParameter(name, p.numel(), number)
            self._makers[_memory(p)] = parameter
        tensors = all_tensors({str(i): x for i, x in enumerate(args)} | dict(kwargs))
        several = sum(x.is_floating_point() for x in tensors.values()) > 1
        for name, x in tensors.items():
            step = None
            if x.is_floating_point():
                step = TracedOp(None, "input", name if several else "", False, True, x.numel())
                self._add(step, x)
            self.inputs.append(step)

    def steps_of(self, output: Any) -> list[TracedOp]:
        """The makers of the tensors in the output."""
        makers = [self._makers.get(_memory(x)) for x in all_tensors({"": output}).values()]
        return [maker for maker in makers if isinstance(maker, TracedOp)]

    def before(self, call: Call, arguments: Mapping[str, Any]) -> None:
        tensors = all_tensors(arguments).values()
        passes = _passes_gradients(call.operation, arguments, tensors)
        traced = TracedCall(call.operation, [self._maker(x) for x in tensors], passes)
        self.calls.append(traced)
        self._entered[call.number] = traced, arguments, [x._version for x in tensors]

    def after(self, call: Call, result: Any) -> None:
        traced, arguments, versions = self._entered.pop(call.number)
        tensors, name = all_tensors(arguments), canonical(call.operation)
        entered = list(tensors.values())
        self._refuse_values(call, name, entered, result)
        # zeros_like, new_zeros and their like read only the shape and type of a tensor.
        reads_no_values = name.endswith("_like") or name.startswith("new_")
        if reads_no_values or not any(map(self._depends, entered)):
            return
        traced.in_place, new = _new_values(result, entered, versions)
        floats = [x for x in new if x.is_floating_point() or x.is_complex()]
        if len(floats) < len(new):
            for x in new:
                self._makers.setdefault(_memory(x), None)
        reads = zip(tensors, traced.reads, strict=True)
        makers = {argument: maker for argument, maker in reads if maker is not None}
        if not floats or not makers:
            return
        if name in SAME_VALUES and len(set(makers.values())) == 1:
            for x in floats:
                self._makers[_memory(x)] = next(iter(makers.values()))
            return
        outputs = entered if traced.in_place else list(all_tensors({"": result}).values())
        composite = PARTS[name](arguments, result) if name in PARTS else None
        if composite is not None:
            parts, returned = composite
            traced.parts = self._parts(call.run, parts, makers)
            for x, part in zip(outputs, returned, strict=True):
                self._makers[_memory(x)] = traced.parts[part]
        else:
            gemm = name in _GEMMS
            for x in floats:
                step = TracedOp(call.run, name, "", gemm, gemm or name in KNOWN, x.numel())
                self._add(step.reads(makers.values()), x)
        for number, x in enumerate(outputs):
            maker = self._makers.get(_memory(x))
            if any(x is new_value for new_value in floats) and isinstance(maker, TracedOp):
                traced.results[number] = maker

    def _parts(
        self, run: Run, parts: Sequence[Part], makers: Mapping[str, Maker]
    ) -> dict[str, TracedOp]:
        """Adds the operations inside a call, and returns them by name."""
        steps: dict[str, TracedOp] = {}
        for part in parts:
            operation = "matmul" if part.is_gemm else part.name
            step = TracedOp(run, operation, part.name, part.is_gemm, True, part.numel)
            operands = {**makers, **steps}
            self._add(step.reads(operands[name] for name in part.reads if name in operands))
            steps[part.name] = step
        return steps

    def _add(self, step: TracedOp, result: Tensor | None = None) -> None:
        self.steps.append(step)
        if result is not None:
            self._makers[_memory(result)] = step

    def _maker(self, x: Tensor) -> Maker | None:
        return self._parameters.get(id(x)) or self._makers.get(_memory(x))

    def _depends(self, x: Tensor) -> bool:
        """Whether a tensor's values would be others with other inputs or parameters."""
        return _memory(x) in self._makers

    def _refuse_values(self, call: Call, name: str, entered: list[Tensor], result: Any) -> None:
        reads_value = name in _READS_VALUES and not isinstance(result, Tensor)
        deciding = entered if reads_value else _deciding_sizes(name, entered, result)
        if any(map(self._depends, deciding)):
            does = "reads a value" if reads_value else "makes a tensor of a size"
            around = "the loss, or what runs around the model,"
            raise NotImplementedError(
                f"trace: {around if call.run.module is None else call.run} {does} that depends on "
                f"the network's inputs or parameters ({call.operation}), so what it computes may "
                "change from step to step; compute it with tensors of fixed sizes (torch.where), "
                "or leave it out of forward"
            )


def _memory(tensor: Tensor) -> StorageWeakRef:
    """The storage, as a key.

    Raises: NotImplementedError: a sparse tensor.
    """
    if tensor.is_sparse or tensor.layout.__str__() == "torch.jagged":
        raise NotImplementedError(
            f"trace: a tensor of layout {tensor.layout} is not followed; take dense ones"
        )
    return StorageWeakRef(tensor.untyped_storage())


def _new_values(
    result: Any, entered: list[Tensor], versions: list[int]
) -> tuple[bool, list[Tensor]]:
    """Whether a call works in place, and the tensors with new values: the results in new memory,
    else the arguments that it changed."""
    places = {_memory(x) for x in entered}
    results = all_tensors({"": result}).values()
    new = {_memory(x): x for x in results if _memory(x) not in places}
    if new:
        return False, list(new.values())
    pairs = zip(entered, versions, strict=True)
    return True, list({_memory(x): x for x, version in pairs if x._version != version}.values())


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
