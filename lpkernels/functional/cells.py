"""The float32 part of recurrent cells, between their products, and its gradient; the shapes of
their states and weights.

A cell gets two products for its gates, one of the input and one of the hidden state, each (N, gates
* H) with its bias, in torch's order of the gates. The gradients have the bits that torch's autograd
gives for the same formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from lpkernels.arithmetic import Ranks
from lpkernels.functional import _checks

_aten = torch.ops.aten


class Step(NamedTuple):
    """The new state, and the tensors that the gradient reads."""

    h: Tensor
    c: Tensor | None
    tensors: tuple[Tensor, ...]


class Gradients(NamedTuple):
    """Both products' gradients, and the part of the old state's gradient that comes by no
    product."""

    zx: Tensor
    zh: Tensor
    h: Tensor | None
    c: Tensor | None


class Cell(Protocol):
    name: str
    gates: int
    states: int

    def forward(self, zx: Tensor, zh: Tensor, h: Tensor, c: Tensor | None) -> Step: ...

    def backward(self, tensors: tuple[Tensor, ...], dh: Tensor, dc: Tensor | None) -> Gradients: ...


def ranks(name: str, has_biases: bool) -> Ranks:
    """The ranks of the products' tensors; the rows of all steps are one matrix."""
    return Ranks(name, 2, 2, 1 if has_biases else None, 2)


class OneGateCell:
    """h' = function(zx + zh); gradient(dh, h') is the function's derivative times dh."""

    gates, states = 1, 1

    def __init__(
        self,
        name: str,
        function: Callable[[Tensor], Tensor],
        gradient: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        self.name, self.function, self.gradient = name, function, gradient

    def forward(self, zx: Tensor, zh: Tensor, h: Tensor, c: Tensor | None) -> Step:
        h = self.function(zx + zh)
        return Step(h, None, (h,))

    def backward(self, tensors: tuple[Tensor, ...], dh: Tensor, dc: Tensor | None) -> Gradients:
        dz = self.gradient(dh, tensors[0])
        return Gradients(dz, dz, None, None)


def _relu_backward(dh: Tensor, h: Tensor) -> Tensor:
    return torch.where(h <= 0, 0, dh)


class LSTMCell:
    """c' = f c + i g, h' = o tanh(c'), with (i, f, g, o) = (sigma, sigma, tanh, sigma)(zx + zh)"""

    name = "lstm"
    gates, states = 4, 2

    def forward(self, zx: Tensor, zh: Tensor, h: Tensor, c: Tensor | None) -> Step:
        assert c is not None
        zi, zf, zg, zo = (zx + zh).chunk(4, -1)
        i, f, g, o = zi.sigmoid(), zf.sigmoid(), zg.tanh(), zo.sigmoid()
        new = f * c + i * g
        tanh = new.tanh()
        return Step(o * tanh, new, (i, f, g, o, c, tanh))

    def backward(self, tensors: tuple[Tensor, ...], dh: Tensor, dc: Tensor | None) -> Gradients:
        i, f, g, o, c, tanh = tensors
        inner = _aten.tanh_backward(dh * o, tanh)
        inner = inner if dc is None else dc + inner
        di = _aten.sigmoid_backward(inner * g, i)
        df = _aten.sigmoid_backward(inner * c, f)
        dg = _aten.tanh_backward(inner * i, g)
        do = _aten.sigmoid_backward(dh * tanh, o)
        dz = torch.cat([di, df, dg, do], -1)
        return Gradients(dz, dz, None, inner * f)


class GRUCell:
    """h' = n + z (h - n), with r, z = sigma(zx + zh), n = tanh(zx + r zh), each of its own part"""

    name = "gru"
    gates, states = 3, 1

    def forward(self, zx: Tensor, zh: Tensor, h: Tensor, c: Tensor | None) -> Step:
        (xr, xz, xn), (hr, hz, hn) = zx.chunk(3, -1), zh.chunk(3, -1)
        r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
        n = (xn + r * hn).tanh()
        return Step(n + z * (h - n), None, (r, z, n, hn, h))

    def backward(self, tensors: tuple[Tensor, ...], dh: Tensor, dc: Tensor | None) -> Gradients:
        r, z, n, hn, h = tensors
        direct = dh * z
        dn = _aten.tanh_backward(dh - direct, n)
        dr = _aten.sigmoid_backward(dn * hn, r)
        dz = _aten.sigmoid_backward(dh * (h - n), z)
        dzx, dzh = torch.cat([dr, dz, dn], -1), torch.cat([dr, dz, dn * r], -1)
        return Gradients(dzx, dzh, direct, None)


RNN_TANH = OneGateCell("rnn_tanh", torch.tanh, _aten.tanh_backward)
RNN_RELU = OneGateCell("rnn_relu", torch.relu, _relu_backward)
LSTM, GRU = LSTMCell(), GRUCell()
#: By the names of torch's functions.
CELLS: dict[str, Cell] = {cell.name: cell for cell in (RNN_TANH, RNN_RELU, LSTM, GRU)}


def states_of(function: str, hx: object) -> dict[str, Tensor]:
    """The state h, or h and c, by the names of errors."""
    if isinstance(hx, tuple | list):
        return {f"hx[{i}]": state for i, state in enumerate(hx)}
    _checks.tensor(function, "hx", hx)
    return {"hx": hx}  # type: ignore[dict-item]


def parts_of(cell: Cell, count: int, has_biases: bool, directions: int) -> tuple[str, ...]:
    """The names of one direction's weights, of `count` weights of all layers and directions."""
    parts = ("w_ih", "w_hh", "b_ih", "b_hh") if has_biases else ("w_ih", "w_hh")
    size = count // directions if directions else 0
    least, may_project = len(parts), cell is LSTM
    if may_project and size == least + 1:
        parts = (*parts, "w_hr")
    if size != len(parts) or size * directions != count:
        raise ValueError(
            f"{cell.name}: got {count} weights for {directions} layers and directions; expected "
            f"{least} each{', or one more for a projection' if may_project else ''}"
        )
    return parts


def widths_of(
    cell: Cell, function: str, name: str, w_hh: Tensor, projects: bool = False
) -> tuple[int, int]:
    """H_out and H, from w_hh (gates * H, H_out)."""
    shape = tuple(w_hh.shape)
    if (
        len(shape) != 2
        or shape[0] % cell.gates
        or not (projects or shape[0] == cell.gates * shape[1])
    ):
        raise ValueError(
            f"{function}: {name} has shape {shape}; expected ({cell.gates} * H, H)"
            + (f", or ({cell.gates} * H, H_out) with w_hr (H_out, H)" if function == "lstm" else "")
        )
    return shape[1], shape[0] // cell.gates


def check_states(
    cell: Cell,
    function: str,
    states: Mapping[str, Tensor],
    leading: Sequence[int],
    widths: tuple[int, int],
) -> None:
    """h (*leading, H_out), and c (*leading, H) of a cell that has it."""
    expected = [(*leading, width) for width in widths][: cell.states]
    shapes = [tuple(state.shape) for state in states.values()]
    if shapes != expected:
        raise ValueError(
            f"{function}: the states have the shapes {shapes}; expected {expected}, by the shapes "
            "of input and w_hh"
        )


def check_weight(
    cell: Cell,
    function: str,
    name: str,
    part: str,
    w: Tensor,
    features: int,
    widths: tuple[int, int],
) -> None:
    """The shape of a weight or a bias, by the name of its part of a direction."""
    out, hidden = widths
    rows = cell.gates * hidden
    matrices = {
        "w_ih": ((rows, features), "(gates * H, in)"),
        "w_hh": ((rows, out), "(gates * H, H_out)"),
        "w_hr": ((out, hidden), "(H_out, H)"),
    }
    shape, meaning = matrices.get(part, ((rows,), "(gates * H,)"))
    _checks.shape(function, name, w, shape, meaning)
