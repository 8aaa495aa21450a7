"""The accumulator that each product of a model needs, from one batch or from shapes alone."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy

from lpkernels._table import Tabular, TextTable
from lpkernels.arithmetic import Accumulator, Quantizer, Recipe, as_quantizer
from lpkernels.formats import FloatFormat, Format
from lpkernels.nn.emulated import Emulated
from lpkernels.nn.observing.observer import arguments, trace
from lpkernels.nn.observing.operators import Operators
from lpkernels.nn.observing.visiting import all_tensors
from lpkernels.nn.selecting import check_model
from lpkernels.recipes import as_recipe, recipes
from lpkernels.techniques import checks
from lpkernels.techniques.accumulation import theory
from lpkernels.techniques.accumulation.products import GEMMS, Products, Statistics
from lpkernels.techniques.accumulation.theory import ModelWarning, min_mantissa_bits

#: Exponent bits beyond those of one batch, and mantissa bits beyond those of the metric.
HEADROOM = MARGIN = 1
_MOST_BITS = 23
_MOST_EXPONENT_BITS = 8
# The best chunk length is chosen among these.
_CHUNKS = (16, 32, 64, 128, 256, 512, 1024)
# A row has a note if E[sum^2] is this many times as large as for independent products, or if the
# operand format flushes this share of the gradients to zero.
_GROWTH, _FLUSHED = 4.0, 0.1
# The columns of a plan's table that hold words; the others hold numbers.
_WORDS = ("block", "gemm", "accumulator", "notes")
#: The meanings of the columns.
COLUMNS = (
    "block: the layers of one stage, each cell of the layer that needs most; length: products in a "
    "sum; m_p: mantissa bits of a product; nzr: share of the products that is not zero; normal: "
    "mantissa bits of one sum, without the hidden one; chunked: the same of sums in chunks / the "
    "chunk's length; exponents: powers of two from typical products to the largest sum, and how "
    "many exponent bits more than these need the accumulator has"
)
_HEAD = ("block", "gemm", "length", "m_p", "nzr", "normal", "chunked", "exponents", "accumulator")


@dataclass(frozen=True)
class PlanRow:
    """The accumulator of one GEMM of one layer.

    layer, gemm: "fprop", "dgrad" or "wgrad" of the layer of that name.
    length: products of its longest sum.
    product_bits, nzr, growth, exponents: the `Statistics` of the products.
    man_bits: of one sum, with the plan's margin.  chunk, chunk_bits: the chunk length asked for, or
        the best one, and the mantissa bits of inner and outer sums with it.
    format, accumulator: the recommendation.
    notes: where the theory is known to be wrong for this row.
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

    @property
    def headroom(self) -> int | None:
        """Exponent bits of the format beyond the fewest that cover `exponents`; None where these
        are."""
        if self.exponents is None:
            return None
        return self.format.exp_bits - _fewest_exponent_bits(self.exponents)

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text, without its notes."""
        exponents = "-" if self.growth is not None else "not measured"
        if self.exponents is not None:
            exponents = f"{self.exponents[0]}..{self.exponents[1]} {self.headroom:+}"
        return (
            self.layer,
            self.gemm,
            str(self.length),
            str(self.product_bits),
            f"{self.nzr:.0%}",
            str(self.man_bits),
            f"{self.chunk_bits}/{self.chunk}" if self.chunk < self.length else "-",
            exponents,
            str(self.accumulator),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as records hold them."""
        return {
            **vars(self),
            "format": str(self.format),
            "accumulator": str(self.accumulator),
            "notes": list(self.notes),
            "exponents": self.exponents and [*self.exponents],
            "headroom": self.headroom,
        }


@dataclass(frozen=True, repr=False)
class AccumulatorPlan(Mapping[Any, Recipe], Tabular):
    """Rows in the order of the model, fprop before dgrad before wgrad; a mapping to recipes.

    ``print`` shows a table of its `blocks`. ``lp.convert(model, plan)`` gives every layer that can
    be converted its accumulators and the operand formats of the plan. A module of several products
    has one recipe, with the widest accumulator of its rows for each of fprop, dgrad and wgrad.

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
        """A block's name stands in its first row; equal notes stand once, with their count."""
        counts = Counter(note for row in self.blocks for note in row.notes)
        numbers = {note: str(i) for i, note in enumerate(counts, start=1)}
        table = [(*_HEAD, *(["notes"] if numbers else []))]
        for before, row in zip([None, *self.blocks], self.blocks, strict=False):
            block, *others = row.cells
            name = "" if before is not None and before.layer == row.layer else block
            notes = [" ".join(numbers[note] for note in row.notes)] if numbers else []
            table.append((name, *others, *notes))
        below = [
            f"{number}: {note}" + (f" ({counts[note]} rows)" if counts[note] > 1 else "")
            for note, number in numbers.items()
        ]
        left = [i for i, name in enumerate(table[0]) if name in _WORDS]
        return TextTable(table, left, [*below, *filter(None, [self.uncovered])])

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
        """The recipes with `bits` fewer mantissa bits in every accumulator (with more, where bits
        is below 0), 1 to 23 of them left."""
        modules: dict[str, dict[str, PlanRow]] = {}
        for row in self.rows:
            if row.layer in self.modules:
                _add(modules.setdefault(self.modules[row.layer], {}), row.gemm, row)
        recipes: dict[Any, Recipe] = {}
        for module, rows in modules.items():
            accs: dict[str, Any] = {}
            for gemm, row in rows.items():
                man_bits = min(_MOST_BITS, max(1, row.format.man_bits - bits))
                accs[gemm] = _with_format(row.accumulator, replace(row.format, man_bits=man_bits))
            # A glob that matches this name alone.
            pattern = "".join(f"[{c}]" if c in "*?[" else c for c in module)
            recipes[pattern] = replace(self.operands, **accs)
        return recipes

    @cached_property
    def blocks(self) -> tuple[PlanRow, ...]:
        """A row for each GEMM of each block, as wide as the widest of its layers; the row's `layer`
        is the block's name.

        A block is one stage of the network: "layer1" holds "layer1.0.conv1" and "layer1.1.conv2".
        Numbered stages are a block each, "stages.0" of "stages.0.1.conv1", and so are the layers of
        an nn.Sequential, "features.3".
        """
        blocks: dict[str, dict[str, PlanRow]] = {}
        for row in self.rows:
            block = _block(row.layer)
            _add(blocks.setdefault(block, {}), row.gemm, replace(row, layer=block))
        return tuple(rows[gemm] for rows in blocks.values() for gemm in GEMMS if gemm in rows)


def plan(
    model: Module,
    sample: Any,
    *,
    loss: Callable[[Any], Tensor],
    operand: Format | Quantizer | Recipe | str,
    chunk: int | str | None = None,
    headroom: int = HEADROOM,
    exp_bits: int | None = None,
    batch: int | None = None,
    metric: str = "nmse",
    margin: int = MARGIN,
    rounding: str = "nearest_even",
) -> AccumulatorPlan:
    """The accumulator that every product of a model needs, forward and backward.

    It runs the model once on the sample, in the mode it is in, and its loss backward, in torch's
    own arithmetic; model and random state are left as found. It looks at every linear layer,
    convolution (transposed ones too), recurrent layer and cell, attention and call of matmul, bmm,
    mm, mv, addmm or baddbmm: it reads the lengths of the three GEMMs, and takes the `Statistics` of
    the products of operands rounded to `operand`. The mantissa bits of an accumulator are those of
    :func:`min_mantissa_bits` by the error law, and `margin` more; ``metric="vrr", margin=0`` is the
    rule of Sakr et al. 2019. Its exponent bits (IEEE bias, at least 2) are the fewest that cover
    the range of the sums, and `headroom` more. A layer that is called several times has the widest
    of its formats.

    On torch's meta device the lengths come from the shapes alone, and nothing is computed: no
    product is known to be zero (nzr is 1), the mantissa bits of the products are those of the
    operand's format, and the exponents have `exp_bits`, or 8 where they are not given.

    Args:
        model: a module of torch's own layers, its parameters initialised, or on the meta device.
        sample: its input: a tensor, a tuple of arguments or a dict of keyword arguments; on the
            meta device where the model is.
        loss: from the model's output to a scalar; scale it here if gradients underflow.
        operand: format, Quantizer or its text of input, weight and grad_output; or a Recipe (or its
            name) whose three quantizers are taken.
        chunk: None: one sum each, the best chunk is shown beside it. A length: chunks of that
            length. "best": every row with the chunk length, of 16 to 1024, that needs the fewest
            bits; where several do, the one of the least error.
        headroom: exponent bits beyond those that this batch needs, up to 8 in all; it is refused
            with exp_bits and on the meta device.
        exp_bits: of every accumulator, 2..8; None: measured, as above.
        batch: examples of the batch that the lengths are for, where the first dimension of the
            sample's first tensor counts its own: the sum of a weight's wgrad runs over all
            examples. Zeros, exponents and growth stay those of the sample.
        metric, rounding: of :func:`min_mantissa_bits`; the accumulators round so too
            (:func:`accumulator_of`).
        margin: mantissa bits, 0..23, beyond those of the metric.
    Raises:
        TypeError, ValueError: arguments of the wrong kind; a loss that is no scalar or has no
            gradient; a layer that is emulated already or not initialised; operands that are not
            finite, or overflow in their format; a model on the meta device and a sample elsewhere;
            a batch of no whole number of samples in a sum.
        NotImplementedError: an operation that cannot be traced, by name.

    >>> from lpkernels.techniques.accumulation import plan
    >>> model = torch.nn.Linear(256, 8)
    >>> table = plan(model, torch.randn(64, 256), loss=lambda y: y.square().sum(), operand="e4m3fn")
    >>> [(row.gemm, row.length) for row in table.rows]
    [('fprop', 256), ('wgrad', 64)]
    >>> lp.convert(model, table).recipe.input.fmt == lp.parse_format("e4m3fn")
    True
    """
    if chunk not in ("best", None):
        checks.whole("plan: chunk", chunk, 1)
    if exp_bits is not None:
        checks.whole("plan: exp_bits", exp_bits, 2, _MOST_EXPONENT_BITS)
    checks.whole("plan: headroom", headroom, 0)
    checks.whole("plan: margin", margin, 0, _MOST_BITS)
    checks.choice("plan: metric", metric, theory.METRICS)
    checks.choice("plan: rounding", rounding, theory.NMSE_CONSTANTS)
    _check_model(model)
    quantizers = _operands(operand)
    products = Products(model, quantizers, batch, _examples(model, sample, batch))
    on_meta = any(parameter.is_meta for parameter in model.parameters())
    if headroom != HEADROOM and (on_meta or exp_bits is not None):
        raise ValueError(
            f"plan: headroom={headroom} adds to exponent bits that are measured, and with exp_bits "
            "or from shapes alone nothing is; leave one of the two out, or measure a sample"
        )
    args, kwargs = arguments(sample)
    below = Operators()
    trace(model, products, *args, kwargs=kwargs, loss=loss, parts=True, operators=below)
    if not products.statistics:
        raise ValueError("plan: the model made no matrix product and no convolution to plan for")

    def exponent(exponents: tuple[int, int] | None) -> int:
        bits = _fewest_exponent_bits(exponents) + headroom
        return exp_bits or min(_MOST_EXPONENT_BITS, bits)

    rows = _rows(products, chunk, exponent, metric, rounding, margin)
    uncovered = below.uncovered(lambda operation: operation.reported)
    return AccumulatorPlan(rows, quantizers, products.modules, uncovered)


def _examples(model: Module, sample: Any, batch: int | None) -> int:
    """The examples of the sample, 1 where no batch asks for them; checks that model and sample are
    both on the meta device, or neither."""
    inputs = all_tensors({"sample": sample})
    tensors = [*model.named_parameters(), *model.named_buffers(), *inputs.items()]
    on_meta = [name for name, x in tensors if x.is_meta]
    elsewhere = [name for name, x in tensors if not x.is_meta]
    if on_meta and elsewhere:
        raise ValueError(
            f"plan: {on_meta[0]} is on the meta device and {elsewhere[0]} is not; model and sample "
            'must both be on it, or neither: make them under torch.device("meta"), or move them '
            'by .to("meta")'
        )
    if batch is None:
        return 1
    checks.whole("plan: batch", batch, 1)
    first = next(iter(inputs.values()), None)
    if first is None or first.dim() == 0 or len(first) == 0:
        raise ValueError(
            f"plan: batch={batch} needs the examples of the sample, counted by the first dimension "
            "of its first tensor, and there is none"
        )
    return len(first)


def _operands(operand: Format | Quantizer | Recipe | str) -> Recipe:
    if isinstance(operand, Recipe) or (isinstance(operand, str) and operand in recipes()):
        recipe = as_recipe(operand)
        return Recipe(input=recipe.input, weight=recipe.weight, grad_output=recipe.grad_output)
    try:
        q = as_quantizer(operand)
    except (TypeError, ValueError) as error:
        raise type(error)(f"plan: operand: {error}") from error
    return Recipe(input=q, weight=q, grad_output=q)


def _check_model(model: Any) -> None:
    """Checks that the model is a module of torch's own layers, its parameters initialised."""
    check_model("plan", model)
    for name, module in model.named_modules():
        where = f"plan: module {name!r} ({type(module).__name__})"
        if isinstance(module, Emulated):
            raise ValueError(f"{where} is emulated already; lp.revert(model) gives the plain model")
        for key, parameter in module.named_parameters(recurse=False):
            if is_lazy(parameter):
                raise ValueError(
                    f"{where}: parameter {key!r} has no shape yet; run the model on a batch first"
                )


def _rows(
    products: Products,
    chunk: int | str | None,
    exponent: Callable[[tuple[int, int] | None], int],
    metric: str,
    rounding: str,
    margin: int,
) -> tuple[PlanRow, ...]:
    """One row for every GEMM that ran; the mantissa bits of all rows are computed at once."""
    calls = [(key, *call) for key, calls in products.statistics.items() for call in calls]
    lengths = np.array([length for _, length, _ in calls])
    width = np.array([statistics.product_bits for _, _, statistics in calls])
    # Operands that are all zero say nothing about another batch.
    share = np.array([statistics.nzr or 1.0 for _, _, statistics in calls])
    chunks = (chunk,) if isinstance(chunk, int) else _CHUNKS
    with warnings.catch_warnings():
        # The notes of the rows take the place of the warnings.
        warnings.simplefilter("ignore", ModelWarning)
        single, *chunked = (
            min_mantissa_bits(lengths, width, chunk=c, nzr=share, metric=metric, rounding=rounding)
            for c in (None, *chunks)
        )
    # Among chunk lengths with equal bits this takes the one whose rounding errors add up to least.
    errors = [
        theory.nmse(bits, lengths, chunk=c, nzr=share)
        for c, bits in zip(chunks, chunked, strict=True)
    ]
    best = np.lexsort((np.stack(errors), np.stack(chunked)), axis=0)[0]
    rows: dict[tuple[str, str], PlanRow] = {}
    for i, (key, length, statistics) in enumerate(calls):
        best_chunk = min(chunks[best[i]], length)
        bits, inner = int(single[i]) + margin, int(chunked[best[i]][i]) + margin
        in_chunks = chunk is not None and best_chunk < length and (chunk != "best" or inner < bits)
        needed = inner if in_chunks else bits
        notes = _notes(length, statistics, needed, in_chunks, metric, rounding)
        if key[1] != "fprop" and products.flushed.get(key[0], 0.0) >= _FLUSHED:
            notes.append(
                "a tenth or more of the output's gradients rounds to zero as operands, which "
                "shortens the sums: scale the loss"
            )
        if key[0] in products.waiting:
            notes.append(
                "no gradient came back (no_grad, a function with its own backward, or no way to "
                "the loss): dgrad and wgrad are not planned"
            )
        fmt = FloatFormat(exponent(statistics.exponents), min(needed, _MOST_BITS))
        acc = accumulator_of(fmt, rounding, chunk=best_chunk if in_chunks else None)
        row = PlanRow(
            *key, length, statistics.product_bits, statistics.nzr, statistics.growth,
            statistics.exponents, bits, best_chunk, inner, fmt, acc, tuple(notes),
        )  # fmt: skip
        _add(rows, key, row)
    return tuple(rows.values())


def _notes(
    length: int, statistics: Statistics, bits: int, in_chunks: bool, metric: str, rounding: str
) -> list[str]:
    """Where the theory is known to be wrong for an accumulator of these mantissa bits."""
    exponents, growth, is_vrr = statistics.exponents, statistics.growth, metric == "vrr"
    is_long = length * statistics.nzr >= theory.MODEL_LIMIT
    notes = {
        "every product is zero on this sample: nothing was measured": (
            exponents is None and growth is not None
        ),
        "from 2^22 products on the formula asks for about 3 bits too many": (
            is_vrr and is_long and not in_chunks
        ),
        "fewer mantissa bits than the operands have: sums are rounded more coarsely than these": (
            bits < statistics.operand_bits
        ),
        f"products are not of mean zero: `growth`, E[sum^2] over that of independent ones, is "
        f"{_GROWTH:g} or more, which can cost log2(growth) / 2 bits more": (
            growth is not None and growth >= _GROWTH
        ),
        "needs more mantissa bits than the 23 of fp32": bits > _MOST_BITS,
        "products lie below fp32's normal numbers: scale the loss": (
            exponents is not None and exponents[0] < -126
        ),
        theory.UNSEEN_BY_VRR.get(rounding, ""): is_vrr and rounding in theory.UNSEEN_BY_VRR,
    }
    return [note for note, applies in notes.items() if applies]


def _fewest_exponent_bits(exponents: tuple[int, int] | None) -> int:
    """The fewest exponent bits of an IEEE format that covers the range; 8 for None."""
    for bits in range(2, _MOST_EXPONENT_BITS):
        half = 2 ** (bits - 1)
        if exponents is not None and 2 - half <= exponents[0] and exponents[1] <= half - 1:
            return bits
    return _MOST_EXPONENT_BITS


def _add(rows: dict[Any, PlanRow], key: Any, row: PlanRow) -> None:
    """Puts a row under a key, or widens the row of the key: the longer sum, and a format that
    holds both."""
    if key not in rows:
        rows[key] = row
        return
    both = longer, other = sorted((rows[key], row), key=lambda row: -row.length)
    ranges = [row.exponents for row in both if row.exponents is not None]
    formats = [row.format for row in both]
    fmt = FloatFormat(max(f.exp_bits for f in formats), max(f.man_bits for f in formats))
    numbers = ("product_bits", "nzr", "man_bits", "chunk_bits")
    widest: dict[str, Any] = {name: max(getattr(row, name) for row in both) for name in numbers}
    rows[key] = replace(
        longer,
        **widest,
        growth=max((row.growth for row in both if row.growth is not None), default=None),
        exponents=(min(r[0] for r in ranges), max(r[1] for r in ranges)) if ranges else None,
        format=fmt,
        accumulator=_with_format(longer.accumulator, fmt),
        notes=tuple(dict.fromkeys((*longer.notes, *other.notes))),
    )


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


def accumulator_of(
    fmt: FloatFormat, rounding: str, *, chunk: int | None = None, block: int = 1
) -> Accumulator:
    """The accumulator whose sums round as `rounding` of :func:`min_mantissa_bits` says.

    "aligned_truncation" cuts the running sum and the next `block` products toward zero at the sum's
    last place, adds the cut values and cuts the result; sums of chunks are added with rounding to
    nearest even, because cut sums would drift. Other names are an Accumulator's own.

    fmt: of the sums, inner and outer.  chunk: length of the inner sums; None: one sum.
    Raises: ValueError: no such rounding; "aligned_truncation" with 0 mantissa bits.
    """
    if rounding != "aligned_truncation":
        return Accumulator(fmt, rounding, chunk=chunk)
    return Accumulator(
        fmt,
        "toward_zero",
        chunk=chunk,
        outer_rounding=None if chunk is None else "nearest_even",
        block=block,
        aligned_bits=fmt.man_bits,
    )
