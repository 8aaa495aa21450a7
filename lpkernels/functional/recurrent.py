"""Recurrent layers, and cells, which are one step of a layer, under a Recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels.arithmetic import TORCH, Recipe
from lpkernels.functional import _checks, seeds
from lpkernels.functional._families import member
from lpkernels.functional._recurrence import Spec, Weights, recurrence
from lpkernels.functional.cells import GRU, LSTM, RNN_RELU, RNN_TANH, Cell, ranks
from lpkernels.functional.layer import emulated_layer, widened
from lpkernels.functional.linear import LinearGeometry, linear
from lpkernels.functional.torch_calls import own
from lpkernels.recipes import as_recipe

# The state of a cell, which comes and returns in one form.
_State = TypeVar("_State", bound=Tensor | tuple[Tensor, Tensor])


def _direction(
    cell: Cell,
    x: Tensor,
    states: tuple[Tensor, ...],
    sizes: tuple[int, ...],
    weights: tuple[Tensor | None, ...],
    reverse: bool,
    recipe: Recipe,
    seed: Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """x and the output (rows, features), the rows of position 0 first."""
    w_ih, w_hh, b_ih, b_hh, w_hr = weights
    if w_ih is None or w_hh is None or w_ih.shape != (len(w_hh), x.shape[1]):
        shapes = [None if w is None else tuple(w.shape) for w in (w_ih, w_hh)]
        raise ValueError(
            f"{cell.name}: w_ih and w_hh have the shapes {shapes}; expected (gates * H, "
            f"{x.shape[1]}) and (gates * H, H_out)"
        )
    if not reverse:
        # The last step's rows come first, in the order of the sum that is the weight's gradient.
        x = torch.cat(x.split(sizes)[::-1])
    zx = emulated_layer(x, w_ih, b_ih, recipe, LinearGeometry(), seed, backend)
    order = sizes[::-1] if reverse else sizes
    spec = Spec(cell, recipe, order, backend)
    c = states[1] if len(states) == 2 else None
    y, h, c = recurrence(zx, states[0], c, Weights(w_hh, b_hh, w_hr), spec, seed)
    return torch.cat(y.split(order)[::-1]) if reverse else y, h, c


def _sizes(
    cell: Cell, input: Tensor, batch_first: bool, batch_sizes: Tensor | None
) -> tuple[int, ...]:
    """The number of rows at each position."""
    if input.dim() != (3 if batch_sizes is None else 2):
        raise ValueError(
            f"{cell.name}: input has shape {tuple(input.shape)}; expected (L, N, in), (N, L, in) "
            "with batch_first, or (rows, in) with batch_sizes"
        )
    if batch_sizes is not None:
        sizes = tuple(batch_sizes.tolist())
    else:
        length, batch = (input.shape[1], input.shape[0]) if batch_first else input.shape[:2]
        sizes = (batch,) * length
    if not sizes or (batch_sizes is not None and sum(sizes) != input.shape[0]):
        raise ValueError(
            f"{cell.name}: input has shape {tuple(input.shape)} and batch_sizes {sizes}; expected "
            "a sequence of length 1 or more, and batch_sizes whose sum is the number of rows"
        )
    return sizes


def _grouped(
    cell: Cell, weights: Sequence[Tensor], has_biases: bool, count: int
) -> list[tuple[Tensor | None, ...]]:
    """The weights of each layer and direction: w_ih, w_hh, b_ih, b_hh, w_hr, or None."""
    least = 4 if has_biases else 2
    size = len(weights) // count if count else 0
    projects = size == least + 1 and cell is LSTM
    if len(weights) != size * count or not (size == least or projects):
        raise ValueError(
            f"{cell.name}: got {len(weights)} weights for {count} layers and directions; expected "
            f"{least} each{', or one more for a projection' if cell is LSTM else ''}"
        )
    groups = []
    for i in range(count):
        tensors: list[Tensor | None] = [widened(w) for w in weights[i * size : (i + 1) * size]]
        projection = tensors.pop() if projects else None
        tensors += [None] * (4 - len(tensors))
        groups.append((*tensors, projection))
    return groups


def _check_states(
    cell: Cell,
    hx: tuple[Tensor, ...],
    batch: int,
    weights: list[tuple[Tensor | None, ...]],
) -> None:
    hh = weights[0][1]
    rows, out = (0, 0) if hh is None else hh.shape
    expected = [(len(weights), batch, out), (len(weights), batch, rows // cell.gates)]
    shapes = [tuple(state.shape) for state in hx]
    if shapes != expected[: cell.states]:
        raise ValueError(
            f"{cell.name}: the states have the shapes {shapes}; expected {expected[: cell.states]}"
        )


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

    Returns: the output in the input's layout, and the states after the last step; float32.
    Raises: as ``linear``.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch:
        first = (input, hx) if batch_sizes is None else (input, batch_sizes, hx)
        flags = (has_biases, num_layers, dropout, train, bidirectional)
        layout = () if batch_sizes is not None else (batch_first,)
        result: tuple[Tensor, ...] = own(
            getattr(torch, cell.name), *first, list(weights), *flags, *layout
        )
        return result
    first_states = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    _checks.operands(cell.name, input=input, h=first_states[0], weight=weights[0])
    directions = 2 if bidirectional else 1
    sizes = _sizes(cell, input, batch_first, batch_sizes)
    grouped = _grouped(cell, weights, has_biases, num_layers * directions)
    _check_states(cell, first_states, sizes[0], grouped)
    layer_ranks = ranks(cell.name, has_biases)
    seed = seeds.seed_of_call(cell.name, recipe, generator, backend, layer_ranks)
    x = widened(input)
    if batch_sizes is None:
        x = (x.transpose(0, 1) if batch_first else x).flatten(0, 1)
    last_states: list[tuple[Tensor, ...]] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            i = layer * directions + direction
            states = tuple(widened(state[i]) for state in first_states)
            call = (recipe, seeds.seed_of_product(seed, i + 1), backend)
            y, h, c = _direction(cell, x, states, sizes, grouped[i], direction == 1, *call)
            outputs.append(y)
            last_states.append((h,) if c is None else (h, c))
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout and train and layer < num_layers - 1:
            x = F.dropout(x, dropout)
    if batch_sizes is None:
        x = x.unflatten(0, (len(sizes), sizes[0]))
        x = x.transpose(0, 1) if batch_first else x
    return x, *map(torch.stack, zip(*last_states, strict=True))


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

    Returns: the new hx, float32.
    Raises: as ``linear``.
    """
    recipe, name = as_recipe(recipe), f"{cell.name}_cell"
    if recipe.is_torch:
        result: _State = own(getattr(torch, name), input, hx, w_ih, w_hh, b_ih, b_hh)
        return result
    states = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    _checks.operands(name, input=input, **{f"hx[{i}]": state for i, state in enumerate(states)})
    rows = [(*input.shape[:-1], w_hh.shape[-1])] * cell.states
    if len(w_ih) != len(w_hh) or [tuple(state.shape) for state in states] != rows:
        raise ValueError(
            f"{name}: input has shape {tuple(input.shape)}, hx {[tuple(x.shape) for x in states]}, "
            f"w_ih {tuple(w_ih.shape)} and w_hh {tuple(w_hh.shape)}; expected (N, in), (N, H) "
            f"each, ({cell.gates} H, in), ({cell.gates} H, H)"
        )
    cell_ranks = ranks(name, not (b_ih is None and b_hh is None))
    first = seeds.seed_of_call(name, recipe, generator, backend, cell_ranks)
    second = seeds.seed_of_product(first, 1)
    zx = linear(input, w_ih, b_ih, recipe=recipe, generator=first, backend=backend)
    zh = linear(states[0], w_hh, b_hh, recipe=recipe, generator=second, backend=backend)
    c = states[1].float() if len(states) == 2 else None
    h, c, _ = cell.forward(zx, zh, states[0].float(), c)
    return h if c is None else (h, c)  # type: ignore[return-value]


lstm_cell = member("lstm_cell", _cell, LSTM)
gru_cell = member("gru_cell", _cell, GRU)
rnn_tanh_cell = member("rnn_tanh_cell", _cell, RNN_TANH)
rnn_relu_cell = member("rnn_relu_cell", _cell, RNN_RELU)
