"""Accumulator: how a sum of products is formed and rounded, and the named ones."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from lpkernels.arithmetic._text import parse_options
from lpkernels.formats import (
    FP32,
    AffineFormat,
    BlockFormat,
    FixedFormat,
    FloatFormat,
    Format,
    as_format,
    format_from_ints,
)
from lpkernels.formats._checks import checked_choice, checked_int, set_fields
from lpkernels.formats._named import did_you_mean
from lpkernels.rng import RNGS, check_rng
from lpkernels.rounding import ROUNDINGS, check_rounding

ORDERS = ("sequential", "native")

MAX_ACCUMULATOR_RANDOM_BITS = 24


@dataclass(frozen=True, init=False)
class Accumulator:
    """How a sum of products is formed: ``acc = round(acc + p_k)`` for k in order, from +0.

    One rounding of the exact sum at each step. With ``product``, each product is rounded to that
    format first; without it the product is exact. With ``chunk``, sums of that many products start
    again at +0 and each, the last short one included, is added to an accumulator in ``outer``.
    A bias is one more addition in the outermost accumulator.

    Text form: ``<fmt>[_chunk<n>][:<rounding>][:product=<fmt>][:product_rounding=<mode>]
    [:outer=<fmt>][:bits=<random_bits>][:philox]``; "native" in place of the format for order
    "native".

    Args:
        fmt:              FloatFormat or FixedFormat of the running sum, or its name.
        rounding:         of every addition: sums, outer sums and bias.
        product:          format of the products; None: exact.
        product_rounding: rounding of the products.
        chunk:            length of the inner sums; None: one sum.
        outer:            format of the sum of chunks; None: fmt. Needs chunk.
        order:            "sequential", or "native" (fmt must be fp32, no product): fp32 partial
                          sums in any order, as tensor cores and BLAS make them, rounded as the
                          hardware does; with chunk only the outer additions are in the contract.
        random_bits:      1..24, of every stochastic rounding.
        rng:              "fast" or "philox".

    Raises:
        TypeError, ValueError: as above; Affine and Block formats are refused.
    """

    fmt: FloatFormat | FixedFormat
    rounding: str
    product: FloatFormat | FixedFormat | None
    product_rounding: str
    chunk: int | None
    outer: FloatFormat | FixedFormat | None
    order: str
    random_bits: int
    rng: str
    if TYPE_CHECKING:
        _ints: tuple[int, ...]

    def __init__(
        self,
        fmt: Format | str = "fp32",
        rounding: str = "nearest_even",
        *,
        product: Format | str | None = None,
        product_rounding: str = "nearest_even",
        chunk: int | None = None,
        outer: Format | str | None = None,
        order: str = "sequential",
        random_bits: int = 8,
        rng: str = "fast",
    ) -> None:
        sum_format = _sum_format("fmt", fmt)
        if chunk is not None:
            chunk = checked_int("Accumulator", "chunk", chunk, 1)
        outer_format = None if outer is None else _sum_format("outer", outer)
        if outer_format is not None and chunk is None:
            raise ValueError(
                f"Accumulator: outer={outer_format} needs chunk, the length of the inner sums; "
                "pass chunk=64, say, or drop outer"
            )
        if chunk is not None and outer_format is None:
            outer_format = sum_format
        set_fields(
            self,
            fmt=sum_format,
            rounding=check_rounding(rounding, "Accumulator"),
            product=None if product is None else _sum_format("product", product),
            product_rounding=check_rounding(product_rounding, "Accumulator product"),
            chunk=chunk,
            outer=outer_format,
            order=checked_choice("Accumulator", "order", order, ORDERS),
            random_bits=checked_int(
                "Accumulator", "random_bits", random_bits, 1, MAX_ACCUMULATOR_RANDOM_BITS
            ),
            rng=check_rng(rng, "Accumulator"),
        )
        self._check_combination()
        object.__setattr__(self, "_ints", self._integers())

    def _check_combination(self) -> None:
        if self.product is None and self.product_rounding != "nearest_even":
            raise ValueError(
                f"Accumulator: product_rounding={self.product_rounding!r} needs product, the "
                "format of the products; without it they are exact"
            )
        if self.order != "native":
            return
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

    @property
    def is_native(self) -> bool:
        """Whether it is what torch itself does: order "native" and no chunk."""
        return self.order == "native" and self.chunk is None

    @property
    def is_stochastic(self) -> bool:
        """Whether it draws random bits."""
        return "stochastic" in (self.rounding, self.product_rounding)

    @property
    def outermost(self) -> FloatFormat | FixedFormat:
        """The format of the sum that is the result, and takes the bias."""
        return self.fmt if self.outer is None else self.outer

    def __str__(self) -> str:
        name = "native" if self.order == "native" else str(self.fmt)
        parts = [name if self.chunk is None else f"{name}_chunk{self.chunk}"]
        if self.rounding != "nearest_even":
            parts.append(self.rounding)
        if self.product is not None:
            parts.append(f"product={self.product}")
        if self.product_rounding != "nearest_even":
            parts.append(f"product_rounding={self.product_rounding}")
        if self.outer is not None and self.outer != self.fmt:
            parts.append(f"outer={self.outer}")
        if self.random_bits != 8:
            parts.append(f"bits={self.random_bits}")
        if self.rng != "fast":
            parts.append(self.rng)
        return ":".join(parts)

    def to_ints(self) -> tuple[int, ...]:
        """32 integers: order, chunk (0: none), rounding, product_rounding, random_bits, rng,
        has_product, has_outer, then the eight each of fmt, product (zeros if none), outermost."""
        return self._ints

    def _integers(self) -> tuple[int, ...]:
        return (
            ORDERS.index(self.order),
            self.chunk or 0,
            ROUNDINGS.index(self.rounding),
            ROUNDINGS.index(self.product_rounding),
            self.random_bits,
            RNGS.index(self.rng),
            int(self.product is not None),
            int(self.outer is not None),
            *self.fmt.to_ints(),
            *((0,) * 8 if self.product is None else self.product.to_ints()),
            *self.outermost.to_ints(),
        )


def _sum_format(name: str, fmt: Format | str) -> FloatFormat | FixedFormat:
    fmt = as_format(fmt)
    if isinstance(fmt, AffineFormat | BlockFormat):
        raise ValueError(
            f"Accumulator: {name}={fmt} takes its scale from a whole tensor and cannot hold a "
            "running sum or a product; use a FloatFormat or a FixedFormat"
        )
    return fmt


@lru_cache(maxsize=1024)
def accumulator_from_ints(ints: tuple[int, ...]) -> Accumulator:
    """The Accumulator of ``to_ints()``.

    Raises:  ValueError: the integers describe no Accumulator.
    """
    if len(ints) != 32:
        raise ValueError(
            f"accumulator_from_ints: expected the 32 integers of Accumulator.to_ints(), got {ints}"
        )
    order, chunk, rounding, product_rounding, random_bits, rng, has_product, has_outer = ints[:8]
    return Accumulator(
        format_from_ints(ints[8:16]),
        ROUNDINGS[rounding],
        product=format_from_ints(ints[16:24]) if has_product else None,
        product_rounding=ROUNDINGS[product_rounding],
        chunk=chunk or None,
        outer=format_from_ints(ints[24:32]) if has_outer else None,
        order=ORDERS[order],
        random_bits=random_bits,
        rng=RNGS[rng],
    )


#: What torch itself does: fp32 sums in the hardware's own order.
NATIVE = Accumulator("fp32", order="native")

#: Accumulators whose text form would hide where they come from; every text form is a name too.
NAMED_ACCUMULATORS: dict[str, Accumulator] = {
    # Wang et al. 2018 (arXiv 1812.08011): sums of 64 in a 16-bit float with 6 exponent bits.
    "ibm_fp16_chunk64": Accumulator("e6m9", chunk=64),
    # Blumenfeld et al. 2024 (arXiv 2401.14110): product and sum keep 7 mantissa and 4 exponent
    # bits, truncate, saturate and flush below min_normal. The biases and the chunk length are
    # parameters of the method: 12 (product max 15.9), 10 (sum max 63.75), 16 are this package's.
    "lba_m7e4": Accumulator(
        "e4m7none_b10_nosub_sat",
        "toward_zero",
        product="e4m7none_b12_nosub_sat",
        product_rounding="toward_zero",
        chunk=16,
    ),
    # DeepSeek-V3 (arXiv 2412.19437): FP8 tensor cores of Hopper keep about 14 bits (1+13) of a sum,
    # promoted to fp32 every 128 products.
    "hopper_fp8_e8m13_promote128": Accumulator("e8m13", "toward_zero", chunk=128, outer="fp32"),
}

_HEAD = re.compile(r"(.+?)(?:_chunk(\d+))?")
_KEYS = ("product", "product_rounding", "outer", "bits")


def accumulator(name: str) -> Accumulator:
    """A named accumulator, or the one of a text form such as "e6m9_chunk64" or "e5m10:toward_zero".

    Raises:  TypeError: not a str.  ValueError: no such name; the message lists near ones.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"accumulator: the name must be a str, got {name!r} ({type(name).__name__}); use "
            "as_accumulator to take an Accumulator as well"
        )
    return _named_or_parsed(name)


@lru_cache(maxsize=1024)
def _named_or_parsed(name: str) -> Accumulator:
    if name in NAMED_ACCUMULATORS:
        return NAMED_ACCUMULATORS[name]
    head, *parts = name.split(":")
    options = parse_options(name, parts, _KEYS)
    match = _HEAD.fullmatch(head)
    fmt, chunk = match.groups() if match else ("", None)
    native = fmt == "native"
    try:
        sum_format = as_format("fp32" if native else fmt)
    except ValueError as error:
        known = [*NAMED_ACCUMULATORS, "native", "fp32", "e6m9_chunk64"]
        raise ValueError(
            f"accumulator: unknown name {name!r}{did_you_mean(name, known)} Names are "
            f"{', '.join(NAMED_ACCUMULATORS)}, native[_chunk<n>...] or <format>[_chunk<n>]"
            "[:<rounding>][:product=<format>][:product_rounding=<mode>][:outer=<format>]"
            f"[:bits=<n>][:philox] ({error})"
        ) from error
    return Accumulator(
        sum_format,
        options.get("rounding", "nearest_even"),
        product=options.get("product"),
        product_rounding=options.get("product_rounding", "nearest_even"),
        chunk=None if chunk is None else int(chunk),
        outer=options.get("outer"),
        order="native" if native else "sequential",
        random_bits=int(options.get("bits", 8)),
        rng=options.get("rng", "fast"),
    )


def as_accumulator(acc: Accumulator | Format | str | None) -> Accumulator:
    """An Accumulator as it is, of a format, or of a name; None is :data:`NATIVE`.

    Raises:  TypeError: something else.  ValueError: an unknown name, or an Affine or Block format.
    """
    if acc is None:
        return NATIVE
    if isinstance(acc, Accumulator):
        return acc
    if isinstance(acc, Format):
        return Accumulator(acc)
    if isinstance(acc, str):
        return accumulator(acc)
    raise TypeError(
        f"expected an Accumulator, a format or a name, got {acc!r} ({type(acc).__name__}); for "
        "example 'e6m9_chunk64' or Accumulator('e6m9', chunk=64)"
    )
