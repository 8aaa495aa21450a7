"""Recurrent cells, one step of a layer, under a Recipe."""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels.arithmetic import TORCH, Recipe, check_axes
from lpkernels.functional import _checks, seeds
from lpkernels.functional.cells import GRU, LSTM, RNN_RELU, RNN_TANH, Cell, ranks
from lpkernels.functional.linear import linear
from lpkernels.functional.torch_calls import own
from lpkernels.recipes import as_recipe


def lstm_cell(
    input: Tensor,
    hx: tuple[Tensor, Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    *,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """``torch.lstm_cell`` under a recipe: one step of ``lstm``.

    Both products of the gates are ``linear``; everything behind them, and its gradient, is
    float32's. The weights' gradients sum over n. A layer made of cells adds the gradients of its
    steps in float32; in ``lstm`` a gradient is one sum over all steps.

    Args:
        input: (N, in), hx: (h, c), each (N, H); float32, float16 or bfloat16 (widened exactly).
        w_ih: (4 H, in), w_hh: (4 H, H), b_ih, b_hh: (4 H,) or None, in torch's order of the gates,
            https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTMCell.html.
        recipe, generator, backend: as in ``linear``. One seed is drawn for both products.

    Returns:
        h and c, (N, H), float32.

    Raises:
        TypeError, ValueError: as ``linear``.
    """
    call = (w_ih, w_hh, b_ih, b_hh, recipe, generator, backend)
    h, c = _step(LSTM, input, tuple(hx), *call)
    return h, h if c is None else c


def gru_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    *,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """``torch.gru_cell`` under a recipe: as ``lstm_cell``, with 3 gates and one state.

    Args:
        input: (N, in), hx: h, (N, H); dtypes as in ``lstm_cell``.
        w_ih: (3 H, in), w_hh: (3 H, H), b_ih, b_hh: (3 H,) or None, as of
            https://docs.pytorch.org/docs/stable/generated/torch.nn.GRUCell.html.
        recipe, generator, backend: as in ``lstm_cell``.

    Returns: h, (N, H), float32.
    Raises: as ``lstm_cell``.
    """
    return _step(GRU, input, (hx,), w_ih, w_hh, b_ih, b_hh, recipe, generator, backend)[0]


def rnn_tanh_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    *,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """``torch.rnn_tanh_cell`` under a recipe: as ``lstm_cell``, with one gate and one state.

    Args:
        input: (N, in), hx: h, (N, H); dtypes as in ``lstm_cell``.
        w_ih: (H, in), w_hh: (H, H), b_ih, b_hh: (H,) or None, as of
            https://docs.pytorch.org/docs/stable/generated/torch.nn.RNNCell.html.
        recipe, generator, backend: as in ``lstm_cell``.

    Returns: h, (N, H), float32.
    Raises: as ``lstm_cell``.
    """
    return _step(RNN_TANH, input, (hx,), w_ih, w_hh, b_ih, b_hh, recipe, generator, backend)[0]


def rnn_relu_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    *,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """``torch.rnn_relu_cell`` under a recipe: as ``rnn_tanh_cell``, with relu.

    Args:
        input, hx, w_ih, w_hh, b_ih, b_hh, recipe, generator, backend: as in ``rnn_tanh_cell``.

    Returns, Raises: as ``rnn_tanh_cell``.
    """
    return _step(RNN_RELU, input, (hx,), w_ih, w_hh, b_ih, b_hh, recipe, generator, backend)[0]


def _step(
    cell: Cell,
    input: Tensor,
    hx: tuple[Tensor, ...],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    recipe: Recipe | str,
    generator: torch.Generator | Tensor | None,
    backend: str,
) -> tuple[Tensor, Tensor | None]:
    recipe = as_recipe(recipe)
    if recipe.is_torch:
        states = hx if cell is LSTM else hx[0]
        torchs = getattr(torch, f"{cell.name}_cell")
        result = own(torchs, input, states, w_ih, w_hh, b_ih, b_hh)
        return result if cell is LSTM else (result, None)
    name = f"{cell.name}_cell"
    _checks.operands(name, input=input, **{f"hx[{i}]": state for i, state in enumerate(hx)})
    _checks.generator(name, generator)
    rows = [(*input.shape[:-1], w_hh.shape[-1])] * cell.states
    if len(w_ih) != len(w_hh) or [tuple(state.shape) for state in hx] != rows:
        raise ValueError(
            f"{name}: input has shape {tuple(input.shape)}, hx {[tuple(x.shape) for x in hx]}, "
            f"w_ih {tuple(w_ih.shape)} and w_hh {tuple(w_hh.shape)}; expected (N, in), (N, H) "
            f"each, ({cell.gates} H, in), ({cell.gates} H, H)"
        )
    if recipe.axes:
        check_axes(recipe, ranks(name, not (b_ih is None and b_hh is None)))
    first = seeds.seed_for(recipe.is_stochastic, generator)
    second = seeds.seed_of_product(first, 1)
    zx = linear(input, w_ih, b_ih, recipe=recipe, generator=first, backend=backend)
    zh = linear(hx[0], w_hh, b_hh, recipe=recipe, generator=second, backend=backend)
    c = hx[1].float() if len(hx) == 2 else None
    return cell.forward(zx, zh, hx[0].float(), c)[:2]
