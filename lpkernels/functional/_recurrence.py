"""One direction of one recurrent layer: the steps, and their gradient back through time.

forward     hq = input(h);  zh = output(fprop(hq, weight(w_hh), bias(b_hh)));  h, c = cell(zx, zh)
            with a projection  h = output(fprop(input(h), weight(w_hr)))
backward    last step first: the cell's gradient g, grad_output(g) once for each product,
            dh = grad_input(dgrad(g, w_hh)); after the last,  dw = grad_weight(wgrad(h, g)), one
            sum over (step, n), steps descending, and the bias' sum in the same order
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from lpkernels.arithmetic import Recipe
from lpkernels.functional import seeds
from lpkernels.functional._saved import Saved, saved
from lpkernels.functional.cells import Cell
from lpkernels.functional.layer import Call, bias_gradient
from lpkernels.functional.linear import LinearGeometry
from lpkernels.functional.recording import first_order, is_recorded
from lpkernels.functional.storing import new_product, seeing
from lpkernels.ops import operators_for

_LINEAR = LinearGeometry()


class Weights(NamedTuple):
    """The weights of a step: w_hh (gates * H, H_out), w_hr (H_out, H)."""

    hh: Tensor
    hh_bias: Tensor | None
    hr: Tensor | None


class Spec(NamedTuple):
    """One direction without its tensors; ``sizes`` is the number of rows of each step."""

    cell: Cell
    recipe: Recipe
    sizes: tuple[int, ...]
    backend: str


class ProductOfSteps:
    """One weight of the steps: its product at each step, and the one sum of its gradient.

    quantize: whether the weight is not yet rounded.
    """

    def __init__(self, call: Call, w: Tensor, bias: Tensor | None, quantize: bool = True) -> None:
        self.call = call
        self.w = call.rounded(w, "weight") if quantize else w
        self.bias = None if bias is None else call.rounded(bias, "bias")

    def call_of(self, step: int) -> Call:
        """The call with the seed of a step."""
        if self.call.seed is None:
            return self.call
        return self.call.seeded(seeds.seed_of_product(self.call.seed, step + 1))

    def operand(self, h: Tensor, step: int) -> Tensor:
        return self.call_of(step).rounded(h, "input")

    def forward(self, hq: Tensor, step: int) -> Tensor:
        call = self.call_of(step)
        return call.rounded(_LINEAR.fprop(hq, self.w, self.bias, call.sum("fprop")), "output")

    def backward(self, g: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """The rounded gradient, and the gradient of the step's operand."""
        call = self.call_of(step)
        g = call.rounded(g, "grad_output")
        shape = torch.Size([len(g), self.w.shape[1]])
        return g, call.rounded(_LINEAR.dgrad(g, self.w, shape, call.sum("dgrad")), "grad_input")

    def keep(self, operands: Sequence[Tensor]) -> list[tuple[Saved, Any]]:
        """The operands of all steps as they are kept for `wgrad`."""
        quantizer = self.call.recipe.input
        return [(saved(self.call, t, (), quantizer, t), t.shape) for t in reversed(operands)]

    def wgrad(self, operands: Sequence[tuple[Saved, Any]], gradients: Sequence[Tensor]) -> Tensor:
        call = self.call
        x = torch.cat([operand.restored(call, shape)[0] for operand, shape in operands])
        dw = _LINEAR.wgrad(x, torch.cat(list(gradients)), self.w.shape, call.sum("wgrad"))
        return call.rounded(dw, "grad_weight")

    def bias_gradient(self, gradients: Sequence[Tensor]) -> Tensor:
        return bias_gradient(self.call, torch.cat(list(gradients)))


def _with_rows(new: Tensor, old: Tensor) -> Tensor:
    """old with its first rows replaced by new."""
    return new if len(new) == len(old) else torch.cat([new, old[len(new) :]])


class _Kept(NamedTuple):
    """The operands of the two products and the tensors of the cells, step by step."""

    operands: list[Tensor]
    projected: list[Tensor]
    cells: list[tuple[Tensor, ...]]


_Products: TypeAlias = tuple[ProductOfSteps, ProductOfSteps | None]


def _products(
    spec: Spec, weights: Weights, seed: Tensor | None, quantize: bool = True
) -> _Products:
    make = ProductOfSteps
    if spec.recipe.by_product is not None:
        from lpkernels.functional.scaled.recurrence import CodesOfSteps

        make = CodesOfSteps
    call = Call(spec.recipe, seed, spec.backend, operators_for(*weights, seed), seeing())
    first, second = (call.seeded(seeds.seed_of_product(seed, i)) for i in (1, 2))
    hh = make(first, weights.hh, weights.hh_bias, quantize)
    if weights.hr is None:
        return hh, None
    return hh, make(second, weights.hr, None, quantize)


def _steps(
    zx: Tensor, h: Tensor, c: Tensor | None, weights: Weights, spec: Spec, seed: Tensor | None
) -> tuple[list[Tensor], Tensor, Tensor | None, _Kept, _Products]:
    hh, hr = products = _products(spec, weights, seed)
    blocks = zx.split(spec.sizes[::-1])[::-1]
    outputs: list[Tensor] = []
    tensors = _Kept([], [], [])
    for step, block in enumerate(blocks):
        rows = len(block)
        hq = hh.operand(h[:rows], step)
        old = None if c is None else c[:rows]
        new, new_c, of_cell = spec.cell.forward(block, hh.forward(hq, step), h[:rows], old)
        if hr is not None:
            tensors.projected.append(hr.operand(new, step))
            new = hr.forward(tensors.projected[-1], step)
        tensors.operands.append(hq)
        tensors.cells.append(of_cell)
        outputs.append(new)
        h = _with_rows(new, h)
        c = None if c is None or new_c is None else _with_rows(new_c, c)
    return outputs, h, c, tensors, products


def recurrence(
    zx: Tensor, h: Tensor, c: Tensor | None, weights: Weights, spec: Spec, seed: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """All steps of a direction, on float32 tensors.

    zx (rows, gates * H) holds the product of the input, the rows of the last step first; h (N,
    H_out) and c (N, H) are the first state. A step with fewer rows than N takes the first ones;
    there is at least one step, and every row has one. Returns the outputs, the rows of the first
    step first, and the last state of every row.
    """
    if spec.recipe.by_product is not None:
        from lpkernels.functional.scaled.recurrence import check_steps

        check_steps(spec, (weights.hh, weights.hr))
    if is_recorded(zx, h, c, *weights):
        y, last_h, last_c = _Recurrence.apply(zx, h, c, *weights, spec, seed)
        return y, last_h, None if c is None else last_c
    new_product()
    outputs, h, c, _, _ = _steps(zx, h, c, weights, spec, seed)
    return torch.cat(outputs), h, c


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        zx: Tensor,
        h: Tensor,
        c: Tensor | None,
        hh: Tensor,
        hh_bias: Tensor | None,
        hr: Tensor | None,
        spec: Spec,
        seed: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.sees = new_product()
        steps = _steps(zx, h, c, Weights(hh, hh_bias, hr), spec, seed)
        outputs, last_h, last_c, tensors, (of_hh, of_hr) = steps
        needs = ctx.needs_input_grad
        operands = of_hh.keep(tensors.operands) if needs[3] else []
        projected = of_hr.keep(tensors.projected) if of_hr is not None and needs[5] else []
        weights = [(of_hh.w, hh)] + ([] if of_hr is None or hr is None else [(of_hr.w, hr)])
        rounded = [
            (Saved(w) if w is source else saved(of_hh.call, w, (), spec.recipe.weight, w), w.shape)
            for w, source in weights
        ]
        entries = [*operands, *projected, *rounded]
        ctx.spec, ctx.projects, ctx.operands = spec, of_hr is not None, len(operands)
        ctx.formats = [(entry.fmt, shape) for entry, shape in entries]
        cells = [t for of_step in tensors.cells for t in of_step]
        ctx.save_for_backward(seed, *(entry.tensor for entry, _ in entries), *cells)
        return torch.cat(outputs), last_h, zx.new_empty(0) if last_c is None else last_c

    @staticmethod
    def _saved(
        ctx: Any,
    ) -> tuple[list[tuple[Saved, Any]], list[tuple[Tensor, ...]], Weights, Tensor | None]:
        """The operands of wgrad, as products keep them, the tensors of the cells step by step, the
        weights and the seed."""
        seed, *tensors = ctx.saved_tensors
        count, steps = len(ctx.formats), len(ctx.spec.sizes)
        kinds = zip(tensors, ctx.formats, strict=False)
        entries = [(Saved(t, (), fmt), shape) for t, (fmt, shape) in kinds]
        size = (len(tensors) - count) // steps
        cells = [tuple(tensors[i : i + size]) for i in range(count, len(tensors), size)]
        call = Call(ctx.spec.recipe, seed, ctx.spec.backend, operators_for(*tensors, seed))
        weights = [w.restored(call, shape)[0] for w, shape in entries[-1 - ctx.projects :]]
        return entries, cells, Weights(weights[0], None, weights[1] if ctx.projects else None), seed

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Tensor, dh: Tensor, dc: Tensor | None) -> tuple[Tensor | None, ...]:
        entries, cells, weights, seed = _Recurrence._saved(ctx)
        spec, needs = ctx.spec, ctx.needs_input_grad
        hh, hr = _products(spec, weights, seed, quantize=False)
        dc = dc if spec.cell.states == 2 else None
        blocks = dy.split(spec.sizes)
        of_zx: list[Tensor] = []
        of_zh: list[Tensor] = []
        of_projected: list[Tensor] = []
        for step in reversed(range(len(blocks))):
            block, rows = blocks[step], len(blocks[step])
            g = dh[:rows] + block
            if hr is not None:
                rounded, g = hr.backward(g, step)
                of_projected.append(rounded)
            part = spec.cell.backward(cells[step], g, None if dc is None else dc[:rows])
            rounded, back = hh.backward(part.zh, step)
            of_zx.append(part.zx)
            of_zh.append(rounded)
            dh = _with_rows(back if part.h is None else back + part.h, dh)
            dc = None if dc is None or part.c is None else _with_rows(part.c, dc)
        dw = hh.wgrad(entries[: ctx.operands], of_zh) if needs[3] else None
        db = dwr = None
        if needs[4]:
            db = hh.bias_gradient(of_zh)
        if needs[5] and hr is not None:
            dwr = hr.wgrad(entries[ctx.operands : -2], of_projected)
        return torch.cat(of_zx), dh, dc, dw, db, dwr, None, None
