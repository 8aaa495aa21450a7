"""The roundings of one product, compiled in, and their constants, passed."""

from __future__ import annotations

import functools
from typing import NamedTuple

from lpkernels.backends.triton._rules import STOCHASTIC, Numbers, Rule, rule_of


class Roundings(NamedTuple):
    """What an Accumulator and the quantizer of the result do, a constexpr of a kernel."""

    sum: Rule
    #: None: products are exact.
    product: Rule | None
    #: Of the outermost additions: of chunks, of the bias.
    outer: Rule
    #: None: the sums are the result.
    result: Rule | None
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
    inner, numbers = rule_of(acc[8:16], rounding, bits, rng)
    outer, outer_numbers = rule_of(acc[24:32], acc[34], bits, rng)
    product, product_numbers = None, numbers
    if has_product:
        product, product_numbers = rule_of(acc[16:24], product_rounding, bits, rng)
    last, last_numbers = None, numbers
    if result:
        last, last_numbers = rule_of(result[:-4], result[-4])
    roundings = Roundings(inner, product, outer, last, chunk > 0)
    return roundings, Constants(numbers, product_numbers, outer_numbers, last_numbers)


def draws(roundings: Roundings) -> bool:
    """Whether any of them is stochastic."""
    return any(
        rule is not None and rule.mode == STOCHASTIC.value
        for rule in (roundings.sum, roundings.product, roundings.outer)
    )
