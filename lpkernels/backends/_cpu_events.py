"""The events inside sums of csrc/cpu."""

from __future__ import annotations

import torch
from torch import Tensor

from lpkernels.backends._cpu_module import FLOAT32, CpuModule, seed_int


class EventKernels(CpuModule):
    """A method of `Backend`."""

    def matmul_events(
        self,
        a: Tensor,
        b: Tensor,
        acc: tuple[int, ...],
        seed: Tensor | None,
        role: int,
        row: Tensor,
    ) -> tuple[Tensor, tuple[int, ...]]:
        (m, k), n = a.shape, b.shape[1]
        sums = torch.empty(m, n, **FLOAT32)
        tensors, lying = [x.data_ptr() for x in (a, b, sums)], [*a.stride(), *b.stride()]
        counts = self._c().matmul_events(
            *tensors, [m, n, k], lying, row.data_ptr(), acc, seed_int(seed), role,
            torch.get_num_threads(),
        )  # fmt: skip
        return sums, tuple(counts)
