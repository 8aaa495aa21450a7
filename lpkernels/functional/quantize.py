"""Rounding a tensor to a format, and counting what that would do."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import Quantizer, as_quantizer, check_mode
from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.formats import FP32, Format, as_format
from lpkernels.formats.elsewhere import of_another_kind, unless_dtype
from lpkernels.formats.integers import AFFINE, BLOCK, KIND
from lpkernels.functional import _checks
from lpkernels.functional._limits import RangeLike, amax_of, limits_of
from lpkernels.functional.recording import apply
from lpkernels.functional.seeds import seed_for
from lpkernels.rng import SITE_QUANTIZE, Role
from lpkernels.rounding import ROUNDINGS

FormatLike: TypeAlias = Format | Quantizer | str | torch.dtype


def quantize(
    x: Tensor,
    fmt: FormatLike,
    rounding: str = "nearest_even",
    *,
    random_bits: int | None = None,
    generator: torch.Generator | Tensor | None = None,
    out: Tensor | None = None,
    counts: Tensor | None = None,
    range: RangeLike | None = None,
    amax: float | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Every value of x rounded to fmt, once.

    docs/contract.md, "Values" and "Rounding to a float format", has the rules for NaN, zeros,
    overflow and the dtype of the result. The bits do not depend on backend, device, strides or
    threads. The gradient is straight-through: the identity, at every order.

    Args:
        x: float16, bfloat16, float32 or float64; any shape (0-d and empty too) and strides, CPU or
            CUDA. float64 is rounded straight to the format, not to float32 first.
        fmt: a format, its name, a Quantizer, or a Quantizer's text such as "e5m2:stochastic".
        rounding: nearest_even, nearest_away, toward_zero, toward_positive, toward_negative, to_odd
            or stochastic. A Quantizer brings its own.
        random_bits: 1..32 for stochastic rounding; None means 32.
        generator: a torch.Generator on the CPU or a 0-d int64 tensor, the seed; None: torch's
            default CPU generator, or the enclosing `seed_from`. Only stochastic rounding draws;
            other modes accept a generator and leave it as it is.
        out: the tensor to write, float32 or the result's dtype, of x's shape (or empty, then it is
            resized). It may share memory with x. Gradients are not recorded.
        counts: int64, one contiguous dimension of 4 or 4 + 256 elements on x's device, to which
            the call adds [overflow, underflow, zeros, nonfinite] of x's elements, and behind them a
            histogram of float32's biased exponents (docs/formats.md, "What rounding lost").
        range: for an AffineFormat, (lo, hi) in place of the tensor's own ends. lo and hi are
            numbers, or tensors with one element or one for each slice, on x's device; one tensor
            (2,) or (2, slices) may hold both. Values outside take the end codes. A symmetric format
            takes the larger of |lo| and |hi|. The host does not wait for ends in tensors: a slice
            becomes NaN if an end is not finite or lo > hi.
        amax: for a BlockFormat with a scale of the whole tensor (tensor_scale, or block_size
            "tensor"), a largest magnitude in place of that of x's finite values, such as one that
            was reduced over processes: a number, or a tensor of one element on x's device, which
            the host does not read; with tensor_scale="row" also a tensor of x's shape with 1 along
            the axis. If it is NaN, infinite or negative, everything is NaN (under the steps "te" of
            one scale a tensor the scale is 1).
        backend: "auto" or a name of ``lpkernels.backends.status()``.

    Returns: x's shape; x's dtype where that holds every value of fmt, else float32 (always for
        Fixed, Affine and Block).

    Raises:
        TypeError: integer or complex x, or an argument of the wrong type.
        ValueError: unknown format or rounding, impossible random_bits, an axis x does not have, a
            generator, out, counts, range or amax that does not fit, a rounding that the steps of a
            BlockFormat do not have; counts for a format without zero.
        NotImplementedError: out or counts inside torch.func.vmap, which maps no call that writes.

    >>> x = torch.tensor([0.3, -1.7, 500.0, float("nan")])
    >>> lp.quantize(x, "e4m3fn")
    tensor([ 0.3125, -1.7500,     nan,     nan])
    >>> lp.quantize(x, "e5m2:stochastic", generator=torch.Generator().manual_seed(0))
    tensor([ 3.1250e-01, -1.5000e+00,  5.1200e+02,         nan])
    >>> lp.quantize(x, lp.FixedFormat(8, 4), "toward_zero")
    tensor([ 0.2500, -1.6875,  7.9375,     nan])
    """
    direct = ops.is_direct(x, dtype=torch.float32)
    if not direct:
        _checks.floating("quantize", x=x)
    quantizer, stochastic = lowered("quantize", fmt, rounding, random_bits)
    scales = quantizer[KIND] == AFFINE or quantizer[KIND] == BLOCK
    if scales:
        _checks.axis("quantize", "x", x.shape, quantizer[InQuantizer.FORMAT])
    if backend != "auto" or generator is not None:
        _checks.call("quantize", backend, generator)
    if out is not None:
        dtype = ops.result_dtype(x.dtype, quantizer)
        dtypes = (dtype,) if dtype == torch.float32 else (torch.float32, dtype)
        _checks.out("quantize", out, x.shape, dtypes, x=x)
    if counts is not None:
        _checks.countable("quantize", quantizer[InQuantizer.FORMAT])
        _checks.counts("quantize", counts, x)
    limits = None
    if range is not None:
        limits = limits_of("quantize", x, quantizer, range)
        if amax is not None:
            raise ValueError(
                "quantize: range= is for an AffineFormat, which has no amax=; leave it away"
            )
    elif amax is not None:
        limits = amax_of("quantize", x, quantizer, amax)
    seed = seed_for(True, generator) if stochastic else None
    if direct and counts is None and out is None and not ops.needs_gradient(x):
        if seed is None or ops.is_direct(seed):
            return ops.DIRECT.quantize(x, quantizer, seed, backend=backend, limits=limits)
    role, site = Role.DIRECT, SITE_QUANTIZE
    if out is not None:
        return ops.quantize(x, quantizer, seed, role, site, backend, limits, counts, out)
    return straight_through(x, quantizer, seed, role, site, backend, limits, counts)


def straight_through(
    x: Tensor,
    quantizer: ops.Ints,
    seed: Tensor | None,
    role: int,
    site: int,
    backend: str,
    limits: Tensor | None = None,
    counts: Tensor | None = None,
) -> Tensor:
    """`ops.quantize` of these arguments, with the identity as its gradient."""
    y: Tensor = apply(_StraightThrough, x, quantizer, seed, role, site, backend, limits, counts)
    return y


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *arguments: Any) -> Tensor:
        """arguments: those of `ops.quantize` behind x."""
        ctx.dtype = x.dtype
        return ops.quantize(x, *arguments)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (grad.to(ctx.dtype), *[None] * (len(ctx.needs_input_grad) - 1))


def count(
    x: Tensor,
    fmt: FormatLike,
    rounding: str = "nearest_even",
    *,
    random_bits: int | None = None,
    generator: torch.Generator | Tensor | None = None,
    counts: Tensor | None = None,
    histogram: bool = False,
    range: RangeLike | None = None,
    backend: str = "auto",
) -> Tensor:
    """Counts what `quantize` with the same arguments and draws would do to x, as its counts= does.

    Nothing is recorded for gradients.

    Args:
        x, fmt, rounding, random_bits, generator, range, backend: as for `quantize`.
        counts: the tensor to add to, as for `quantize`; None: a new one.
        histogram: whether a new tensor has the 256 bins too.

    Returns: counts, or a new int64 tensor of 4 or 260 elements on x's device.
    Raises: as `quantize`; ValueError: histogram with counts that have no bins.

    >>> lp.count(torch.tensor([0.0, 1e-9, 1.0, 1e9]), "e4m3fn")
    tensor([1, 1, 1, 0])
    """
    _checks.floating("count", x=x)
    quantizer, stochastic = lowered("count", fmt, rounding, random_bits)
    _checks.axis("count", "x", x.shape, quantizer[InQuantizer.FORMAT])
    _checks.countable("count", quantizer[InQuantizer.FORMAT])
    _checks.call("count", backend, generator)
    if counts is not None:
        _checks.counts("count", counts, x)
        if histogram and counts.numel() == ops.COUNTS:
            raise ValueError(
                f"count: histogram=True needs counts of {ops.COUNTS + ops.BINS} elements, got "
                f"{ops.COUNTS}; leave counts or histogram away"
            )
    limits = limits_of("count", x, quantizer, range)
    seed = seed_for(stochastic, generator)
    if counts is None:
        length = ops.COUNTS + (ops.BINS if histogram else 0)
        counts = torch.zeros(length, dtype=torch.int64, device=x.device)
    ops.count(x.detach(), quantizer, counts, limits, seed, Role.DIRECT, SITE_QUANTIZE, backend)
    return counts


def lowered(
    function: str, fmt: FormatLike, rounding: str, random_bits: int | None
) -> tuple[tuple[int, ...], bool]:
    """The integers of the Quantizer, and whether it is stochastic.

    torch.compile can hold integers as constants, but no Quantizer that is made while it traces.
    """
    if type(fmt) is type(rounding) is str and not torch.compiler.is_compiling():
        return _lowered_name(function, fmt, rounding, random_bits)
    return _lowered(function, fmt, rounding, random_bits)


def _lowered(
    function: str, fmt: FormatLike, rounding: str, random_bits: int | None
) -> tuple[tuple[int, ...], bool]:
    if isinstance(fmt, Quantizer) or (isinstance(fmt, str) and ":" in fmt):
        quantizer, stochastic = lowered_quantizer(fmt)
        own_mode = ROUNDINGS[quantizer[InQuantizer.ROUNDING]]
        if random_bits is not None or rounding not in ("nearest_even", own_mode):
            raise ValueError(
                f"{function}: the Quantizer {fmt} has its own rounding and random_bits, but got "
                f"rounding={rounding!r}, random_bits={random_bits!r} as well; leave them away or "
                "pass a format"
            )
        return quantizer, stochastic
    if not isinstance(rounding, str):
        raise TypeError(
            f"{function}: rounding must be a str, got {type(rounding).__name__}; "
            "for example 'nearest_even' or 'stochastic'"
        )
    stochastic = rounding == "stochastic"
    if random_bits is None:
        mode = _checks.constant(_mode_ints, rounding)
    else:
        mode = _checks.constant(_mode_ints, rounding, random_bits)
    ints = format_ints(function, fmt)
    check_mode(function, ints, rounding)
    return ints + mode, stochastic


_lowered_name = lru_cache(maxsize=1024, typed=True)(_lowered)


def format_ints(function: str, fmt: FormatLike) -> tuple[int, ...]:
    """The integers of a format, of its name or of a torch.dtype."""
    fmt = unless_dtype(fmt)
    if isinstance(fmt, str):
        return _checks.constant(_format_ints, fmt)
    if isinstance(fmt, Format):
        return fmt.to_ints()
    example = '; for example "e5m2", lp.FloatFormat(5, 2) or lp.Quantizer("e5m2", "stochastic")'
    raise TypeError(
        f"{function}: fmt must be a format, its name or a torch.dtype, got "
        f"{type(fmt).__name__}{of_another_kind(fmt, 'quantizer') or example}"
    )


def lowered_quantizer(quantizer: Quantizer | FormatLike) -> tuple[tuple[int, ...], bool]:
    """The integers of a Quantizer or of its text, and whether it is stochastic."""
    if isinstance(quantizer, str):
        return _checks.constant(_quantizer_ints, quantizer)
    return _quantizer_ints(quantizer)


def _quantizer_ints(quantizer: Quantizer | FormatLike) -> tuple[tuple[int, ...], bool]:
    quantizer = as_quantizer(quantizer)
    return quantizer.to_ints(), quantizer.is_stochastic


def _format_ints(name: str) -> tuple[int, ...]:
    return as_format(name).to_ints()


def _mode_ints(rounding: str, random_bits: int | None = None) -> tuple[int, ...]:
    return Quantizer(FP32, rounding, random_bits=random_bits).to_ints()[InQuantizer.MODE]
