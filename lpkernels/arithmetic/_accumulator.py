"""Accumulator: how a sum of products is formed and rounded."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lpkernels.arithmetic import _operands
from lpkernels.arithmetic._quantizer import ROUNDING_OPTIONS
from lpkernels.arithmetic.integers import (
    SCALE,
    SCALE_ORDERS,
    InAccumulator,
    chunk_from_int,
    chunk_to_int,
)
from lpkernels.arithmetic.text import PlainValues, options_of, whole, written_options
from lpkernels.formats import (
    FP32,
    AffineFormat,
    BlockFormat,
    FloatFormat,
    FormatLike,
    Number,
    as_format,
    format_from_ints,
)
from lpkernels.formats.checks import checked_choice, checked_int, set_fields
from lpkernels.formats.elsewhere import order_here
from lpkernels.rng import RNGS, check_rng
from lpkernels.rounding import ROUNDINGS, check_rounding

ORDERS = ("sequential", "native", "pairwise", "compensated")

MAX_ACCUMULATOR_RANDOM_BITS = 24

# An aligned sum of MAX_BLOCK + 1 addends of 1 + MAX_ALIGNED_BITS bits fits in the 53 of float64,
# and a block into what a kernel works on at a time.
MAX_BLOCK = 256
MAX_ALIGNED_BITS = 40


@dataclass(frozen=True, init=False)
class Accumulator(PlainValues):
    """How a sum of products is formed: ``acc = round(acc + p_k)`` for k in order, from +0.

    Each step rounds the exact sum once. With ``product``, each product is rounded to that format
    first; without it the product is exact. With ``chunk``, the sum starts again at +0 after so many
    products, and the sum of each chunk, the last short one included, is added to an accumulator in
    ``outer``. A bias is one more addition in the outermost accumulator.

    With chunk="scale" the factors are the codes of `lpkernels.Scaled` operands. A chunk ends where
    the scale of either operand changes, and its sum times both scales is added to the outer sum,
    rounded once. Scales of whole rows and tensors multiply the outer sum, at its end: docs/
    contract.md, "Products of scaled operands".

    ``order`` and ``block`` change how one sum, of a chunk or of all of K, is formed; the contract
    (docs/contract.md, "Sums in other orders") has the exact rules.

    Text form: ``<fmt>[_chunk<n>|_chunkscale][:<rounding>][:product=<fmt>][:product_rounding=<mode>]
    [:outer=<fmt>][:outer_rounding=<mode>][:scale_order=left|right][:order=pairwise|compensated]
    [:block=<n>:aligned_bits=<w>][:operands=<left>[,<right>]][:least_exponent=<L>]
    [:interleaved=<m>][:group=<g>][:bits=<random_bits>][:philox]``; "native" in place of the format
    for order "native".

    Args:
        fmt:              FloatFormat, FixedFormat or TableFormat of the running sum, or its name.
        rounding:         of every addition: sums, outer sums and bias.
        product:          format of the products; None: exact.
        product_rounding: rounding of the products.
        chunk:            length of the inner sums; None: one sum; "scale": the stretches of
                          products with constant scales.
        outer:            format of the sum of chunks; None: fmt. Needs chunk.
        outer_rounding:   of the outer sums and, with chunk, the bias; None: rounding. Needs chunk.
        scale_order:      "product", "left" or "right": of float32 scales, whose products are
                          rounded. Needs chunk="scale".
        order:            "sequential";
                          "pairwise": a binary tree over the positions;
                          "compensated": Kahan's sum, each of its four operations rounded; not with
                          rounding "stochastic";
                          "native" (fmt must be fp32, no product): fp32 partial sums in any order,
                          as tensor cores and BLAS make them, rounded as the hardware does; with
                          chunk only the outer additions are in the contract.
        block:            1..256 products that join the running sum at once, as in a tensor core:
                          they and the sum are cut toward zero at aligned_bits places below the
                          leading bit of the largest, added exactly and rounded once. Needs
                          aligned_bits and order "sequential".
        aligned_bits:     1..40 places kept below that leading bit.
        operands:         a FloatFormat or its name, or two, of the left and the right factor:
                          blocks are aligned by the sum of their operands' exponents instead, as in
                          tensor cores. The formats only bound exponents from below (a subnormal
                          counts with the least one); operands are not rounded. The first product of
                          every shape on the CPU warns of values that a format lacks, once for the
                          format; on a GPU nothing looks for them. left and right mean the factors
                          of each product: fprop (input, weight), dgrad (grad_output, weight), wgrad
                          (grad_output, input). Needs block, a float fmt and no product.
        least_exponent:   -300..300, the least exponent that a block is aligned to; None: none.
                          Needs operands.
        interleaved:      blocks that take turns in pairs of positions: in every run of interleaved
                          * block positions block j has the positions with (position // 2) %
                          interleaved == j. Needs operands, an even block, and chunk, a multiple of
                          that run.
        group:            products of `lpkernels.Scaled` operands that enter a block as one exact
                          sum, times both scales, aligned by the exponents of its scales (group=1:
                          of its factors too): docs/contract.md, "Groups with scales". It divides
                          block. Needs operands (above 1: e2m1) and no chunk.
        random_bits:      1..24, of every stochastic rounding.
        rng:              "fast" or "philox".

    Attributes:
        is_native:        whether the sums are torch's own: order "native" and no chunk.
        is_stochastic:    whether it draws random bits.

    Raises:
        TypeError, ValueError: as above; Affine and Block formats are refused.

    >>> print(lp.Accumulator("e6m9", chunk=64, outer="fp32"))
    e6m9_chunk64:outer=e8m23
    """

    fmt: Number
    rounding: str
    product: Number | None
    product_rounding: str
    chunk: int | str | None
    outer: Number | None
    outer_rounding: str | None
    order: str
    block: int | None
    aligned_bits: int | None
    random_bits: int
    rng: str
    if TYPE_CHECKING:
        is_native: bool
        is_stochastic: bool
        _ints: tuple[int, ...]
    # Defaults for what was pickled before these were fields.
    operands: tuple[FloatFormat, FloatFormat] | None = None
    least_exponent: int | None = None
    interleaved: int = 1
    scale_order: str = "product"
    group: int | None = None

    def __init__(
        self,
        fmt: FormatLike = "fp32",
        rounding: str = "nearest_even",
        *,
        product: FormatLike | None = None,
        product_rounding: str = "nearest_even",
        chunk: int | str | None = None,
        outer: FormatLike | None = None,
        outer_rounding: str | None = None,
        order: str = "sequential",
        block: int | None = None,
        aligned_bits: int | None = None,
        operands: _operands.Given = None,
        least_exponent: int | None = None,
        interleaved: int = 1,
        group: int | None = None,
        scale_order: str = "product",
        random_bits: int = 8,
        rng: str = "fast",
    ) -> None:
        sum_format = _sum_format("fmt", fmt)
        outer_format = None if outer is None else _sum_format("outer", outer)
        rounding = check_rounding(rounding, "Accumulator")
        if outer_rounding is not None:
            outer_rounding = check_rounding(outer_rounding, "Accumulator outer")
        if chunk is None:
            _needs_chunk("outer", outer_format)
            _needs_chunk("outer_rounding", outer_rounding)
        else:
            chunk = SCALE if chunk == SCALE else checked_int("Accumulator", "chunk", chunk, 1)
            outer_format = outer_format or sum_format
            outer_rounding = outer_rounding or rounding
        set_fields(
            self,
            fmt=sum_format,
            rounding=rounding,
            product=None if product is None else _sum_format("product", product),
            product_rounding=check_rounding(product_rounding, "Accumulator product"),
            chunk=chunk,
            outer=outer_format,
            outer_rounding=outer_rounding,
            order=checked_choice("Accumulator", "order", order, ORDERS, order_here(order)),
            block=_optional_int("block", block, MAX_BLOCK),
            aligned_bits=_optional_int("aligned_bits", aligned_bits, MAX_ALIGNED_BITS),
            random_bits=checked_int(
                "Accumulator", "random_bits", random_bits, 1, MAX_ACCUMULATOR_RANDOM_BITS
            ),
            rng=check_rng(rng, "Accumulator"),
            operands=_operands.checked_formats(operands),
            least_exponent=_operands.checked_least_exponent(least_exponent),
            interleaved=checked_int("Accumulator", "interleaved", interleaved, 1),
            group=_optional_int("group", group, MAX_BLOCK),
            scale_order=checked_choice("Accumulator", "scale_order", scale_order, SCALE_ORDERS),
        )
        self._check_combination()
        self._learn()

    def _learn(self) -> None:
        """Computes once what every call of a product asks."""
        roundings = (self.rounding, self.product_rounding, self.outer_rounding)
        set_fields(
            self,
            is_native=self.order == "native" and self.chunk is None,
            is_stochastic="stochastic" in roundings,
            _ints=self._integers(),
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A pickle may lack the computed attributes: they are computed anew."""
        vars(self).update(state)
        self._learn()

    def _check_combination(self) -> None:
        if self.scale_order != "product" and self.chunk != SCALE:
            raise ValueError(
                f"Accumulator: scale_order={self.scale_order!r} needs chunk='scale', sums that end "
                "where a scale changes; pass it, or drop scale_order"
            )
        if self.product is None and self.product_rounding != "nearest_even":
            raise ValueError(
                f"Accumulator: product_rounding={self.product_rounding!r} needs product, the "
                "format of the products; without it they are exact"
            )
        if (self.block is None) != (self.aligned_bits is None):
            raise ValueError(
                f"Accumulator: block={self.block} and aligned_bits={self.aligned_bits} go "
                "together: pass both, for example block=32, aligned_bits=13, or neither"
            )
        if self.block is not None and self.order != "sequential":
            raise ValueError(
                f"Accumulator: block={self.block} adds whole blocks one after the other, got "
                f"order={self.order!r}; use order='sequential', or drop block and aligned_bits"
            )
        if self.order == "compensated" and self.rounding == "stochastic":
            raise ValueError(
                "Accumulator: order='compensated' has no rounding='stochastic': the correction "
                "would be one of random errors; use a deterministic mode, or order='pairwise'"
            )
        if self.order == "native":
            self._check_native()
        _operands.check_combination(self)

    def _check_native(self) -> None:
        if self.fmt != FP32:
            raise ValueError(
                f"Accumulator: order='native' sums in fp32, got fmt={self.fmt}; use fmt='fp32', "
                "with chunk and outer for a narrower outer accumulator"
            )
        if self.product is not None:
            raise ValueError(
                f"Accumulator: order='native' has exact products, got product={self.product}; use "
                "order='sequential' to round them"
            )
        if self.chunk is None and self.rounding != "nearest_even":
            raise ValueError(
                f"Accumulator: order='native' without chunk rounds as the hardware does, got "
                f"rounding={self.rounding!r}; use order='sequential', or pass chunk to round the "
                "outer sum so"
            )
        if self.chunk is not None and self.outer_rounding != self.rounding:
            raise ValueError(
                f"Accumulator: order='native' rounds the outer sum alone, got rounding="
                f"{self.rounding!r} and outer_rounding={self.outer_rounding!r}; pass only rounding"
            )

    @property
    def chunk_length(self) -> int | None:
        """The length of the chunks; None without chunks, and where scales end them."""
        return self.chunk if isinstance(self.chunk, int) else None

    @property
    def takes_scales(self) -> bool:
        """Whether the scales of its operands enter the sum."""
        return self.chunk == SCALE or self.group is not None

    @property
    def in_sequence(self) -> bool:
        """Whether the running sum takes one product a step and is rounded after each."""
        return self.order == "sequential" and self.block is None

    def exchanged(self) -> "Accumulator":
        """The accumulator that makes the same sums for products whose factors are written the other
        way round."""
        if self.operands is None or self.operands[0] == self.operands[1]:
            return self
        return replace(self, operands=self.operands[::-1])

    @property
    def outermost(self) -> Number:
        """The format of the outermost sum, which takes the bias and is the result."""
        return self.fmt if self.outer is None else self.outer

    @property
    def outermost_rounding(self) -> str:
        """The rounding mode of additions to the outermost sum."""
        return self.outer_rounding or self.rounding

    def __str__(self) -> str:
        name = "native" if self.order == "native" else str(self.fmt)
        head = name if self.chunk is None else f"{name}_chunk{self.chunk}"
        return ":".join([head, *written_options(self, ACCUMULATOR_OPTIONS)])

    def to_ints(self) -> tuple[int, ...]:
        """35 integers: order, chunk (`integers.chunk_to_int`), rounding, product_rounding,
        random_bits, rng, has_product, has_outer, then the eight each of fmt, product (zeros if
        none), outermost, then block (0: none), aligned_bits, outermost_rounding; with operands 19
        more: the eight each of left and right, has_least_exponent, least_exponent, interleaved."""
        return self._ints

    def _integers(self) -> tuple[int, ...]:
        return (
            ORDERS.index(self.order),
            chunk_to_int(self.chunk, self.scale_order, self.group),
            ROUNDINGS.index(self.rounding),
            ROUNDINGS.index(self.product_rounding),
            self.random_bits,
            RNGS.index(self.rng),
            int(self.product is not None),
            int(self.outer is not None),
            *self.fmt.to_ints(),
            *((0,) * 8 if self.product is None else self.product.to_ints()),
            *self.outermost.to_ints(),
            self.block or 0,
            self.aligned_bits or 0,
            ROUNDINGS.index(self.outermost_rounding),
            *_operands.integers(self),
        )


def _sum_format(name: str, fmt: FormatLike) -> Number:
    fmt = as_format(fmt)
    if isinstance(fmt, AffineFormat | BlockFormat):
        raise ValueError(
            f"Accumulator: {name}={fmt} takes its scale from a whole tensor and cannot hold a "
            "running sum or a product; use a FloatFormat, a FixedFormat or a TableFormat"
        )
    return fmt


def _needs_chunk(name: str, value: object) -> None:
    if value is not None:
        raise ValueError(
            f"Accumulator: {name}={value} needs chunk, the length of the inner sums; "
            f"pass chunk=64, say, or drop {name}"
        )


def _optional_int(name: str, value: int | None, largest: int) -> int | None:
    return None if value is None else checked_int("Accumulator", name, value, 1, largest)


#: What follows the format and the chunk in a text.
ACCUMULATOR_OPTIONS = options_of(
    Accumulator,
    chunk=None,
    fmt=None,
    outer={"default": lambda acc: acc.outer and acc.fmt},
    outer_rounding={"default": lambda acc: acc.outer_rounding and acc.rounding},
    # The head says that an order is native.
    order={"default": lambda acc: acc.order if acc.order == "native" else "sequential"},
    block={"read": whole},
    aligned_bits={"read": whole},
    operands={"write": _operands.formats_text},
    least_exponent={"read": whole},
    group={"read": whole},
    **ROUNDING_OPTIONS,
)


@lru_cache(maxsize=1024)
def accumulator_from_ints(ints: tuple[int, ...]) -> Accumulator:
    """The Accumulator of the integers `ints` that ``Accumulator.to_ints`` gives.

    Raises:  ValueError: the integers describe no Accumulator.
    """
    at = InAccumulator
    if len(ints) not in (at.PLAIN, at.ALL):
        raise ValueError(
            f"accumulator_from_ints: expected the 35 integers of Accumulator.to_ints(), or "
            f"{at.ALL} with operands, got {ints}"
        )
    has_product, has_outer = ints[at.HAS_PRODUCT], ints[at.HAS_OUTER]
    return Accumulator(
        format_from_ints(ints[at.FORMAT]),
        ROUNDINGS[ints[at.ROUNDING]],
        product=format_from_ints(ints[at.PRODUCT]) if has_product else None,
        product_rounding=ROUNDINGS[ints[at.PRODUCT_ROUNDING]],
        **chunk_from_int(ints[at.CHUNK]),
        outer=format_from_ints(ints[at.OUTER]) if has_outer else None,
        outer_rounding=ROUNDINGS[ints[at.OUTER_ROUNDING]] if has_outer else None,
        order=ORDERS[ints[at.ORDER]],
        block=ints[at.BLOCK] or None,
        aligned_bits=ints[at.ALIGNED_BITS] or None,
        **_operands.from_integers(ints),
        random_bits=ints[at.RANDOM_BITS],
        rng=RNGS[ints[at.RNG]],
    )
