"""The checks that the public functions share.

Each raises an error with the expected value, the value that came, and a remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import QUANTIZERS, Recipe
from lpkernels.formats import format_from_ints
from lpkernels.formats.grids import misfit
from lpkernels.formats.integers import Ints, without_zero
from lpkernels.functional.torch_calls import is_dense

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def tensor(function: str, name: str, value: object) -> None:
    """value is a dense tensor on a device that lpkernels knows."""
    if isinstance(value, torch.fx.Proxy):
        raise TypeError(
            f"{function}: torch.fx.symbolic_trace cannot follow emulated arithmetic; use "
            "torch.export, or lp.convert the layers of the graph once it is traced"
        )
    if not isinstance(value, Tensor):
        advice = "torch.as_tensor converts arrays and numbers"
        if hasattr(value, "dequantize"):
            advice = ".dequantize() gives its values"
        raise TypeError(
            f"{function}: {name} must be a torch.Tensor, got {type(value).__name__}; {advice}"
        )
    if not is_dense(value) or value.is_nested:
        got = "a nested one" if value.is_nested else f"layout {value.layout}"
        call = ".to_padded_tensor(0.0)" if value.is_nested else ".to_dense()"
        raise TypeError(
            f"{function}: {name} must be a dense (strided) tensor, got {got}; call {call} first"
        )
    if value.device.type not in ("cpu", "cuda", "meta"):
        raise ValueError(
            f"{function}: {name} must be on cpu or cuda, got {value.device}; move it with .cpu() "
            "or .cuda()"
        )


def floating(function: str, **tensors: Tensor | None) -> bool:
    """All tensors given are dense, of a floating dtype, and on one device; a bias may be None.

    Returns whether they are float32 and operators may run directly (`ops.is_direct`).
    """
    if tensors.get("bias", function) is None:
        del tensors["bias"]
    if ops.is_direct(*tensors.values(), dtype=torch.float32):
        return True
    _untraced(function)
    for name, value in tensors.items():
        tensor(function, name, value)
        if value is not None and value.dtype not in FLOATING:
            raise TypeError(
                f"{function}: {name} must be float16, bfloat16, float32 or float64, got "
                f"{value.dtype}; " + _dtype_advice(name, value.dtype)
            )
    same_device(function, **tensors)
    return False


def _untraced(function: str) -> None:
    """torch.jit.trace does not run; sizes are tensors there, which no later check expects."""
    if torch.jit.is_tracing():
        raise NotImplementedError(
            f"{function}: torch.jit.trace cannot follow emulated arithmetic; use torch.export"
        )


def operands(function: str, **tensors: Tensor | None) -> bool:
    """All tensors given can be operands: float16, bfloat16 or float32, on one device.

    Returns what `floating` returns.
    """
    if floating(function, **tensors):
        return True
    for name, value in tensors.items():
        if value is not None and value.dtype == torch.float64:
            raise TypeError(
                f"{function}: {name} is float64, but emulated arithmetic takes float32, bfloat16 "
                f"or float16 operands; round it first: lp.quantize({name}, fmt).float(); a model: "
                "model.float()"
            )
    return False


def same_device(function: str, **tensors: Tensor | None) -> None:
    """All tensors given are on one device; the error names the first tensor of each device."""
    places: dict[torch.device, str] = {}
    for name, value in tensors.items():
        if value is not None:
            places.setdefault(value.device, name)
    if len(places) > 1:
        without_values = any(device.type == "meta" for device in places)
        raise ValueError(
            f"{function}: all tensors must be on one device, got "
            + ", ".join(f"{name} on {device}" for device, name in places.items())
            + "; move them with .to(device)"
            + (", from meta with .to_empty(device=...) and load_state_dict" * without_values)
        )


def shape(function: str, name: str, x: Tensor, expected: Sequence[int], meaning: str) -> None:
    """x has this shape; the error explains it by its meaning, such as "(gates * H,)"."""
    if x.shape != tuple(expected):
        raise ValueError(
            f"{function}: {name} has shape {tuple(x.shape)}; expected {tuple(expected)}, which is "
            f"{meaning}"
        )


def broadcasts(function: str, name: str, x: Tensor, shape: Sequence[int]) -> None:
    """x broadcasts to this shape."""
    padded = (1,) * (len(shape) - x.dim()) + tuple(x.shape)
    sizes = zip(padded, shape, strict=False)
    if len(padded) > len(shape) or any(n not in (1, size) for n, size in sizes):
        raise ValueError(
            f"{function}: {name} has shape {tuple(x.shape)}, which does not broadcast to "
            f"{tuple(shape)}; each dimension must be equal or 1"
        )


def backend(function: str, name: object) -> None:
    """name is "auto" or the name of a backend."""
    if name not in ops.BACKENDS:
        raise ValueError(f"{function}: unknown backend {name!r}; expected one of {ops.BACKENDS}")


def call(function: str, name: object, seed: object) -> None:
    """The last arguments of a call: a `backend`, and a `generator`."""
    backend(function, name)
    generator(function, seed)


def scaling(function: str, method: object, scales: object = None) -> None:
    """A recipe with its `scaling` is computed with the scales of a layer, and no other is."""
    if method is not None and scales is None:
        raise ValueError(
            f"{function}: {method} is for the linear layers and convolutions of lpkernels.nn, "
            "which keep its scales; give this call a recipe without scaling"
        )
    if method is None and scales is not None:
        raise ValueError(
            f"{function}: scales= is for a recipe with scaling, and this one has none; leave "
            "scales away"
        )
    if scales is not None and not hasattr(scales, "of_backward"):
        raise TypeError(
            f"{function}: expected scales to be those that a layer of lpkernels.nn keeps, got "
            f"{scales!r}; call the layer"
        )


def no_matmul(function: str, recipe: Recipe, *sums: str) -> None:
    """A recipe that needs no matrix product; sums: the accumulators that add values."""
    scaling(function, recipe.scaling)
    if not recipe.readings.by_product:
        return
    elsewhere = f"{function} has none; leave it to another recipe (exclude= of lp.convert)"
    for name in QUANTIZERS:
        quantizer = getattr(recipe, name)
        if quantizer is not None and quantizer.hadamard is not None:
            raise ValueError(
                f"{function}: {name}='{quantizer}' transforms the operand of a matrix product, and "
                f"{elsewhere}"
            )
    for name in sums:
        if getattr(recipe, name).takes_scales:
            raise ValueError(
                f"{function}: {name}='{getattr(recipe, name)}' adds products of codes in a matrix "
                f"product, and {elsewhere}"
            )


def generator(function: str, value: object) -> None:
    """value can seed a call: a torch.Generator on the CPU, a 0-d int64 tensor, or None."""
    if value is None:
        return
    is_seed = isinstance(value, Tensor) and value.dtype == torch.int64
    if not is_seed and not isinstance(value, torch.Generator):
        got = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"{function}: generator must be a torch.Generator on the CPU, a 0-d int64 tensor or "
            f"None, got {got}; torch.Generator().manual_seed(seed) makes one of an int"
        )
    if isinstance(value, Tensor) and value.dim() != 0:
        raise ValueError(
            f"{function}: a tensor that gives the seed must be 0-d, got shape "
            f"{tuple(value.shape)}; select one element or .reshape(())"
        )
    if isinstance(value, torch.Generator) and value.device.type != "cpu":
        raise ValueError(
            f"{function}: generator must be on the CPU, where the seed of every device is drawn, "
            f"got one on {value.device}; use torch.Generator(), or a 0-d int64 tensor on the device"
        )


def axis(function: str, name: str, shape: Sequence[int], fmt: Ints) -> None:
    """A tensor of this shape has the blocks or slices of a format, given by its integers."""
    wrong = misfit(fmt, len(shape))
    if wrong is not None:
        raise wrong.error(function, format_from_ints(fmt), f"{name} has shape {tuple(shape)}")


def out(
    function: str,
    target: Tensor,
    shape: Sequence[int],
    dtypes: Sequence[torch.dtype],
    **inputs: Tensor | None,
) -> None:
    """target can receive a result of this shape and one of these dtypes.

    A tensor without elements is resized, as torch does.
    """
    tensor(function, "out", target)
    if target.dtype not in dtypes:
        raise TypeError(
            f"{function}: out must be {' or '.join(str(dtype) for dtype in dtypes)}, got "
            f"{target.dtype}; leave out away to get a tensor of the right dtype"
        )
    same_device(function, out=target, **inputs)
    tensors = {"out": target, **inputs}
    grad = [name for name, value in tensors.items() if value is not None and value.requires_grad]
    if grad and torch.is_grad_enabled():
        raise ValueError(
            f"{function}: out= does not record gradients, but {' and '.join(grad)} requires grad; "
            "leave out away, or call under torch.no_grad()"
        )
    if target.shape != torch.Size(shape) and target.numel() == 0:
        target.resize_(tuple(shape))
    if target.shape != torch.Size(shape):
        raise ValueError(
            f"{function}: out has shape {tuple(target.shape)} but the result has shape "
            f"{tuple(shape)}; pass a tensor of that shape or torch.empty(0)"
        )
    steps = zip(target.shape, target.stride(), strict=True)
    if any(size > 1 and stride == 0 for size, stride in steps):
        raise ValueError(
            f"{function}: out is an expanded view (strides {target.stride()}) whose elements share "
            "memory; pass .contiguous()"
        )


def countable(function: str, fmt: tuple[int, ...]) -> None:
    """Roundings to the format can be counted."""
    if without_zero(fmt):
        raise ValueError(
            f"{function}: nothing is counted in {format_from_ints(fmt)}, which has no zero: every "
            "value below its least one becomes that; leave counts away"
        )


def counts(function: str, target: object, x: Tensor) -> None:
    """target can receive the counts of x."""
    few, many = ops.COUNTS, ops.COUNTS + ops.BINS
    if not isinstance(target, Tensor) or target.dtype != torch.int64:
        got = target.dtype if isinstance(target, Tensor) else type(target).__name__
        raise TypeError(
            f"{function}: counts must be an int64 tensor of {few} or {many} elements, got {got}; "
            f"torch.zeros({few}, dtype=torch.int64) is one"
        )
    fits = target.dim() == 1 and target.numel() in (few, many) and target.is_contiguous()
    if not fits or target.device != x.device:
        raise ValueError(
            f"{function}: counts has shape {tuple(target.shape)}, strides {target.stride()} and "
            f"device {target.device}; expected one contiguous dimension of {few} elements, or of "
            f"{many} with a histogram, on {x.device}, where x is; a row of a table is one"
        )


def _dtype_advice(name: str, dtype: torch.dtype) -> str:
    if dtype.is_complex:
        return f"quantise {name}.real and {name}.imag apart"
    if dtype.is_floating_point:
        return f"widen it exactly with {name}.float()"
    return f"convert it with {name}.float()"


@ops.assume_constant_result
def constant(function: Callable[..., Any], *args: str | int) -> Any:
    """function(*args). While tracing torch.compile evaluates it, instead of tracing into it.

    It is for the reading of names, which depend on no tensor. The function must be a plain one (a
    wrapper of lru_cache is not), and the result must consist of numbers.
    """
    return _evaluated(function, *args)


@lru_cache(maxsize=1024, typed=True)
def _evaluated(function: Callable[..., Any], *args: str | int) -> Any:
    return function(*args)
