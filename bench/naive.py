"""The baseline csrc/bench/naive.cpp: a scalar multiply-add at a time, each rounded in turn."""

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
