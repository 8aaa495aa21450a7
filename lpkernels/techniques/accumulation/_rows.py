"""The table of a plan: from measured sums to formats, notes and recipes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from lpkernels._table import Tabular, TextTable
from lpkernels.arithmetic import Accumulator, Recipe
from lpkernels.formats import FloatFormat
from lpkernels.techniques.accumulation import theory
from lpkernels.techniques.accumulation._products import GEMMS
from lpkernels.techniques.accumulation.measuring import Statistics
from lpkernels.techniques.accumulation.tables import plan_text
from lpkernels.techniques.accumulation.theory import ModelWarning, min_mantissa_bits

# The best chunk length is chosen among these.
_CHUNKS = (16, 32, 64, 128, 256, 512, 1024)
_MOST_BITS = 23
_MOST_EXPONENT_BITS = 8
# If a sum grows so much more than one of independent products, the row says so.
_GROWTH = 4.0
# If the operand format flushes this share of the gradients to zero, the row says so.
_FLUSHED = 0.1
# Why a sum has fewer mantissa bits than its operands, by metric.
_TOO_SHORT = {
    "vrr": "the criterion accepts the loss of 3.9 products, which is most of a sum this short",
    "nmse": "a sum is rounded more coarsely than the operands are",
}
#: The note of a layer that ran forward, has something to train, and got no gradient.
UNSEEN = (
    "no gradient came back (no_grad, a function with its own backward, or no way to the loss): "
    "dgrad and wgrad are not planned"
)


@dataclass(frozen=True)
class PlanRow:
    """The accumulator of one GEMM of one layer.

    layer, gemm: "fprop", "dgrad" or "wgrad" of the layer of that name.
    length: products of its longest sum.
    product_bits, nzr, growth: measured; see `measuring.Statistics`. From shapes alone the bits are
        those of the operand's formats, nzr is 1 and growth is None.
    exponents: (low, high) that the accumulator's exponents must cover on this batch; None: every
        product is 0, or nothing was measured.
    man_bits: of one sum, with the plan's margin.  chunk, chunk_bits: the chunk length asked for, or
        the best one, and the mantissa bits of inner and outer sums with it.
    format, accumulator: the recommendation; with chunks if the plan was asked for them.
    notes: where the theory is known to be wrong for this row.
    integer_bits: of fprop with weights, where weights and input are in fixed point: the fewest bits
        of a fixed-point accumulator (with the frac_bits of both together) that no sum of any inputs
        in any order leaves, the bias apart; None elsewhere.
    """

    layer: str
    gemm: str
    length: int
    product_bits: int
    nzr: float
    growth: float | None
    exponents: tuple[int, int] | None
    man_bits: int
    chunk: int
    chunk_bits: int
    format: FloatFormat
    accumulator: Accumulator
    notes: tuple[str, ...] = ()
    integer_bits: int | None = None

    @property
    def headroom(self) -> int | None:
        """Exponent bits of the format beyond the fewest that cover `exponents`; below 0 where fewer
        were asked for (`exp_bits`), None where `exponents` are."""
        if self.exponents is None:
            return None
        return self.format.exp_bits - _fewest_exponent_bits(self.exponents)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as records hold them."""
        plain = {**vars(self), "format": str(self.format), "accumulator": str(self.accumulator)}
        return {
            **plain,
            "notes": list(self.notes),
            "exponents": self.exponents and [*self.exponents],
            "headroom": self.headroom,
        }


@dataclass(frozen=True, repr=False)
class AccumulatorPlan(Mapping[Any, Recipe], Tabular):
    """Rows in the order of the model, fprop before dgrad before wgrad; a mapping to recipes.

    ``print`` shows a table of its `blocks`.

    ``lp.convert(model, plan)`` gives every layer that can be converted its accumulators and the
    operand formats the plan was made for. A module of several products (attention, recurrent
    layers, one whose own forward calls torch.matmul) has one recipe, in which each of fprop, dgrad
    and wgrad has the widest accumulator of its rows.

    Args:
        rows: the PlanRows.
        operands: the recipe of the quantizers that the plan was made for.
        modules: {the layer of a row: the module whose recipe it has}.
        uncovered: a sentence that names the products without a row; "" if there are none.
    """

    rows: tuple[PlanRow, ...]
    operands: Recipe
    modules: Mapping[str, str]
    uncovered: str = ""

    def __repr__(self) -> str:
        return str(self._table())

    def _table(self) -> TextTable:
        table = plan_text([row.to_dict() for row in self.blocks])
        return replace(table, notes=[*table.notes, *filter(None, [self.uncovered])])

    def __getitem__(self, pattern: Any) -> Recipe:
        return self.recipes[pattern]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.recipes)

    def __len__(self) -> int:
        return len(self.recipes)

    @cached_property
    def recipes(self) -> dict[Any, Recipe]:
        """{the layer's name as a pattern: its Recipe}."""
        return self.narrowed(0)

    def narrowed(self, bits: int) -> dict[Any, Recipe]:
        """The recipes with `bits` fewer mantissa bits in every accumulator, 1 to 23 of them left.

        A negative number adds bits.
        """
        sums: dict[str, dict[str, PlanRow]] = {}
        for row in self.rows:
            if row.layer in self.modules:
                of = sums.setdefault(self.modules[row.layer], {})
                of[row.gemm] = _widest(of[row.gemm], row) if row.gemm in of else row
        quantizers = {k: getattr(self.operands, k) for k in ("input", "weight", "grad_output")}
        made: dict[Any, Recipe] = {}
        for module, rows in sums.items():
            narrow = {gemm: _narrower(row.accumulator, bits) for gemm, row in rows.items()}
            fields: dict[str, Any] = {**quantizers, **narrow}
            made[_pattern(module)] = Recipe(**fields)
        return made

    @cached_property
    def blocks(self) -> tuple[PlanRow, ...]:
        """A row for each GEMM of each block, as wide as the widest of its layers.

        A block is one stage of the network: "layer1" holds "layer1.0.conv1" and "layer1.1.conv2".
        Numbered stages are a block each, "stages.0" of "stages.0.1.conv1", and so are the layers of
        an nn.Sequential, "features.3". `layer` of the row is the block's name.
        """
        found: dict[str, dict[str, PlanRow]] = {}
        for row in self.rows:
            block = _block(row.layer)
            rows = found.setdefault(block, {})
            named = replace(row, layer=block)
            rows[row.gemm] = _widest(rows[row.gemm], named) if row.gemm in rows else named
        return tuple(rows[gemm] for rows in found.values() for gemm in GEMMS if gemm in rows)

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as plain values."""
        return [row.to_dict() for row in self.rows]


def plan_rows(
    sums: dict[tuple[str, str], list[tuple[int, Statistics]]],
    flushed: Mapping[str, float],
    chunk: int | str | None,
    exponent: Callable[[tuple[int, int] | None], int],
    options: dict[str, Any],
    margin: int,
) -> list[PlanRow]:
    """One row for every GEMM that ran; the mantissa bits of all rows are computed at once."""
    calls = [(key, length, found) for key, runs in sums.items() for length, found in runs]
    lengths = np.array([length for _, length, _ in calls])
    width = np.array([found.product_bits for _, _, found in calls])
    # Operands that are all zero say nothing about another batch.
    share = np.array([found.nzr or 1.0 for _, _, found in calls])
    with warnings.catch_warnings():
        # The notes of the rows take the place of the warnings.
        warnings.simplefilter("ignore", ModelWarning)
        single = min_mantissa_bits(lengths, width, nzr=share, **options)
        chunks = _CHUNKS if not isinstance(chunk, int) else (chunk,)
        chunked = np.stack(
            [min_mantissa_bits(lengths, width, chunk=c, nzr=share, **options) for c in chunks]
        )
    # Among chunk lengths with equal bits this takes the one whose rounding errors add up to least.
    errors = [
        theory.nmse(b, lengths, chunk=c, nzr=share) for c, b in zip(chunks, chunked, strict=True)
    ]
    best = np.lexsort((np.stack(errors), chunked), axis=0)[0]
    rows: dict[tuple[str, str], PlanRow] = {}
    for i, (key, length, found) in enumerate(calls):
        bits = (int(single[i]) + margin, chunks[best[i]], int(chunked[best[i], i]) + margin)
        lost = 0.0 if key[1] == "fprop" else flushed.get(key[0], 0.0)
        row = _row(key, length, found, bits, chunk, exponent, options, lost)
        rows[key] = _widest(rows[key], row) if key in rows else row
    return list(rows.values())


def _row(
    key: tuple[str, str],
    length: int,
    found: Statistics,
    bits: tuple[int, int, int],
    asked: int | str | None,
    exponent: Callable[[tuple[int, int] | None], int],
    options: dict[str, Any],
    flushed: float,
) -> PlanRow:
    single, chunk, inner = bits
    chunk = min(chunk, length)
    in_chunks = asked is not None and chunk < length and (asked != "best" or inner < single)
    needed = inner if in_chunks else single
    notes = _notes(length, found, needed, in_chunks, options["metric"])
    if options["metric"] == "vrr" and options["rounding"] in theory.UNSEEN_BY_VRR:
        notes.append(theory.UNSEEN_BY_VRR[options["rounding"]])
    if flushed >= _FLUSHED:
        notes.append(
            f"{flushed:.0%} of the output's gradients round to zero as operands, which shortens "
            "the sums: scale the loss"
        )
    exponents = None if found.low is None or found.high is None else (found.low, found.high)
    fmt = FloatFormat(exponent(exponents), min(needed, _MOST_BITS))
    acc = accumulator_of(fmt, options["rounding"], chunk=chunk if in_chunks else None)
    return PlanRow(
        *key, length, found.product_bits, found.nzr, found.growth, exponents, single, chunk, inner,
        fmt, acc, tuple(notes),
    )  # fmt: skip


def exponent_bits(exponents: tuple[int, int] | None, *, given: int | None, headroom: int) -> int:
    """The exponent bits of an accumulator: `given`, else `headroom` more than the range needs, at
    most 8."""
    return given or min(_MOST_EXPONENT_BITS, _fewest_exponent_bits(exponents) + headroom)


def _fewest_exponent_bits(exponents: tuple[int, int] | None) -> int:
    """The fewest exponent bits of an IEEE format that covers the range; 8 where nothing is
    known."""
    if exponents is None:
        return _MOST_EXPONENT_BITS
    low, high = exponents
    for bits in range(2, _MOST_EXPONENT_BITS):
        half = 2 ** (bits - 1)
        if 2 - half <= low and high <= half - 1:
            return bits
    return _MOST_EXPONENT_BITS


def _notes(length: int, found: Statistics, bits: int, in_chunks: bool, metric: str) -> list[str]:
    notes = []
    if found.low is None and found.growth is not None:
        notes.append("every product is zero on this sample: nothing was measured")
    if metric == "vrr" and length * found.nzr >= theory.MODEL_LIMIT and not in_chunks:
        notes.append("from 2^22 products on the formula asks for about 3 bits too many")
    if bits < found.operand_bits:
        notes.append(f"fewer mantissa bits than the operands have: {_TOO_SHORT[metric]}")
    if found.growth is not None and found.growth >= _GROWTH:
        more = math.ceil(math.log2(found.growth) / 2)
        notes.append(
            f"products are not of mean zero: E[sum^2] is {found.growth:.0f} times that of "
            f"independent ones, which can cost {more} bits more"
        )
    if bits > _MOST_BITS:
        notes.append(f"needs {bits} mantissa bits, more than the 23 of fp32")
    if found.low is not None and found.low < -126:
        notes.append("products lie below fp32's normal numbers: scale the loss")
    return notes


def _widest(a: PlanRow, b: PlanRow) -> PlanRow:
    """One row for two products: the longer sum, and a format that holds both."""
    longer, other = (a, b) if a.length >= b.length else (b, a)
    ranges = [r.exponents for r in (a, b) if r.exponents is not None]
    exponents = (min(r[0] for r in ranges), max(r[1] for r in ranges)) if ranges else None
    fmt = FloatFormat(
        max(a.format.exp_bits, b.format.exp_bits), max(a.format.man_bits, b.format.man_bits)
    )
    return replace(
        longer,
        product_bits=max(a.product_bits, b.product_bits),
        nzr=max(a.nzr, b.nzr),
        growth=max((g for g in (a.growth, b.growth) if g is not None), default=None),
        exponents=exponents,
        man_bits=max(a.man_bits, b.man_bits),
        chunk_bits=max(a.chunk_bits, b.chunk_bits),
        format=fmt,
        accumulator=_with_format(longer.accumulator, fmt),
        notes=tuple(dict.fromkeys((*longer.notes, *other.notes))),
        integer_bits=max((n for n in (a.integer_bits, b.integer_bits) if n), default=None),
    )


def _narrower(acc: Accumulator, bits: int) -> Accumulator:
    fmt = acc.fmt
    if not bits or not isinstance(fmt, FloatFormat):
        return acc
    man_bits = min(_MOST_BITS, max(1, fmt.man_bits - bits))
    return _with_format(acc, FloatFormat(fmt.exp_bits, man_bits))


def _with_format(acc: Accumulator, fmt: FloatFormat) -> Accumulator:
    """An accumulator that `accumulator_of` made, with another format."""
    aligned = None if acc.block is None else fmt.man_bits
    return replace(acc, fmt=fmt, outer=fmt if acc.chunk else None, aligned_bits=aligned)


def _block(layer: str) -> str:
    """The name of the block of a layer, as `AccumulatorPlan.blocks` says."""
    parts = layer.split(".")
    at = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
    below = parts[at + 1 :]
    with_number = at == 0 or not below or below[0].isdigit()
    return ".".join(parts[: at + with_number])


def _pattern(name: str) -> str:
    """A glob that matches this name alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


ALIGNED_TRUNCATION = "aligned_truncation"


def accumulator_of(
    fmt: FloatFormat, rounding: str, *, chunk: int | None = None, block: int = 1
) -> Accumulator:
    """The accumulator whose sums round as `rounding` of :func:`min_mantissa_bits` says.

    "aligned_truncation" cuts the running sum and each of the next `block` products toward zero at
    the sum's last place, adds the cut values and cuts the result; sums of chunks are added with
    rounding to nearest even, because cut sums would drift. Other names are an Accumulator's own,
    and block is not used.

    Args:
        fmt:      of the sums, inner and outer.
        rounding: "nearest_even", "aligned_truncation", or any other of an Accumulator.
        chunk:    length of the inner sums; None: one sum.
        block:    1..256.

    Raises:
        ValueError: no such rounding; "aligned_truncation" with 0 mantissa bits.
    """
    if rounding != ALIGNED_TRUNCATION:
        return Accumulator(fmt, rounding, chunk=chunk)
    return Accumulator(
        fmt,
        "toward_zero",
        chunk=chunk,
        outer_rounding=None if chunk is None else "nearest_even",
        block=block,
        aligned_bits=fmt.man_bits,
    )
