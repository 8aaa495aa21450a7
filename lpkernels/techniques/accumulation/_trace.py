"""Every matrix product and convolution of one forward and backward pass, with its operands.

A TorchFunctionMode sees the calls; hooks on the modules say whose they are; hooks on the results
bring the gradients. Attention and recurrent layers are computed product by product while traced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from lpkernels.nn._calls import emulates
from lpkernels.nn._emulated import Emulated
from lpkernels.nn._select import callers
from lpkernels.nn._select import layers as convertible_layers
from lpkernels.techniques.accumulation._geometry import Geometry, Matmul


@dataclass(frozen=True)
class Product:
    """y = op(x, w), the operands detached; `layer` is its name in tables.

    module: the name of the module whose recipe `convert` computes it by; None if it knows none.
    weights: whether w is a layer's weights, not an activation.
    """

    layer: str
    module: str | None
    geometry: Geometry
    x: Tensor
    w: Tensor
    y_shape: torch.Size
    weights: bool


#: (product, its output's gradient or None for the forward pass, x and w want a gradient)
Sink = Callable[[Product, Tensor | None, bool, bool], None]

#: (tracer, function, args, kwargs) -> what the function returns.
Handler = Callable[["Tracer", Any, Sequence[Any], dict[str, Any]], Any]


@dataclass
class _Frame:
    """A module that is running, and how often each function was called in it."""

    name: str
    module: Module | None
    calls: dict[str, int] = field(default_factory=dict)


class Tracer(TorchFunctionMode):
    """While it is entered, the products of `model` go to `sink`, forward; their gradients when
    backward reaches them. `handlers` say how a function is looked into, `opaque` names those that
    hold products and cannot be. The module hooks are removed on exit.
    """

    def __init__(
        self, model: Module, sink: Sink, handlers: Mapping[str, Handler], opaque: Collection[str]
    ) -> None:
        super().__init__()
        self.model, self.sink = model, sink
        self._handlers, self._opaque = handlers, opaque
        self.found = 0
        self._frames = [_Frame("", None)]
        # The one that a handler is looking into.
        self._function: Any = None
        self._handles: list[RemovableHandle] = []
        self._series: dict[str, _Series] = {}
        self._layers = {
            layer.module: layer.names[0] for layer in convertible_layers(model) if not layer.why_not
        }
        self._callers = {
            layer.module: layer.names[0] for layer in callers(model) if not layer.why_not
        }

    def __enter__(self) -> Tracer:
        for name, module in self.model.named_modules():

            def enter(module: Module, args: Any, name: str = name) -> None:
                self._frames.append(_Frame(name, module))

            def leave(module: Module, args: Any, output: Any) -> None:
                self._frames.pop()

            self._handles.append(module.register_forward_pre_hook(enter, prepend=True))
            self._handles.append(module.register_forward_hook(leave))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        handler = self._handlers.get(name)
        if handler is not None:
            self._function = func
            return handler(self, func, args, kwargs)
        if name in self._opaque:
            raise NotImplementedError(
                f"plan: {self.place()} calls torch's {name}, whose products are not traced; write "
                "it with matmul, torch.nn.functional.linear, a convolution or attention, or plan "
                "the part of the model without it"
            )
        return func(*args, **kwargs)

    def place(self) -> str:
        """The running module, for messages."""
        frame = self._frames[-1]
        if frame.module is None:
            return "the model"
        return f"module {frame.name!r} ({type(frame.module).__name__})"

    def layer_name(self, kind: str) -> str:
        """A name for a product that is not a layer's own: the module's, then the function's."""
        frame = self._frames[-1]
        count = frame.calls[kind] = frame.calls.get(kind, 0) + 1
        name = kind if count == 1 else f"{kind}_{count}"
        return f"{frame.name}.{name}" if frame.name else name

    def record(
        self,
        geometry: Geometry,
        x: Tensor,
        w: Tensor,
        y: Tensor,
        kind: str,
        *,
        shape: torch.Size | None = None,
        own: bool = True,
    ) -> None:
        """Sends a product on; `kind` names it unless it is the product of a layer itself.

        shape: of the product, where the result y has another one.
        """
        frame = self._frames[-1]
        is_layer = own and frame.module in self._layers and "own" not in frame.calls
        if is_layer:
            frame.calls["own"] = 1
            layer = frame.name or type(frame.module).__name__
        else:
            layer = self.layer_name(kind)
        shape = y.shape if shape is None else shape
        weights = is_layer or _is_parameter(w)
        operands = (geometry, x.detach(), w.detach())
        product = Product(layer, self._owner(), *operands, shape, weights)
        needs = (x.requires_grad, w.requires_grad)
        self._send(product, *needs)
        if y.requires_grad:
            y.register_hook(lambda g: self.sink(product, g.detach().reshape(shape), *needs))

    def _owner(self) -> str | None:
        """The innermost layer, or module with a forward of its own, that is running; of the latter
        only what `convert` emulates.
        """
        for frame in reversed(self._frames):
            if frame.module in self._layers:
                return self._layers[frame.module]
            if frame.module in self._callers:
                return self._callers[frame.module] if emulates(self._function) else None
        return None

    def _send(self, product: Product, needs_x: bool, needs_w: bool) -> None:
        self.found += 1
        with torch.no_grad():
            self.sink(product, None, needs_x, needs_w)

    def linear(self, x: Tensor, w: Tensor, b: Tensor | None, name: str) -> Tensor:
        """A linear map inside a layer that is traced product by product."""
        y = F.linear(x, w, b)
        self.record(Matmul(), rows(x), w.mT, y, name, shape=rows(y).shape, own=False)
        return y

    def matmul(self, left: Tensor, right: Tensor, name: str) -> Tensor:
        y = torch.matmul(left, right)
        self.record(Matmul(), left, right, y, name, own=False)
        return y

    def step_linear(self, x: Tensor, w: Tensor, b: Tensor | None, name: str) -> Tensor:
        """One step of a series whose weight gradient is one sum over all steps."""
        y = F.linear(x, w, b)
        series = self._series.setdefault(name, _Series(w))
        series.inputs.append(x.detach())
        series.gradients.append(None)
        step = len(series.inputs) - 1
        series.needs_x |= x.requires_grad
        if y.requires_grad:
            y.register_hook(lambda g: series.put(step, g.detach()))
        return y

    def close_series(self) -> None:
        """The steps since the last call, as one product each series."""
        for name, series in self._series.items():
            x, w = torch.cat(series.inputs), series.weight.detach().mT
            shape = torch.Size((len(x), w.shape[1]))
            weights = _is_parameter(series.weight)
            layer, owner = self.layer_name(name), self._owner()
            product = Product(layer, owner, Matmul(), x, w, shape, weights)
            self._send(product, series.needs_x, series.weight.requires_grad)
            series.send = partial(
                self._send_back, product, series.needs_x, series.weight.requires_grad
            )
        self._series = {}

    def _send_back(self, product: Product, needs_x: bool, needs_w: bool, gradient: Tensor) -> None:
        self.sink(product, gradient, needs_x, needs_w)


@dataclass
class _Series:
    """The steps of a recurrent product; backward reaches its first step last."""

    weight: Tensor
    inputs: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor | None] = field(default_factory=list)
    needs_x: bool = False
    send: Any = None

    def put(self, step: int, gradient: Tensor) -> None:
        self.gradients[step] = gradient
        # A step that the loss does not depend on has no gradient; the first has one if any has.
        if step == 0:
            self.send(
                torch.cat([torch.zeros_like(gradient) if g is None else g for g in self.gradients])
            )


def _is_parameter(w: Tensor) -> bool:
    """Whether w is a parameter, or a part or another view of one."""
    return isinstance(w if w._base is None else w._base, torch.nn.Parameter)


def name_of(func: Any) -> str:
    """A function's name: without torch.linalg's prefix, the overload of torch.ops and underscores
    around (`__matmul__`).
    """
    name = getattr(func, "__name__", "").partition(".")[0]
    name = name.strip("_") if name.startswith("__") else name
    return name.removeprefix("linalg_")


def rows(x: Tensor) -> Tensor:
    """(..., C) as (rows, C)."""
    return x.reshape(-1, x.shape[-1])


def check_model(model: Any) -> None:
    """A module whose calls can be seen, whose parameters exist and whose layers are torch's."""
    if not isinstance(model, Module):
        raise TypeError(f"plan: model must be a torch.nn.Module, got {type(model).__name__}")
    for name, module in model.named_modules():
        where = f"plan: module {name!r} ({type(module).__name__})"
        if isinstance(module, Emulated):
            raise ValueError(f"{where} is emulated already; lp.revert(model) gives the plain model")
        if isinstance(module, torch.jit.ScriptModule):
            raise NotImplementedError(
                f"{where} is TorchScript, whose operations are not seen; plan the Python model"
            )
        if type(module).__name__ == "OptimizedModule":
            raise NotImplementedError(
                f"{where} is compiled by torch.compile; plan the module it was made from"
            )
        for key, parameter in module.named_parameters(recurse=False):
            if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
                raise ValueError(
                    f"{where}: parameter {key!r} has no shape yet; run the model on a batch first"
                )
