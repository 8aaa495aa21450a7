"""The sums of two given matrices in an accumulator, measured against the exact sums."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lpkernels.arithmetic import Accumulator, as_accumulator
from lpkernels.formats import FloatFormat, Format
from lpkernels.functional.matmul import matmul
from lpkernels.functional.seeds import seed_for
from lpkernels.techniques.accumulation._events import shares
from lpkernels.techniques.accumulation._statistics import mantissa_bits, product_bits
from lpkernels.techniques.accumulation.tables import measured_text

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
    swamped: share of the nonzero products that were lost when they were added to a finite sum. In
        sequence this means that the sum stayed as it was; in a compensated sum, that its correction
        stayed too; in aligned blocks, that nothing was left of the product after alignment, or that
        its block left the sum as it was; in a tree, that the addend which held it left no trace in
        the next node. lpkernels/reference/events.py has the exact rule.
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
        TypeError, ValueError: operands of other shapes or dtypes, infinite, NaN or empty.
        NotImplementedError: acc has operands, whose additions nothing counts, and counted is not 0.
    """
    _check(a, b)
    acc = as_accumulator(acc)
    if acc.operands is not None and counted != 0:
        raise NotImplementedError(
            f"measure: no kernel looks at the additions of {acc}, whose blocks are aligned by "
            "their operands; pass counted=0 for its variance and error alone"
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
