"""The events inside sums of csrc/cpu, and gradients that take them into account."""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels.arithmetic.integers import InAccumulator
from lpkernels.backends._cpu_module import BYTES, FLOAT32, CpuModule, seed_int


class EventKernels(CpuModule):
    """Methods of `Backend`."""

    def matmul_events(
        self,
        a: Tensor,
        b: Tensor,
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        row: Tensor,
        bits: bool,
    ) -> tuple[Tensor, tuple[int, ...], Tensor | None, Tensor | None]:
        (m, k), n, chunk = a.shape, b.shape[1], acc[InAccumulator.CHUNK]
        sums = torch.empty(m, n, **FLOAT32)
        products = torch.zeros(m, k, n, **BYTES) if bits else None
        chunks = torch.zeros(m, -(-k // chunk), n, **BYTES) if bits and chunk else None
        outputs = [0 if x is None else x.data_ptr() for x in (sums, products, chunks)]
        lying = [*a.stride(), *b.stride()]
        operands = (a.data_ptr(), b.data_ptr(), outputs, [m, n, k], lying, [row.data_ptr(), 0])
        threads = torch.get_num_threads()
        counts = self._c().matmul_events(*operands, acc, seed_int(seed), role, threads)
        return sums, tuple(counts), products, chunks

    def masked_gradients(
        self,
        a: Tensor,
        b: Tensor,
        g: Tensor,
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        first_col: int,
        bits: int,
        recursive: bool,
    ) -> tuple[Tensor, Tensor]:
        (m, k), n = a.shape, b.shape[1]
        left, right = torch.zeros(m, k, **FLOAT32), torch.zeros(k, n, **FLOAT32)
        if not (m and n and k):
            return left, right
        g, row = g.contiguous(), torch.arange(m, dtype=torch.int64, device="cpu")
        tensors = [x.data_ptr() for x in (a, b, g, left, right)]
        lying = [*a.stride(), *b.stride()]
        keys, threads = [row.data_ptr(), first_col], torch.get_num_threads()
        self._c().masked_gradients(
            *tensors, [m, n, k], lying, keys, acc, seed_int(seed), role, bits, recursive, threads
        )
        return left, right
