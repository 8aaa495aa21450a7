"""Recurrent layers under a Recipe."""

from __future__ import annotations

from typing import Any

import torch

from lpkernels.arithmetic import Ranks, Recipe
from lpkernels.functional.cells import ranks
from lpkernels.nn.calls import Calls
from lpkernels.nn.emulated import Emulated, like_torch

Place = torch.device | str | None


class _Recurrent(Emulated):
    """torch.nn's own forward, which checks and arranges, with the function it ends in emulated."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        with Calls(self._arithmetic):
            return super().forward(input, hx)


class _Layers(_Recurrent):
    """The constructor of the layers; torch.nn's has no names for its arguments."""

    def __init__(self, *args: Any, recipe: Recipe | str = "fp32", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recipe = recipe

    def _ranks(self) -> tuple[Ranks, ...]:
        layer: Any = self
        return (ranks(layer.mode.lower(), layer.bias),)


@like_torch
class LSTM(_Layers, torch.nn.LSTM):
    """``torch.nn.LSTM`` computed by ``lpkernels.functional.lstm``."""


@like_torch
class GRU(_Layers, torch.nn.GRU):
    """``torch.nn.GRU`` computed by ``lpkernels.functional.gru``."""


@like_torch
class RNN(_Layers, torch.nn.RNN):
    """``torch.nn.RNN`` computed by ``lpkernels.functional.rnn_tanh`` or ``rnn_relu``."""


class _GatedCell(_Recurrent):
    """The constructor of the two cells with gates, which have the same arguments."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Place = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "fp32",
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.recipe = recipe


@like_torch
class LSTMCell(_GatedCell, torch.nn.LSTMCell):
    """``torch.nn.LSTMCell`` computed by ``lpkernels.functional.lstm_cell``."""

    def _ranks(self) -> tuple[Ranks, ...]:
        return (ranks("lstm_cell", self.bias),)


@like_torch
class GRUCell(_GatedCell, torch.nn.GRUCell):
    """``torch.nn.GRUCell`` computed by ``lpkernels.functional.gru_cell``."""

    def _ranks(self) -> tuple[Ranks, ...]:
        return (ranks("gru_cell", self.bias),)


@like_torch
class RNNCell(_Recurrent, torch.nn.RNNCell):
    """``torch.nn.RNNCell`` computed by ``lpkernels.functional.rnn_tanh_cell`` or
    ``rnn_relu_cell``.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Place = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | str = "fp32",
    ) -> None:
        super().__init__(input_size, hidden_size, bias, nonlinearity, device, dtype)
        self.recipe = recipe

    def _ranks(self) -> tuple[Ranks, ...]:
        return (ranks(f"rnn_{self.nonlinearity}_cell", self.bias),)
