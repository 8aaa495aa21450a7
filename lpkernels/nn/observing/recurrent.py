"""Recurrent layers step by step, so that each of their products can be looked at.

The equations are those of torch.nn.RNN, LSTM and GRU. A gate's two products are kept apart: the
input's is one product over all steps; the hidden state's is one per step whose weight gradient is
one sum over all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# (x, w, b, name) -> x @ w.T + b, and the same for one step of a series that belongs together.
Linear = Callable[[Tensor, Tensor, Tensor | None, str], Tensor]
Cell = Callable[[Tensor, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]


def lstm_cell(zx: Tensor, zh: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    i, f, g, o = (zx + zh).chunk(4, dim=-1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru_cell(zx: Tensor, zh: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    rx, zx_, nx = zx.chunk(3, dim=-1)
    rh, zh_, nh = zh.chunk(3, dim=-1)
    n = torch.tanh(nx + torch.sigmoid(rx + rh) * nh)
    z = torch.sigmoid(zx_ + zh_)
    return (n + z * (state[0] - n),)


def tanh_cell(zx: Tensor, zh: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (torch.tanh(zx + zh),)


def relu_cell(zx: Tensor, zh: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (torch.relu(zx + zh),)


CELLS: dict[str, Cell] = {
    "lstm": lstm_cell,
    "gru": gru_cell,
    "rnn_tanh": tanh_cell,
    "rnn_relu": relu_cell,
}


def recurrent(
    cell: Cell,
    x: Tensor,
    state: tuple[Tensor, ...],
    weights: Sequence[Tensor],
    *,
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    both: bool,
    linear: Linear,
    step_linear: Linear,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """All layers and directions over x (T, N, I); state (layers * directions, N, H) each.

    Returns (T, N, directions * H) and the last state.
    """
    per = 4 if biases else 2
    last: list[tuple[Tensor, ...]] = []
    for layer in range(layers):
        outputs = []
        for reverse in (False, True) if both else (False,):
            index = len(last)
            w_ih, w_hh, *b = weights[index * per : (index + 1) * per]
            b_ih, b_hh = b if biases else (None, None)
            name = f"l{layer}{'_reverse' if reverse else ''}"
            zx = linear(x, w_ih, b_ih, f"ih_{name}")
            current = tuple(s[index] for s in state)
            steps: list[Tensor] = []
            for t in reversed(range(len(x))) if reverse else range(len(x)):
                zh = step_linear(current[0], w_hh, b_hh, f"hh_{name}")
                current = cell(zx[t], zh, current)
                steps.append(current[0])
            last.append(current)
            outputs.append(torch.stack(steps[::-1] if reverse else steps))
        x = torch.cat(outputs, dim=-1)
        if dropout and layer + 1 < layers:
            x = torch.dropout(x, dropout, train)
    return x, tuple(torch.stack(parts) for parts in zip(*last, strict=True))
