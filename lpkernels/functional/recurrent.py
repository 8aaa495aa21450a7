"""Recurrent layers, and cells, which are one step of a layer, under a Recipe.

One direction of one layer is an autograd Function over all its steps:

forward     hq = input(h);  zh = output(fprop(hq, weight(w_hh), bias(b_hh)));  h, c = cell(zx, zh)
            with a projection  h = output(fprop(input(h), weight(w_hr)))
backward    last step first: the cell's gradient g, grad_output(g) once for each product,
            dh = grad_input(dgrad(g, w_hh)); after the last,  dw = grad_weight(wgrad(h, g)), one
            sum over (step, n), steps descending, and the bias' sum in the same order
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels.arithmetic import TORCH, Recipe
from lpkernels.formats.integers import BLOCK, KIND
from lpkernels.functional import _checks, seeds
from lpkernels.functional._families import member
from lpkernels.functional.call import Call
from lpkernels.functional.cells import (
    GRU,
    LSTM,
    RNN_RELU,
    RNN_TANH,
    Cell,
    check_states,
    check_weight,
    parts_of,
    ranks,
    states_of,
    widths_of,
)
from lpkernels.functional.dtypes import narrowed, result_dtype, widened, widened_all
from lpkernels.functional.layer import Layer, Residual, emulated_layer, residual, residual_format
from lpkernels.functional.linear import LinearGeometry, linear
from lpkernels.functional.operands import Operand, Source
from lpkernels.functional.recording import apply, first_order, new_rounding_hook
from lpkernels.functional.scaled.shapes import check_steps
from lpkernels.functional.torch_calls import own
from lpkernels.ops import Ints, Row
from lpkernels.recipes import as_recipe

_LINEAR = LinearGeometry()
# The state of a cell, which comes and returns in one form.
_State = TypeVar("_State", bound=Tensor | tuple[Tensor, Tensor])


class _Weights(NamedTuple):
    """The weights of a step: w_hh (gates * H, H_out), w_hr (H_out, H)."""

    hh: Tensor
    hh_bias: Tensor | None
    hr: Tensor | None


class _LayerWeights(NamedTuple):
    """The weights of one direction of a layer: w_ih (gates * H, in), and those of the steps."""

    ih: Tensor
    ih_bias: Tensor | None
    steps: _Weights


class _Spec(NamedTuple):
    """One direction without its tensors; ``sizes`` is the number of rows of each step."""

    cell: Cell
    recipe: Recipe
    sizes: tuple[int, ...]
    backend: str


class _ProductOfSteps:
    """One weight of the steps: its product at each step, and the one sum of its gradient.

    wgrad reads the operands of all steps together. Codes of fprop or dgrad enter its sum as values,
    because every step has its own scales and draws.

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
            reads_h = of_wgrad.fused or (of_wgrad.own and not of_wgrad.from_codes)
            values = h if reads_h else call.values(source, reading, h, reading.key, reading.ints)
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
            reads_g = of_wgrad.fused or of_wgrad.own
            values = g if reads_g else call.values(source, reading, g, reading.key, reading.ints)
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
            left = rows.new_empty(()).expand(len(rows), self.w.shape[0])
            entries.append(residual(self.layer, "wgrad", source, left, self.w.shape, rows))
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


_Products: TypeAlias = tuple[_ProductOfSteps, _ProductOfSteps | None]


def _products(
    spec: _Spec, weights: _Weights, seed: Tensor | None, collects: tuple[bool, bool]
) -> _Products:
    call = Call.of(spec.recipe, seed, spec.backend, *weights)
    first, second = (call.seeded(seeds.seed_of_product(seed, i)) for i in (1, 2))
    hh = _ProductOfSteps(first, weights.hh, weights.hh_bias, collects[0])
    if weights.hr is None:
        return hh, None
    return hh, _ProductOfSteps(second, weights.hr, None, collects[1])


def _steps(
    zx: Tensor, h: Tensor, c: Tensor | None, products: _Products, spec: _Spec
) -> tuple[Tensor, Tensor, Tensor | None, list[tuple[Tensor, ...]]]:
    """The outputs, the rows of the first step first; the last state of every row; and the tensors
    of the cells, step by step.

    zx (rows, gates * H) holds the product of the input, the rows of the last step first; h (N,
    H_out) and c (N, H) are the first state. A step with fewer rows than N takes the first ones;
    there is at least one step, and every row has one.
    """
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


class _Recurrence(torch.autograd.Function):
    layer = "a recurrent layer"

    @staticmethod
    def forward(
        ctx: Any,
        zx: Tensor,
        h: Tensor,
        c: Tensor | None,
        hh: Tensor,
        hh_bias: Tensor | None,
        hr: Tensor | None,
        spec: _Spec,
        seed: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.hook = new_rounding_hook()
        needs = ctx.needs_input_grad
        products = _products(spec, _Weights(hh, hh_bias, hr), seed, (needs[3], needs[5]))
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
            pairs = zip(tensors, steps, strict=False)
            entries.append([Residual(t, *fields) for t, fields in pairs])
            tensors = tensors[len(steps) :]
        size = len(tensors) // len(spec.sizes)
        collects = (needs[3] or needs[4], needs[5])
        hh, hr = _products(spec, _Weights(w_hh, None, w_hr), seed, collects)
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


def _direction(
    spec: _Spec,
    x: Tensor,
    states: tuple[Tensor, ...],
    weights: _LayerWeights,
    reverse: bool,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """x and the output (rows, features), the rows of position 0 first, as the sizes of spec."""
    ih, ih_bias, steps = weights
    if not reverse:
        # The last step's rows come first, in the order of the sum that is the weight's gradient.
        x = torch.cat(x.split(spec.sizes)[::-1])
    zx = emulated_layer(x, ih, ih_bias, spec.recipe, _LINEAR, seed, spec.backend)
    spec = spec._replace(sizes=spec.sizes[::-1]) if reverse else spec
    if spec.recipe.readings.by_product:
        check_steps(_LINEAR, spec.recipe, sum(spec.sizes), (steps.hh, steps.hr))
    h, c = states[0], states[1] if len(states) == 2 else None
    y, h, end_c = apply(_Recurrence, zx, h, c, steps.hh, steps.hh_bias, steps.hr, spec, seed)
    c = None if c is None else end_c
    return torch.cat(y.split(spec.sizes)[::-1]) if reverse else y, h, c


def _sizes(
    cell: Cell, input: Tensor, batch_first: bool, batch_sizes: Tensor | None
) -> tuple[int, ...]:
    """The number of rows at each position, which does not rise."""
    if input.dim() != (3 if batch_sizes is None else 2):
        raise ValueError(
            f"{cell.name}: input has shape {tuple(input.shape)}; expected (L, N, in), (N, L, in) "
            "with batch_first, or (rows, in) with batch_sizes"
        )
    if batch_sizes is not None:
        _checks.tensor(cell.name, "batch_sizes", batch_sizes)
        place = (batch_sizes.dtype, batch_sizes.device.type, batch_sizes.dim())
        if place != (torch.int64, "cpu", 1):
            raise TypeError(
                f"{cell.name}: batch_sizes is {place[0]} on {place[1]} with {place[2]} dimensions; "
                "expected int64 on the CPU with one, as pack_padded_sequence makes it"
            )
        sizes = tuple(batch_sizes.tolist())
    else:
        length, batch = (input.shape[1], input.shape[0]) if batch_first else input.shape[:2]
        sizes = (batch,) * length
    fits = bool(sizes)
    if batch_sizes is not None:
        falls = [*sizes, 0] == sorted((*sizes, 0), reverse=True)
        fits = fits and falls and sum(sizes) == input.shape[0]
    if not fits:
        raise ValueError(
            f"{cell.name}: input has shape {tuple(input.shape)} and batch_sizes {sizes}; expected "
            "a sequence of length 1 or more, and batch_sizes that do not rise, as "
            "pack_padded_sequence makes them, and whose sum is the number of rows"
        )
    return sizes


def _grouped(weights: Sequence[Tensor], parts: tuple[str, ...]) -> list[_LayerWeights]:
    """The weights of each layer and direction, in float32."""
    groups = []
    for i in range(0, len(weights), len(parts)):
        of = dict(zip(parts, map(widened, weights[i : i + len(parts)]), strict=True))
        steps = _Weights(of["w_hh"], of.get("b_hh"), of.get("w_hr"))
        groups.append(_LayerWeights(of["w_ih"], of.get("b_ih"), steps))
    return groups


def _layers(
    cell: Cell,
    input: Tensor,
    hx: Tensor | tuple[Tensor, ...],
    weights: Sequence[Tensor],
    has_biases: bool = True,
    num_layers: int = 1,
    dropout: float = 0.0,
    train: bool = False,
    bidirectional: bool = False,
    batch_first: bool = False,
    *,
    batch_sizes: Tensor | None = None,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, ...]:
    """``torch.NAME``, the function of torch.nn's layer, under a recipe.

    The gates of a step have two products, each a ``linear`` with its own bias and `output`; their
    sum, the gates and the state are float32's. So is dropout. A projection is a third product.

        z = linear(x[t], w_ih, b_ih) + linear(h, w_hh, b_hh);   h, c = cell(z, c);   h = linear(h,
        w_hr)

    ``lstm`` has 4 gates and the states (h, c), ``gru`` 3 gates, ``rnn_tanh`` and ``rnn_relu`` one:
    h is the tanh or the relu of the sum. In backward `grad_output` rounds the gradient of the gates
    once for each product. dgrad sums over the gates, at each step. The gradient of a weight or a
    bias is one sum over all steps, in wgrad: docs/contract.md, "The order of k".

    Args:
        input: (L, N, in), (N, L, in) with batch_first, or, with batch_sizes, the data of a
            PackedSequence; dtypes as in ``linear``. L is at least 1.
        hx: the state h (num_layers * directions, N, H_out); of ``lstm`` (h, c), c (..., H).
        weights: for each layer and direction w_ih (gates * H, in), w_hh (gates * H, H_out), with
            has_biases b_ih and b_hh (gates * H,), and in ``lstm`` w_hr (H_out, H) where the layers
            project.
        num_layers, dropout, bidirectional, batch_first: as of the layers, such as
            https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html; dropout where train.
        batch_sizes: int64 on the CPU, from a PackedSequence.
        recipe, generator, backend: as in ``linear``. One seed is drawn per call.

    Returns: the output in the input's layout, and the states after the last step. All have the
        dtype as in ``linear``, of the input, hx and weights. No state between two steps is rounded
        to it, so that a sequence in two calls may differ from the same sequence in one.
    Raises: as ``linear``.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch:
        torchs, params = getattr(torch, cell.name), list(weights)
        flags = (has_biases, num_layers, dropout, train, bidirectional)
        if batch_sizes is not None:
            return own(torchs, input, batch_sizes, hx, params, *flags)
        return own(torchs, input, hx, params, *flags, batch_first)
    states_by_name = states_of(cell.name, hx)
    first_states = tuple(states_by_name.values())
    directions = 2 if bidirectional else 1
    parts = parts_of(cell, len(weights), has_biases, num_layers * directions)
    names = [f"weights[{i}]" for i in range(len(weights))]
    tensors = states_by_name | dict(zip(names, weights, strict=True))
    _checks.operands(cell.name, input=input, **tensors)
    sizes = _sizes(cell, input, batch_first, batch_sizes)
    widths = widths_of(cell, cell.name, "weights[1] (w_hh)", weights[1], "w_hr" in parts)
    check_states(cell, cell.name, states_by_name, (num_layers * directions, sizes[0]), widths)
    for i, w in enumerate(weights):
        part = parts[i % len(parts)]
        features = input.shape[-1] if i < directions * len(parts) else directions * widths[0]
        check_weight(cell, cell.name, f"weights[{i}] ({part})", part, w, features, widths)
    grouped = _grouped(weights, parts)
    layer_ranks = ranks(cell.name, has_biases)
    seed = seeds.seed_of_call(cell.name, recipe, generator, backend, layer_ranks)
    spec, x = _Spec(cell, recipe, sizes, backend), widened(input)
    if batch_sizes is None:
        x = (x.transpose(0, 1) if batch_first else x).flatten(0, 1)
    last_states: list[tuple[Tensor, ...]] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            i = layer * directions + direction
            states = tuple(widened(state[i]) for state in first_states)
            own_seed = seeds.seed_of_product(seed, i + 1)
            y, h, c = _direction(spec, x, states, grouped[i], direction == 1, own_seed)
            outputs.append(y)
            last_states.append((h,) if c is None else (h, c))
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout and train and layer < num_layers - 1:
            x = F.dropout(x, dropout)
    if batch_sizes is None:
        x = x.unflatten(0, (len(sizes), sizes[0]))
        x = x.transpose(0, 1) if batch_first else x
    dtype = result_dtype(input, *first_states, *weights)
    results = (x, *map(torch.stack, zip(*last_states, strict=True)))
    return tuple(narrowed(y, dtype) for y in results)


lstm = member("lstm", _layers, LSTM)
gru = member("gru", _layers, GRU)
rnn_tanh = member("rnn_tanh", _layers, RNN_TANH)
rnn_relu = member("rnn_relu", _layers, RNN_RELU)


def _cell(
    cell: Cell,
    input: Tensor,
    hx: _State,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    *,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> _State:
    """``torch.NAME`` under a recipe: one step of a layer.

    Both products of the gates are ``linear``; everything behind them, and its gradient, is
    float32's. The weights' gradients sum over n. A layer made of cells adds the gradients of its
    steps in float32; in ``lstm`` a gradient is one sum over all steps.

    Args:
        input: (N, in); dtypes as in ``linear``.
        hx: h, (N, H); of ``lstm_cell`` (h, c), each (N, H).
        w_ih: (gates * H, in), w_hh: (gates * H, H), b_ih, b_hh: (gates * H,) or None, with the
            gates of ``lstm``, in torch's order, such as
            https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTMCell.html.
        recipe, generator, backend: as in ``linear``. One seed is drawn for both products.

    Returns: the new hx, with the dtype of input, hx and weights as in ``linear``.
    Raises: as ``linear``.
    """
    recipe, name = as_recipe(recipe), f"{cell.name}_cell"
    if recipe.is_torch:
        result: _State = own(getattr(torch, name), input, hx, w_ih, w_hh, b_ih, b_hh)
        return result
    states_by_name = states_of(name, hx)
    states = tuple(states_by_name.values())
    weights = {"w_ih": w_ih, "w_hh": w_hh}
    weights |= {part: b for part, b in (("b_ih", b_ih), ("b_hh", b_hh)) if b is not None}
    _checks.operands(name, input=input, **states_by_name, **weights)
    widths = widths_of(cell, name, "w_hh", w_hh)
    check_states(cell, name, states_by_name, input.shape[:-1], widths)
    features = input.shape[-1] if input.dim() else 0
    for part, w in weights.items():
        check_weight(cell, name, part, part, w, features, widths)
    cell_ranks = ranks(name, not (b_ih is None and b_hh is None))
    first = seeds.seed_of_call(name, recipe, generator, backend, cell_ranks)
    second = seeds.seed_of_product(first, 1)
    x, w, b = widened_all(input, w_ih, b_ih)
    zx = linear(x, w, b, recipe=recipe, generator=first, backend=backend)
    old_h, w, b = widened_all(states[0], w_hh, b_hh)
    zh = linear(old_h, w, b, recipe=recipe, generator=second, backend=backend)
    old_c = widened(states[1]) if len(states) == 2 else None
    step = cell.forward(zx, zh, old_h, old_c)
    dtype = result_dtype(input, *states, *weights.values())
    h, c = (None if x is None else narrowed(x, dtype) for x in step[:2])
    return h if c is None else (h, c)  # type: ignore[return-value]


lstm_cell = member("lstm_cell", _cell, LSTM)
gru_cell = member("gru_cell", _cell, GRU)
rnn_tanh_cell = member("rnn_tanh_cell", _cell, RNN_TANH)
rnn_relu_cell = member("rnn_relu_cell", _cell, RNN_RELU)
