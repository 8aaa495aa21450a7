"""One small layer of every class that can be converted, and inputs for it."""

import copy
import io
import pickle
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

import lpkernels as lp
from tests.compare import assert_bit_equal

Inputs = Callable[[int], tuple[torch.Tensor, ...]]


def _random(*shapes: tuple[int, ...]) -> Inputs:
    return lambda n: tuple(torch.randn(n, *shape) for shape in shapes)


# How each layer is made, and its inputs with n rows.
LAYERS: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "Linear": (partial(nn.Linear, 5, 3), _random((5,))),
    "Bilinear": (partial(nn.Bilinear, 5, 4, 3), _random((5,), (4,))),
    "Embedding": (partial(nn.Embedding, 7, 5), lambda n: (torch.randint(0, 7, (n, 2)),)),
    "MultiheadAttention": (partial(nn.MultiheadAttention, 8, 2, batch_first=True),
                           _random((4, 8), (3, 8), (3, 8))),
    "LSTM": (partial(nn.LSTM, 5, 6, proj_size=3, batch_first=True), _random((2, 5))),
    "GRU": (partial(nn.GRU, 5, 6, batch_first=True), _random((2, 5))),
    "RNN": (partial(nn.RNN, 5, 6, nonlinearity="relu", batch_first=True), _random((2, 5))),
    "LSTMCell": (partial(nn.LSTMCell, 5, 6), _random((5,))),
    "GRUCell": (partial(nn.GRUCell, 5, 6), _random((5,))),
    "RNNCell": (partial(nn.RNNCell, 5, 6), _random((5,))),
    "Conv1d": (partial(nn.Conv1d, 2, 4, 3, padding="same"), _random((2, 7))),
    "Conv2d": (partial(nn.Conv2d, 2, 4, 3, stride=2, padding=1, padding_mode="reflect"),
               _random((2, 5, 6))),
    "Conv3d": (partial(nn.Conv3d, 2, 4, 2, groups=2), _random((2, 3, 4, 3))),
    "ConvTranspose1d": (partial(nn.ConvTranspose1d, 2, 4, 3, stride=2, output_padding=1),
                        _random((2, 7))),
    "ConvTranspose2d": (partial(nn.ConvTranspose2d, 2, 4, 3), _random((2, 5, 6))),
    "ConvTranspose3d": (partial(nn.ConvTranspose3d, 2, 4, 2), _random((2, 2, 3, 2))),
    "BatchNorm1d": (partial(nn.BatchNorm1d, 4), _random((4,))),
    "BatchNorm2d": (partial(nn.BatchNorm2d, 4), _random((4, 3, 2))),
    "BatchNorm3d": (partial(nn.BatchNorm3d, 4), _random((4, 2, 2, 3))),
    "LayerNorm": (partial(nn.LayerNorm, 8), _random((4, 8))),
    "GroupNorm": (partial(nn.GroupNorm, 2, 4), _random((4, 3))),
    "RMSNorm": (partial(nn.RMSNorm, 8), _random((4, 8))),
    "Softmax": (partial(nn.Softmax, -1), _random((4, 8))),
    "GELU": (nn.GELU, _random((4, 8))),
}  # fmt: skip
#: Layers that compute by the function of another one, in other dimensions or with other gates, and
#: those that take long to trace.
SLOW_TO_COMPILE = """
    MultiheadAttention LSTM GRU RNN GRUCell RNNCell Conv1d Conv3d ConvTranspose1d ConvTranspose3d
    BatchNorm1d BatchNorm3d
""".split()


def plain(name: str) -> nn.Module:
    """torch.nn's layer of this name, the same at each call."""
    torch.manual_seed(7)
    return LAYERS[name][0]()


def converted(name: str, recipe: lp.Recipe) -> Any:
    layer = plain(name)
    return lp.convert(layer, {type(layer): recipe})


def inputs(name: str, n: int = 5) -> tuple[torch.Tensor, ...]:
    """Inputs with n rows for the layer of this name, the same at each call."""
    torch.manual_seed(n)
    return LAYERS[name][1](n)


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


def same(got: Iterable[torch.Tensor], want: Iterable[torch.Tensor]) -> None:
    """The tensors are alike to the bit."""
    for a, c in zip(got, want, strict=True):
        assert_bit_equal(a, c)


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
