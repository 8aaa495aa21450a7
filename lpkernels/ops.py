"""The private torch operators: schemas, shapes, and the call of a backend.

They make emulated arithmetic opaque to torch: torch.compile does not trace into it, fake tensors
get its shapes, and CPU and CUDA tensors reach the backend chosen for them. Formats, quantizers and
accumulators cross as integers (``to_ints``). The operators record no gradient and check no
argument: `lpkernels.functional` does both, and is the only caller. None returns its input or a view
of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lpkernels import backends
from lpkernels.arithmetic import (
    Accumulator,
    Quantizer,
    accumulator_from_ints,
    quantizer_from_ints,
)
from lpkernels.backends import NOT_FUSED, Fused, native
from lpkernels.formats import (
    BlockFormat,
    FixedFormat,
    FloatFormat,
    format_from_ints,
)
from lpkernels.rng import SITE_QUANTIZE, Role
from lpkernels.rounding import ROUNDINGS

Ints: TypeAlias = tuple[int, ...]
Packable: TypeAlias = FloatFormat | FixedFormat | BlockFormat

broadcast_batch = backends.broadcast_batch

BACKENDS = ("auto", *backends.names())
"""What a `backend` argument may be."""

# The first integer of a format; that of a FloatFormat is 0.
FIXED, AFFINE, BLOCK = 1, 2, 3
_STOCHASTIC = ROUNDINGS.index("stochastic")

_lib = torch.library.Library("lpkernels", "FRAGMENT")


def axis(fmt: Ints) -> int | None:
    """The axis along which a format, given as integers, takes its scales; None if there is none."""
    if fmt[0] == BLOCK:
        return fmt[2]
    return fmt[4] if fmt[0] == AFFINE and fmt[3] else None


def _ints(description: Quantizer | Accumulator | Packable | Ints) -> Ints:
    """What crosses to the operators; callers that torch.compile traces pass the integers."""
    return description if isinstance(description, tuple) else description.to_ints()


def _define(schema: str, fake: Callable[..., Any], impl: Callable[..., Any]) -> Any:
    """Registers one operator for CPU and CUDA tensors and returns it."""
    name = schema.partition("(")[0]
    _lib.define(schema)
    _lib.impl(name, impl, "CPU")
    _lib.impl(name, impl, "CUDA")
    torch.library.register_fake(f"lpkernels::{name}", fake, lib=_lib)
    return getattr(torch.ops.lpkernels, name).default


def _seed(label: int, *, device: torch.device) -> Tensor:
    return torch.empty((), dtype=torch.int64, device=device).random_()


# nondeterministic_seeded keeps compilers from reordering and recomputing draws. They merge equal
# calls all the same (torch 2.13, AOTAutograd's common subexpressions): the label makes calls
# differ. Compiled checkpoints learn from the device, always the CPU, whose generator to restore.
_lib.define(
    "_seed(int label, *, Device device) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,)
)
_lib.impl("_seed", _seed, "CompositeExplicitAutograd")


@torch.library.register_fake("lpkernels::_seed", lib=_lib)
def _seed_fake(label: int, *, device: torch.device) -> Tensor:
    return torch.empty((), dtype=torch.int64, device=device)


_labels = itertools.count(1)


@torch.compiler.assume_constant_result
def _new_label() -> int:
    return next(_labels)


def draw_seed() -> Tensor:
    """A 0-d int64 tensor from torch's default CPU generator, which torch.manual_seed sets."""
    label = _new_label() if torch.compiler.is_compiling() else 0
    return torch.ops.lpkernels._seed(label, device="cpu")


_WIDTHS = {torch.float16: (5, 10), torch.bfloat16: (8, 7)}


def result_dtype(dtype: torch.dtype, quantizer: Ints) -> torch.dtype:
    """The dtype of quantize's result: x's where it holds every value of the format, or float32."""
    if dtype == torch.float32:
        return dtype
    fmt = quantizer_from_ints(tuple(quantizer)).fmt
    if dtype == torch.float64:
        return dtype if isinstance(fmt, FloatFormat) else torch.float32
    return dtype if dtype in _WIDTHS and fmt.fits_in(*_WIDTHS[dtype]) else torch.float32


def _quantized_like(x: Tensor, quantizer: Ints) -> Tensor:
    return torch.empty_like(x, dtype=result_dtype(x.dtype, quantizer))


def _quantize_impl(x: Tensor, quantizer: Ints, *call: Any) -> Tensor:
    out = _quantized_like(x, quantizer)
    _round_into(out, x, quantizer, *call)
    return out


def _quantize_out_impl(x: Tensor, out: Tensor, quantizer: Ints, *call: Any) -> None:
    if x.untyped_storage().data_ptr() == out.untyped_storage().data_ptr():
        # They may overlap, and a scale is taken from x while out is written.
        target = torch.empty_like(out)
        _round_into(target, x, quantizer, *call)
        out.detach().copy_(target)
    else:
        _round_into(out, x, quantizer, *call)
    # Backends write through pointers, so autograd learns of the change only here.
    torch.autograd.graph.increment_version(out)


def _round_into(
    out: Tensor,
    x: Tensor,
    quantizer: Ints,
    seed: Tensor | None,
    role: int,
    site: int,
    backend: str,
) -> None:
    chosen = backends.select(backend, _QUANTIZE[quantizer[0]], x.device)
    if x.numel() == 0:
        return
    x, out = x.detach(), out.detach()
    if x.dim() == 0:
        # A scalar is a vector of one element, which has an axis for formats that need one.
        x, out = x.view(1), out.view(1)
    chosen.quantize(x, tuple(quantizer), seed, role, site, out)


# What backends answer for, by the first integer of the format.
_QUANTIZE = ("quantize", "quantize", "quantize_affine", "quantize_block")
_quantize = _define(
    "_quantize(Tensor x, int[] quantizer, Tensor? seed, int role, int site, str backend) -> Tensor",
    lambda x, quantizer, *call: _quantized_like(x, quantizer),
    _quantize_impl,
)
_quantize_out = _define(
    "_quantize_out(Tensor x, Tensor(a!) out, int[] quantizer, Tensor? seed, int role, int site,"
    " str backend) -> ()",
    lambda x, out, quantizer, *call: None,
    _quantize_out_impl,
)


def quantize(
    x: Tensor,
    quantizer: Quantizer | Ints,
    seed: Tensor | None,
    role: int,
    site: int = SITE_QUANTIZE,
    backend: str = "auto",
) -> Tensor:
    """Every value of x rounded by quantizer, in a new tensor of `result_dtype`."""
    return _quantize(x, _ints(quantizer), seed, int(role), site, backend)


def quantize_out(
    x: Tensor,
    out: Tensor,
    quantizer: Quantizer | Ints,
    seed: Tensor | None,
    role: int,
    site: int = SITE_QUANTIZE,
    backend: str = "auto",
) -> None:
    """`quantize` into out, which may share memory with x."""
    _quantize_out(x, out, _ints(quantizer), seed, int(role), site, backend)


def fuses(quantizer: Ints) -> bool:
    """Whether products can apply this quantizer themselves (`Fused`): those to a float or a fixed
    format in a mode that draws nothing.

    Others need to know more than a value: a draw is that of the element's position in its tensor,
    blocks and slices have scales. They are a pass of their own, `quantize`.
    """
    return quantizer[0] not in (AFFINE, BLOCK) and quantizer[-4] != _STOCHASTIC


def _apart(
    product: Callable[..., Tensor], operands: Sequence[Any], fused: Fused, backend: str
) -> Tensor:
    """product with the quantizers of fused as passes of their own, for backends without them."""
    call = (None, Role.DIRECT, SITE_QUANTIZE, backend)
    pairs = zip(operands, fused[:2], strict=False)
    rounded = [_quantize_impl(x, ints, *call) if ints else x for x, ints in pairs]
    result = product(*rounded, *operands[2:])
    return _quantize_impl(result, fused.result, *call) if fused.result else result


def _define_sum(op: str, operands: str, shape: Callable[..., Sequence[int]]) -> Any:
    """An operator on two tensors and more that ends in (acc, seed, role, backend, *Fused); shape
    gives that of its result."""

    def fake(*args: Any) -> Tensor:
        return args[0].new_empty(shape(*args))

    def impl(*args: Any) -> Tensor:
        *operands, acc, seed, role, backend, left, right, result = args
        operands = [each.detach() if isinstance(each, Tensor) else each for each in operands]
        fused = Fused(tuple(left), tuple(right), tuple(result))
        call = (tuple(acc), seed, role)
        native_order = accumulator_from_ints(tuple(acc)).order == "native"
        # torch sums native chunks; the backend does the additions that the contract covers.
        needed = "accumulate" if native_order else op
        chosen = backends.select(backend, needed, operands[0].device)
        if 0 in shape(*operands):
            return operands[0].new_empty(shape(*operands))
        if chosen.fuses and not native_order:
            return getattr(chosen, op)(*operands, *call, fused)

        def product(*operands: Any) -> Tensor:
            if native_order:
                return getattr(native, op)(chosen, *operands, *call)
            return getattr(chosen, op)(*operands, *call)

        return _apart(product, operands, fused, backend)

    tail = "int[] acc, Tensor? seed, int role, str backend, int[] left, int[] right, int[] result"
    return _define(f"_{op}({operands}, {tail}) -> Tensor", fake, impl)


def _matmul_shape(a: Tensor, b: Tensor, *_: Any) -> Sequence[int]:
    return (*backends.broadcast_batch(a, b), a.shape[-2], b.shape[-1])


def _conv_shape(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    *_: Any,
) -> Sequence[int]:
    taps = zip(x.shape[2:], w.shape[2:], stride, padding, dilation, strict=True)
    spatial = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in taps]
    return (x.shape[0], w.shape[0], *spatial)


def _given_shape(first: Tensor, second: Tensor, shape: Sequence[int], *_: Any) -> Sequence[int]:
    return shape


_GEOMETRY = "int[] stride, int[] padding, int[] dilation, int groups"
_matmul = _define_sum("matmul", "Tensor a, Tensor b, Tensor? bias", _matmul_shape)
_conv_fprop = _define_sum(
    "conv_fprop", f"Tensor x, Tensor w, Tensor? bias, {_GEOMETRY}", _conv_shape
)
_conv_dgrad = _define_sum(
    "conv_dgrad", f"Tensor grad_output, Tensor w, SymInt[] input_shape, {_GEOMETRY}", _given_shape
)
_conv_wgrad = _define_sum(
    "conv_wgrad", f"Tensor x, Tensor grad_output, SymInt[] weight_shape, {_GEOMETRY}", _given_shape
)


def matmul(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    acc: Accumulator | Ints,
    seed: Tensor | None,
    role: int,
    backend: str = "auto",
    fused: Fused = NOT_FUSED,
) -> Tensor:
    """(..., M, K) times (..., K, N), float32, leading dimensions broadcast, summed by acc."""
    return _matmul(a, b, bias, _ints(acc), seed, int(role), backend, *fused)


def conv_fprop(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    acc: Accumulator | Ints,
    seed: Tensor | None,
    role: int,
    backend: str = "auto",
    fused: Fused = NOT_FUSED,
) -> Tensor:
    """x (N, C, *spatial) with w (C_out, C / groups, *kernel), float32, 1 to 3 dimensions."""
    geometry = (stride, padding, dilation, groups)
    return _conv_fprop(x, w, bias, *geometry, _ints(acc), seed, int(role), backend, *fused)


def conv_dgrad(
    grad_output: Tensor,
    w: Tensor,
    input_shape: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    acc: Accumulator | Ints,
    seed: Tensor | None,
    role: int,
    backend: str = "auto",
    fused: Fused = NOT_FUSED,
) -> Tensor:
    """The gradient of `conv_fprop` with respect to x, of shape input_shape."""
    geometry = (stride, padding, dilation, groups)
    spec = _ints(acc)
    return _conv_dgrad(
        grad_output, w, input_shape, *geometry, spec, seed, int(role), backend, *fused
    )


def conv_wgrad(
    x: Tensor,
    grad_output: Tensor,
    weight_shape: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    acc: Accumulator | Ints,
    seed: Tensor | None,
    role: int,
    backend: str = "auto",
    fused: Fused = NOT_FUSED,
) -> Tensor:
    """The gradient of `conv_fprop` with respect to w, of shape weight_shape."""
    geometry = (stride, padding, dilation, groups)
    spec = _ints(acc)
    return _conv_wgrad(
        x, grad_output, weight_shape, *geometry, spec, seed, int(role), backend, *fused
    )


def packed_bytes(fmt: Ints, shape: Sequence[int]) -> int:
    """The length of `pack`'s result: the bits of all codes, a scale byte for each block, rounded
    up.

    fmt is a float, fixed or block format as integers.
    """
    numel = math.prod(shape)
    if fmt[0] != BLOCK:
        return (numel * _code_bits(fmt) + 7) // 8
    length = shape[fmt[2]] if len(shape) else 1
    blocks = 0 if numel == 0 else numel // length * -(-length // fmt[1])
    return (numel * _code_bits(fmt[8:]) + 8 * blocks + 7) // 8


def _code_bits(fmt: Ints) -> int:
    return fmt[1] if fmt[0] == FIXED else 1 + fmt[1] + fmt[2]


def _pack_fake(x: Tensor, fmt: Sequence[int]) -> Tensor:
    return x.new_empty(packed_bytes(tuple(fmt), x.shape), dtype=torch.uint8)


def _pack_impl(x: Tensor, fmt: Sequence[int]) -> Tensor:
    chosen = backends.select("auto", "pack", x.device)
    values = x.detach().to(torch.float32)
    if x.dtype == torch.float64:
        lost = (values.double() != x) & ~x.isnan()
        if lost.any():
            name, value = format_from_ints(tuple(fmt)).name, x[lost][0].item()
            raise ValueError(
                f"pack: {name} has no code for {value!r}; round x with lp.quantize first"
            )
    return chosen.pack(values, tuple(fmt))


def _unpack_impl(codes: Tensor, fmt: Sequence[int], shape: Sequence[int]) -> Tensor:
    chosen = backends.select("auto", "unpack", codes.device)
    return chosen.unpack(codes, tuple(fmt), list(shape))


_pack = _define("_pack(Tensor x, int[] format) -> Tensor", _pack_fake, _pack_impl)
_unpack = _define(
    "_unpack(Tensor codes, int[] format, SymInt[] shape) -> Tensor",
    lambda codes, fmt, shape: codes.new_empty(shape, dtype=torch.float32),
    _unpack_impl,
)


def pack(x: Tensor, fmt: Packable | Ints) -> Tensor:
    """The codes of x, dense, as a 1-D uint8 tensor."""
    return _pack(x, _ints(fmt))


def unpack(codes: Tensor, fmt: Packable | Ints, shape: Sequence[int]) -> Tensor:
    """The float32 values of codes."""
    return _unpack(codes, _ints(fmt), shape)
