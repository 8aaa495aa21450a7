"""The sums of two matrices in an accumulator, measured against the exact sums."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lpkernels import backends
from lpkernels._table import aligned
from lpkernels.arithmetic import Accumulator, as_accumulator
from lpkernels.arithmetic.integers import InAccumulator
from lpkernels.formats import Format
from lpkernels.formats.integers import for_table
from lpkernels.functional.matmul import matmul
from lpkernels.functional.seeds import seed_for
from lpkernels.techniques import checks

# The products in one piece of the exact sums, which bounds the float64 copies of the operands.
_PIECE = 1 << 22
# The most products whose additions are counted, unless the caller says otherwise.
_COUNTED = 1 << 26


def mantissa_bits(x: Tensor) -> int:
    """The fewest mantissa bits in which every finite float32 value of x is exact, 0..23."""
    significands = torch.frexp(x.float())[0].mul_(2.0**24).to(torch.int32).cpu().numpy()
    used = int(np.bitwise_or.reduce(significands, axis=None)) if significands.size else 0
    # Negative significands are two's complement: they end in as many zeros as their magnitude.
    return 0 if used == 0 else 23 - ((used & -used).bit_length() - 1)


def product_bits(left: int, right: int) -> int:
    """Mantissa bits of a product: both factors' and one more; a power of two adds none."""
    return left + right + (1 if left and right else 0)


@dataclass(frozen=True, repr=False)
class Measurement:
    """Sums of products in an accumulator, compared with the exact sums. ``print`` shows a table.

    accumulator: its name.  length, sums: products of a sum, and how many sums there are.
    product_bits: mantissa bits of an exact product of the operands' values.
    vrr: 1 + E[S^2 - I^2] / E[sum of p^2], for sums S, exact sums I, products p: for products of
        mean zero the ratio of variances, free of the noise that both share. NaN when a sum is
        infinite or NaN, or when every product is 0.
    nmse: E[(S - I)^2] / E[sum of p^2], NaN alike.
    vrr_error, nmse_error: standard errors, from the spread between rows, whose sums share their
        left operand; NaN with one row.
    swamped: share of the nonzero products that were added to a finite sum and left it as it was.
    swamped_chunks: the same share for the sums of chunks in the outer accumulator; None without
        chunks.
    overflowed: share of the sums in which some product, partial sum or result was beyond the
        format's largest value.
    counted: the number of sums over which the three shares are taken. They are None where it is 0,
        as in the hardware's own order ("native").
    """

    accumulator: str
    length: int
    sums: int
    product_bits: int
    vrr: float
    vrr_error: float
    nmse: float
    nmse_error: float
    swamped: float | None
    swamped_chunks: float | None
    overflowed: float | None
    counted: int

    def __repr__(self) -> str:
        columns = {
            "accumulator": self.accumulator,
            "length": str(self.length),
            "sums": str(self.sums),
            "m_p": str(self.product_bits),
            "vrr": f"{self.vrr:.4f} +- {self.vrr_error:.4f}",
            "nmse": f"{self.nmse:.2e} +- {self.nmse_error:.0e}",
        }
        for share in ("swamped", "swamped_chunks", "overflowed"):
            value = getattr(self, share)
            if value is not None:
                columns[share.replace("_", " ")] = f"{value:.2%}"
        if 0 < self.counted < self.sums:
            columns["of sums"] = str(self.counted)
        return "\n".join(aligned([list(columns), list(columns.values())], (0,)))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as records hold them."""
        return asdict(self)


def measure(
    a: Tensor,
    b: Tensor,
    acc: Accumulator | Format | str,
    *,
    counted: int | None = _COUNTED,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Measurement:
    """Measures a @ b in an accumulator: variance kept, error, swamped and overflowed additions.

    Args:
        a, b: (M, K) and (K, N), float32, or float16 or bfloat16 (widened exactly), finite. They are
            taken as they are: quantise them first.
        acc: an Accumulator, a format, or a name.
        counted: how many additions are looked at one by one, at most, for the three shares; None:
            all, 0: none. Where there are more, evenly spaced rows stand for all.
        generator, backend: as in ``lpkernels.matmul``, whose sums these are.

    Raises:
        TypeError, ValueError: operands of other shapes or dtypes, infinite, NaN or empty; counted
            below 0, or no int.
        NotImplementedError: acc sums in trees, compensated or in aligned blocks, whose additions
            nothing counts, and counted is not 0.

    >>> from lpkernels.techniques.accumulation import measure
    >>> a, b = torch.ones(1, 4096), torch.ones(4096, 1)
    >>> result = measure(a, b, "e5m10")
    >>> result.swamped, result.overflowed
    (0.5, 0.0)
    """
    _check(a, b)
    if counted is not None:
        checks.whole("measure: counted", counted, 0)
    acc = as_accumulator(acc)
    if counted != 0 and acc.order != "native" and not acc.in_sequence:
        raise NotImplementedError(
            f"measure: {acc} does not add one product after the other, and no kernel counts its "
            "additions; pass counted=0 for its variance and error alone"
        )
    a, b = a.detach().float(), b.detach().float()
    # One seed for the sums and for the count of the events in them.
    seed = seed_for(acc.is_stochastic, generator)
    rows = len(a) if counted is None else min(len(a), counted // b.numel())
    rows = 0 if acc.order == "native" else rows
    swamped = swamped_chunks = overflowed = None
    sums = torch.empty(0, dtype=torch.float32, device=a.device)
    with torch.no_grad():
        if rows:
            sums, counts = _events(a, b, acc, seed, rows, backend)
            swamped = counts[0] / max(1, counts[1])
            swamped_chunks = counts[2] / max(1, counts[3]) if acc.chunk else None
            overflowed = counts[4] / sums.numel()
        # Where every sum was counted, the count has made them.
        whole = rows == len(a)
        values = sums if whole else matmul(a, b, acc, generator=seed, backend=backend)
        values = values.double()
        exact, energy = _exact(a, b)
    variance = _ratio((values.square() - exact.square()).sum(1), energy.sum(1))
    error = _ratio((values - exact).square().sum(1), energy.sum(1))
    return Measurement(
        str(acc), a.shape[1], values.numel(), product_bits(mantissa_bits(a), mantissa_bits(b)),
        1 + variance[0], variance[1], *error, swamped, swamped_chunks, overflowed, sums.numel(),
    )  # fmt: skip


def _events(
    a: Tensor, b: Tensor, acc: Accumulator, seed: Tensor | None, rows: int, backend: str
) -> tuple[Tensor, tuple[int, ...]]:
    """The sums of evenly spaced rows of a @ b, and the events in them: products that were swamped
    and added, sums of chunks that were swamped and added, sums that overflowed."""
    row = torch.linspace(0, len(a) - 1, rows, dtype=torch.float64, device="cpu").round().long()
    at, ints = InAccumulator, acc.to_ints()
    op = for_table("matmul_events", ints[at.FORMAT], ints[at.PRODUCT], ints[at.OUTER])
    kernels = backends.select(backend, op, a.device)
    left = a if rows == len(a) else a[row.to(a.device)]
    product, how = backends.matmul_of(left, b), backends.How(ints, seed)
    return kernels.matmul_events(product, how, row)


def _check(a: Any, b: Any) -> None:
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, Tensor):
            raise TypeError(f"measure: {name} must be a torch.Tensor, got {type(x).__name__}")
        if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise TypeError(
                f"measure: {name} must be float32, float16 or bfloat16, got {x.dtype}; round it "
                f"first: lp.quantize({name}, fmt).float()"
            )
        if not torch.isfinite(x).all():
            raise ValueError(
                f"measure: {name} holds infinities or NaN; scale it, or round it to a format that "
                "saturates"
            )
    shapes = f"got {tuple(a.shape)} and {tuple(b.shape)}"
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or not (a.numel() and b.numel()):
        raise ValueError(f"measure: a must be (M, K) and b (K, N), none of them empty, {shapes}")


def _exact(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Sums and sums of squares of the products in float64, piece by piece of K."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
    energy = torch.zeros_like(total)
    step = max(1, _PIECE // max(a.shape[0], b.shape[1]))
    for left, right in zip(a.split(step, 1), b.split(step, 0), strict=True):
        left, right = left.double(), right.double()
        total += left @ right
        energy += left.square() @ right.square()
    return total, energy


def _ratio(above: Tensor, below: Tensor) -> tuple[float, float]:
    """sum(above) / sum(below) over rows, and its standard error for independent rows."""
    rows, total = len(above), below.sum()
    ratio = above.sum() / total
    if not torch.isfinite(ratio):
        return float("nan"), float("nan")
    if rows == 1:
        return ratio.item(), float("nan")
    spread = (above - ratio * below).square().sum() * rows / (rows - 1)
    return ratio.item(), (spread.sqrt() / total).item()
