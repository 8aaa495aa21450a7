"""The errors of a run's linear layers: of their weights' gradients, and of what is quantised."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
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
    "k" is the sum of fprop, for the gradient that of dgrad. Each has the fields of single layers
    too, by their names behind an underscore. A layer is expected to be called once. The model is in
    evaluation meanwhile, and nothing is drawn from the run's random numbers.
    """

    def prepare(self, context: Context) -> None:
        if context.processes.sharded:
            raise ValueError("layer_errors: expected whole weights, got sharded ones (--fsdp)")
        self._model, self._context = context.model, context

    def record(self) -> dict[str, Any]:
        layers = {
            name: module
            for name, module in self._model.named_modules()
            if isinstance(module, Linear) and not module.recipe.is_torch
        }
        found: dict[str, float] = {}
        with torch.random.fork_rng(devices=[]), _evaluating(self._model):
            torch.manual_seed(self._context.seed)
            errors, counts = self._measured(layers)
        for name, error in errors.items():
            found[f"dw_error_{name}"] = error
        if errors:
            found["dw_error"] = sum(errors.values()) / len(errors)
        for name, each in [*counts.items(), ("", sum(counts.values(), Counter()))]:
            for role in (role for role in _ROLES if each[role]):
                for what in ("clipped", "zeroed"):
                    key = f"{what}_{role}" + (f"_{name}" if name else "")
                    found[key] = each[f"{what}_{role}"] / each[role]
        # More digits than these are noise, and a sweep keeps many.
        return {key: float(f"{value:.5g}") for key, value in found.items()}

    def _measured(
        self, layers: dict[str, Linear]
    ) -> tuple[dict[str, float], dict[str, Counter[str]]]:
        """The error of each layer's gradient, and the counts of its operands."""
        inputs: dict[str, Tensor] = {}
        gradients: dict[str, Tensor] = {}

        def watch(name: str, layer: Linear) -> Any:
            def hook(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
                inputs[name] = given[0].detach().flatten(0, -2)
                output.register_hook(lambda g: gradients.update({name: g.flatten(0, -2)}))

            return layer.register_forward_hook(hook)

        hooks = [watch(name, layer) for name, layer in layers.items()]
        try:
            loss = self._context.loss(self._model, self._context.sample)
        finally:
            for hook in hooks:
                hook.remove()
        weights = [layer.weight for layer in layers.values()]
        made = torch.autograd.grad(loss, weights) if weights else ()
        errors: dict[str, float] = {}
        counts: dict[str, Counter[str]] = {}
        for (name, layer), dw in zip(layers.items(), made, strict=True):
            exact = gradients[name].double().t() @ inputs[name].double()
            errors[name] = float((dw.double() - exact).norm() / exact.norm())
            operands = (inputs[name], layer.weight.detach(), gradients[name])
            counts[name] = Counter()
            for role, x in zip(_ROLES, operands, strict=True):
                counts[name].update(_lost(layer, role, x))
        return errors, counts


def _lost(layer: Linear, role: str, x: Tensor) -> dict[str, int]:
    """The elements of an operand, and how many of them were clipped and became zero."""
    recipe = layer.recipe
    quantizer: Quantizer | None = getattr(recipe, role)
    if quantizer is None:
        return {}
    kept = next((m for m in layer.children() if isinstance(m, KeptScales)), None)
    amax = None
    if kept is not None and recipe.scaling is not None:
        # The largest magnitude that the scale of earlier steps leaves room for.
        amax = recipe.scaling.most(quantizer.fmt) / kept.of(role)[1]
    fmt, found = quantizer.fmt, torch.zeros(4, dtype=torch.int64, device=x.device)
    if isinstance(fmt, BlockFormat) and fmt.axis == "k":
        fmt = replace(fmt, axis=-1)
    bits = quantizer.random_bits
    quantize(x, fmt, quantizer.rounding, random_bits=bits, amax=amax, counts=found)
    return {role: x.numel(), f"clipped_{role}": int(found[0]), f"zeroed_{role}": int(found[1])}


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """In evaluation nothing of a layer's state changes."""
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)
