"""Weights that a fixed-point accumulator never overflows with, held so while they are trained.

Source: Colbert et al. 2024, "A2Q+: improving accumulator-aware weight quantization", arXiv
2401.10432: its bound for weights that sum to zero, its projection of the first weights, and weights
as a direction times a learned norm after A2Q (Colbert et al. 2023, arXiv 2308.13504). Differs: the
quantum is that of the layer's format and is not learned; without `learned` the stored weights
themselves are scaled down, and only where they must be.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from lpkernels import nn
from lpkernels.arithmetic import Quantizer, max_l1_norm
from lpkernels.formats import FixedFormat
from lpkernels.formats.checks import checked_bool
from lpkernels.functional import quantize
from lpkernels.nn.selecting import check_model

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
Layer = TypeVar("Layer", bound=Module)


def a2q_plus(layer: Layer, accumulator_bits: int, *, learned: bool = False) -> Layer:
    """Give a layer weights that no accumulator of so many bits overflows with, at every step.

    `layer.weight` becomes a function of stored weights v, which are trained in its place
    (torch.nn.utils.parametrize). For each output, u = v - mean(v) where the layer's inputs are
    unsigned and u = v where they are signed; L is their :func:`max_l1_norm` in codes, and s the
    quantum of the weight's FixedFormat. The weights of this output are, rounded toward zero to the
    format,

        u min(1, s L / sum |u|)              or, with learned=True,
        u min(g, s L) / sum |u|,             log2 g a parameter of each output.

    The sums stay in ``FixedFormat(accumulator_bits, ...)`` whatever the inputs and the order, the
    bias apart. Weights of unsigned inputs sum to zero before they are rounded: positive and
    negative ones have L / 2 each, and the sum of products of either sign alone is the worst.
    Rounding toward zero shrinks both parts, and so does saturation: each keeps its bound, though
    the rounded weights need not sum to zero.

    Once, when the layer is changed, v is set to the point of this l1 ball that is nearest to u:
    sign(u) max(|u| - theta, 0), with the theta >= 0 for which sum |v| is s L. A u inside stays.
    With `learned`, g is then sum |u| of this v, at least s and at most s L. All this is float64:
    with N weights for an output the bound holds as long as N L is below 2^50.

    The gradient of rounding is straight-through, as in the paper; mean, norm and minimum have their
    true gradients. So v gets none along u while its output is scaled down, and g gets none while
    it is above s L: add :func:`a2q_penalty` to the loss, which pulls it back. Where u = 0, the
    weights are 0, and the norm counts as s L.

    The state_dict has ``parametrizations.weight.original`` in place of ``weight``, or with
    `learned` ``original0`` (v) and ``original1`` (log2 g, float32, (outputs, 1, ...)).
    ``torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")`` leaves the rounded
    weights. A recipe that is set later changes nothing here. Make the optimizer afterwards: the
    stored weights are its parameters.

    Args:
        layer: lp.nn.Linear, Conv1d, Conv2d or Conv3d with float32 weights, changed in place. Its
            recipe has `weight` and `input` in FixedFormats, the weight's saturating.
        accumulator_bits: P, the bits of the signed accumulator.
        learned: whether each output has a norm of its own, which is trained.

    Returns:
        The layer.

    Raises:
        TypeError: another layer, or weights that are not float32.
        ValueError: formats that are no FixedFormats or are transformed, a weight that wraps or is
            parametrized already, an accumulator too narrow for the smallest weights; no weights,
            infinite or NaN ones, or one for each output and unsigned inputs.
    """
    checked_bool("a2q_plus", "learned", learned)
    if not isinstance(layer, _LAYERS):
        raise TypeError(
            "a2q_plus: layer must be one of lp.nn's Linear, Conv1d, Conv2d and Conv3d, got "
            f"{type(layer).__module__}.{type(layer).__name__}; lp.convert(model, recipe) makes them"
        )
    if parametrize.is_parametrized(layer, "weight"):
        raise ValueError(
            "a2q_plus: the layer's weight is parametrized already; take that away first by "
            'torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")'
        )
    weight = layer.weight
    if is_lazy(weight) or weight.numel() == 0:
        raise ValueError("a2q_plus: the layer has no weights; run a lazy layer on a batch first")
    if weight.dtype != torch.float32:
        raise TypeError(f"a2q_plus: weight must be float32, got {weight.dtype}; use layer.float()")
    if not weight.isfinite().all():
        raise ValueError("a2q_plus: weight holds infinities or NaN; give finite weights")
    fmt = _fixed(layer.recipe.weight, "weight", "fixed8_f7")
    if fmt.overflow == "wrap":
        raise ValueError(
            f"a2q_plus: the recipe's weight {fmt} wraps, which turns signs; take "
            f"{fmt.name.removesuffix('_wrap')}"
        )
    inputs = _fixed(layer.recipe.input, "input", "ufixed8_f8")
    norm = max_l1_norm(
        accumulator_bits,
        inputs.word_bits,
        signed_inputs=inputs.signed,
        zero_centred=not inputs.signed,
    )
    if not inputs.signed and weight[0].numel() < 2:
        raise ValueError(
            "a2q_plus: weights of unsigned inputs sum to zero, got one weight for each output, "
            "which would stay 0; give the recipe's input a signed format"
        )
    # Weights that sum to zero are two at least.
    if norm < (1 if inputs.signed else 2):
        raise ValueError(
            f"a2q_plus: an accumulator of {accumulator_bits} bits can overflow with the smallest "
            f"weights and inputs of {inputs}; use more accumulator_bits or fewer bits of inputs"
        )
    made = _Bounded(fmt, norm, not inputs.signed, learned)
    parametrize.register_parametrization(layer, "weight", made)
    return layer


def a2q_penalty(model: Module) -> Tensor:
    """The sum of max(0, log2 g - log2(s L)) over all outputs of the model's layers that
    :func:`a2q_plus` made with learned=True: a term of the loss (A2Q, arXiv 2308.13504).

    Args: model: any module with such layers.
    Returns: a scalar with gradients.
    Raises: TypeError: no module.  ValueError: the model has no such layer.
    """
    check_model("a2q_penalty", model)
    found = []
    for module in model.modules():
        of_weight = getattr(module, "parametrizations", {})
        if "weight" in of_weight and isinstance(of_weight["weight"][0], _Bounded):
            bounded: Any = of_weight["weight"]
            if bounded[0].learned:
                found.append(torch.relu(bounded.original1 - math.log2(bounded[0].bound)).sum())
    if not found:
        raise ValueError(
            "a2q_penalty: the model has no layer of a2q_plus(layer, bits, learned=True)"
        )
    return torch.stack(found).sum()


def _fixed(quantizer: Quantizer | None, role: str, example: str) -> FixedFormat:
    fmt = None if quantizer is None else quantizer.fmt
    if not isinstance(fmt, FixedFormat):
        raise ValueError(
            f"a2q_plus: the recipe's {role} must be a FixedFormat, got {fmt}; give the layer a "
            f'recipe such as lp.Recipe({role}="{example}", ...)'
        )
    if quantizer is not None and quantizer.hadamard is not None:
        raise ValueError(
            f"a2q_plus: the recipe's {role} is {quantizer}, whose Hadamard transform makes other "
            "weights of those that are held; give a recipe without hadamard="
        )
    return fmt


class _Bounded(Module):
    """From stored weights to those of the layer, and at the start back: a parametrization."""

    def __init__(self, fmt: FixedFormat, norm: int, zero_centred: bool, learned: bool) -> None:
        super().__init__()
        self.fmt, self.zero_centred, self.learned = fmt, zero_centred, learned
        # s L
        self.bound = norm * fmt.quantum

    def forward(self, v: Tensor, log2_g: Tensor | None = None) -> Tensor:
        u = self._centred(v)
        norm = self._norm(u)
        if log2_g is None:
            scaled = u * (self.bound / norm.clamp(min=self.bound))
        else:
            g = log2_g.double().exp2().clamp(max=self.bound)
            scaled = u * (g / torch.where(norm > 0, norm, self.bound))
        return quantize(scaled, self.fmt, "toward_zero")

    def right_inverse(self, weight: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        u = self._centred(weight).flatten(1)
        v = u.sign() * (u.abs() - self._theta(u.abs())).clamp(min=0)
        v = v.view(weight.shape).to(weight.dtype)
        if not self.learned:
            return v
        norm = self._norm(self._centred(v)).clamp(self.fmt.quantum, self.bound)
        return v, norm.log2().to(weight.dtype)

    def _centred(self, v: Tensor) -> Tensor:
        u = v.double().flatten(1)
        if self.zero_centred:
            # Less one of its weights, an output of equal weights has a mean of exactly 0.
            u = u - u[:, :1].detach()
            u = u - u.mean(1, keepdim=True)
        return u.view(v.shape)

    def _norm(self, u: Tensor) -> Tensor:
        """sum |u| of every output, as (outputs, 1, ...)."""
        rows = u.flatten(1)
        if self.zero_centred:
            # Each half has the bound, whatever rounding has done to the sum of both.
            norm = 2 * torch.maximum(rows.clamp(min=0).sum(1), (-rows).clamp(min=0).sum(1))
        else:
            norm = rows.abs().sum(1)
        return norm.view(-1, *[1] * (u.dim() - 1))

    def _theta(self, sizes: Tensor) -> Tensor:
        """(rows, 1): by how much the magnitudes (rows, K) shrink for sums of at most the bound.

        Reference: Duchi et al. 2008, "Efficient projections onto the l1-ball for learning in high
        dimensions", figure 1.
        """
        ordered = sizes.sort(dim=1, descending=True).values
        counts = torch.arange(1, sizes.shape[1] + 1, dtype=torch.float64, device=sizes.device)
        # The theta under which exactly so many of the largest magnitudes are left.
        thetas = (ordered.cumsum(1) - self.bound) / counts
        left = (ordered > thetas).sum(1, keepdim=True)
        return thetas.gather(1, left - 1).clamp(min=0)
