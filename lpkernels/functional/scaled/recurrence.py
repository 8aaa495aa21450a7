"""The weight of a recurrent layer whose products read codes of their own (`Recipe.by_product`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lpkernels.arithmetic.by_product import OPERANDS
from lpkernels.functional._recurrence import ProductOfSteps, Spec
from lpkernels.functional._saved import Saved
from lpkernels.functional.layer import Call, bias_gradient
from lpkernels.functional.linear import LinearGeometry
from lpkernels.functional.scaled.operands import Kept, Products, Source, check, kept
from lpkernels.functional.scaled.products import Operand
from lpkernels.ops import matmul_of

_LINEAR = LinearGeometry()


def check_steps(spec: Spec, weights: Sequence[Tensor | None]) -> None:
    """`operands.check` of the weights of the steps, and that wgrad has codes if it needs them."""
    layer, acc = Products(_LINEAR, Call(spec.recipe, None, spec.backend)), spec.recipe.wgrad
    if acc.group is not None and not all(layer.reading(name).own for name in OPERANDS["wgrad"]):
        raise ValueError(
            f"wgrad={str(acc)!r} takes codes with scales, and the steps of a recurrent layer share "
            "none with it; give wgrad_input and wgrad_grad_output, or blocks with axis='k'"
        )
    for w in weights:
        if w is not None:
            rows = w.detach().new_empty(()).expand(sum(spec.sizes), w.shape[1])
            check(layer, rows, w)


class CodesOfSteps(ProductOfSteps):
    """fprop and dgrad of a step read codes of the step; wgrad reads codes of all steps together.

    Operands and gradients of the steps are passed on as they are. Codes that wgrad shares with the
    other products are values in its sum, since every step has scales of its own.
    """

    def __init__(self, call: Call, w: Tensor, bias: Tensor | None, quantize: bool = True) -> None:
        super().__init__(call, w, bias, quantize=False)
        self.layer = Products(_LINEAR, call)
        self._weights: dict[str, Operand] = {}

    def _of_step(self, step: int) -> Products:
        return self.layer if self.call.seed is None else Products(_LINEAR, self.call_of(step))

    def _weight(self, product: str, field: str) -> Operand:
        """The weight's codes for a product, which are those of every step."""
        if product not in self._weights:
            w = self.layer.of_codes(self.w, field, Source(self.w))
            self._weights[product] = self.layer.operand(Source(w), self.layer.reading(field))
        return self._weights[product]

    def operand(self, h: Tensor, step: int) -> Tensor:
        return h

    def forward(self, h: Tensor, step: int) -> Tensor:
        layer = self._of_step(step)
        left = layer.operand(Source(h), layer.reading("input"))
        right = self._weight("fprop", "weight")
        how = layer.call.sum("fprop", (left, right))
        return layer.call.rounded(
            _LINEAR.fprop(left.values, right.values, self.bias, how), "output"
        )

    def backward(self, g: Tensor, step: int) -> tuple[Tensor, Tensor]:
        layer = self._of_step(step)
        left = layer.operand(Source(g), layer.reading("grad_output"))
        right = self._weight("dgrad", "dgrad_weight")
        how = layer.call.sum("dgrad", (left, right))
        dh = how.of(matmul_of(left.values, right.values))
        return g, layer.call.rounded(dh, "grad_input")

    def _rows(self, tensors: Sequence[Tensor], field: str, general: str) -> Source:
        """An operand of wgrad before it reads it: tensors of all steps, the last step's first."""
        reading = self.layer.reading(field)
        if not reading.own or reading.from_codes:
            codes = self.layer.reading(general)
            steps = reversed(range(len(tensors)))
            tensors = [
                self._of_step(step).values(Source(t), codes, t, codes.key, codes.ints)
                for step, t in zip(steps, tensors, strict=True)
            ]
        rows = torch.cat(list(tensors))
        return Source(rows, operand=None if reading.own else Operand(rows))

    def keep(self, operands: Sequence[Tensor]) -> list[tuple[Saved, Any]]:
        """The operands of all steps as one that is kept for backward: the codes that wgrad reads,
        if it has some of its own, else values. What `Kept` needs besides comes with it."""
        source = self._rows(operands[::-1], "wgrad_input", "input")
        rows = source.tensor
        if source.operand is not None:
            return [(Saved(rows), (rows.shape,))]
        shapes = (torch.Size([len(rows), self.w.shape[0]]), self.w.shape)
        saved, *layout = kept(self.layer, "wgrad", "wgrad_input", source, shapes, rows)
        return [(saved, layout)]

    def wgrad(self, operands: Sequence[tuple[Saved, Any]], gradients: Sequence[Tensor]) -> Tensor:
        left = self._rows(gradients, "wgrad_grad_output", "grad_output")
        ((saved, layout),) = operands
        kept_operand = Kept(saved, *layout)
        right = Source(kept_operand.saved.tensor)
        if kept_operand.shape is not None:
            right = kept_operand.source(self.layer, "wgrad_input", kept_operand.shape)
        pair = self.layer.pair("wgrad", left, right, self.w.shape)
        how = self.call.sum("wgrad", pair)
        dw = how.of(matmul_of(pair[0].values.t(), pair[1].values))
        return self.call.rounded(dw, "grad_weight")

    def bias_gradient(self, gradients: Sequence[Tensor]) -> Tensor:
        if self.layer.is_bias_plain:
            rows = torch.cat(list(gradients))
        else:
            source = self._rows(gradients, "wgrad_grad_output", "grad_output")
            reading = self.layer.reading("wgrad_grad_output")
            rows = (source.operand or self.layer.operand(source, reading)).values
        return bias_gradient(self.call, rows, (), (Operand(rows), Operand(rows)))
