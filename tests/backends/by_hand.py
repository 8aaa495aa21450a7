"""The methods of a backend with the fields of their records as arguments."""

from typing import Any

from torch import Tensor

from lpkernels import backends
from lpkernels.backends import Fused, How, Parts, Rounding

Ints = tuple[int, ...]


def quantize(backend: Any, *rounding: Any) -> None:
    """rounding: the fields of a `Rounding`."""
    backend.quantize(Rounding(*rounding))


def scaled(
    backend: Any, x: Tensor, quantizer: Ints, seed: Tensor | None, role: int, site: int,
    amax: Tensor | None,
) -> Parts:  # fmt: skip
    """The codes and scales of x."""
    parts = backends.new_parts(x.shape, quantizer, x.device)
    backend.quantize(Rounding(x, quantizer, seed, role, site, limits=amax, parts=parts))
    return parts


def dequantize(backend: Any, values: Tensor, scale: Tensor, one: Tensor, fmt: Ints) -> Tensor:
    return backend.unpack((values, scale, one), fmt, values.shape)


def pack_scaled(backend: Any, values: Tensor, scale: Tensor, fmt: Ints) -> Tensor:
    return backend.pack(values, fmt, scale=scale)


def matmul(
    backend: Any, a: Tensor, b: Tensor, bias: Tensor | None, acc: Ints, seed: Tensor | None,
    role: int, fused: Fused = backends.NOT_FUSED, initial: Tensor | None = None,
) -> Tensor:  # fmt: skip
    return backend.multiply(backends.matmul_of(a, b, bias, initial), How(acc, seed, role, fused))


def accumulate(
    backend: Any, total: Tensor, addend: Tensor, rows_cols: tuple[int, int], acc: Ints,
    seed: Tensor | None, role: int, site: int, k: int,
) -> None:  # fmt: skip
    backend.accumulate(total, addend, How(acc, seed, role), backends.DrawKey(*rows_cols, site, k))


def update(
    backend: Any, tensors: backends.UpdateTensors, seed: Tensor | None, skips: Tensor | None,
    scale: Tensor | None, *rest: Any,
) -> None:  # fmt: skip
    """rest: positions, origins, rounding, numbers, begins."""
    backend.update(backends.Update(tensors, *rest, seed, skips, scale))
