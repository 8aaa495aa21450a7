"""Accumulator: how a sum of products is formed and rounded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from lpkernels.arithmetic._quantizer import ROUNDING_OPTIONS
from lpkernels.arithmetic.integers import (
    ADDERS,
    SCALE,
    SCALE_ORDERS,
    InAccumulator,
    has_core,
    sums_by_scale,
)
from lpkernels.arithmetic.text import PlainValues, options_of, whole, written_options
from lpkernels.formats import (
    FP32,
    AffineFormat,
    BlockFormat,
    FloatFormat,
    Format,
    FormatLike,
    Number,
    as_format,
    format_from_ints,
)
from lpkernels.formats.checks import checked_choice, checked_int, set_fields
from lpkernels.rng import RNGS, check_rng
from lpkernels.rounding import ROUNDINGS, check_rounding

ORDERS = ("sequential", "native", "pairwise", "compensated")

_MAX_RANDOM_BITS = 24
# An aligned sum of _MAX_BLOCK + 1 addends of 1 + _MAX_ALIGNED_BITS bits fits in the 53 of float64,
# and a block into what a kernel works on at a time.
_MAX_BLOCK = 256
_MAX_ALIGNED_BITS = 40
# 256 products of e2m1 codes are below 256 * 36, and two scales below 4 times the product of their
# binades: the sum of a block is below 2^53 units of 2^-37 of it.
_MAX_GROUPED_BITS = 37
# Exponents of factors and of their scales, added, stay in the range of float64.
_MAX_SCALED_OPERAND = 8
# Two operands have exponents of -298 or more and 254 or less together: beyond, nothing changes.
_LARGEST_EXPONENT = 300
#: Fields that need another one: the field, the one it needs, its default, and an example of the
#: other.
_NEEDS = (
    ("outer", "chunk", None, "chunk=64"),
    ("outer_rounding", "chunk", None, "chunk=64"),
    ("product_rounding", "product", "nearest_even", "product='bf16'"),
    ("aligned_bits", "block", None, "block=32, aligned_bits=13"),
    ("operands", "block", None, "block=16, aligned_bits=25"),
    ("least_exponent", "operands", None, "operands='fp16'"),
    ("least_exponent", "aligned_bits", None, "aligned_bits=25"),
    ("interleaved", "operands", 1, "operands='fp16'"),
    ("group", "operands", None, "operands='e4m3fn'"),
    ("group", "aligned_bits", None, "aligned_bits=25"),
    ("adder", "operands", "aligned", "operands='fp16'"),
)
#: What AMD's matrix cores take, by adder: formats of the operands, and blocks.
_SIXTEEN_BITS = ("fp16", "bf16")
_CORES: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "tree": (_SIXTEEN_BITS, (2, 4)),
    "floored": ((*_SIXTEEN_BITS, "tf32"), (4, 8)),
    "floored_halves": (("e4m3fnuz", "e5m2fnuz"), (16,)),
    "opposed": (_SIXTEEN_BITS, (2,)),
    "pairs": (_SIXTEEN_BITS, (4,)),
    "pairs_swapped": (_SIXTEEN_BITS, (4,)),
}
# A sum in any of these adders is below 2^48 units, in float64 exact.
_MAX_ADDER_BITS = 32

Operands: TypeAlias = FormatLike | Sequence[FormatLike] | None


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
    [:block=<n>][:aligned_bits=<w>][:operands=<left>[,<right>]][:least_exponent=<L>]
    [:interleaved=<m>][:group=<g>][:adder=<adder>][:bits=<random_bits>][:philox]``; "native" in
    place of the format for order "native".

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
                          leading bit of the largest, added exactly and rounded once. Without
                          aligned_bits nothing is cut, and fmt is a FloatFormat. Needs order
                          "sequential".
        aligned_bits:     1..40 places kept below that leading bit. Needs block.
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
        adder:            "aligned", or how a matrix core of AMD adds a block: "tree" (CDNA2, which
                          takes no aligned_bits), "floored" and "floored_halves" (CDNA3, 16 bits and
                          fp8), "opposed" (RDNA3), "pairs" and "pairs_swapped" (RDNA4, waves of 64
                          and 32): docs/contract.md, "Blocks of AMD's matrix cores". Needs fmt
                          fp32 to nearest even, and the operands and blocks of these cores.
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
    operands: tuple[FloatFormat, FloatFormat] | None
    least_exponent: int | None
    interleaved: int
    group: int | None
    adder: str
    scale_order: str
    random_bits: int
    rng: str
    if TYPE_CHECKING:
        is_native: bool
        is_stochastic: bool
        _ints: tuple[int, ...]

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
        operands: Operands = None,
        least_exponent: int | None = None,
        interleaved: int = 1,
        group: int | None = None,
        adder: str = "aligned",
        scale_order: str = "product",
        random_bits: int = 8,
        rng: str = "fast",
    ) -> None:
        if chunk is not None and chunk != SCALE:
            chunk = _checked_int("chunk", chunk)
        if outer_rounding is not None:
            check_rounding(outer_rounding, "Accumulator outer")
        set_fields(
            self,
            fmt=_sum_format("fmt", fmt),
            rounding=check_rounding(rounding, "Accumulator"),
            product=None if product is None else _sum_format("product", product),
            product_rounding=check_rounding(product_rounding, "Accumulator product"),
            chunk=chunk,
            outer=None if outer is None else _sum_format("outer", outer),
            outer_rounding=outer_rounding,
            order=checked_choice("Accumulator", "order", order, ORDERS),
            block=_checked_int("block", block, 1, _MAX_BLOCK),
            aligned_bits=_checked_int("aligned_bits", aligned_bits, 1, _MAX_ALIGNED_BITS),
            operands=_checked_operands(operands),
            least_exponent=_checked_int(
                "least_exponent", least_exponent, -_LARGEST_EXPONENT, _LARGEST_EXPONENT
            ),
            interleaved=checked_int("Accumulator", "interleaved", interleaved, 1),
            group=_checked_int("group", group, 1, _MAX_BLOCK),
            adder=checked_choice("Accumulator", "adder", adder, ADDERS),
            scale_order=checked_choice("Accumulator", "scale_order", scale_order, SCALE_ORDERS),
            random_bits=checked_int("Accumulator", "random_bits", random_bits, 1, _MAX_RANDOM_BITS),
            rng=check_rng(rng, "Accumulator"),
        )
        for field, other, default, example in _NEEDS:
            value = getattr(self, field)
            if value != default and getattr(self, other) is None:
                raise ValueError(
                    f"Accumulator: {field}={_text(value)} needs {other}; pass {example}, say, or "
                    f"leave {field} away"
                )
        if self.chunk is not None:
            outer_format = self.outer or self.fmt
            set_fields(self, outer=outer_format, outer_rounding=outer_rounding or rounding)
        operands_problem = self._operands_problem if self.operands else lambda: None
        adder_problem = self._adder_problem if self.adder != "aligned" else lambda: None
        if problem := self._order_problem() or operands_problem() or adder_problem():
            raise ValueError(f"Accumulator: {problem}")
        roundings = (self.rounding, self.product_rounding, self.outer_rounding)
        set_fields(
            self,
            is_native=self.order == "native" and self.chunk is None,
            is_stochastic="stochastic" in roundings,
            _ints=self._integers(),
        )

    def _order_problem(self) -> str | None:
        """Why the order of the sum does not go with the other fields."""
        if self.scale_order != "product" and self.chunk != SCALE:
            return (
                f"scale_order={self.scale_order!r} needs chunk='scale', sums that end where a "
                "scale changes; pass it, or leave scale_order away"
            )
        if self.block is not None and self.order != "sequential":
            return (
                f"block={self.block} adds whole blocks one after the other, got order="
                f"{self.order!r}; use order='sequential', or leave block and aligned_bits away"
            )
        exact = self.block is not None and self.aligned_bits is None
        if exact and not isinstance(self.fmt, FloatFormat):
            return (
                f"block={self.block} without aligned_bits adds exactly and rounds to a float, got "
                f"fmt={self.fmt}; use a FloatFormat, or pass aligned_bits=24, say"
            )
        if self.order == "compensated" and self.rounding == "stochastic":
            return (
                "order='compensated' has no rounding='stochastic': the correction would be one of "
                "random errors; use a deterministic mode, or order='pairwise'"
            )
        if self.order != "native":
            return None
        if self.fmt != FP32 or self.product is not None:
            return (
                f"order='native' sums exact products in fp32, got fmt={self.fmt}, product="
                f"{self.product}; use order='sequential', or chunk and outer for a narrower outer "
                "accumulator"
            )
        if (self.outer_rounding or "nearest_even") != self.rounding:
            return (
                "order='native' rounds as the hardware does, and the outer sum of chunks alone in "
                f"`rounding`, got rounding={self.rounding!r} and outer_rounding="
                f"{self.outer_rounding!r}; use order='sequential', or pass chunk and only rounding"
            )
        return None

    def _operands_problem(self) -> str | None:
        """Why sums that are aligned by their operands do not go with the other fields."""
        assert self.operands is not None and self.block is not None
        operands, block, group = _text(self.operands), self.block, self.group
        if self.product is not None or not isinstance(self.fmt, FloatFormat):
            return (
                f"operands={operands} align exact products and a float sum by their exponents, got "
                f"fmt={self.fmt}, product={self.product}; use a FloatFormat and no product"
            )
        run = self.interleaved * block
        if self.interleaved > 1 and block % 2:
            return (
                f"interleaved={self.interleaved} deals positions out in pairs, got block={block}; "
                "use an even block"
            )
        if self.interleaved > 1 and (not isinstance(self.chunk, int) or self.chunk % run):
            return (
                f"interleaved={self.interleaved} with block={block} needs chunk, a multiple of "
                f"{run}, got chunk={self.chunk}; pass chunk={run}, say"
            )
        if group is None:
            return None
        if self.chunk is not None or self.rounding == "stochastic":
            return (
                f"group={group} brings scales into every block and draws no random bits, got "
                f"chunk={self.chunk}, rounding={self.rounding!r}; leave chunk away and use a "
                "deterministic mode"
            )
        if block % group:
            return f"group={group} must divide the block, got block={block}; use block={group}"
        if any(fmt.bits > _MAX_SCALED_OPERAND for fmt in self.operands):
            return (
                f"group={group} is for codes of {_MAX_SCALED_OPERAND} bits or fewer, got operands="
                f"{operands}; use those of a block format, for example 'e4m3fn'"
            )
        narrow = all((fmt.exp_bits, fmt.man_bits, fmt.bias) == (2, 1, 1) for fmt in self.operands)
        if group > 1 and not (narrow and (self.aligned_bits or 0) <= _MAX_GROUPED_BITS):
            return (
                f"group={group} sums its products exactly, which is for operands='fp4_e2m1', "
                f"aligned_bits up to {_MAX_GROUPED_BITS}, got operands={operands}, aligned_bits="
                f"{self.aligned_bits}; use group=1, whose products are aligned one by one"
            )
        return None

    def _adder_problem(self) -> str | None:
        """Why the adder of a matrix core does not go with the other fields."""
        assert self.operands is not None
        formats, blocks = _CORES[self.adder]
        adder, pair = f"adder={self.adder!r}", set(self.operands)
        alike = "" if self.adder == "floored_halves" else ", the same on both sides"
        if not pair <= set(map(as_format, formats)) or (alike and len(pair) > 1):
            return (
                f"{adder} multiplies {', '.join(formats)}{alike}, got operands="
                f"{_text(self.operands)}; pass operands={formats[0]!r}, say"
            )
        if self.block not in blocks:
            legal = " or ".join(map(str, blocks))
            return f"{adder} has block={legal}, got block={self.block}; pass block={blocks[-1]}"
        if self.fmt != FP32 or self.rounding != "nearest_even":
            return (
                f"{adder} gives float32, to nearest even, got fmt={self.fmt}, rounding="
                f"{self.rounding!r}; leave both away, and use outer for a narrower sum of chunks"
            )
        if self.least_exponent is not None or self.interleaved > 1 or self.group is not None:
            return (
                f"{adder} takes blocks in its own order and has no bound of exponents; leave "
                "least_exponent, interleaved and group away"
            )
        if self.adder == "tree":
            bits = "leave aligned_bits away: it rounds every sum" if self.aligned_bits else ""
        else:
            fits = 0 < (self.aligned_bits or 0) <= _MAX_ADDER_BITS
            bits = "" if fits else f"pass aligned_bits=1..{_MAX_ADDER_BITS}; AMD's cores have 24"
        return f"{adder} got aligned_bits={self.aligned_bits}; {bits}" if bits else None

    @property
    def chunk_length(self) -> int | None:
        """The length of the chunks; None without chunks, and where scales end them."""
        return self.chunk if isinstance(self.chunk, int) else None

    @property
    def takes_scales(self) -> bool:
        """Whether the scales of its operands enter the sum."""
        return sums_by_scale(self._ints)

    @property
    def in_sequence(self) -> bool:
        """Whether the running sum takes one product a step and is rounded after each."""
        return self.order == "sequential" and self.block is None

    @property
    def has_core(self) -> bool:
        """Whether a block is added exactly, or by an adder of AMD's matrix cores."""
        return has_core(self._ints)

    @property
    def turns(self) -> int:
        """How many blocks take turns in a run of positions."""
        return 4 if self.adder == "pairs_swapped" else self.interleaved

    def turn_of(self, offset: int) -> int:
        """The turn of the block that has the position `offset` behind the first one of a run."""
        if self.adder == "pairs_swapped":
            return (0, 2, 1, 3)[offset // 4]
        return offset // 2 % self.interleaved

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
        """37 integers, with operands 57: `integers.InAccumulator` has their places."""
        return self._ints

    def _integers(self) -> tuple[int, ...]:
        of_operands: tuple[int, ...] = ()
        if self.operands is not None:
            least = self.least_exponent
            left, right = (fmt.to_ints() for fmt in self.operands)
            adder = ADDERS.index(self.adder)
            bound = (int(least is not None), least or 0)
            of_operands = (*left, *right, *bound, self.interleaved, adder)
        return (
            ORDERS.index(self.order),
            self.chunk if isinstance(self.chunk, int) else 0,
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
            1 + SCALE_ORDERS.index(self.scale_order) if self.chunk == SCALE else 0,
            self.group or 0,
            *of_operands,
        )


def _sum_format(name: str, fmt: FormatLike) -> Number:
    fmt = as_format(fmt)
    if isinstance(fmt, AffineFormat | BlockFormat):
        raise ValueError(
            f"Accumulator: {name}={fmt} takes its scale from a whole tensor and cannot hold a "
            "running sum or a product; use a FloatFormat, a FixedFormat or a TableFormat"
        )
    return fmt


def _checked_int(name: str, value: object, low: int = 1, high: int | None = None) -> int | None:
    return None if value is None else checked_int("Accumulator", name, value, low, high)


def _checked_operands(operands: Operands) -> tuple[FloatFormat, FloatFormat] | None:
    """The pair (left, right) of one format, of two, or of a text "left,right"."""
    if operands is None:
        return None
    formats = tuple(operands.split(",")) if isinstance(operands, str) else operands
    pair = (formats,) if isinstance(formats, Format) else formats
    if not isinstance(pair, Sequence):
        raise TypeError(
            f"Accumulator: operands must be a format, its name, or two of them, got {operands!r} "
            f"({type(operands).__name__})"
        )
    if len(pair) not in (1, 2):
        raise ValueError(
            f"Accumulator: operands={operands!r}: expected a format, or two: (left, right), for "
            "example operands=('e5m2', 'e4m3fn')"
        )
    left, right = as_format(pair[0]), as_format(pair[-1])
    if not isinstance(left, FloatFormat) or not isinstance(right, FloatFormat):
        raise ValueError(
            f"Accumulator: operands={left},{right} have no exponents to align by; use a "
            "FloatFormat, for example operands='e4m3fn'"
        )
    return left, right


def _text(value: object) -> str:
    """A field's value as texts have it: of operands one format, or both with a comma."""
    return ",".join(dict.fromkeys(map(str, value))) if isinstance(value, tuple) else str(value)


#: What follows the format and the chunk in a text.
ACCUMULATOR_OPTIONS = options_of(
    Accumulator,
    chunk=None,
    fmt=None,
    outer={"default": lambda acc: acc.outer and acc.fmt},
    outer_rounding={"default": lambda acc: acc.outer_rounding and acc.rounding},
    # The head says that an order is native.
    order={"default": lambda acc: acc.order if acc.order == "native" else "sequential"},
    operands={"write": _text},
    **{key: {"read": whole} for key in ("block", "aligned_bits", "least_exponent", "group")},
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
            f"accumulator_from_ints: expected the {at.PLAIN} integers of Accumulator.to_ints(), or "
            f"{at.ALL} with operands, got {ints}"
        )
    has_outer, order, of_operands = ints[at.HAS_OUTER], ints[at.SCALE_ORDER], {}
    if len(ints) == at.ALL:
        of_operands = {
            "operands": (format_from_ints(ints[at.LEFT]), format_from_ints(ints[at.RIGHT])),
            "least_exponent": ints[at.LEAST_EXPONENT] if ints[at.HAS_LEAST_EXPONENT] else None,
            "interleaved": ints[at.INTERLEAVED],
            "adder": ADDERS[ints[at.ADDER]],
        }
    return Accumulator(
        format_from_ints(ints[at.FORMAT]),
        ROUNDINGS[ints[at.ROUNDING]],
        product=format_from_ints(ints[at.PRODUCT]) if ints[at.HAS_PRODUCT] else None,
        product_rounding=ROUNDINGS[ints[at.PRODUCT_ROUNDING]],
        chunk=SCALE if order else ints[at.CHUNK] or None,
        scale_order=SCALE_ORDERS[max(order - 1, 0)],
        group=ints[at.GROUP] or None,
        outer=format_from_ints(ints[at.OUTER]) if has_outer else None,
        outer_rounding=ROUNDINGS[ints[at.OUTER_ROUNDING]] if has_outer else None,
        order=ORDERS[ints[at.ORDER]],
        block=ints[at.BLOCK] or None,
        aligned_bits=ints[at.ALIGNED_BITS] or None,
        **of_operands,  # type: ignore[arg-type]
        random_bits=ints[at.RANDOM_BITS],
        rng=RNGS[ints[at.RNG]],
    )
