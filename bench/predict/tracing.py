"""Every sum of products that one training step of a converted model asks for, by sizes alone.

The step runs on the meta device: shapes are as in a real step, and no memory holds a value.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from bench.predict.shapes import Call
from lpkernels.arithmetic import Quantizer, Recipe
from lpkernels.formats import FixedFormat, FloatFormat
from lpkernels.ops import records
from lpkernels.rng import Role

Ints = tuple[int, ...]

_NAMES = {Role.FPROP: "fprop", Role.DGRAD: "dgrad", Role.WGRAD: "wgrad", Role.GRAD_BIAS: "bias"}
# The fields of a recipe that round the operands of a product, in the operator's order.
_OPERANDS = {
    "fprop": ("input", "weight"), "dgrad": ("grad_output", "weight"),
    "wgrad": ("grad_output", "input"), "bias": ("", "grad_output"),
}  # fmt: skip


class Traced(NamedTuple):
    """A call of an operator: by which layer, for which of its products (fprop, dgrad, wgrad, or
    the gradient of its bias), and its sizes."""

    layer: str
    gemm: str
    call: Call


def _integers(quantizer: Quantizer | None) -> Ints:
    """The integers of a float or fixed format; () for a format with scales, since nothing is known
    of its values."""
    fits = quantizer is not None and isinstance(quantizer.fmt, FloatFormat | FixedFormat)
    return quantizer.to_ints() if quantizer is not None and fits else ()


class _Span(NamedTuple):
    """The autograd nodes that a module made while its forward ran, by their numbers."""

    name: str
    first: int
    end: int


def trace(model: nn.Module, sample: Any, loss: Callable[[Any], Tensor]) -> list[Traced]:
    """The calls of a forward and a backward pass, in order.

    Args:
        model: converted, in training mode, its parameters on the meta device.
        sample: its input, on the meta device. loss: a scalar of its output.
    Raises: ValueError: a parameter lies on another device.
    """
    places = {p.device.type for p in model.parameters()} - {"meta"}
    if places:
        raise ValueError(
            f"trace: expected parameters on the meta device, got some on {', '.join(places)}; "
            "build the model under torch.device('meta')"
        )
    layers = _Layers(model)
    with ExitStack() as stack:
        for name, module in model.named_modules():
            for handle in layers.follow(name, module):
                stack.callback(handle.remove)
        recorder = stack.enter_context(_Recorder(layers))
        loss(model(sample)).backward()
    return recorder.found


class _Layers:
    """The modules for which operators run: in forward the innermost module that runs, in backward
    the module whose forward made the node."""

    def __init__(self, model: nn.Module) -> None:
        self._recipes = {name: getattr(m, "recipe", None) for name, m in model.named_modules()}
        self._running: list[tuple[str, int]] = []
        self._spans: list[_Span] = []

    def follow(self, name: str, module: nn.Module) -> list[Any]:
        def enter(*_: Any) -> None:
            self._running.append((name, torch._C._autograd._get_sequence_nr()))

        def leave(*_: Any) -> None:
            at, first = self._running.pop()
            self._spans.append(_Span(at, first, torch._C._autograd._get_sequence_nr()))

        return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]

    def rounded(self, layer: str, gemm: str, *, turned: bool) -> tuple[Ints, Ints]:
        """The quantizers of operands that a pass of its own has rounded, from the layer's recipe.
        turned: the gradient stands on the right."""
        recipe = self._recipes.get(layer)
        fields = _OPERANDS.get(gemm)
        if not isinstance(recipe, Recipe) or fields is None:
            return (), ()
        left, right = (_integers(getattr(recipe, name)) if name else () for name in fields)
        return (right, left) if turned else (left, right)

    def now(self) -> str:
        if self._running:
            return self._running[-1][0]
        node = torch._C._current_autograd_node()
        if node is None:
            return ""
        number = node._sequence_nr()
        # Inner modules end first.
        inside = (span.name for span in self._spans if span.first <= number < span.end)
        return next(inside, "")


class _Recorder(TorchDispatchMode):
    """Notes the calls of the package's operators that sum products."""

    def __init__(self, layers: _Layers) -> None:
        super().__init__()
        self._layers = layers
        self.found: list[Traced] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        made = _sum_of(func, args, result)
        if made is not None:
            gemm, call = made
            layer = self._layers.now()
            turned = call.op == "conv_wgrad"
            known = self._layers.rounded(layer, gemm, turned=turned)
            left, right = call.quantizers
            call = call._replace(quantizers=(left or known[0], right or known[1]))
            self.found.append(Traced(layer, gemm, call))
        return result


def _sum_of(func: Any, args: Sequence[Any], result: Tensor) -> tuple[str, Call] | None:
    """The pass that an operator's call is of and its sizes; None where it sums no products.

    func, args, result: as a TorchDispatchMode gets them. Only quantizers that the product applies
    itself are known.
    """
    if func is not torch.ops.lpkernels._multiply.default:
        return None
    product, how, _ = records(*args)
    *geometry, groups = product.conv or ((), (), (), 1)
    gemm = _NAMES.get(Role(how.role), Role(how.role).name.lower())
    call = Call(
        op=product.kind, left=tuple(product.left.shape), right=tuple(product.right.shape),
        result=tuple(result.shape), acc=how.acc, quantizers=how.fused[:2],
        geometry=tuple(map(tuple, geometry)), groups=groups,
        ones=gemm == "bias", dense=product.left.is_contiguous(),
    )  # fmt: skip
    return gemm, call
