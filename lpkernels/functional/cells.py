"""The float32 part of recurrent cells, between their products, and its gradient.

A cell gets two products for its gates, one of the input and one of the hidden state, each (N, gates
* H) with its bias, in torch's order of the gates. The gradients have the bits that torch's autograd
gives for the same formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from lpkernels.arithmetic import Ranks

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
