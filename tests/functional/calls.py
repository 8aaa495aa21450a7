"""A call of every function that takes a recipe; torch has a function of the same name."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import lpkernels as lp
from tests.support.autograd import leaves


class Call(NamedTuple):
    """A call of the function `name` with tensors of these shapes.

    ranks: the dimensions of the input, the weight, the bias and the output, the fewest where
    products of one call differ, and 0 for a tensor that the function does not round. arguments: the
    positional arguments that the tensors stand in.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    ranks: tuple[int, int, int, int] = (0, 0, 0, 0)
    arguments: Callable[..., tuple[Any, ...]] = lambda *tensors: tensors
    options: dict[str, Any] = {}  # noqa: RUF012  (of a tuple, and never changed)

    def tensors(self, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """Normal numbers that require a gradient."""
        return leaves(*self.shapes, dtype=dtype)

    def __call__(self, *tensors: Tensor, **how: Any) -> Any:
        function = getattr(lp.functional, self.name)
        return function(*self.arguments(*tensors), **self.options, **how)

    def torchs(self, *tensors: Tensor) -> Any:
        """The result of torch's own function."""
        function = getattr(torch.nn.functional, self.name, None) or getattr(torch, self.name)
        return function(*self.arguments(*tensors), **self.options)

    def rounded(self) -> dict[str, int]:
        """The dimensions of every tensor of a recipe that the function rounds."""
        names = ("input", "weight", "bias", "output")
        ranks = dict(zip(names, self.ranks, strict=True))
        gradients = {f"grad_{name}": ranks[name] for name in ("input", "weight", "output")}
        return {name: rank for name, rank in (ranks | gradients).items() if rank}


INDICES = torch.tensor([[0, 1]])
STRIDED = {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}
LAYERS = {"has_biases": True, "num_layers": 1, "dropout": 0.0, "train": False}
LAYERS |= {"bidirectional": False, "batch_first": False}


def _heads(*tensors: Tensor) -> tuple[Any, ...]:
    query, key, value, w, b, w_out, b_out = tensors
    return (query, key, value, 4, 2, w, b, None, None, False, 0.0, w_out, b_out)


CALLS = {
    "linear": Call("linear", ((2, 3, 4), (3, 4), (3,)), (3, 2, 1, 3)),
    "linear of a vector": Call("linear", ((4,), (3, 4), (3,)), (2, 2, 1, 2)),
    "conv1d": Call("conv1d", ((2, 3, 5), (4, 3, 2), (4,)), (3, 3, 1, 3)),
    "conv2d": Call(
        "conv2d", ((2, 6, 5, 4), (4, 3, 3, 2), (4,)), (4, 4, 1, 4),
        options={"padding": "same", "groups": 2},
    ),
    # An image alone is rounded as a batch of one.
    "conv3d": Call("conv3d", ((3, 4, 4, 4), (4, 3, 2, 2, 2), (4,)), (5, 5, 1, 5)),
    "conv_transpose2d": Call(
        "conv_transpose2d", ((2, 4, 3, 4), (4, 2, 3, 3), (4,)), (4, 4, 1, 4), options=STRIDED
    ),
    "bilinear": Call("bilinear", ((2, 5, 3), (2, 5, 4), (6, 3, 4), (6,)), (2, 2, 1, 2)),
    "embedding": Call("embedding", ((3, 4),), (0, 2, 0, 3), lambda w: (INDICES, w)),
    "bmm": Call("bmm", ((2, 3, 4), (2, 4, 3)), (3, 3, 0, 3)),
    "baddbmm": Call("baddbmm", ((3,), (2, 3, 4), (2, 4, 3)), (3, 3, 1, 3)),
    "baddbmm scaled": Call(
        "baddbmm", ((2, 1, 4), (2, 3, 7), (2, 7, 4)), (3, 3, 3, 3),
        options={"beta": 0.7, "alpha": 0.3},
    ),
    "addmm": Call("addmm", ((3,), (3, 4), (4, 3)), (2, 2, 1, 2)),
    "matmul": Call("matmul", ((2, 3, 4), (4, 3)), (3, 2, 0, 3)),
    "einsum": Call("einsum", ((3, 4), (4, 3)), (3, 3, 0, 3), lambda a, b: ("ij,jk->ik", a, b)),
    "scaled_dot_product_attention": Call(
        "scaled_dot_product_attention", ((2, 3, 4), (2, 5, 4), (2, 5, 4)), (3, 3, 0, 3)
    ),
    "multi_head_attention_forward": Call(
        "multi_head_attention_forward",
        ((5, 3, 4), (6, 3, 4), (6, 3, 4), (12, 4), (12,), (4, 4), (4,)), (3, 2, 1, 3), _heads,
    ),
    "lstm": Call(
        "lstm", ((5, 2, 4), (1, 2, 3), (1, 2, 3), (12, 4), (12, 3), (12,), (12,)), (2, 2, 1, 2),
        lambda x, h, c, *w: (x, (h, c), w), LAYERS,
    ),
    "gru": Call(
        "gru", ((5, 2, 4), (1, 2, 3), (9, 4), (9, 3), (9,), (9,)), (2, 2, 1, 2),
        lambda x, h, *w: (x, h, w), LAYERS,
    ),
    "rnn_relu": Call(
        "rnn_relu", ((5, 2, 4), (1, 2, 3), (3, 4), (3, 3), (3,), (3,)), (2, 2, 1, 2),
        lambda x, h, *w: (x, h, w), LAYERS,
    ),
    "lstm_cell": Call(
        "lstm_cell", ((3, 4), (3, 3), (3, 3), (12, 4), (12, 3), (12,), (12,)), (2, 2, 1, 2),
        lambda x, h, c, *w: (x, (h, c), *w),
    ),
    "layer_norm": Call(
        "layer_norm", ((3, 4, 5), (4, 5), (4, 5)), (3, 2, 2, 3), lambda x, w, b: (x, (4, 5), w, b)
    ),
    "rms_norm": Call("rms_norm", ((3, 4), (4,)), (2, 1, 0, 2), lambda x, w: (x, (4,), w)),
    "group_norm": Call(
        "group_norm", ((3, 4, 5), (4,), (4,)), (3, 1, 1, 3), lambda x, w, b: (x, 2, w, b)
    ),
    "batch_norm": Call(
        "batch_norm", ((3, 4), (4,), (4,)), (2, 1, 1, 2),
        lambda x, w, b: (x, None, None, w, b, True),
    ),
    "softmax": Call("softmax", ((3, 4),), (2, 0, 0, 2), options={"dim": -1}),
}  # fmt: skip
