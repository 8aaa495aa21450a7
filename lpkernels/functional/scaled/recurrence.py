"""The weight of a recurrent layer whose products read codes of their own (`Recipe.by_product`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lpkernels.arithmetic.by_product import OPERANDS
from lpkernels.functional._saved import Saved
from lpkernels.functional.layer import bias_gradient, quantized
from lpkernels.functional.linear import LinearGeometry
from lpkernels.functional.scaled.operands import Call, Kept, Side, check, kept
from lpkernels.functional.scaled.products import Operand
from lpkernels.functional.seeds import seed_of_product
from lpkernels.ops import matmul_of
from lpkernels.rng import SITE_OUTPUT, SITE_QUANTIZE, Role

if TYPE_CHECKING:
    from lpkernels.functional._recurrence import Spec

_LINEAR = LinearGeometry()


def check_steps(spec: Spec, weights: Sequence[Tensor | None]) -> None:
    """`operands.check` of the weights of the steps, and that wgrad has codes if it needs them."""
    call, acc = Call(spec.recipe, _LINEAR, None, spec.backend, None), spec.recipe.wgrad
    if acc.group is not None and not all(call.taken(name).made for name in OPERANDS["wgrad"]):
        raise ValueError(
            f"wgrad={str(acc)!r} takes codes with scales, and the steps of a recurrent layer share "
            "none with it; give wgrad_input and wgrad_grad_output, or blocks with axis='k'"
        )
    for w in weights:
        if w is not None:
            rows = w.detach().new_empty(()).expand(sum(spec.sizes), w.shape[1])
            check(Call(spec.recipe, _LINEAR, None, spec.backend, None), rows, w)


class CodesOfSteps:
    """As `_recurrence.Product`: fprop and dgrad of a step read codes of the step, and wgrad reads
    codes of all steps together.

    Operands and gradients of the steps are passed on as they are. Codes that wgrad shares with the
    other products are values in its sum, since every step has scales of its own.
    """

    def __init__(
        self, spec: Spec, w: Tensor, bias: Tensor | None, seed: Tensor | None, quantize: bool = True
    ) -> None:
        self.call = Call(spec.recipe, _LINEAR, seed, spec.backend, None)
        self.w, self.seed = w, seed
        if bias is not None:
            call = (seed, Role.BIAS, SITE_QUANTIZE, spec.backend)
            bias = quantized(bias, spec.recipe.bias, *call)
        self.bias = bias
        self.steps = len(spec.sizes)
        self._weights: dict[str, Operand] = {}

    def _of_step(self, step: int) -> Call:
        return self.call._replace(seed=seed_of_product(self.seed, step + 1))

    def _weight(self, product: str, field: str) -> Operand:
        """The weight's codes for a product, which are those of every step."""
        if product not in self._weights:
            w = self.call.source(self.w, field, {})
            side = Side(w, self.call.taken(field), {})
            self._weights[product] = self.call.made_of(side, self.call.acc(product))
        return self._weights[product]

    def operand(self, h: Tensor, step: int) -> Tensor:
        return h

    def forward(self, h: Tensor, step: int) -> Tensor:
        call = self._of_step(step)
        left = call.made_of(Side(h, call.taken("input"), {}), call.acc("fprop"))
        right = self._weight("fprop", "weight")
        how = call.sum("fprop", (left, right))
        z = _LINEAR.fprop(left.values, right.values, self.bias, how)
        last = (call.seed, Role.OUTPUT, SITE_OUTPUT, call.backend)
        return quantized(z, call.recipe.output, *last)

    def backward(self, g: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """The step's gradient, and the gradient of its operand."""
        call = self._of_step(step)
        left = call.made_of(Side(g, call.taken("grad_output"), {}), call.acc("dgrad"))
        right = self._weight("dgrad", "dgrad_weight")
        dh = call.sum("dgrad", (left, right)).of(matmul_of(left.values, right.values))
        last = (call.seed, Role.GRAD_INPUT, SITE_QUANTIZE, call.backend)
        return g, quantized(dh, call.recipe.grad_input, *last)

    def _side(self, tensors: Sequence[Tensor], field: str, general: str) -> Side:
        """An operand of wgrad before it takes it: tensors of all steps, the last step's first."""
        taken = self.call.taken(field)
        if not taken.made or taken.from_codes:
            steps = reversed(range(self.steps))
            its = self.call.taken(general)
            tensors = [
                self._of_step(step).values(t, its, {})
                for step, t in zip(steps, tensors, strict=True)
            ]
        rows = torch.cat(list(tensors))
        return Side(rows, taken, {}, None if taken.made else Operand(rows))

    def keep(self, operands: Sequence[Tensor]) -> list[tuple[Saved, Any]]:
        """The operands of all steps as one that is kept for backward: the codes that wgrad reads,
        if it has some of its own, else values. What `Kept` needs besides comes with it."""
        side = self._side(operands[::-1], "wgrad_input", "input")
        rows = side.tensor
        if side.operand is not None:
            return [(Saved(rows), (rows.shape,))]
        shapes = (torch.Size([len(rows), self.w.shape[0]]), self.w.shape)
        saved, *rest = kept(self.call, "wgrad", "wgrad_input", rows, shapes, {}, rows)
        return [(saved, rest)]

    def wgrad(self, operands: Sequence[tuple[Saved, Any]], gradients: Sequence[Tensor]) -> Tensor:
        left = self._side(gradients, "wgrad_grad_output", "grad_output")
        ((saved, rest),) = operands
        known = Kept(saved, *rest)
        right = Side(known.saved.tensor, self.call.taken("wgrad_input"), {})
        if known.shape is not None:
            right = known.side(self.call, "wgrad_input", known.shape, self.call.acc("wgrad"))
        pair = self.call.pair("wgrad", left, right, self.w.shape)
        how = self.call.sum("wgrad", pair)
        dw = how.of(matmul_of(pair[0].values.t(), pair[1].values))
        last = (self.seed, Role.GRAD_WEIGHT, SITE_QUANTIZE, self.call.backend)
        return quantized(dw, self.call.recipe.grad_weight, *last)

    def bias_gradient(self, gradients: Sequence[Tensor]) -> Tensor:
        acc = self.call.acc("wgrad")
        if self.call.is_bias_plain:
            rows = torch.cat(list(gradients))
        else:
            side = self._side(gradients, "wgrad_grad_output", "grad_output")
            rows = (side.operand or self.call.made_of(side, acc)).values
        scales = None if acc.is_native else (Operand(rows), Operand(rows))
        return bias_gradient(rows, (), acc, self.seed, self.call.backend, scales)
