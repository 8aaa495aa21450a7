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


def _check_dimensions(name: str, a: Tensor, b: Tensor, left: int, right: int) -> None:
    if (a.dim(), b.dim()) != (left, right):
        raise ValueError(
            f"{name}: expected operands of {left} and {right} dimensions, got shapes "
            f"{tuple(a.shape)} and {tuple(b.shape)}; torch.matmul takes others"
        )


def _renamed(function: Handler, **names: str) -> Handler:
    """A function of lpkernels.functional that takes keywords by the names {torch's: its own}."""

    def call(*args: Any, recipe: Recipe, **options: Any) -> Any:
        options = {names.get(name, name): value for name, value in options.items()}
        return function(*args, **options, recipe=recipe)

    return call


def _product(name: str, left: int, right: int) -> Handler:
    """The product of two tensors of these numbers of dimensions; torch names the right one
    variously."""

    def multiply(input: Tensor, *args: Tensor, recipe: Recipe, **options: Tensor) -> Tensor:
        (other,) = (*args, *options.values())
        _check_dimensions(name, input, other, left, right)
        return functional.matmul(input, other, recipe=recipe)

    return multiply


def _reflected_matmul(self: Tensor, other: Tensor, *, recipe: Recipe) -> Tensor:
    return functional.matmul(other, self, recipe=recipe)


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


_CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)
_TRANSPOSED = (
    functional.conv_transpose1d,
    functional.conv_transpose2d,
    functional.conv_transpose3d,
)


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


def _grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None = None,
    bias: None = None,
    out_dtype: None = None,
    *,
    recipe: Recipe,
) -> Tensor:
    """One product for each group, in their order.

    offs[g] is the end of group g along the dimension that is cut: the rows of a 2-D mat_a, the
    columns of a 2-D mat_b, the summed dimension of two 2-D operands. What lies beyond the last
    group gives zeros, where torch leaves memory as it was. On the meta device, where offs has no
    values, the first group has everything.

    Raises: ValueError: shapes or offsets that do not fit.
    """
    dims = (mat_a.dim(), mat_b.dim())
    if dims not in ((2, 2), (2, 3), (3, 2), (3, 3)) or (offs is None) != (dims == (3, 3)):
        raise ValueError(
            f"grouped_mm: expected operands of 2 or 3 dimensions, and offs unless both have 3, got "
            f"shapes {tuple(mat_a.shape)} and {tuple(mat_b.shape)}, offs={offs}"
        )
    groups = [len(x) for x in (mat_a, mat_b) if x.dim() == 3]
    groups += [] if offs is None else [len(offs)]
    if len(set(groups)) > 1:
        raise ValueError(
            f"grouped_mm: expected one number of groups, got {groups} of shapes "
            f"{tuple(mat_a.shape)} and {tuple(mat_b.shape)} and of offs={offs}"
        )
    # The dimension of each 2-D operand that is cut into groups.
    cut_a, cut_b = (1, 0) if dims == (2, 2) else (0, 1)
    lefts, beyond_a = _parts(mat_a, offs, cut_a)
    rights, beyond_b = _parts(mat_b, offs, cut_b)
    products = [functional.matmul(a, b, recipe=recipe) for a, b in zip(lefts, rights, strict=True)]
    if dims in ((2, 2), (3, 3)):
        return torch.stack(products)
    if dims == (2, 3):
        return torch.cat([*products, products[0].new_zeros(beyond_a, mat_b.shape[2])])
    return torch.cat([*products, products[0].new_zeros(mat_a.shape[1], beyond_b)], 1)


def _parts(x: Tensor, offs: Tensor | None, cut: int) -> tuple[Sequence[Tensor], int]:
    """The groups of one operand, and the length beyond the last group."""
    if x.dim() == 3 or offs is None:
        return x.unbind(), 0
    length = x.shape[cut]
    if offs.is_meta:
        ends = [length] * len(offs)
    else:
        ends = offs.tolist()
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    if any(size < 0 for size in sizes) or sum(sizes) > length:
        raise ValueError(
            f"grouped_mm: offs={ends}; expected the ends of the groups along a dimension of "
            f"{length}, none before the one in front of it"
        )
    beyond = length - sum(sizes)
    return x.split([*sizes, beyond], cut)[:-1], beyond


def _no_bias(args: Sequence[Any], options: Options) -> bool:
    """A grouped product with a bias is torch's own, which refuses it on most devices."""
    return len(args) < 4 and options.get("bias") is None


_MM, _MV, _DOT, _VDOT = (
    Emulation(_product(name, *dims))
    for name, *dims in (("mm", 2, 2), ("mv", 2, 1), ("dot", 1, 1), ("vdot", 1, 1))
)
_MATMUL = Emulation(_renamed(functional.matmul, input="a", other="b"))
_INNER, _GROUPED = Emulation(_inner, takes=_no_scalar), Emulation(_grouped_mm, 2, _no_bias)
_BMM = Emulation(_renamed(functional.bmm, input="a", mat2="b"))
_ADDMM = Emulation(_renamed(functional.addmm, mat1="a", mat2="b"))
_BADDBMM = Emulation(_renamed(functional.baddbmm, batch1="a", batch2="b"))
_ADDMV = Emulation(_addmv)

#: By torch's function. Some are not in every version of torch.
EMULATIONS: dict[Any, Emulation] = {
    **dict.fromkeys((torch.matmul, torch.linalg.matmul), _MATMUL),
    **dict.fromkeys((Tensor.matmul, Tensor.__matmul__), _MATMUL),
    Tensor.__rmatmul__: Emulation(_reflected_matmul),
    **dict.fromkeys((torch.mm, Tensor.mm), _MM),
    **dict.fromkeys((torch.mv, Tensor.mv), _MV),
    **dict.fromkeys((torch.dot, Tensor.dot), _DOT),
    **dict.fromkeys((torch.vdot, Tensor.vdot), _VDOT),
    **dict.fromkeys((torch.inner, Tensor.inner), _INNER),
    torch.linalg.vecdot: Emulation(_vecdot),
    torch.tensordot: Emulation(_tensordot, 2, _no_scalar),
    **dict.fromkeys((torch.bmm, Tensor.bmm), _BMM),
    **dict.fromkeys((torch.addmm, Tensor.addmm), _ADDMM),
    **dict.fromkeys((torch.addmv, Tensor.addmv), _ADDMV),
    **dict.fromkeys((torch.baddbmm, Tensor.baddbmm), _BADDBMM),
    getattr(torch, "_grouped_mm", None): _GROUPED,
    getattr(F, "grouped_mm", None): _GROUPED,
    torch.einsum: Emulation(_einsum, takes=_two_operands),
    F.linear: Emulation(_renamed(functional.linear, input="x")),
    getattr(F, "linear_cross_entropy", None): Emulation(_linear_cross_entropy, 2, _one_output),
    F.bilinear: Emulation(_renamed(functional.bilinear, input1="x1", input2="x2")),
    # The masks of attention are of any dtype, and so are the sizes of a packed sequence.
    F.scaled_dot_product_attention: Emulation(functional.scaled_dot_product_attention, 3),
    F.multi_head_attention_forward: Emulation(functional.multi_head_attention_forward, 3),
    **{
        getattr(torch, name): Emulation(_recurrent(getattr(functional, name)), 1)
        for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    },
    **{
        getattr(torch, name): Emulation(getattr(functional, name))
        for name in ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
    },
    **{
        getattr(F, emulated.__name__): Emulation(_renamed(emulated, input="x"))
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
    emulation = EMULATIONS.get(func)
    if emulation is None and isinstance(func, torch._ops.OpOverloadPacket):
        # transformers has an operator of its own for experts where torch has no kernel for
        # grouped_mm: in older versions, and in graphs of torch.compile.
        name = func._qualified_op_name
        emulation = _GROUPED if name == "transformers::grouped_mm_fallback" else None
    return emulation
