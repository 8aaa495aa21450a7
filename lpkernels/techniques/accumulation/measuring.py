"""Measurements: of a product's operands for a plan (mantissas, zeros, ranges, growth); and of the
sums of two given matrices in an accumulator, against the exact sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lpkernels.arithmetic import Accumulator, as_accumulator, bits_without_overflow
from lpkernels.formats import BlockFormat, FixedFormat, FloatFormat, Format, TableFormat
from lpkernels.functional.matmul import matmul
from lpkernels.functional.seeds import seed_for
from lpkernels.techniques import checks
from lpkernels.techniques.accumulation._events import shares
from lpkernels.techniques.accumulation.tables import measured_text

# The size of a small output is looked for among so many outputs.
_SAMPLE = 1 << 16
# So large a share of the outputs, ordered by the size of their products, may be smaller than what
# the format resolves.
_QUANTILE = 0.01


@dataclass(frozen=True)
class Statistics:
    """Statistics of all sums of one GEMM.

    product_bits: mantissa bits of an exact product of the operands' values.
    operand_bits: of the wider operand.
    nzr: share of the products that are not zero.
    low: exponent of a product of typical size in a small sum (the 1 % quantile of the sums).
    high: exponent of the largest sum of magnitudes, which no partial sum exceeds in any order. Both
        None if every product is zero.
    growth: E[sum^2] / E[sum of p^2]: 1 for independent products of mean zero, more where they add
        up; None where nothing was measured.
    """

    product_bits: int
    operand_bits: int
    nzr: float
    low: int | None
    high: int | None
    growth: float | None


def mantissa_bits(x: Tensor) -> int:
    """The fewest mantissa bits in which every finite float32 value of x is exact, 0..23."""
    significands = torch.frexp(x.float())[0].mul_(2.0**24).to(torch.int32).cpu().numpy()
    used = int(np.bitwise_or.reduce(significands, axis=None)) if significands.size else 0
    # Negative significands are two's complement: they end in as many zeros as their magnitude.
    return 0 if used == 0 else 23 - ((used & -used).bit_length() - 1)


def format_mantissa_bits(fmt: Format | None) -> int:
    """The fewest mantissa bits in which every value of a format is exact, as sums add it: without
    the scales of rows and of the whole tensor; 23 where there is no format, or a float32 scale."""
    if isinstance(fmt, FloatFormat):
        return fmt.man_bits
    if isinstance(fmt, FixedFormat):
        return max(0, fmt.word_bits - 1 - fmt.signed)
    if isinstance(fmt, TableFormat):
        return mantissa_bits(torch.from_numpy(fmt.values()))
    if isinstance(fmt, BlockFormat):
        inside = format_mantissa_bits(fmt.element)
        if fmt.scale == "e8m0" or fmt.block_size in ("row", "tensor"):
            return inside
        if isinstance(fmt.scale, FloatFormat):
            return min(23, product_bits(inside, fmt.scale.man_bits))
    return 23


def unmeasured(left: Format | None, right: Format | None) -> Statistics:
    """What the formats of two operands say of their products: nothing of zeros and of sizes."""
    bits = format_mantissa_bits(left), format_mantissa_bits(right)
    return Statistics(product_bits(*bits), max(bits), 1.0, None, None, None)


def product_bits(left: int, right: int) -> int:
    """Mantissa bits of a product: both factors' and one more; a power of two adds none."""
    return left + right + (1 if left and right else 0)


def statistics(
    left: Tensor, right: Tensor, combine: Callable[[Tensor, Tensor], Tensor], products: int
) -> Statistics:
    """The statistics of the sums combine(left, right), for float32 operands without infinities and
    NaN.

    combine is bilinear, so the same map adds up magnitudes, squares and counts. `products` is the
    number of multiply-adds in it.
    """
    bits = mantissa_bits(left), mantissa_bits(right)
    width = product_bits(*bits), max(bits)
    # Scaled by powers of two, squares of small gradients do not underflow.
    scale_left, scale_right = _exponent(left), _exponent(right)
    if scale_left is None or scale_right is None:
        return Statistics(*width, 0.0, None, None, 1.0)
    a, b = torch.ldexp(left, -scale_left), torch.ldexp(right, -scale_right)
    nonzero = combine((a != 0).float(), (b != 0).float()).sum(dtype=torch.float64).item()
    energy = combine(a.square(), b.square())
    total = energy.sum(dtype=torch.float64).item()
    if nonzero == 0 or total == 0:
        return Statistics(*width, 0.0, None, None, 1.0)
    shift = int(scale_left + scale_right)
    largest = combine(a.abs(), b.abs()).max().item()
    growth = combine(a, b).square().sum(dtype=torch.float64).item() / total
    per_sum = max(1.0, nonzero / energy.numel())
    return Statistics(
        *width,
        min(1.0, nonzero / products),
        math.floor(math.log2(math.sqrt(_small(energy) / per_sum))) + shift,
        math.floor(math.log2(largest)) + shift,
        growth,
    )


def integer_bits(sums: Iterable[Tensor], weight: FixedFormat, operand: FixedFormat) -> int:
    """The fewest bits of a fixed-point accumulator that no sum (sums, K) of these weights leaves.

    weight: the weights' format; the weights are values of it. operand: the other operand's format.
    """
    most = 0
    for values in sums:
        codes = np.ldexp(values.double().cpu().numpy(), weight.frac_bits).astype(np.int64)
        needed = bits_without_overflow(codes, operand.word_bits, signed_inputs=operand.signed)
        most = max(most, int(needed.max(initial=0)))
    return most


def _exponent(x: Tensor) -> Tensor | None:
    """The e with max|x| in [2^(e-1), 2^e); None if x holds nothing but zeros."""
    largest = x.abs().max() if x.numel() else x.new_zeros(())
    return None if largest == 0 else torch.frexp(largest)[1]


def _small(energy: Tensor) -> float:
    flat = energy.flatten()
    sample = flat[:: max(1, flat.numel() // _SAMPLE)]
    sample = sample[sample > 0]
    if not sample.numel():
        return energy[energy > 0].min().item()
    return torch.quantile(sample.double(), _QUANTILE).item()


# One piece of the exact sums has so many products, which bounds the float64 copies of the operands.
_PIECE = 1 << 22
# At most so many products have their additions counted, unless all are asked for.
COUNTED = 1 << 26


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
    swamped_chunks: the same share for the nonzero sums of chunks that are added to the outer
        accumulator; None without chunks.
    overflowed: share of the sums in which some product, partial sum or result was beyond the
        format's largest value, whatever the format then makes of it.
    counted: the number of sums over which the three shares are taken: all sums, or evenly spaced
        rows of them. The shares are None in the hardware's own order ("native"), whose additions
        nobody sees.
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
        return measured_text([self.to_dict()])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as records hold them."""
        return asdict(self)


class Measurements(list[Measurement]):
    """Several measurements; ``print`` shows a row for each."""

    def __repr__(self) -> str:
        return measured_text([each.to_dict() for each in self])


def measure(
    a: Tensor,
    b: Tensor,
    acc: Accumulator | Format | str,
    *,
    counted: int | None = COUNTED,
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
    # One seed for the sums and for the count of what happens in them.
    seed = seed_for(acc.is_stochastic, generator)
    events = shares(a, b, acc, seed, counted, backend)
    with torch.no_grad():
        # Where every sum was counted, the count has made them.
        values = events.values
        got = matmul(a, b, acc, generator=seed, backend=backend) if values is None else values
        got = got.double()
        exact, energy = _exact(a, b)
    kept = _ratio((got.square() - exact.square()).sum(1), energy.sum(1))
    error = _ratio((got - exact).square().sum(1), energy.sum(1))
    return Measurement(
        str(acc), a.shape[1], got.numel(), product_bits(mantissa_bits(a), mantissa_bits(b)),
        1 + kept[0], kept[1], *error, events.swamped, events.swamped_chunks, events.overflowed,
        events.sums,
    )  # fmt: skip


def knee(
    a: Tensor,
    b: Tensor,
    man_bits: Iterable[int],
    acc: Accumulator | Format | str = "e8m23",
    *,
    counted: int | None = COUNTED,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Measurements:
    """:func:`measure` for one accumulator at several mantissa widths: where variance is lost.

    Args:
        a, b, counted, generator, backend: as in :func:`measure`; a generator is drawn from anew
            for each width.
        man_bits: the widths, each 0..23.
        acc: the accumulator, whose float formats (inner and outer) take the widths.

    Raises:
        ValueError: acc sums in a fixed-point format, or natively.
    """
    acc = as_accumulator(acc)
    if not isinstance(acc.fmt, FloatFormat) or acc.order == "native":
        raise ValueError(f"knee: acc must be a sequential sum in a float format, got {acc}")
    widths = [with_mantissa(acc, bits) for bits in man_bits]
    return Measurements(
        measure(a, b, width, counted=counted, generator=generator, backend=backend)
        for width in widths
    )


def with_mantissa(acc: Accumulator, man_bits: int) -> Accumulator:
    """The accumulator with its sums' float formats, inner and outer, at this mantissa width."""

    def width(fmt: Any) -> Any:
        return replace(fmt, man_bits=man_bits) if isinstance(fmt, FloatFormat) else fmt

    return replace(acc, fmt=width(acc.fmt), outer=width(acc.outer))


def _check(a: Any, b: Any) -> None:
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, Tensor):
            raise TypeError(f"measure: {name} must be a torch.Tensor, got {type(x).__name__}")
        if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise TypeError(
                f"measure: {name} must be float32, float16 or bfloat16, got {x.dtype}; round it "
                f"first: lp.quantize({name}, fmt).float()"
            )
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(
            f"measure: a must be (M, K) and b (K, N), got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if not (a.numel() and b.numel()):
        raise ValueError(
            f"measure: there is no product in shapes {tuple(a.shape)} and {tuple(b.shape)}"
        )
    for name, x in (("a", a), ("b", b)):
        if not torch.isfinite(x).all():
            raise ValueError(
                f"measure: {name} holds infinities or NaN; scale it, or round it to a format that "
                "saturates"
            )


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
