"""The baselines of csrc/bench: scalar loops that round one multiply-add after the other.

`matmul` rounds each one twice, as simulators usually do; `exact` rounds once, by the rules of the
kernels.
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from lpkernels import FloatFormat
from lpkernels.arithmetic import Accumulator
from lpkernels.rounding import ROUNDINGS

LIBRARY = (
    Path(__file__).resolve().parents[1]
    / "build"
    / str(sys.implementation.cache_tag)
    / ("liblpk_naive.dylib" if sys.platform == "darwin" else "liblpk_naive.so")
)


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    if not LIBRARY.exists():
        raise FileNotFoundError(
            f"{LIBRARY} is missing; `make bench` builds it "
            f"(cmake --build {LIBRARY.parent} --target lpk_naive)"
        )
    library = ctypes.CDLL(str(LIBRARY))
    pointer, size, integer = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    library.naive_matmul.argtypes = [pointer] * 3 + [size] * 3 + [integer] * 6
    library.naive_matmul.restype = None
    library.exact_matmul.argtypes = [pointer] * 3 + [size] * 3 + [pointer, ctypes.c_uint64]
    library.exact_matmul.restype = None
    return library


def why_not() -> str:
    """Why the baseline cannot run; "" if it can."""
    try:
        _library()
    except OSError as error:
        return str(error)
    return ""


def matmul(a: Tensor, b: Tensor, acc: Accumulator) -> Tensor:
    """a (M, K) times b (K, N), contiguous float32, in an IEEE format, without chunks.

    Products are rounded to nearest even; sums to nearest even, toward zero, or stochastically with
    as many bits as are dropped. Chunks are left out: they cost such a loop nothing.
    """
    if not isinstance(acc.fmt, FloatFormat):
        raise NotImplementedError(f"naive: only float formats, got {acc.fmt}")
    product = acc.product
    widths = (product.exp_bits, product.man_bits) if isinstance(product, FloatFormat) else (0, 0)
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n)
    _library().naive_matmul(
        a.data_ptr(),
        b.data_ptr(),
        c.data_ptr(),
        m,
        k,
        n,
        acc.fmt.exp_bits,
        acc.fmt.man_bits,
        *widths,
        ROUNDINGS.index(acc.rounding),
        torch.get_num_threads(),
    )
    return c


def exact(a: Tensor, b: Tensor, acc: Accumulator, seed: int = 0) -> Tensor:
    """a (M, K) times b (K, N), contiguous float32, for any sums in sequence without chunks.

    It runs on one thread. seed: the seed of draws of role 0.
    """
    if not acc.in_sequence or acc.chunk is not None:
        raise NotImplementedError(f"exact: only sums in sequence without chunks, got {acc}")
    ints = (ctypes.c_int64 * len(acc.to_ints()))(*acc.to_ints())
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n)
    _library().exact_matmul(a.data_ptr(), b.data_ptr(), c.data_ptr(), m, k, n, ints, seed % 2**64)
    return c
