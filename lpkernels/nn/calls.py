"""Products that a model calls as functions, emulated while a module's forward runs.

Each module with a forward of its own enters `Calls` in its forward. So nothing outside the model is
changed, threads do not see each other's mode, and a caller that runs one module alone (activation
checkpointing, FSDP) finds the same arithmetic. torch.compile traces through it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lpkernels import functional
from lpkernels.arithmetic import Recipe
from lpkernels.functional.torch_calls import own, own_instead
from lpkernels.nn.emulated import Emulated

Handler = Callable[..., Any]


def _matmul(input: Tensor, other: Tensor, *, recipe: Recipe) -> Tensor:
    return functional.matmul(input, other, recipe=recipe)


def _reflected_matmul(self: Tensor, other: Tensor, *, recipe: Recipe) -> Tensor:
    return functional.matmul(other, self, recipe=recipe)


def _mm(input: Tensor, mat2: Tensor, *, recipe: Recipe) -> Tensor:
    return functional.matmul(input, mat2, recipe=recipe)


def _bmm(input: Tensor, mat2: Tensor, *, recipe: Recipe) -> Tensor:
    return functional.bmm(input, mat2, recipe=recipe)


def _addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    recipe: Recipe,
) -> Tensor:
    return functional.addmm(input, mat1, mat2, beta=beta, alpha=alpha, recipe=recipe)


def _baddbmm(
    input: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    recipe: Recipe,
) -> Tensor:
    return functional.baddbmm(input, batch1, batch2, beta=beta, alpha=alpha, recipe=recipe)


def _einsum(equation: str, *operands: Any, recipe: Recipe) -> Tensor:
    return functional.einsum(equation, *_einsum_operands(operands), recipe=recipe)


def _einsum_operands(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """torch.einsum takes them one by one or as one list."""
    listed = len(operands) == 1 and not isinstance(operands[0], Tensor)
    return tuple(operands[0]) if listed else operands


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, *, recipe: Recipe) -> Tensor:
    return functional.linear(input, weight, bias, recipe=recipe)


def _bilinear(
    input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None, *, recipe: Recipe
) -> Tensor:
    return functional.bilinear(input1, input2, weight, bias, recipe=recipe)


def _convolution(emulated: Callable[..., Tensor]) -> Handler:
    def convolve(input: Tensor, *args: Any, recipe: Recipe, **numbers: Any) -> Tensor:
        return emulated(input, *args, **numbers, recipe=recipe)

    return convolve


def _recurrent(emulated: Callable[..., Any]) -> Handler:
    """torch's function has a form for padded sequences and one for packed ones."""

    def layers(input: Tensor, second: Any, third: Any, *args: Any, recipe: Recipe) -> Any:
        if not isinstance(args[0], bool):
            return emulated(input, third, *args, batch_sizes=second, recipe=recipe)
        return emulated(input, second, third, *args, recipe=recipe)

    return layers


_HANDLERS: dict[Callable[..., Any], Handler] = {
    torch.matmul: _matmul,
    Tensor.matmul: _matmul,
    Tensor.__matmul__: _matmul,
    Tensor.__rmatmul__: _reflected_matmul,
    torch.mm: _mm,
    Tensor.mm: _mm,
    torch.bmm: _bmm,
    Tensor.bmm: _bmm,
    torch.addmm: _addmm,
    Tensor.addmm: _addmm,
    torch.baddbmm: _baddbmm,
    Tensor.baddbmm: _baddbmm,
    torch.einsum: _einsum,
    F.linear: _linear,
    F.bilinear: _bilinear,
    F.scaled_dot_product_attention: functional.scaled_dot_product_attention,
    F.multi_head_attention_forward: functional.multi_head_attention_forward,
    torch.lstm: _recurrent(functional.lstm),
    torch.gru: _recurrent(functional.gru),
    torch.rnn_tanh: _recurrent(functional.rnn_tanh),
    torch.rnn_relu: _recurrent(functional.rnn_relu),
    torch.lstm_cell: functional.lstm_cell,
    torch.gru_cell: functional.gru_cell,
    torch.rnn_tanh_cell: functional.rnn_tanh_cell,
    torch.rnn_relu_cell: functional.rnn_relu_cell,
    F.conv1d: _convolution(functional.conv1d),
    F.conv2d: _convolution(functional.conv2d),
    F.conv3d: _convolution(functional.conv3d),
    F.conv_transpose1d: _convolution(functional.conv_transpose1d),
    F.conv_transpose2d: _convolution(functional.conv_transpose2d),
    F.conv_transpose3d: _convolution(functional.conv_transpose3d),
}

PRODUCTS = frozenset(function.__name__ for function in _HANDLERS)
"""The names of these functions."""


def emulates(func: Any) -> bool:
    """Whether `Calls` computes products of this function of torch."""
    return func in _HANDLERS


_ATTENTION = (F.scaled_dot_product_attention, F.multi_head_attention_forward)
_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


class Calls(TorchFunctionMode):
    """Inside this mode the products of `_HANDLERS` are computed by the recipe, or, where the recipe
    is torch's own arithmetic, by torch, whatever mode is entered around it."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        handler = _HANDLERS.get(func)
        if handler is None:
            return func(*args, **options)
        if self.recipe.is_torch or not _is_emulated(func, args, options):
            return own(func, *args, **options)
        return own_instead(func, handler, args, {**options, "recipe": self.recipe})


def _is_emulated(func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Whether this call has a meaning under a recipe: dense floating operands, a new result.

    Raises: RuntimeError: an operand is float64. (Python hides a TypeError raised inside ``@``.)
    """
    if "out" in options or "out_dtype" in options:
        return False
    operands = args
    if func in _ATTENTION:
        # The masks are of any dtype.
        operands, options = args[:3], {k: v for k, v in options.items() if "mask" not in k}
    if func in _RECURRENT:
        # The arguments that follow may be the sizes of a packed sequence.
        operands = args[:1]
    if func is torch.einsum:
        operands = _einsum_operands(args[1:])
        if len(operands) != 2:
            return False
    values = (*operands, *options.values())
    tensors = [x for x in values if isinstance(x, Tensor)]
    if not all([x.dtype.is_floating_point and x.layout is torch.strided for x in tensors]):
        return False
    if any([x.dtype == torch.float64 for x in tensors]):
        raise RuntimeError(
            f"{getattr(func, '__name__', func)}: an operand is float64, but emulated arithmetic "
            "takes float32, bfloat16 or float16 operands; convert it with .float(), or exclude the "
            "module that makes this call from lp.convert"
        )
    return True


class EmulatesCalls(Emulated):
    """Mixin of the classes that `convert` gives to modules with a forward of their own."""

    # Such a module may call no product; a call of one is refused.
    _takes_scaling = True


def is_users(methods: Iterable[Any]) -> bool:
    """Whether one of these methods comes from elsewhere than torch and lpkernels.nn."""
    homes = [getattr(method, "__module__", None) or "" for method in methods if method is not None]
    return any(home.partition(".")[0] != "torch" and not _is_own(home) for home in homes)


def _is_own(home: str) -> bool:
    return home == "lpkernels.nn" or home.startswith("lpkernels.nn.")


def wrapped_forward(original: Any, recipe_of: Callable[[Any], Recipe]) -> Callable[..., Any]:
    """original's forward inside `Calls`; its signature stays the original's."""

    @functools.wraps(original.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with Calls(recipe_of(self)):
            return original.forward(self, *args, **kwargs)

    return forward
