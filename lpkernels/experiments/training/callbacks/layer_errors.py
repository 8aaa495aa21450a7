"""The errors of a run's linear layers: of their weights' gradients, and of what is quantised."""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from lpkernels import quantize
from lpkernels.arithmetic import Quantizer
from lpkernels.experiments.training.callback import Callback, CallbackConfig, Context, register
from lpkernels.formats import BlockFormat
from lpkernels.nn import Linear
from lpkernels.nn.scaling import KeptScales

_ROLES = ("input", "weight", "grad_output")


@register("layer_errors", order=95)
class LayerErrorsConfig(CallbackConfig):
    """The setting of errors of layers."""

    layer_errors: bool = Field(
        False,
        description="Record after every epoch, for each linear layer, the error of its weight's "
        "gradient and the shares of operands that were clipped and that became zero.",
    )

    def build(self) -> Callback:
        return LayerErrors()


class LayerErrors(Callback):
    """Records the errors of the linear layers that do not have torch's own arithmetic, on the run's
    first batch.

    Each figure of `errors_of_layers` is recorded for single layers, with the layer's name behind an
    underscore, and for all of them: the mean of dw_error, and the shares of all operands together.
    The model is in evaluation meanwhile, and nothing is drawn from the run's random numbers.
    """

    def prepare(self, context: Context) -> None:
        if context.processes.sharded:
            raise ValueError("layer_errors: expected whole weights, got sharded ones (--fsdp)")
        self._context = context

    def record(self) -> dict[str, Any]:
        context = self._context
        # In evaluation nothing of a layer's state changes; every step trains again.
        context.model.eval()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(context.seed)
            by_layer = errors_of_layers(
                context.model, lambda model: context.loss(model, context.sample)
            )
        if by_layer:
            errors, losses = zip(*by_layer.values(), strict=True)
            by_layer[""] = sum(errors) / len(errors), sum(losses, Counter[str]())
        figures: dict[str, float] = {}
        for name, (error, counts) in by_layer.items():
            behind = f"_{name}" if name else ""
            figures[f"dw_error{behind}"] = error
            for role in (role for role in _ROLES if counts[role]):
                for what in (f"clipped_{role}", f"zeroed_{role}"):
                    figures[f"{what}{behind}"] = counts[what] / counts[role]
        # More digits than these are noise, and a sweep keeps many.
        return {name: float(f"{value:.5g}") for name, value in figures.items()}


def errors_of_layers(
    model: nn.Module, loss: Callable[[nn.Module], Tensor]
) -> dict[str, tuple[float, Counter[str]]]:
    """For each linear layer without torch's own arithmetic: dw_error, the norm of the difference
    between its weight's gradient and the exact product of its input and its gradient, by the norm
    of this product; and counts of its operands' elements.

    Of each operand in a format these are all elements (its role), those beyond the largest value
    (clipped_<role>) and the nonzero elements that became zero (zeroed_<role>). Blocks along "k" run
    along in_features forward, and along out_features for the gradient. A layer is called once.
    """
    names = {
        module: name
        for name, module in model.named_modules()
        if isinstance(module, Linear) and not module.recipe.is_torch
    }
    operands: dict[nn.Module, list[Tensor]] = {}

    def hook(layer: Linear, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        operands[layer] = [arguments[0].detach().flatten(0, -2), layer.weight.detach()]
        output.register_hook(lambda g: operands[layer].append(g.flatten(0, -2)))

    with ExitStack() as hooks:
        for layer in names:
            hooks.enter_context(layer.register_forward_hook(hook))
        value = loss(model)
    products = torch.autograd.grad(value, [layer.weight for layer in names]) if names else ()
    by_layer: dict[str, tuple[float, Counter[str]]] = {}
    for (layer, name), dw in zip(names.items(), products, strict=True):
        x, _, gradient = operands[layer]
        exact = gradient.double().t() @ x.double()
        counts: Counter[str] = Counter()
        for role, operand in zip(_ROLES, operands[layer], strict=True):
            counts.update(_losses(layer, role, operand))
        by_layer[name] = float((dw.double() - exact).norm() / exact.norm()), counts
    return by_layer


def _losses(layer: Linear, role: str, x: Tensor) -> dict[str, int]:
    """The elements of an operand, and how many of them were clipped and became zero."""
    recipe = layer.recipe
    quantizer: Quantizer | None = getattr(recipe, role)
    if quantizer is None:
        return {}
    scales = next((m for m in layer.children() if isinstance(m, KeptScales)), None)
    amax = None
    if scales is not None and recipe.scaling is not None:
        # The largest magnitude that the scale of earlier steps leaves room for.
        amax = recipe.scaling.most(quantizer.fmt) / scales.of(role)[1]
    fmt, counts = quantizer.fmt, torch.zeros(4, dtype=torch.int64, device=x.device)
    if isinstance(fmt, BlockFormat) and fmt.axis == "k":
        fmt = replace(fmt, axis=-1)
    bits = quantizer.random_bits
    quantize(x, fmt, quantizer.rounding, random_bits=bits, amax=amax, counts=counts)
    return {role: x.numel(), f"clipped_{role}": int(counts[0]), f"zeroed_{role}": int(counts[1])}
