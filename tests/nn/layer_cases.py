"""The table of layers: one small layer of every class that can be converted, its inputs, and the
ranks of its tensors; steps of a layer, and comparisons with another run of it."""

import copy
import io
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import lpkernels as lp
from tests.support.autograd import same


class Layer(NamedTuple):
    """One layer of torch.nn.

    make: a new layer.  inputs: its inputs with n rows.  function: the name of the function that
        computes it.
    ranks: of input, weight, bias and output; 0 where a call alone tells.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[torch.Tensor, ...]]
    function: str
    ranks: tuple[int, int, int, int]


def _random(*shapes: tuple[int, ...]) -> Callable[[int], tuple[torch.Tensor, ...]]:
    return lambda n: tuple(torch.randn(n, *shape) for shape in shapes)


def _indices(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randint(0, 7, (n, 2)),)


LAYERS: dict[str, Layer] = {
    "Linear": Layer(partial(nn.Linear, 5, 3), _random((5,)), "linear", (0, 2, 1, 0)),
    "Bilinear": Layer(partial(nn.Bilinear, 5, 4, 3), _random((5,), (4,)), "bilinear", (2, 2, 1, 2)),
    "Embedding": Layer(partial(nn.Embedding, 7, 5), _indices, "embedding", (0, 2, 0, 0)),
    "MultiheadAttention": Layer(
        partial(nn.MultiheadAttention, 8, 2, batch_first=True), _random((4, 8), (3, 8), (3, 8)),
        "multi_head_attention_forward", (3, 2, 1, 3)),
    "LSTM": Layer(partial(nn.LSTM, 5, 6, proj_size=3, batch_first=True), _random((2, 5)),
                  "lstm", (2, 2, 1, 2)),
    "GRU": Layer(partial(nn.GRU, 5, 6, batch_first=True), _random((2, 5)), "gru", (2, 2, 1, 2)),
    "RNN": Layer(partial(nn.RNN, 5, 6, nonlinearity="relu", batch_first=True), _random((2, 5)),
                 "rnn_relu", (2, 2, 1, 2)),
    "LSTMCell": Layer(partial(nn.LSTMCell, 5, 6), _random((5,)), "lstm_cell", (2, 2, 1, 2)),
    "GRUCell": Layer(partial(nn.GRUCell, 5, 6), _random((5,)), "gru_cell", (2, 2, 1, 2)),
    "RNNCell": Layer(partial(nn.RNNCell, 5, 6), _random((5,)), "rnn_tanh_cell", (2, 2, 1, 2)),
    "Conv1d": Layer(partial(nn.Conv1d, 2, 4, 3, padding="same"), _random((2, 7)),
                    "conv1d", (3, 3, 1, 3)),
    "Conv2d": Layer(
        partial(nn.Conv2d, 2, 4, 3, stride=2, padding=1, padding_mode="reflect"),
        _random((2, 5, 6)), "conv2d", (4, 4, 1, 4)),
    "Conv3d": Layer(partial(nn.Conv3d, 2, 4, 2, groups=2), _random((2, 3, 4, 3)),
                    "conv3d", (5, 5, 1, 5)),
    "ConvTranspose1d": Layer(
        partial(nn.ConvTranspose1d, 2, 4, 3, stride=2, output_padding=1), _random((2, 7)),
        "conv_transpose1d", (3, 3, 1, 3)),
    "ConvTranspose2d": Layer(partial(nn.ConvTranspose2d, 2, 4, 3), _random((2, 5, 6)),
                             "conv_transpose2d", (4, 4, 1, 4)),
    "ConvTranspose3d": Layer(partial(nn.ConvTranspose3d, 2, 4, 2), _random((2, 2, 3, 2)),
                             "conv_transpose3d", (5, 5, 1, 5)),
    "BatchNorm1d": Layer(partial(nn.BatchNorm1d, 4), _random((4,)), "batch_norm", (0, 1, 1, 0)),
    "BatchNorm2d": Layer(partial(nn.BatchNorm2d, 4), _random((4, 3, 2)),
                         "batch_norm", (4, 1, 1, 4)),
    "BatchNorm3d": Layer(partial(nn.BatchNorm3d, 4), _random((4, 2, 2, 3)),
                         "batch_norm", (5, 1, 1, 5)),
    "LayerNorm": Layer(partial(nn.LayerNorm, 8), _random((4, 8)), "layer_norm", (0, 1, 1, 0)),
    "GroupNorm": Layer(partial(nn.GroupNorm, 2, 4), _random((4, 3)), "group_norm", (0, 1, 1, 0)),
    "RMSNorm": Layer(partial(nn.RMSNorm, 8), _random((4, 8)), "rms_norm", (0, 1, 0, 0)),
    "Softmax": Layer(partial(nn.Softmax, -1), _random((4, 8)), "softmax", (0, 0, 0, 0)),
}  # fmt: skip
#: Layers that compute by the function of another one, in other dimensions or with other gates, and
#: those that take long to trace.
SLOW_TO_COMPILE = """
    MultiheadAttention LSTM GRU RNN GRUCell RNNCell Conv1d Conv3d ConvTranspose1d ConvTranspose3d
    BatchNorm1d BatchNorm3d
""".split()
#: The layers with one input and products, which can have a running range and delayed scales.
ONE_INPUT = ["Linear", *(f"Conv{kind}{n}d" for kind in ("", "Transpose") for n in (1, 2, 3))]
every_layer = pytest.mark.parametrize("name", LAYERS)


def plain(name: str) -> nn.Module:
    """torch.nn's layer of this name, the same at each call."""
    torch.manual_seed(7)
    return LAYERS[name].make()


def converted(name: str, recipe: lp.Recipe) -> Any:
    layer = plain(name)
    return lp.convert(layer, {type(layer): recipe})


def inputs(name: str, n: int = 5) -> tuple[torch.Tensor, ...]:
    """Inputs with n rows for the layer of this name, the same at each call."""
    torch.manual_seed(n)
    return LAYERS[name].inputs(n)


def first(y: Any) -> torch.Tensor:
    """The first tensor of a layer's result."""
    while not isinstance(y, torch.Tensor):
        y = y[0]
    return y


def leaves(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Copies of the tensors, which require a gradient unless they are indices."""
    return tuple(t.clone().requires_grad_(t.is_floating_point()) for t in tensors)


def step(layer: nn.Module, run: Callable[..., Any], *args: torch.Tensor) -> list[torch.Tensor]:
    """The output of run and the gradients of inputs and parameters, from one seed."""
    args = leaves(args)
    torch.manual_seed(5)
    y = first(run(*args))
    y.square().sum().backward()
    wanted = [t for t in (*args, *layer.parameters()) if t.requires_grad]
    found = [y.detach(), *(torch.zeros(()) if t.grad is None else t.grad for t in wanted)]
    layer.zero_grad()
    return found


def assert_steps_alike(
    layer: nn.Module, run: Callable[..., Any], *args: torch.Tensor, other: Any = None
) -> None:
    """run has the output and the gradients of the layer itself, or of another layer."""
    other = layer if other is None else other
    same(step(layer, run, *args), step(other, other, *args))


def twins(module: Any) -> list[Any]:
    """The module as copy.deepcopy, pickle and torch.save copy it."""
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    return [copy.deepcopy(module), pickle.loads(pickle.dumps(module)), saved]


def changed(recipe: lp.Recipe, **fields: Any) -> lp.Recipe:
    """The recipe with other fields, which may be text."""
    made = lp.Recipe(**fields)
    return replace(recipe, **{name: getattr(made, name) for name in fields})
