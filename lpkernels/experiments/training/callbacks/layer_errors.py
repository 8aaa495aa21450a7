"""The errors of a run's linear layers: of their weights' gradients, and of what is quantised."""

from collections import Counter
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
    """Measures the linear layers that do not have torch's own arithmetic, on the run's first batch.

    dw_error is the norm of the difference between the gradient of a weight and the exact product of
    the layer's input and its gradient, by the norm of this product; over all layers together their
    mean. clipped_<role> is the share of an operand's elements that were beyond the largest value,
    zeroed_<role> the share of its nonzero elements that became zero; over all layers those shares.
    Blocks along "k" run along the dimension that the product sums: in_features forward,
    out_features for the gradient. Each figure is recorded for single layers too, with the layer's
    name behind an underscore. A layer is expected to be called once. The model is in evaluation
    meanwhile, and nothing is drawn from the run's random numbers.
    """

    def prepare(self, context: Context) -> None:
        if context.processes.sharded:
            raise ValueError("layer_errors: expected whole weights, got sharded ones (--fsdp)")
        self._context = context

    def record(self) -> dict[str, Any]:
        model = self._context.model
        layers = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, Linear) and not module.recipe.is_torch
        }
        # In evaluation nothing of a layer's state changes; every step trains again.
        model.eval()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._context.seed)
            errors, counts = self._measured(layers)
        figures = {f"dw_error_{name}": error for name, error in errors.items()}
        if errors:
            figures["dw_error"] = sum(errors.values()) / len(errors)
        for name, losses in [*counts.items(), ("", sum(counts.values(), Counter()))]:
            for role in (role for role in _ROLES if losses[role]):
                for what in (f"clipped_{role}", f"zeroed_{role}"):
                    figures[f"{what}_{name}" if name else what] = losses[what] / losses[role]
        # More digits than these are noise, and a sweep keeps many.
        return {name: float(f"{value:.5g}") for name, value in figures.items()}

    def _measured(
        self, layers: dict[str, Linear]
    ) -> tuple[dict[str, float], dict[str, Counter[str]]]:
        """The error of each layer's gradient, and the counts of its operands."""
        inputs: dict[nn.Module, Tensor] = {}
        gradients: dict[nn.Module, Tensor] = {}

        def hook(layer: nn.Module, operands: tuple[Tensor, ...], output: Tensor) -> None:
            inputs[layer] = operands[0].detach().flatten(0, -2)
            output.register_hook(lambda g: gradients.update({layer: g.flatten(0, -2)}))

        with ExitStack() as hooks:
            for layer in layers.values():
                hooks.enter_context(layer.register_forward_hook(hook))
            loss = self._context.loss(self._context.model, self._context.sample)
        weights = [layer.weight for layer in layers.values()]
        products = torch.autograd.grad(loss, weights) if weights else ()
        errors: dict[str, float] = {}
        counts: dict[str, Counter[str]] = {}
        for (name, layer), dw in zip(layers.items(), products, strict=True):
            operands = (inputs[layer], layer.weight.detach(), gradients[layer])
            exact = operands[2].double().t() @ operands[0].double()
            errors[name] = float((dw.double() - exact).norm() / exact.norm())
            counts[name] = Counter()
            for role, x in zip(_ROLES, operands, strict=True):
                counts[name].update(_losses(layer, role, x))
        return errors, counts


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
