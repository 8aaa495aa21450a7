"""The events inside sums of csrc/cpu, and gradients that take them into account."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from lpkernels.arithmetic.integers import InAccumulator

_FLOAT32: Any = {"dtype": torch.float32, "device": torch.device("cpu")}
_BYTES: Any = {"dtype": torch.uint8, "device": torch.device("cpu")}


def matmul_events(
    module: ModuleType,
    a: Tensor,
    b: Tensor,
    acc: tuple[int, ...],
    seed: int,
    role: int,
    row: Tensor,
    bits: bool,
) -> tuple[Tensor, tuple[int, ...], Tensor | None, Tensor | None]:
    """As `Backend.matmul_events`; module is lpkernels._C."""
    (m, k), n, chunk = a.shape, b.shape[1], acc[InAccumulator.CHUNK]
    sums = torch.empty(m, n, **_FLOAT32)
    products = torch.zeros(m, k, n, **_BYTES) if bits else None
    chunks = torch.zeros(m, -(-k // chunk), n, **_BYTES) if bits and chunk else None
    outputs = [0 if x is None else x.data_ptr() for x in (sums, products, chunks)]
    lying = [*a.stride(), *b.stride()]
    operands = (a.data_ptr(), b.data_ptr(), outputs, [m, n, k], lying, [row.data_ptr(), 0])
    threads = torch.get_num_threads()
    counts = module.matmul_events(*operands, acc, seed, role, threads)
    return sums, tuple(counts), products, chunks


def masked_gradients(
    module: ModuleType,
    a: Tensor,
    b: Tensor,
    g: Tensor,
    acc: tuple[int, ...],
    seed: int,
    role: int,
    first_col: int,
    bits: int,
    recursive: bool,
) -> tuple[Tensor, Tensor]:
    """As `Backend.masked_gradients`; module is lpkernels._C."""
    (m, k), n = a.shape, b.shape[1]
    left, right = torch.zeros(m, k, **_FLOAT32), torch.zeros(k, n, **_FLOAT32)
    if not (m and n and k):
        return left, right
    g, row = g.contiguous(), torch.arange(m, dtype=torch.int64, device="cpu")
    tensors = [x.data_ptr() for x in (a, b, g, left, right)]
    lying = [*a.stride(), *b.stride()]
    keys, threads = [row.data_ptr(), first_col], torch.get_num_threads()
    module.masked_gradients(
        *tensors, [m, n, k], lying, keys, acc, seed, role, bits, recursive, threads
    )
    return left, right
