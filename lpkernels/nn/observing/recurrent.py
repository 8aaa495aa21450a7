"""Recurrent layers step by step, so that each of their products can be looked at.

A gate's two products are kept apart: the input's is one product over all steps; the hidden state's
is one per step whose weight gradient is one sum over all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lpkernels.functional.cells import Cell

# (x, w, b, name) -> x @ w.T + b, and the same for one step of a series that belongs together.
Linear = Callable[[Tensor, Tensor, Tensor | None, str], Tensor]


def stepped(cell: Cell, zx: Tensor, zh: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The new state, from the two products of the gates."""
    h, c, _ = cell.forward(zx, zh, state[0], state[1] if len(state) > 1 else None)
    return (h,) if c is None else (h, c)


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
                current = stepped(cell, zx[t], zh, current)
                steps.append(current[0])
            last.append(current)
            outputs.append(torch.stack(steps[::-1] if reverse else steps))
        x = torch.cat(outputs, dim=-1)
        if dropout and layer + 1 < layers:
            x = torch.dropout(x, dropout, train)
    return x, tuple(torch.stack(parts) for parts in zip(*last, strict=True))
