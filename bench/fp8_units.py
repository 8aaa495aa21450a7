"""``python -m bench.fp8_units``: how the FP8 matrix units of this GPU add, by designed inputs.

A unit is taken for a function (a (M, K), b (K, N), values of e4m3) -> (M, N) float32, whatever runs
inside: here torch._scaled_mm, with and without fast accumulation. One large product L, its
opposite and one small product s tell what becomes of s:

    L, -L, s       in one block        the last place that alignment keeps, and how it cuts
    L, -L, s at k  s is back where k lies beyond the block
    L...L, s       read as it is       the mantissa bits of a written sum, and how it rounds
    L, s at k      s is kept where k lies in another chunk, promoted to fp32

From that follows an Accumulator, held against the unit on random matrices, bit by bit. Records go
to fp8-units.jsonl below --out. Where a unit is no such sum the record says so (`fits`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lpkernels import Accumulator, FloatFormat, matmul, quantize
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.records import append_record

Unit = Callable[[Tensor, Tensor], Tensor]

# Rows and columns of a probe; the experiment is its first element.
_SIDE = 128
# L = 2^8 * 2^8, both the largest power of two in e4m3.
_LARGE = 16
# The finest place looked for, below L: e4m3 has no smaller product than 2^-18.
_FINEST = 33
# Positions scanned for the end of a block, and of a chunk.
_LONGEST_BLOCK, _LONGEST_CHUNK = 256, 1024
_FP32_BITS = 23
# (1.5, -1.5 and 0.5 units) after rounding to units, by mode.
_MODES = {
    (1.0, -1.0, 0.0): "toward_zero",
    (1.0, -2.0, 0.0): "toward_negative",
    (2.0, -1.0, 1.0): "toward_positive",
    (2.0, -2.0, 0.0): "nearest_even",
    (2.0, -2.0, 1.0): "nearest_away",
    (1.0, -1.0, 1.0): "to_odd",
}
OPERANDS = (("e4m3fn", "e4m3fn"), ("e5m2", "e4m3fn"), ("e4m3fn", "e5m2"))
SHAPES = ((128, 512, 128), (64, 2048, 96), (256, 4096, 64))


@dataclass(frozen=True)
class Found:
    """What the probes say of a unit.

    aligned_bits: places below the largest exponent of a block that alignment keeps.
    cut: how it drops the others; "unknown" is none of an Accumulator's modes.
    block: products aligned together; 0: they are no run of neighbours.
    man_bits, rounding: mantissa bits of a written sum, 23 also where nothing can show more; how it
        rounds to them, "unseen" where nothing is ever rounded.
    sum_is_aligned: whether the running sum takes part in the alignment of the next block.
    chunk: products after which a sum is promoted to fp32; 0: never.
    outer_rounding: of that promotion, "unseen" without.
    """

    aligned_bits: int
    cut: str
    block: int
    man_bits: int
    rounding: str
    sum_is_aligned: bool
    chunk: int
    outer_rounding: str

    @property
    def fits(self) -> bool:
        """Whether an Accumulator sums like this."""
        known = {self.rounding, self.outer_rounding}.isdisjoint({"unknown"})
        return self.block > 0 and self.cut == "toward_zero" and self.sum_is_aligned and known

    def accumulator(self) -> Accumulator:
        """The Accumulator that adds like the unit.

        Raises: ValueError: none does.
        """
        if not self.fits:
            raise ValueError(f"no Accumulator sums like {self}")
        rounding = "toward_zero" if self.rounding == "unseen" else self.rounding
        outer: dict[str, Any] = {}
        if self.chunk:
            outer = {"chunk": self.chunk, "outer": "fp32", "outer_rounding": self.outer_rounding}
        return Accumulator(
            FloatFormat(8, self.man_bits), rounding, block=self.block,
            aligned_bits=self.aligned_bits, **outer,
        )  # fmt: skip


def observe(unit: Unit, products: Sequence[tuple[int, float, int]], length: int) -> float:
    """One sum: (position, m, e) are products m 2^e, all others zero."""
    a, b = torch.zeros(_SIDE, length), torch.zeros(length, _SIDE)
    for k, m, e in products:
        right = min(8, max(-9, e))
        a[0, k], b[k, 0] = m * 2.0 ** (e - right), 2.0**right
    return unit(a, b)[0, 0].item()


def probe(unit: Unit) -> Found:
    """The parameters of a unit.

    Raises: ValueError: it keeps no place below the largest, so that nothing can be told.
    """
    places = _aligned_bits(unit)
    block = _block(unit, places)
    copies = (block - 1 if block else 2).bit_length() - 1
    last = 2 * _LONGEST_BLOCK - block if block else 0
    bits = _man_bits(unit, places, copies, last)
    chunk = _chunk(unit, block, min(places, bits))
    return Found(
        places,
        _mode([_cancelled(unit, m, places) for m in (1.5, -1.5, 0.5)], _LARGE - places),
        block,
        bits,
        _rounding(unit, places, bits, copies, last),
        _sum_is_aligned(unit, block, places, min(places, bits)),
        chunk,
        _outer_rounding(unit, chunk),
    )


def _cancelled(unit: Unit, m: float, place: int) -> float:
    """m 2^-place L beside L and -L."""
    return observe(unit, [(0, 1.0, _LARGE), (1, m, _LARGE - place), (2, -1.0, _LARGE)], 32)


def _aligned_bits(unit: Unit) -> int:
    kept = [j for j in range(1, _FINEST + 1) if _cancelled(unit, 1.0, j) == 2.0 ** (_LARGE - j)]
    if not kept:
        raise ValueError("probe: nothing is left of half a product beside it")
    return max(kept)


def _block(unit: Unit, places: int) -> int:
    """Products that are aligned with those at 0 and 1; 0 if they are not the first ones."""
    if places >= _FINEST:
        return 0
    small = _LARGE - _FINEST
    lost = [
        observe(unit, [(0, 1.0, _LARGE), (1, -1.0, _LARGE), (k, 1.0, small)], 2 * _LONGEST_BLOCK)
        == 0.0
        for k in range(2, _LONGEST_BLOCK + 1)
    ]
    length = lost.index(False) + 2 if False in lost else 0
    return 0 if any(lost[length - 2 :]) else length


def _man_bits(unit: Unit, places: int, copies: int, first: int) -> int:
    """The most bits of 2^t L (1 + 2^-bits) that come out of the last block, which begins at `first`
    and has room for 2^copies of L and one more.
    """
    for bits in range(1, _FP32_BITS + 1):
        doublings = max(0, bits - places)
        if doublings > copies:
            return _FP32_BITS
        if _multiplied(unit, doublings, 1.0, bits, first) != 2.0**-bits:
            return bits - 1
    return _FP32_BITS


def _multiplied(unit: Unit, doublings: int, m: float, place: int, first: int) -> float:
    """What is left of m 2^-place beside 2^doublings copies of L, relative to those; m < 0: beside
    copies of -L."""
    count, sign = 2**doublings, -1.0 if m < 0 else 1.0
    products = [(first + k, sign, _LARGE) for k in range(count)]
    products.append((first + count, m, _LARGE + doublings - place))
    whole = 2.0 ** (_LARGE + doublings)
    return observe(unit, products, 2 * _LONGEST_BLOCK) / whole - sign


def _rounding(unit: Unit, places: int, bits: int, copies: int, first: int) -> str:
    doublings = max(0, bits + 1 - places)
    if doublings > copies or bits >= _FP32_BITS:
        return "unseen"
    found = [_multiplied(unit, doublings, m, bits, first) for m in (1.5, -1.5, 0.5)]
    return _mode(found, -bits)


def _mode(found: Sequence[float], place: int) -> str:
    """The mode that makes this of 1.5, -1.5 and 0.5 units of 2^place."""
    in_units = tuple(value / 2.0**place for value in found)
    return _MODES.get((in_units[0], in_units[1], in_units[2]), "unknown")


def _sum_is_aligned(unit: Unit, block: int, places: int, bits: int) -> bool:
    """Products below the place that alignment to the sum before keeps, in the block after it, which
    come to a last place of the sum: cut away one by one? True too where a block holds too few.
    """
    count = 2 ** (places + 1 - bits)
    if not count <= block:
        return True
    small = [(block + i, 1.0, _LARGE - places - 1) for i in range(count)]
    return observe(unit, [(0, 1.0, _LARGE), *small], 2 * _LONGEST_BLOCK) == 2.0**_LARGE


def _chunk(unit: Unit, block: int, bits: int) -> int:
    """Where a product below the last place of a sum is kept: beyond the chunk of that sum."""
    small = _LARGE - bits - 1
    if bits >= _FP32_BITS:
        return 0
    for k in range(max(1, block), _LONGEST_CHUNK, max(1, block)):
        got = observe(unit, [(0, 1.0, _LARGE), (k, 1.0, small)], 2 * _LONGEST_CHUNK)
        if got != 2.0**_LARGE:
            return k
    return 0


def _outer_rounding(unit: Unit, chunk: int) -> str:
    if not chunk:
        return "unseen"
    found = []
    for m in (1.5, -1.5, 0.5):
        sign = -1.0 if m < 0 else 1.0
        products = [(0, sign, _LARGE), (chunk, m, _LARGE - _FP32_BITS)]
        found.append(observe(unit, products, 2 * _LONGEST_CHUNK) - sign * 2.0**_LARGE)
    return _mode(found, _LARGE - _FP32_BITS)


def disagreement(
    unit: Unit, acc: Accumulator, shape: Sequence[int], operands: Sequence[str], *, seed: int
) -> tuple[int, int]:
    """Of random products, and of products spread over many binades: results that differ in a bit,
    and results. A unit of its own for each pair of operand formats.
    """
    generator = torch.Generator().manual_seed(seed)
    m, k, n = shape
    differ = 0
    for spread in (0, 6):
        left, right = (
            quantize(_random(size, spread, generator), f"{fmt}_sat").float()
            for size, fmt in zip(((m, k), (k, n)), operands, strict=True)
        )
        got, want = unit(left, right), matmul(left, right, acc)
        differ += int((got.view(torch.int32) != want.view(torch.int32)).sum())
    return differ, 2 * m * n


def _random(shape: tuple[int, int], spread: int, generator: torch.Generator) -> Tensor:
    binades = torch.randint(-spread, spread + 1, shape, generator=generator)
    return torch.ldexp(torch.randn(shape, generator=generator), binades)


def scaled_mm(fast: bool, operands: Sequence[str]) -> Unit:
    """torch._scaled_mm without scales on the GPU at hand."""
    kinds = {"e4m3fn": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    left, right = (kinds[fmt] for fmt in operands)

    def run(a: Tensor, b: Tensor) -> Tensor:
        one = torch.ones((), device="cuda")
        y = torch._scaled_mm(
            a.cuda().to(left), b.t().contiguous().cuda().to(right).t(),
            scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=fast,
        )  # fmt: skip
        return y.cpu()

    return run


def report(name: str, units: Callable[[Sequence[str]], Unit]) -> list[dict[str, Any]]:
    """The records of a unit: what was found, and how well the model of it holds."""
    found = probe(units(OPERANDS[0]))
    records: list[dict[str, Any]] = [
        {"type": "unit", "name": name, **asdict(found), "fits": found.fits}
    ]
    if not found.fits:
        return records
    acc = found.accumulator()
    for operands in OPERANDS:
        for shape in SHAPES:
            differ, results = disagreement(units(operands), acc, shape, operands, seed=0)
            records.append(
                {
                    "type": "agreement",
                    "name": name,
                    "accumulator": str(acc),
                    "operands": list(operands),
                    "shape": list(shape),
                    "differ": differ,
                    "results": results,
                }
            )
    return records


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
        print("fp8_units: no GPU with FP8 matrix units here (compute capability 8.9 and up)")
        return 0
    path = options.out / "fp8-units.jsonl"
    options.out.mkdir(parents=True, exist_ok=True)
    append_record(path, {"type": "header", "environment": environment("cuda")})
    for fast in (True, False):
        name = f"torch._scaled_mm, use_fast_accum={fast}"
        for record in report(name, lambda operands, fast=fast: scaled_mm(fast, operands)):
            append_record(path, record)
            print(record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
