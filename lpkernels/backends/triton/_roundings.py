"""The roundings of one product, compiled in, and their constants, passed."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import triton.language as tl

from lpkernels.arithmetic import PLAIN_INTS
from lpkernels.backends.triton._rule import STOCHASTIC, Numbers, rule_of


class Known(tl.constexpr):
    """A Rule inside a constexpr: up to Triton 3.6 a part of one is none by itself.

    Its fields are those of the Rule, also where Python runs a kernel or the host asks.
    """

    def __getattr__(self, name: str) -> Any:
        if name == "value":
            raise AttributeError(name)
        return getattr(self.value, name)


class Roundings(NamedTuple):
    """What an Accumulator and the quantizer of the result do, a constexpr of a kernel."""

    sum: Known
    #: None: products are exact.
    product: Known | None
    #: Of the outermost additions: of chunks, of the bias.
    outer: Known
    #: None: the sums are the result.
    result: Known | None
    chunked: bool


class Constants(NamedTuple):
    """The numbers of each of these formats, an argument of a kernel."""

    sum: Numbers
    product: Numbers
    outer: Numbers
    result: Numbers


@functools.lru_cache(maxsize=1024)
def roundings_of(acc: tuple[int, ...], result: tuple[int, ...] = ()) -> tuple[Roundings, Constants]:
    """Both, of ``Accumulator.to_ints()`` and of a deterministic quantizer's integers or ()."""
    _, chunk, rounding, product_rounding, bits, rng, has_product, _ = acc[:8]
    inner, numbers = _known(acc[8:16], rounding, bits, rng)
    if len(acc) > PLAIN_INTS:
        inner = Known(inner.value._replace(always_overflows=True))
    outer, outer_numbers = _known(acc[24:32], acc[34], bits, rng)
    product, product_numbers = None, numbers
    if has_product:
        product, product_numbers = _known(acc[16:24], product_rounding, bits, rng)
    last, last_numbers = None, numbers
    if result:
        last, last_numbers = _known(result[:-4], result[-4])
    roundings = Roundings(inner, product, outer, last, chunk > 0)
    return roundings, Constants(numbers, product_numbers, outer_numbers, last_numbers)


def _known(fmt: tuple[int, ...], mode: int, bits: int = 0, rng: int = 0) -> tuple[Known, Numbers]:
    rule, numbers = rule_of(fmt, mode, bits, rng)
    return Known(rule), numbers


def draws(roundings: Roundings) -> bool:
    """Whether any of them is stochastic."""
    return any(
        rule is not None and rule.mode == STOCHASTIC.value
        for rule in (roundings.sum, roundings.product, roundings.outer)
    )
