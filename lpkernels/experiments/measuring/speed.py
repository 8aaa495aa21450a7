"""The speed of an emulated product beside torch's own in float32."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from lpkernels.arithmetic import Accumulator
from lpkernels.formats import parse_format
from lpkernels.functional import matmul, quantize


@dataclass(frozen=True)
class Speed:
    """Multiply-adds a second of the best of several calls each, in 1e9."""

    emulated: float
    torch_float32: float

    @property
    def ratio(self) -> float:
        """The emulated rate as a share of torch's."""
        return self.emulated / self.torch_float32


def measure(
    shape: tuple[int, int, int], operands: str, acc: Accumulator, *, repeats: int = 5, seed: int = 0
) -> Speed:
    """Times ``lp.matmul`` on normally distributed values of a format, interleaved with torch.mm.

    Args:
        shape: (M, K, N).
        operands: the format that both operands are rounded to.
        acc: the accumulator.
        repeats: pairs of calls; the best of each counts.
        seed: of the operands and of stochastic rounding.
    """
    m, k, n = shape
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(s, generator=generator) for s in ((m, k), (k, n)))
    narrow_a, narrow_b = (quantize(x, parse_format(operands)).float() for x in (a, b))
    calls = [lambda: matmul(narrow_a, narrow_b, acc, generator=generator), lambda: torch.mm(a, b)]
    rounds = [[_seconds(call) for call in calls] for _ in range(repeats + 1)]
    # The first round warms up.
    emulated, plain = map(min, zip(*rounds[1:], strict=True))
    products = m * k * n / 1e9
    return Speed(products / emulated, products / plain)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
