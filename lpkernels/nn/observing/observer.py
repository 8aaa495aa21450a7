"""The observer: it meets every call of a running model and reports it to a visitor; and one run of
a model under observation that leaves it as found.

A TorchFunctionMode meets the functions a model calls, above autograd; emulated calls come through
`lpkernels.functional.torch_calls.own`. The products below autograd are counted by `operators`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode

from lpkernels.functional.torch_calls import watching
from lpkernels.nn.observing.operators import Operators
from lpkernels.nn.observing.parts import PARTS, in_parts
from lpkernels.nn.observing.reporting import Reporter, Runs
from lpkernels.nn.observing.visiting import Visitor
from lpkernels.nn.ranges_and_scales import KeptScales
from lpkernels.nn.selecting import check_model
from lpkernels.nn.torch_functions import PRODUCTS, arguments_of, name_of, operation_of


@contextmanager
def observe(
    model: Module,
    visitor: Visitor,
    *,
    operations: Container[str] | None = None,
    parts: bool = False,
    around: bool = True,
    operators: Operators | None = None,
) -> Iterator[None]:
    """Inside this context the visitor gets the calls of the model and of the code around it.

    Observation changes nothing: results, gradients and random draws are the same as without it.
    (`parts` is the exception: it rounds differently, and dropout inside attention and
    recurrent layers draws anew.) On exit its hooks are gone, also after an error; nothing else is
    put back. The visitor is not told of computations of the backward pass, nor of the calls that
    activation checkpointing repeats there. Checkpoints with use_reentrant=True record no graph in
    forward, so their calls have no gradients to tell.

    Args:
        model: any module. Converted modules are seen too, as the functions of torch they stand for;
            a function of ``lpkernels.functional`` that a model calls itself is not seen.
        visitor: its methods are called in the order of the calls.
        operations: the names of the operations to tell of; None means all products, `LAYERS` also
            all other operations of layers, `EVERYTHING` all operations.
        parts: whether attention and recurrent layers that are torch's own are told as their
            products: "in_proj_q", "in_proj_k", "in_proj_v", "scores", "values", "out_proj";
            "ih_l0", and "hh_l0" as one product of all steps, after the layer.
        around: whether the visitor gets calls around the model too, such as the loss. Without
            them a loop is faster, since torch then does not show its other calls.
        operators: counts all products that reach torch meanwhile, shown or not; without the calls
            around, the products of the model's first run.

    Raises:
        TypeError: model is no Module, visitor no Visitor.
        NotImplementedError: TorchScript or a compiled module, whose functions are not seen; with
            `parts` a function that has none, by name.

    >>> from lpkernels.nn.observing import Visitor, observe
    >>> class Names(Visitor):
    ...     def before(self, call, arguments):
    ...         print(call.operation, sorted(arguments))
    ...
    >>> with observe(torch.nn.Linear(4, 2), Names()):
    ...     _ = torch.ones(2, 2) @ torch.ones(2, 2)
    ...
    matmul ['input', 'other']
    """
    check_model("observe", model)
    if not isinstance(visitor, Visitor):
        got = type(visitor).__name__
        raise TypeError(f"observe: visitor must be a Visitor, got {got}; derive a class from it")
    reporter = Reporter(visitor, Runs() if operators is None else operators.runs)
    modules = list(model.named_modules())
    _check_visible(modules)
    mode = _Functions(reporter, PRODUCTS if operations is None else operations, parts)
    try:
        if around:
            with reporter.runs.watched(modules), watching(mode), mode, operators or nullcontext():
                yield
        else:
            inside = mode if operators is None else _First(mode, operators)
            with watching(mode), reporter.runs.watched(modules, inside):
                yield
    finally:
        reporter.close()


def _check_visible(modules: Sequence[tuple[str, Module]]) -> None:
    for name, module in modules:
        kind, why = type(module).__name__, ""
        if isinstance(module, torch.jit.ScriptModule):
            why = "TorchScript, whose functions are not seen; take the Python model"
        elif kind == "OptimizedModule":
            why = "compiled by torch.compile; take the module it was made from"
        if why:
            raise NotImplementedError(f"module {name!r} ({kind}) is {why}")


class _Functions(TorchFunctionMode):
    """Meets the functions that the model calls, and the functions that `own` computes."""

    def __init__(self, reporter: Reporter, operations: Container[str], by_parts: bool) -> None:
        super().__init__()
        self._reporter, self._operations, self._by_parts = reporter, operations, by_parts

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return self.see(func, args, kwargs or {}, func)

    def see(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        compute: Callable[..., Any],
    ) -> Any:
        name = name_of(function)
        operation = operation_of(name)
        # Every function that the process calls comes here, whoever calls it.
        if operation not in self._operations:
            return compute(*args, **kwargs)
        arguments = arguments_of(name, args, kwargs)
        with self._reporter.runs.telling():
            if self._by_parts and name in PARTS and compute is function:
                return in_parts(self._reporter, name, function, arguments)
            called = partial(compute, *args, **kwargs)
            return self._reporter.report(operation, function, arguments, called)


class _First(AbstractContextManager[None]):
    """The mode; where it is entered for the first time the operators too."""

    def __init__(self, mode: TorchFunctionMode, operators: Operators) -> None:
        self._mode, self._operators, self._is_first = mode, operators, True

    def __enter__(self) -> None:
        self._mode.__enter__()
        if self._is_first:
            self._operators.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._is_first:
            self._is_first = False
            self._operators.__exit__(*error)
            self._operators.runs.forget_order()
        self._mode.__exit__(*error)


def trace(
    model: Module,
    visitor: Visitor,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    loss: Callable[[Any], Tensor] | None = None,
    parts: bool = False,
    operators: Operators | None = None,
) -> None:
    """Run the model once, in the mode it is in, and tell the visitor of its calls (`observe`).

    Parameters, their gradients, buffers, training mode, hooks and the states of torch's random
    generators are afterwards what they were, to the bit, also if the model raises; lazy layers get
    their sizes. For that all values are copied before, except on the meta device.

    Args:
        model: any module.
        inputs, kwargs: the arguments of the model.
        loss: makes a scalar of the model's output. Its gradients are computed for the parameters
            and for inputs that require one. None: forward alone, without gradients.
        visitor, parts, operators: as in `observe`. The visitor gets calls of loss too.

    Raises:
        ValueError: loss gives no finite scalar (on the meta device nobody knows), or one without a
            gradient; and as `observe` does.
    """
    check_model("trace", model)
    values = [*inputs, *(kwargs or {}).values()]
    with (
        left_as_found(model, values),
        torch.set_grad_enabled(loss is not None),
        observe(model, visitor, parts=parts, operators=operators),
    ):
        output = model(*inputs, **(kwargs or {}))
        if loss is not None:
            _backward(loss(output), model, values)


def _backward(loss: Any, model: Module, inputs: list[Any]) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(f"the loss must be a scalar tensor, got {got}; take a mean, say")
    leaves = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    leaves += [p for p in model.parameters() if p.requires_grad]
    if not loss.requires_grad or not leaves:
        raise ValueError(
            "the loss has no gradient, so there is no backward pass; give the model parameters "
            "that require one, and run it without torch.no_grad and .detach()"
        )
    if not loss.is_meta and not bool(torch.isfinite(loss.detach())):
        raise ValueError(f"the loss is {loss.item()}; use inputs on which it is finite")
    torch.autograd.grad(loss, leaves, allow_unused=True)


def arguments(batch: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """A model's arguments: a mapping by name, a tuple or list in order, or one alone."""
    if isinstance(batch, Mapping):
        return (), batch
    # A packed sequence is one argument, though torch made its class from tuple.
    several = isinstance(batch, tuple | list) and not isinstance(batch, PackedSequence)
    return (batch if several else (batch,)), {}


@contextmanager
def left_as_found(model: Module, inputs: list[Any]) -> Iterator[None]:
    """Puts everything back that `trace` promises, after an error too."""
    modules = [(m, m.training) for m in model.modules()]
    # TorchScript keeps its tensors where only their values can be changed.
    python = [m for m, _ in modules if not isinstance(m, torch.jit.ScriptModule)]
    tables: list[dict[str, Any]] = [t for m in python for t in (m._parameters, m._buffers)]
    before_tables = [(table, dict(table)) for table in tables]
    model_tensors = [*model.parameters(), *model.buffers()]
    tensors = {id(t): t for t in model_tensors if not is_lazy(t)}
    gradients = [(t, t.grad) for t in tensors.values() if t.is_leaf]
    tensors |= {id(g): g for _, g in gradients if g is not None}
    values = [(t, t.detach().clone()) for t in tensors.values() if not t.is_meta]
    delayed = [(m, m.of_training()) for m, _ in modules if isinstance(m, KeptScales)]
    with torch.random.fork_rng(_cuda_devices([*tensors.values(), *inputs])):
        try:
            yield
        finally:
            for module, mode in modules:
                module.training = mode
            for table, before in before_tables:
                table.clear()
                table.update(before)
            for scales, state in delayed:
                scales.before, scales.waits, scales.is_updated = state
            for tensor, gradient in gradients:
                tensor.grad = gradient
            for tensor, value in values:
                if not _same_bits(tensor, value):
                    # `data` makes no new version, which a graph that holds the tensor would refuse.
                    tensor.data.copy_(value)


def _cuda_devices(values: list[Any]) -> list[int]:
    devices = {x.device.index for x in values if isinstance(x, Tensor) and x.is_cuda}
    if torch.cuda.is_initialized():
        devices.add(torch.cuda.current_device())
    return sorted(devices)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    a = a.detach()
    if a.layout != torch.strided:
        return False
    if type(a) is not Tensor or a.is_quantized or a.is_conj() or a.is_neg():
        return torch.equal(a, b)
    return torch.equal(*(x.contiguous().view(-1).view(torch.uint8) for x in (a, b)))
