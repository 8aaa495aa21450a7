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
from lpkernels.formats.integers import BLOCK, KIND
from lpkernels.functional import seeds
from lpkernels.functional.call import Call
from lpkernels.functional.cells import Cell
from lpkernels.functional.hooks import new_rounding_hook
from lpkernels.functional.layer import Layer, Residual, residual
from lpkernels.functional.linear import LinearGeometry
from lpkernels.functional.operands import Operand, Source, residual_format
from lpkernels.functional.recording import first_order, is_recorded
from lpkernels.functional.scaled.shapes import check_steps
from lpkernels.ops import Ints, Row

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

    wgrad reads the operands of all steps together. Where it reads the codes of fprop or dgrad,
    these are values in its sum, since every step has scales and draws of its own.

    collects: whether the operands of wgrad are collected.
    """

    def __init__(self, call: Call, w: Tensor, bias: Tensor | None, collects: bool) -> None:
        self.call, self.w, self.collects = call, w, collects
        self.layer = Layer(_LINEAR, call)
        self.bias = None if bias is None else call.rounded(bias, "bias")
        self._weights: dict[str, Operand] = {}
        # Of each step, in the order of the calls: the rows of wgrad's two operands, and g itself.
        self._inputs: list[Tensor] = []
        self._gradients: list[Tensor] = []
        self._unrounded: list[Tensor] = []

    def _call_of(self, step: int) -> Call:
        """The call with the seed of a step."""
        if self.call.seed is None:
            return self.call
        return self.call.seeded(seeds.seed_of_product(self.call.seed, step + 1))

    def _weight(self, product: str) -> Operand:
        """The weight as a product of every step reads it, rounded once for all."""
        if product not in self._weights:
            w = self.layer.source_of_codes(self.w, product, Source(self.w, {}, {}))
            reading = getattr(self.call.recipe.readings, product)[1]
            if reading.fused:
                reading = reading._replace(fused=(), as_is=False)
            self._weights[product] = self.call.operand(Source(w, {}, {}), reading, w)
        return self._weights[product]

    def forward(self, h: Tensor, step: int) -> Tensor:
        call, source = self._call_of(step), Source(h, {}, {})
        (reading, _), (_, of_wgrad) = call.recipe.readings.fprop, call.recipe.readings.wgrad
        operands = call.operand(source, reading, h), self._weight("fprop")
        how = call.sum("fprop", operands)
        y = _LINEAR.fprop(operands[0].values, operands[1].values, self.bias, None, how)
        if self.collects:
            own = of_wgrad.fused or (of_wgrad.own and not of_wgrad.from_codes)
            values = h if own else call.values(source, reading, h, reading.key, reading.ints)
            self._inputs.append(values)
        return call.rounded(y, "output")

    def backward(self, g: Tensor, step: int) -> Tensor:
        """The gradient of the step's operand."""
        call, source = self._call_of(step), Source(g, {}, {})
        (reading, _), (of_wgrad, _) = call.recipe.readings.dgrad, call.recipe.readings.wgrad
        operands = call.operand(source, reading, g), self._weight("dgrad")
        how = call.sum("dgrad", operands)
        dh = _LINEAR.dgrad(operands[0].values, operands[1].values, self.w.shape, how)
        if self.collects:
            own = of_wgrad.fused or of_wgrad.own
            values = g if own else call.values(source, reading, g, reading.key, reading.ints)
            self._gradients.append(values)
            self._unrounded.append(g)
        return call.rounded(dh, "grad_input")

    def residuals(self) -> list[Residual]:
        """The operands of all steps, the last step's first, as they are kept for `wgrad`."""
        readings, pieces = self.call.recipe.readings, self._inputs[::-1]
        reading = readings.wgrad[1]
        if readings.by_product or _packs_together(pieces[0], reading.ints):
            pieces = [torch.cat(pieces)]
        if readings.by_product and not reading.own:
            return [Residual(rows, rows.shape) for rows in pieces]
        entries = []
        for rows in pieces:
            rounded = {} if reading.own or reading.fused else {reading.key: rows}
            source = Source(rows, {}, rounded)
            shapes = (torch.Size([len(rows), self.w.shape[0]]), self.w.shape)
            entries.append(residual(self.layer, "wgrad", source, shapes, rows))
        return entries

    def wgrad(self, entries: Sequence[Residual]) -> Tensor:
        of_g, of_x = self.call.recipe.readings.wgrad
        g = torch.cat(self._gradients)
        left = Source(g, {}, {}, operand=None if of_g.own else Operand(g, of_g.fused))
        if of_x.own and entries[0].shape is None:
            # The codes are made of the rows, which the layer has kept as float32.
            right = Source(entries[0].tensor, {}, {})
        else:
            sources = [entry.source(self.layer, "wgrad", self.w.shape) for entry in entries]
            right = sources[0]
            if len(sources) > 1:
                x = torch.cat([source.tensor for source in sources])
                fused = of_x.fused if entries[0].shape is None else ()
                right = Source(x, {}, {}, operand=Operand(x, fused))
        return self.layer.gradient("wgrad", left, right, self.w.shape)

    def bias_gradient(self) -> Tensor:
        readings = self.call.recipe.readings
        if readings.plain_bias:
            return self.call.bias_gradient(Operand(torch.cat(self._unrounded)))
        rows = torch.cat(self._gradients)
        return self.call.bias_gradient(Operand(rows, readings.wgrad[0].fused))


def _packs_together(x: Tensor, ints: Ints) -> bool:
    """Whether the rounded tensors of all steps, such as x, are kept as one tensor of codes."""
    if not ints or not residual_format(x, ints):
        return False
    # Blocks may run along the rows, and would then lie in two steps.
    return not ints.block_size if isinstance(ints, Row) else ints[KIND] != BLOCK


_Products: TypeAlias = tuple[ProductOfSteps, ProductOfSteps | None]


def _products(
    spec: Spec,
    weights: Weights,
    seed: Tensor | None,
    collects: tuple[bool, bool] = (False, False),
) -> _Products:
    call = Call.of(spec.recipe, seed, spec.backend, *weights)
    first, second = (call.seeded(seeds.seed_of_product(seed, i)) for i in (1, 2))
    hh = ProductOfSteps(first, weights.hh, weights.hh_bias, collects[0])
    if weights.hr is None:
        return hh, None
    return hh, ProductOfSteps(second, weights.hr, None, collects[1])


def _steps(
    zx: Tensor, h: Tensor, c: Tensor | None, products: _Products, spec: Spec
) -> tuple[Tensor, Tensor, Tensor | None, list[tuple[Tensor, ...]]]:
    """The outputs, the last state, and the tensors of the cells, step by step."""
    hh, hr = products
    outputs: list[Tensor] = []
    cells: list[tuple[Tensor, ...]] = []
    for step, block in enumerate(zx.split(spec.sizes[::-1])[::-1]):
        rows, all_rows = block.shape[0], h.shape[0]
        old_h = h if rows == all_rows else h[:rows]
        old_c = c if c is None or rows == all_rows else c[:rows]
        new, new_c, of_cell = spec.cell.forward(block, hh.forward(old_h, step), old_h, old_c)
        if hr is not None:
            new = hr.forward(new, step)
        cells.append(of_cell)
        outputs.append(new)
        h = new if rows == all_rows else torch.cat([new, h[rows:]])
        if c is not None and new_c is not None:
            c = new_c if rows == all_rows else torch.cat([new_c, c[rows:]])
    return torch.cat(outputs), h, c, cells


def recurrence(
    zx: Tensor, h: Tensor, c: Tensor | None, weights: Weights, spec: Spec, seed: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """All steps of a direction, on float32 tensors.

    zx (rows, gates * H) holds the product of the input, the rows of the last step first; h (N,
    H_out) and c (N, H) are the first state. A step with fewer rows than N takes the first ones;
    there is at least one step, and every row has one. Returns the outputs, the rows of the first
    step first, and the last state of every row.
    """
    if spec.recipe.readings.by_product:
        check_steps(_LINEAR, spec.recipe, sum(spec.sizes), (weights.hh, weights.hr))
    if is_recorded(zx, h, c, *weights):
        y, last_h, last_c = _Recurrence.apply(zx, h, c, *weights, spec, seed)
        return y, last_h, None if c is None else last_c
    new_rounding_hook()
    return _steps(zx, h, c, _products(spec, weights, seed), spec)[:3]


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
        ctx.hook = new_rounding_hook()
        needs = ctx.needs_input_grad
        products = _products(spec, Weights(hh, hh_bias, hr), seed, (needs[3], needs[5]))
        y, last_h, last_c, cells = _steps(zx, h, c, products, spec)
        entries = [p.residuals() if p is not None and p.collects else [] for p in products]
        ctx.spec, ctx.entries = spec, [[entry[1:] for entry in steps] for steps in entries]
        tensors = (entry.tensor for steps in entries for entry in steps)
        ctx.save_for_backward(seed, hh, hr, *tensors, *(t for of_step in cells for t in of_step))
        return y, last_h, zx.new_empty(0) if last_c is None else last_c

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Tensor, dh: Tensor, dc: Tensor | None) -> tuple[Tensor | None, ...]:
        seed, w_hh, w_hr, *tensors = ctx.saved_tensors
        spec, needs = ctx.spec, ctx.needs_input_grad
        entries: list[list[Residual]] = []
        for steps in ctx.entries:
            entries.append([Residual(t, *rest) for t, rest in zip(tensors, steps, strict=False)])
            tensors = tensors[len(steps) :]
        size = len(tensors) // len(spec.sizes)
        collects = (needs[3] or needs[4], needs[5])
        hh, hr = _products(spec, Weights(w_hh, None, w_hr), seed, collects)
        dc = dc if spec.cell.states == 2 else None
        blocks = dy.split(spec.sizes)
        of_zx: list[Tensor] = []
        for step in reversed(range(len(blocks))):
            block = blocks[step]
            rows, all_rows = block.shape[0], dh.shape[0]
            g = (dh if rows == all_rows else dh[:rows]) + block
            if hr is not None:
                g = hr.backward(g, step)
            of_cell = tuple(tensors[step * size : (step + 1) * size])
            old_c = dc if dc is None or rows == all_rows else dc[:rows]
            part = spec.cell.backward(of_cell, g, old_c)
            back = hh.backward(part.zh, step)
            of_zx.append(part.zx)
            new = back if part.h is None else back + part.h
            dh = new if rows == all_rows else torch.cat([new, dh[rows:]])
            if dc is not None and part.c is not None:
                dc = part.c if rows == all_rows else torch.cat([part.c, dc[rows:]])
        dw = hh.wgrad(entries[0]) if needs[3] else None
        db = hh.bias_gradient() if needs[4] else None
        dwr = hr.wgrad(entries[1]) if needs[5] and hr is not None else None
        return torch.cat(of_zx), dh, dc, dw, db, dwr, None, None
