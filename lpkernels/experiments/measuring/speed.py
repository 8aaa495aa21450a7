"""The speed of emulated products: one beside torch's own in float32, and sums over their length."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import lpkernels
from lpkernels import schemas
from lpkernels.arithmetic import Accumulator
from lpkernels.experiments.measuring.machine import environment
from lpkernels.formats import parse_format
from lpkernels.functional import matmul, quantize
from lpkernels.techniques import accumulation

SHORTEST, LONGEST = 6, 24
# There are 16 x 16 sums, and 8 x 8 of the longest, whose operands would otherwise not fit in
# memory.
_SIDE, _SIDE_LONG, _LONG = 16, 8, 1 << 21
# The reference, which is slow on purpose, is asked for at most so many products in a call.
_MOST_REFERENCE = 1 << 22


@dataclass(frozen=True)
class Speed:
    """Multiply-adds a second of the best of several calls each, in 1e9."""

    emulated: float
    torch_float32: float

    @property
    def ratio(self) -> float:
        """The emulated rate as a share of torch's."""
        return self.emulated / self.torch_float32


def shape_from(text: str) -> tuple[int, int, int]:
    """(M, K, N) of a text such as "960x960x960".

    Raises:
        ValueError: anything but three positive integers with x between them.
    """
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"expected MxKxN, three positive integers as in 960x960x960, got {text!r}")
    m, k, n = (int(part) for part in parts)
    return m, k, n


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
    emulated, plain = best_seconds(calls, repeats)
    products = m * k * n / 1e9
    return Speed(products / emulated, products / plain)


def best_seconds(calls: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """The shortest time of each call, in turns; the first of each warms up and does not count."""
    rounds = []
    for _ in range(repeats + 1):
        times = []
        for call in calls:
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        rounds.append(times)
    return [min(times) for times in zip(*rounds[1:], strict=True)]


def speed_over_length(
    operands: str, acc: Accumulator, *, longest: int = 20, repeats: int = 3, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """A record for every length 2^6, 2^8, ... 2^longest and backend, as soon as it is measured.

    seconds: of the best of `repeats` calls after one that warms up; rate: multiply-adds a second.
    vrr, nmse: of `measure`, the same on every backend.  The reference backend stops where a call
    would take minutes.

    Raises: ValueError: longest is not in 6..24.
    """
    if not SHORTEST <= longest <= LONGEST:
        raise ValueError(f"longest must be in {SHORTEST}..{LONGEST} (powers of two), got {longest}")
    names = [name for name, status in lpkernels.backends.status().items() if status == "available"]
    where = environment("cpu")
    for log_n in range(SHORTEST, longest + 1, 2):
        length = 2**log_n
        side = _SIDE_LONG if length >= _LONG else _SIDE
        generator = torch.Generator().manual_seed(seed)
        a, b = (
            quantize(torch.randn(size, generator=generator), parse_format(operands)).float()
            for size in ((side, length), (length, side))
        )
        got = accumulation.measure(a, b, acc, counted=0, generator=torch.tensor(seed))
        for name in names:
            products = side * side * length
            device = _device(name, products)
            if device is None:
                continue
            seconds = _seconds(a.to(device), b.to(device), acc, name, repeats)
            yield {
                **schemas.line("accumulator_speed"), "backend": name, "accumulator": str(acc),
                "operands": operands, "length": length, "sums": side * side, "seconds": seconds,
                "rate": products / seconds, "vrr": got.vrr, "vrr_error": got.vrr_error,
                "nmse": got.nmse, "threads": torch.get_num_threads(), "environment": where,
            }  # fmt: skip


def _device(backend: str, products: int) -> torch.device | None:
    """The device on which a backend can do that many products, None if it cannot."""
    if backend == "reference" and products > _MOST_REFERENCE:
        return None
    places = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    able = lpkernels.backends.get(backend)
    fits = (d for d in map(torch.device, places) if not able.unsupported("matmul", d))
    return next(fits, None)


def _seconds(
    a: torch.Tensor, b: torch.Tensor, acc: Accumulator, backend: str, repeats: int
) -> float:
    def call() -> None:
        matmul(a, b, acc, generator=torch.tensor(0), backend=backend)
        if a.is_cuda:
            torch.cuda.synchronize()

    return best_seconds([call], repeats)[0]
