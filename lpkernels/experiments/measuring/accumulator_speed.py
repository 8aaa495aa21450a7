"""Speed and error of one accumulator over the length of its sums, on every backend that runs."""

import time
from collections.abc import Iterator
from typing import Any

import torch

import lpkernels
from lpkernels import schemas
from lpkernels.arithmetic import Accumulator
from lpkernels.experiments.measuring.machine import environment
from lpkernels.formats import parse_format
from lpkernels.functional import matmul, quantize
from lpkernels.techniques.accumulation import measure

SHORTEST, LONGEST = 6, 24
# There are 16 x 16 sums, and 8 x 8 of the longest, whose operands would otherwise not fit in
# memory.
_SIDE, _SIDE_LONG, _LONG = 16, 8, 1 << 21
# The reference, which is slow on purpose, is asked for at most so many products in a call.
_MOST_REFERENCE = 1 << 22


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
        got = measure(a, b, acc, counted=0, generator=torch.tensor(seed))
        for name in names:
            products = side * side * length
            device = _device(name, products)
            if device is None:
                continue
            seconds = _best(a.to(device), b.to(device), acc, name, repeats)
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


def _best(a: torch.Tensor, b: torch.Tensor, acc: Accumulator, backend: str, repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats + 1):
        start = time.perf_counter()
        matmul(a, b, acc, generator=torch.tensor(0), backend=backend)
        if a.is_cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best
