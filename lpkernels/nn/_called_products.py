"""torch's functions that multiply, and how `lpkernels.nn.convert` emulates a call of each."""

from __future__ import annotations

import functools
import string
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels import functional
from lpkernels.arithmetic import Recipe
from lpkernels.nn._several_products import grouped_mm, multi_dot

Handler = Callable[..., Any]
Options = Mapping[str, Any]


class Emulation(NamedTuple):
    """How a function is emulated.

    Attributes:
        compute: takes the function's arguments, and `recipe`.
        operands: so many leading arguments may be operands; None: all of them.
        takes: whether a call with these arguments is emulated; None: always.
    """

    compute: Handler
    operands: int | None = None
    takes: Callable[[Sequence[Any], Options], bool] | None = None


def _product(name: str, left: int, right: int) -> Handler:
    """The product of two tensors of these numbers of dimensions; torch names the right one
    variously."""

    def multiply(input: Tensor, *args: Tensor, recipe: Recipe, **options: Tensor) -> Tensor:
        (other,) = (*args, *options.values())
        _check_dimensions(name, input, other, left, right)
        return functional.matmul(input, other, recipe=recipe)

    return multiply


def _check_dimensions(name: str, a: Tensor, b: Tensor, left: int, right: int) -> None:
    if (a.dim(), b.dim()) != (left, right):
        raise ValueError(
            f"{name}: expected operands of {left} and {right} dimensions, got shapes "
            f"{tuple(a.shape)} and {tuple(b.shape)}; torch.matmul takes others"
        )


def _matmul(input: Tensor, other: Tensor, *, recipe: Recipe) -> Tensor:
    return functional.matmul(input, other, recipe=recipe)


def _reflected_matmul(self: Tensor, other: Tensor, *, recipe: Recipe) -> Tensor:
    return functional.matmul(other, self, recipe=recipe)


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


def _addbmm(
    input: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    recipe: Recipe,
) -> Tensor:
    """One sum over (batch, k)."""
    _check_dimensions("addbmm", batch1, batch2, 3, 3)
    if len(batch1) != len(batch2):
        raise ValueError(
            f"addbmm: expected two batches of one size, got shapes {tuple(batch1.shape)} and "
            f"{tuple(batch2.shape)}"
        )
    left = batch1.transpose(0, 1).flatten(1)
    right = batch2.flatten(0, 1)
    return functional.addmm(input, left, right, beta=beta, alpha=alpha, recipe=recipe)


def _addmv(
    input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1, recipe: Recipe
) -> Tensor:
    _check_dimensions("addmv", mat, vec, 2, 1)
    if input.dim() > 1:
        raise ValueError(
            f"addmv: input has shape {tuple(input.shape)}; expected ({mat.shape[0]},), or a shape "
            "that broadcasts to it"
        )
    column, addend = vec.unsqueeze(1), input.unsqueeze(-1)
    return functional.addmm(addend, mat, column, beta=beta, alpha=alpha, recipe=recipe).squeeze(1)


def _in_place(name: str, emulated: Handler) -> Handler:
    """The function that writes into its first argument."""

    def write(self: Tensor, *args: Any, **options: Any) -> Tensor:
        result = emulated(self, *args, **options)
        if result.shape != self.shape:
            raise ValueError(
                f"{name}: the result has shape {tuple(result.shape)}, but the tensor to write has "
                f"{tuple(self.shape)}; use {name.rstrip('_')}, which makes a new tensor"
            )
        return self.copy_(result)

    return write


def _vecdot(x: Tensor, y: Tensor, *, dim: int = -1, recipe: Recipe) -> Tensor:
    rank = max(x.dim(), y.dim())
    if not -rank <= dim < rank:
        raise IndexError(f"vecdot: dim={dim}; expected one of the {rank} dimensions")
    along = dim if dim < 0 else dim - rank
    x, y = (t.reshape((1,) * (rank - t.dim()) + t.shape).movedim(along, -1) for t in (x, y))
    product = functional.matmul(x.unsqueeze(-2), y.unsqueeze(-1), recipe=recipe)
    return product.squeeze(-1).squeeze(-1)


def _tensordot(a: Tensor, b: Tensor, dims: Any = 2, *, recipe: Recipe) -> Tensor:
    """As einsum: the sum runs over the dimensions in a's order."""
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        dims = (range(a.dim() - dims, a.dim()), range(dims))
    summed, others = ([n] if isinstance(n, int) else list(n) for n in dims)
    if len(summed) != len(others):
        raise ValueError(f"tensordot: dims={dims} names unequal numbers of dimensions")
    left = list(string.ascii_letters[: a.dim()])
    right = list(string.ascii_letters[a.dim() : a.dim() + b.dim()])
    for i, j in zip(summed, others, strict=True):
        right[j] = left[i]
    free = [c for c in left if c not in right] + [c for c in right if c not in left]
    equation = f"{''.join(left)},{''.join(right)}->{''.join(free)}"
    return functional.einsum(equation, a, b, recipe=recipe)


def _inner(input: Tensor, other: Tensor, *, recipe: Recipe) -> Tensor:
    return _tensordot(input, other, ([-1], [-1]), recipe=recipe)


def _no_scalar(args: Sequence[Any], options: Options) -> bool:
    """torch.inner and tensordot of a number multiply elementwise."""
    return all(x.dim() > 0 for x in (*args, *options.values()) if isinstance(x, Tensor))


def _einsum(equation: str, *operands: Any, recipe: Recipe) -> Tensor:
    return functional.einsum(equation, *_einsum_operands(operands), recipe=recipe)


def _einsum_operands(operands: Sequence[Any]) -> Sequence[Any]:
    """torch.einsum takes them one by one or as one list."""
    listed = len(operands) == 1 and not isinstance(operands[0], Tensor)
    return tuple(operands[0]) if listed else operands


def _two_operands(args: Sequence[Any], options: Options) -> bool:
    return len(_einsum_operands(args[1:])) == 2


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, *, recipe: Recipe) -> Tensor:
    return functional.linear(input, weight, bias, recipe=recipe)


def _linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    ignore_index: int | None = None,
    options: object = None,
    recipe: Recipe,
    **loss: Any,
) -> Tensor:
    """The layer, then the loss in float32. options: how torch saves memory, which is not read."""
    logits = functional.linear(input, linear_weight, linear_bias, recipe=recipe)
    if ignore_index is not None:
        loss["ignore_index"] = ignore_index
    return F.cross_entropy(logits, target, **loss)


def _one_output(args: Sequence[Any], options: Options) -> bool:
    """linear_cross_entropy also takes the weights of several outputs."""
    weight: Tensor = args[1] if len(args) > 1 else options["linear_weight"]
    return weight.dim() == 2


def _bilinear(
    input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None, *, recipe: Recipe
) -> Tensor:
    return functional.bilinear(input1, input2, weight, bias, recipe=recipe)


_CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)
_TRANSPOSED = (
    functional.conv_transpose1d,
    functional.conv_transpose2d,
    functional.conv_transpose3d,
)


def _sliding(emulated: Callable[..., Tensor]) -> Handler:
    def convolve(input: Tensor, *args: Any, recipe: Recipe, **numbers: Any) -> Tensor:
        return emulated(input, *args, **numbers, recipe=recipe)

    return convolve


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *,
    recipe: Recipe,
) -> Tensor:
    """The operator behind all convolutions."""
    if not 3 <= weight.dim() <= 5:
        raise ValueError(
            f"convolution: weight has shape {tuple(weight.shape)}; expected one of 3 to 5 "
            "dimensions"
        )
    which = weight.dim() - 3
    if transposed:
        numbers = (stride, padding, output_padding, groups, dilation)
        return _TRANSPOSED[which](input, weight, bias, *numbers, recipe=recipe)
    return _CONVOLUTIONS[which](
        input, weight, bias, stride, padding, dilation, groups, recipe=recipe
    )


def _recurrent(emulated: Callable[..., Any]) -> Handler:
    """torch's function has a form for padded sequences and one for packed ones."""

    def layers(input: Tensor, second: Any, third: Any, *args: Any, recipe: Recipe) -> Any:
        if not isinstance(args[0], bool):
            return emulated(input, third, *args, batch_sizes=second, recipe=recipe)
        return emulated(input, second, third, *args, recipe=recipe)

    return layers


def _chain_matmul(*matrices: Tensor, recipe: Recipe) -> Tensor:
    return multi_dot(matrices, recipe=recipe)


def _no_bias(args: Sequence[Any], options: Options) -> bool:
    """A grouped product with a bias is torch's own, which refuses it on most devices."""
    return len(args) < 4 and options.get("bias") is None


_MM, _MV, _DOT, _VDOT = (
    Emulation(_product(name, *dims))
    for name, *dims in (("mm", 2, 2), ("mv", 2, 1), ("dot", 1, 1), ("vdot", 1, 1))
)
_MATMUL, _INNER = Emulation(_matmul), Emulation(_inner, takes=_no_scalar)
_GROUPED = Emulation(grouped_mm, 2, _no_bias)

#: By torch's function. Some are not in every version of torch.
EMULATIONS: dict[Any, Emulation] = {
    torch.matmul: _MATMUL,
    torch.linalg.matmul: _MATMUL,
    Tensor.matmul: _MATMUL,
    Tensor.__matmul__: _MATMUL,
    Tensor.__rmatmul__: Emulation(_reflected_matmul),
    **dict.fromkeys((torch.mm, Tensor.mm, torch.spmm, torch.dsmm), _MM),
    **dict.fromkeys((torch.mv, Tensor.mv), _MV),
    **dict.fromkeys((torch.dot, Tensor.dot), _DOT),
    **dict.fromkeys((torch.vdot, Tensor.vdot), _VDOT),
    **dict.fromkeys((torch.inner, Tensor.inner), _INNER),
    torch.linalg.vecdot: Emulation(_vecdot),
    torch.tensordot: Emulation(_tensordot, 2, _no_scalar),
    **dict.fromkeys((torch.bmm, Tensor.bmm), Emulation(_bmm)),
    **{
        getattr(home, name + ending, None): Emulation(
            _in_place(name + ending, emulated) if ending else emulated
        )
        for name, emulated in (
            ("addmm", _addmm),
            ("addmv", _addmv),
            ("addbmm", _addbmm),
            ("baddbmm", _baddbmm),
        )
        for home in (torch, Tensor)
        for ending in ("", "_")
    },
    torch.linalg.multi_dot: Emulation(multi_dot),
    torch.chain_matmul: Emulation(_chain_matmul),
    getattr(torch, "_grouped_mm", None): _GROUPED,
    getattr(F, "grouped_mm", None): _GROUPED,
    torch.einsum: Emulation(_einsum, takes=_two_operands),
    F.linear: Emulation(_linear),
    getattr(F, "linear_cross_entropy", None): Emulation(_linear_cross_entropy, 2, _one_output),
    F.bilinear: Emulation(_bilinear),
    # The masks of attention are of any dtype, and so are the sizes of a packed sequence.
    F.scaled_dot_product_attention: Emulation(functional.scaled_dot_product_attention, 3),
    F.multi_head_attention_forward: Emulation(functional.multi_head_attention_forward, 3),
    torch.lstm: Emulation(_recurrent(functional.lstm), 1),
    torch.gru: Emulation(_recurrent(functional.gru), 1),
    torch.rnn_tanh: Emulation(_recurrent(functional.rnn_tanh), 1),
    torch.rnn_relu: Emulation(_recurrent(functional.rnn_relu), 1),
    torch.lstm_cell: Emulation(functional.lstm_cell),
    torch.gru_cell: Emulation(functional.gru_cell),
    torch.rnn_tanh_cell: Emulation(functional.rnn_tanh_cell),
    torch.rnn_relu_cell: Emulation(functional.rnn_relu_cell),
    **{
        getattr(F, emulated.__name__): Emulation(_sliding(emulated))
        for emulated in (*_CONVOLUTIONS, *_TRANSPOSED)
    },
    torch.convolution: Emulation(_convolution),
}
EMULATIONS.pop(None, None)


@functools.cache
def show_to_compiler() -> None:
    """Has torch.compile show `_grouped_mm` to modes, which meet it outside of graphs anyway: it
    shows them the functions that torch.overrides lists, and no list has this one."""
    function = getattr(torch, "_grouped_mm", None)
    compiler = sys.modules.get("torch._dynamo.variables.torch")
    listed = torch.overrides.get_overridable_functions()
    if function is not None:
        listed[torch].append(function)
    if function is not None and compiler is not None:
        # The compiler keeps the lists that it has read.
        compiler.get_overridable_functions().add(function)


def emulation_of(func: Any) -> Emulation | None:
    """How this function of torch is emulated; None if it is not."""
    found = EMULATIONS.get(func)
    if found is None and isinstance(func, torch._ops.OpOverloadPacket):
        # transformers has an operator of its own for experts where torch has no kernel for
        # grouped_mm: in older versions, and in graphs of torch.compile.
        name = func._qualified_op_name
        found = _GROUPED if name == "transformers::grouped_mm_fallback" else None
    return found
