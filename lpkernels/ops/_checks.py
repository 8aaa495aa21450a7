"""The arguments of operators by their names: their types in schemas, and their checks, which make
calls through torch.ops and of exported programs safe. The kernels behind the operators believe
shapes, dtypes and integers.

Public functions check before, with messages for their users.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lpkernels.arithmetic.integers import InAccumulator, InQuantizer, sums_by_scale
from lpkernels.arithmetic.products import output_size
from lpkernels.backends import KINDS, NOT_FUSED, How, Product, Scales, matmul_of
from lpkernels.formats.grids import grid_shape, misfit, tensor_scale_shape
from lpkernels.formats.integers import AFFINE, BLOCK, KIND, Ints, takes_amax
from lpkernels.formats.integers import axis as axis_of
from lpkernels.ops._descriptions import packs, require, rounds, sums

#: A check of one argument of an operator, among all arguments of the call: (operator, arguments).
Check = Callable[[str, Any], None]

_FLOAT32 = torch.float32
_FLOATS = frozenset((torch.float32, torch.float16, torch.bfloat16, torch.float64))
# Sizes and strides of convolutions are multiplied as 64-bit integers.
_MOST = 2**31
_SHAPES = 4096


class Argument(NamedTuple):
    """What the arguments of one name are in every operator: their type in its schema, and how the
    guard checks them. part: of a description, the part of its row that is meant."""

    type: str
    check: Check | None = None
    part: slice | None = None


def tensor(
    op: str,
    name: str,
    x: Tensor,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    *,
    dense: bool = False,
) -> None:
    """Refuses a tensor of another shape, dtype or device, or with gaps if it is to be dense."""
    valid = x.dtype is dtype and x.device == device and tuple(x.shape) == tuple(shape)
    if not valid or (dense and not x.is_contiguous()):
        expected = f"{'dense ' if dense else ''}{name} {tuple(shape)} in {dtype} on {device}"
        require(False, op, expected, f"{tuple(x.shape)} in {x.dtype} on {x.device}")


def _x(op: str, a: Any) -> None:
    expected = "values in float16, bfloat16, float32 or float64"
    require(a.x.dtype in _FLOATS, op, expected, a.x.dtype)


def _quantizer(op: str, a: Any) -> None:
    description = rounds(a.quantizer)
    if description.axis is not None:
        fits(op, description.ints, a.x.dim())
    _draws(op, description.draws, a.seed)


def _acc(op: str, a: Any) -> None:
    _draws(op, sums(a.acc).draws, a.seed)


def _draws(op: str, draws: bool, seed: Tensor | None) -> None:
    require(seed is not None or not draws, op, "a seed, since something is stochastic", None)


def _seed(op: str, a: Any) -> None:
    if a.seed is not None and (a.seed.dtype is not torch.int64 or a.seed.dim()):
        got = f"{a.seed.dtype} {a.seed.shape}"
        require(False, op, "a seed in int64 without dimensions", got)


def _number(name: str) -> Check:
    def check(op: str, a: Any) -> None:
        require(0 <= getattr(a, name) < _MOST, op, f"a {name} from 0 up", getattr(a, name))

    return check


def _fused(name: str) -> Check:
    def check(op: str, a: Any) -> None:
        ints = getattr(a, name)
        valid = not ints or rounds(ints).fuses
        require(valid, op, "quantizers without scales and draws", ints)

    return check


def _limits(op: str, a: Any) -> None:
    """Of the limits between which x is rounded, or its largest magnitudes."""
    if a.limits is None:
        return
    shape: tuple[int, ...]
    if a.quantizer[KIND] == AFFINE:
        axis = axis_of(a.quantizer)
        shape = (2, 1 if axis is None or not a.x.dim() else a.x.shape[axis])
    else:
        require(takes_amax(a.quantizer), op, "limits for a format that takes them", a.quantizer)
        shape = (math.prod(tensor_scale_shape(a.x.shape, a.quantizer)),)
    tensor(op, "limits", a.limits, shape, torch.float64, a.x.device, dense=True)


def _kind(op: str, a: Any) -> None:
    require(a.kind in KINDS, op, f"one of {KINDS}", a.kind)


def _numbers(op: str, a: Any) -> None:
    """The numbers of a product's convolution."""
    valid = len(a.numbers) % 3 == 1 and (len(a.numbers) == 1) == (a.kind == "matmul")
    require(valid, a.kind, "numbers of each dimension and of groups", a.numbers)


def _sizes(op: str, a: Any) -> None:
    both = (a.left_scale is None) == (a.right_scale is None)
    valid = both and len(a.sizes) == 4 and -300 <= a.sizes[-1] <= 300
    require(valid, op, "two scales or none, two sizes, a flag, an exponent", a.sizes)


def _format(op: str, a: Any) -> None:
    """The format of codes; what has a shape is the tensor of values."""
    description = packs(a.format)
    if description.axis is not None:
        fits(op, description.ints, len(a.shape) if hasattr(a, "shape") else a.x.dim())


ARGUMENTS = {
    "x": Argument("Tensor", _x),
    "quantizer": Argument("int[]", _quantizer, slice(None)),
    "limits": Argument("Tensor?", _limits),
    "seed": Argument("Tensor?", _seed),
    "role": Argument("int", _number("role")),
    "site": Argument("int", _number("site")),
    "backend": Argument("str"),
    "kind": Argument("str", _kind),
    "left": Argument("Tensor"),
    "right": Argument("Tensor"),
    "initial": Argument("Tensor?"),
    "shape": Argument("SymInt[]"),
    "numbers": Argument("int[]", _numbers),
    "acc": Argument("int[]", _acc, slice(None)),
    **{
        name: Argument("int[]", _fused(name), slice(None))
        for name in ("left_quantizer", "right_quantizer", "result_quantizer")
    },
    "sizes": Argument("int[]", _sizes),
    # The row of a format is that of a quantizer to it.
    "format": Argument("int[]", _format, InQuantizer.FORMAT),
}


def fits(op: str, fmt: Ints, dims: int) -> None:
    """Refuses a format whose axis is none of so many dimensions."""
    wrong = misfit(fmt, dims)
    if wrong is not None:
        require(False, op, f"an axis of {max(dims, 1)} dimensions", f"a format that {wrong.reason}")


def operands(op: str, first: Tensor, second: Tensor) -> None:
    """Refuses two tensors that cannot be summed."""
    if first.dtype is not _FLOAT32 or second.dtype is not _FLOAT32:
        require(False, op, "operands in float32", f"{first.dtype} and {second.dtype}")
    if first.device != second.device:
        require(False, op, "operands on one device", f"{first.device} and {second.device}")


def product(product: Product, how: How, scales: Scales | None) -> None:
    """Refuses a product that the kernels do not know."""
    kind, by_scale = product.kind, sums_by_scale(how.acc)
    operands(kind, product.left, product.right)
    if scales is not None:
        return _by_scale(product, scales, how)
    require(not by_scale, kind, "chunks of a length: there are no scales", how.acc)
    (_matmul if product.conv is None else _conv)(product)


def _by_scale(product: Product, scales: Scales, how: How) -> None:
    op = "matmul_scaled"
    alone = product.kind == "matmul" and product.bias is None and how.fused == NOT_FUSED
    require(alone, op, "a matmul without a bias, with nothing fused", product.kind)
    _matmul(product)
    require(sums_by_scale(how.acc), op, "chunk='scale', or groups", how.acc)
    group = how.acc[InAccumulator.GROUP]
    for size in (scales.left_size, scales.right_size) if group else ():
        require(size % group == 0, op, f"scales that change between groups of {group}", size)
    length = product.left.size(-1)
    rows, cols = product.left.size(-2), product.right.size(-1)
    for name, scale, count, size, operand in (
        ("left", scales.left, rows, scales.left_size, product.left),
        ("right", scales.right, cols, scales.right_size, product.right),
    ):
        lead, got = tuple(scale.shape[:-2]), f"{tuple(scale.shape)}, size {size}"
        valid = 0 <= size < 2**62 and scale.dim() >= 2 and lead in ((), tuple(operand.shape[:-2]))
        require(valid, op, f"scales of the {name} operand, each of a run of products", got)
        shape = (*lead, count, max(1, -(-length // size)) if size else 1)
        tensor(op, f"scales of the {name} operand", scale, shape, _FLOAT32, operand.device)


def _matmul(product: Product) -> None:
    _, a, b, shape, _, bias, initial, _ = product
    if a.dim() < 2 or b.dim() < 2 or a.size(-1) != b.size(-2):
        got = f"{tuple(a.shape)} and {tuple(b.shape)}"
        require(False, "matmul", "a (..., M, K) and b (..., K, N)", got)
    _shape("matmul", shape, matmul_of(a, b).shape)
    _bias(product, (b.size(-1),))
    if initial is not None:
        tensor("matmul", "initial", initial, shape, _FLOAT32, a.device)
    require(bias is None or initial is None, "matmul", "a bias or an initial", "both")


def _shape(op: str, shape: Sequence[int], sizes: Sequence[int]) -> None:
    require(tuple(shape) == tuple(sizes), op, f"the result's shape {tuple(sizes)}", tuple(shape))


def _bias(product: Product, shape: Sequence[int]) -> None:
    if product.bias is not None:
        tensor(product.kind, "bias", product.bias, shape, _FLOAT32, product.left.device)


@lru_cache(_SHAPES)
def _conv_size(
    image: Ints, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> tuple[int, ...]:
    """The shape of the result of a convolution of an image with a kernel."""
    dims = len(image) - 2
    valid = 1 <= dims <= 3 and len(kernel) == dims + 2
    valid = valid and all(len(sizes) == dims for sizes in (stride, padding, dilation))
    valid = valid and all(0 <= n < _MOST for n in (*image, *kernel, *padding))
    valid = valid and all(1 <= n < _MOST for n in (*stride, *dilation, groups))
    valid = valid and image[1] == kernel[1] * groups and kernel[0] % groups == 0
    got = f"{tuple(image)}, {tuple(kernel)}, {stride}, {padding}, {dilation}, groups={groups}"
    require(valid, "conv", "an image, a kernel and numbers of one convolution", got)
    size = output_size(image[2:], kernel[2:], stride, padding, dilation)
    return (image[0], kernel[0], *size)


def _conv(product: Product) -> None:
    conv, (x, w, y), op = product.conv, product.images(), product.kind
    assert conv is not None
    size = _conv_size(tuple(x), tuple(w), *conv)
    require(product.initial is None, op, "no initial", product.initial)
    if op == "conv_fprop":
        require(min(size[2:]) >= 0, op, "a kernel that fits into the padded image", size)
        _shape(op, y, size)
        return _bias(product, (w[0],))
    require(product.bias is None, op, "no bias", product.bias)
    # Positions at the end of a gradient may be left out.
    valid = len(y) == len(size) and tuple(y[:2]) == size[:2]
    valid = valid and all(n <= most for n, most in zip(y[2:], size[2:], strict=True))
    require(valid, op, f"a gradient of at most {size}", tuple(y))


def parts(op: str, parts: Sequence[Tensor | None], fmt: Ints) -> None:
    """Refuses codes and scales that are not those of a tensor in a block format."""
    require(fmt[KIND] == BLOCK, op, "a block format", fmt)
    values, *scales = parts
    assert values is not None
    shape = tuple(values.shape)
    sizes = (shape, grid_shape(shape, fmt), tensor_scale_shape(shape, fmt))
    for x, size in zip((values, *scales), sizes, strict=True):
        if x is None:
            return require(False, op, "the scale of the tensor", None)
        tensor(op, "part", x, size, _FLOAT32, values.device)
