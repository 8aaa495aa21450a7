"""torch's functions that layers and models call: the names of their arguments, and how
`lpkernels.nn.convert` emulates a call of each that multiplies."""

from __future__ import annotations

import functools
import inspect
import string
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels import functional
from lpkernels.arithmetic import Recipe
from lpkernels.functional.dtypes import narrowed, result_dtype

Handler = Callable[..., Any]
Options = Mapping[str, Any]


class Emulation(NamedTuple):
    """How a function of torch is emulated.

    Attributes:
        names: torch's names of its arguments, in order, as far as they are told by name.
        compute: takes the arguments in this order, others by torch's names, and `recipe`.
        operands: so many leading arguments may be operands; None: all of them.
        takes: whether a call with these arguments is emulated; None: always.
    """

    names: str
    compute: Handler
    operands: int | None = None
    takes: Callable[[Sequence[Any], Options], bool] | None = None

    def emulated(self, *args: Any, **options: Any) -> Any:
        """A call with torch's arguments and `recipe`."""
        values = list(args)
        for name in self.names.split()[len(args) :]:
            if name not in options:
                break
            values.append(options.pop(name))
        return self.compute(*values, **options)


def _matmul(input: Tensor, other: Tensor, *, recipe: Recipe) -> Tensor:
    """lp.matmul, which returns float32, in the dtype of a layer's result."""
    y = functional.matmul(input, other, recipe=recipe)
    return narrowed(y, result_dtype(input, other))


def _product(name: str, left: int, right: int) -> Handler:
    """The product of two tensors of these numbers of dimensions."""

    def multiply(input: Tensor, other: Tensor, *, recipe: Recipe) -> Tensor:
        if (input.dim(), other.dim()) != (left, right):
            raise ValueError(
                f"{name}: expected operands of {left} and {right} dimensions, got shapes "
                f"{tuple(input.shape)} and {tuple(other.shape)}; torch.matmul takes others"
            )
        return _matmul(input, other, recipe=recipe)

    return multiply


def _reflected_matmul(self: Tensor, other: Tensor, *, recipe: Recipe) -> Tensor:
    return _matmul(other, self, recipe=recipe)


def _addmv(
    input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1, recipe: Recipe
) -> Tensor:
    column, addend = vec.unsqueeze(1), input.unsqueeze(-1)
    return functional.addmm(addend, mat, column, beta=beta, alpha=alpha, recipe=recipe).squeeze(1)


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
    is_list = len(operands) == 1 and not isinstance(operands[0], Tensor)
    return tuple(operands[0]) if is_list else operands


def _two_operands(args: Sequence[Any], options: Options) -> bool:
    return len(_einsum_operands(args[1:])) == 2


_CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)
_TRANSPOSED = (
    functional.conv_transpose1d,
    functional.conv_transpose2d,
    functional.conv_transpose3d,
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
    groups = {x.shape[0] for x in (mat_a, mat_b) if x.dim() == 3}
    groups |= set() if offs is None else {offs.numel()}
    fits = {*dims} <= {2, 3} and (offs is None) == (dims == (3, 3)) and len(groups) == 1
    if not fits or 0 in groups or (offs is not None and not _are_ends(offs)):
        raise ValueError(
            "grouped_mm: expected operands of 2 or 3 dimensions, offs of integers in 1 dimension "
            "unless both have 3, and one number of groups, not 0; got shapes "
            f"{tuple(mat_a.shape)} and {tuple(mat_b.shape)} and offs={offs}"
        )
    # The dimension of each 2-D operand that is cut into groups.
    cut_a, cut_b = (1, 0) if dims == (2, 2) else (0, 1)
    lefts, beyond_a = _parts(mat_a, offs, cut_a)
    rights, beyond_b = _parts(mat_b, offs, cut_b)
    products = [_matmul(a, b, recipe=recipe) for a, b in zip(lefts, rights, strict=True)]
    if dims in ((2, 2), (3, 3)):
        return torch.stack(products)
    if dims == (2, 3):
        return torch.cat([*products, products[0].new_zeros(beyond_a, mat_b.shape[2])])
    return torch.cat([*products, products[0].new_zeros(mat_a.shape[1], beyond_b)], 1)


def _are_ends(offs: Tensor) -> bool:
    return offs.dim() == 1 and offs.dtype in (torch.int32, torch.int64)


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


_CONV = "input weight bias stride padding dilation groups"
_CONV_TRANSPOSE = "input weight bias stride padding output_padding groups dilation"
_LAYERS = "input hx params has_biases num_layers dropout train bidirectional batch_first"
_PACKED = "data batch_sizes hx params has_biases num_layers dropout train bidirectional"
_CELL = "input hx w_ih w_hh b_ih b_hh"
_ATTENTION = "query key value attn_mask dropout_p is_causal"
_KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_MULTI_HEAD = "multi_head_attention_forward"
_GROUPED = Emulation("", _grouped_mm, 2, _no_bias)

_EMULATIONS: dict[str, Emulation] = {
    "matmul": Emulation("input other", _matmul),
    # The method of the right operand, `w.__rmatmul__(x)`; it is reported as a matmul.
    "rmatmul": Emulation("other input", _reflected_matmul),
    "mm": Emulation("input mat2", _product("mm", 2, 2)),
    "mv": Emulation("input vec", _product("mv", 2, 1)),
    "dot": Emulation("input tensor", _product("dot", 1, 1)),
    "vdot": Emulation("input other", _product("vdot", 1, 1)),
    "inner": Emulation("input other", _inner, takes=_no_scalar),
    "tensordot": Emulation("", _tensordot, 2, _no_scalar),
    "bmm": Emulation("input mat2", functional.bmm),
    "addmm": Emulation("input mat1 mat2", functional.addmm),
    "addmv": Emulation("input mat vec", _addmv),
    "baddbmm": Emulation("input batch1 batch2", functional.baddbmm),
    "_grouped_mm": _GROUPED,
    "grouped_mm": _GROUPED,
    "einsum": Emulation("equation", _einsum, takes=_two_operands),
    "linear": Emulation("input weight bias", functional.linear),
    "bilinear": Emulation("input1 input2 weight bias", functional.bilinear),
    # The masks of attention are of any dtype, and so are the sizes of a packed sequence.
    "scaled_dot_product_attention": Emulation(
        _ATTENTION, functional.scaled_dot_product_attention, 3
    ),
    _MULTI_HEAD: Emulation(
        " ".join(inspect.signature(F.multi_head_attention_forward).parameters),
        functional.multi_head_attention_forward, 3,
    ),
    **{kind: Emulation(_LAYERS, _recurrent(getattr(functional, kind)), 1) for kind in _KINDS},
    **{
        f"{kind}_cell": Emulation(_CELL, getattr(functional, f"{kind}_cell")) for kind in _KINDS
    },
    **{conv.__name__: Emulation(_CONV, conv) for conv in _CONVOLUTIONS},
    **{conv.__name__: Emulation(_CONV_TRANSPOSE, conv) for conv in _TRANSPOSED},
}  # fmt: skip
# Functions that multiply and are not emulated; the table names none of their arguments.
_NOT_EMULATED = (
    "conv_tbc", "convolution", "_convolution", "chain_matmul", "multi_dot", "addbmm",
    "matrix_power", "addmm_", "addmv_", "addbmm_", "baddbmm_", "spmm", "dsmm",
    "_native_multi_head_attention", "_transformer_encoder_layer_fwd", "_scaled_mm", "scaled_mm",
    "sparse_mm", "smm", "sspaddmm", "hspmm", "vecdot", "linear_cross_entropy",
)  # fmt: skip
PRODUCTS = frozenset({*_EMULATIONS, *_NOT_EMULATED} - {"rmatmul"})
"""The names of all functions that compute products."""

# Functions that are emulated as layers, and nowhere else.
_WITHOUT_PRODUCTS: dict[str, str] = {
    "embedding": "input weight padding_idx max_norm norm_type scale_grad_by_freq sparse",
    "batch_norm": "input running_mean running_var weight bias training momentum eps",
    "layer_norm": "input normalized_shape weight bias eps",
    "group_norm": "input num_groups weight bias eps",
    "rms_norm": "input normalized_shape weight eps",
    "softmax": "input dim",
}

LAYERS = PRODUCTS | _WITHOUT_PRODUCTS.keys()
"""The names of all functions that layers of `lpkernels.nn` compute."""


class _Everything:
    def __contains__(self, name: object) -> bool:
        # torch calls these to read and write the attributes of a tensor.
        return name not in ("get", "set", "delete")


EVERYTHING: Container[str] = _Everything()
"""The names of all operations."""


def _of_torch(name: str) -> set[Any]:
    """torch's functions of this name: functions, methods and operators; not every version has
    all."""
    homes = [getattr(home, name, None) for home in (torch, torch.linalg, F, Tensor)]
    return {*homes, getattr(Tensor, f"__{name}__", None)} - {None}


EMULATIONS: dict[Any, Emulation] = {
    function: row for name, row in _EMULATIONS.items() for function in _of_torch(name)
}
"""By torch's function."""


def name_of(func: Any) -> str:
    """A function's name: without torch.linalg's prefix, the overload of torch.ops and underscores
    around (`__matmul__`).
    """
    name = getattr(func, "__name__", "").partition(".")[0]
    name = name.strip("_") if name.startswith("__") else name
    return name.removeprefix("linalg_")


def operation_of(name: str) -> str:
    """The operation that a function of this name computes."""
    return "matmul" if name == "rmatmul" else name


def names_of(name: str) -> list[str]:
    """The names of the arguments of the function of this name, as far as they are told by name."""
    row = _EMULATIONS.get(name)
    return (_WITHOUT_PRODUCTS.get(name, "") if row is None else row.names).split()


def arguments_of(name: str, args: Sequence[Any], kwargs: Options) -> dict[str, Any]:
    """The arguments by name; those without a name are "0", "1", ..."""
    names = names_of(name)
    if name in _KINDS and len(args) > 3 and isinstance(args[3], list | tuple):
        names = _PACKED.split()
    names += map(str, range(len(names), len(args)))
    # The operators of torch.ops call the first one "self".
    options = {"input" if key == "self" else key: value for key, value in kwargs.items()}
    return dict(zip(names, args, strict=False)) | options


@functools.cache
def show_to_compiler() -> None:
    """Has torch.compile show `_grouped_mm` to modes, which meet it outside of graphs anyway: it
    shows them the functions that torch.overrides lists, and no list has this one."""
    function = getattr(torch, "_grouped_mm", None)
    compiler = sys.modules.get("torch._dynamo.variables.torch")
    if function is None:
        return
    torch.overrides.get_overridable_functions()[torch].append(function)
    if compiler is not None:
        # The compiler keeps the lists that it has read.
        compiler.get_overridable_functions().add(function)


def emulation_of(func: Any) -> Emulation | None:
    """How `lpkernels.nn.calls` emulates this function of torch; None if it does not."""
    emulation = EMULATIONS.get(func)
    if emulation is None and isinstance(func, torch._ops.OpOverloadPacket):
        # transformers has an operator of its own for experts where torch has no kernel for
        # grouped_mm: in older versions, and in graphs of torch.compile.
        name = func._qualified_op_name
        emulation = _GROUPED if name == "transformers::grouped_mm_fallback" else None
    return emulation
