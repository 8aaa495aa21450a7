"""The roundings of one product, which are compiled in, and their constants, which are passed."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import triton.language as tl

from lpkernels.arithmetic.integers import InAccumulator, InQuantizer
from lpkernels.backends.triton.rounding.rule import STOCHASTIC, Numbers, rule_of
from lpkernels.backends.triton.rounding.table import TableNumbers

_CPU = torch.device("cpu")


class Known(tl.constexpr):
    """A tuple inside a constexpr, such as a Rule: up to Triton 3.6 a part of a constexpr is no
    constexpr by itself.

    It has the fields of the tuple, also where Python runs a kernel or the host asks.
    """

    def __getattr__(self, name: str) -> Any:
        if name == "value":
            raise AttributeError(name)
        return getattr(self.value, name)


class Roundings(NamedTuple):
    """The roundings of an Accumulator and of the quantizer of the result, as a constexpr of a
    kernel."""

    sum: Known
    #: None: products are exact.
    product: Known | None
    #: The rounding of the outermost additions, of chunks and of the bias.
    outer: Known
    #: None: the sums are the result.
    result: Known | None
    chunked: bool
    #: How the sums of chunks meet their scales: `Scaling.order`.
    scale_order: int = 0


class Constants(NamedTuple):
    """The numbers of the format of each rounding, an argument of a kernel."""

    sum: Numbers | TableNumbers
    product: Numbers | TableNumbers
    outer: Numbers | TableNumbers
    result: Numbers | TableNumbers


@functools.lru_cache(maxsize=1024)
def roundings_of(
    acc: tuple[int, ...], result: tuple[int, ...] = (), device: torch.device = _CPU
) -> tuple[Roundings, Constants]:
    """Both, made of ``Accumulator.to_ints()`` and of a deterministic quantizer's integers or ().
    device: where tables are read."""
    at = InAccumulator
    draws_by = acc[at.RANDOM_BITS], acc[at.RNG], device
    inner, numbers = _known(acc[at.FORMAT], acc[at.ROUNDING], *draws_by)
    if len(acc) > at.PLAIN:
        inner = Known(inner.value._replace(always_overflows=True))
    outer, outer_numbers = _known(acc[at.OUTER], acc[at.OUTER_ROUNDING], *draws_by)
    product, product_numbers = None, numbers
    if acc[at.HAS_PRODUCT]:
        product, product_numbers = _known(acc[at.PRODUCT], acc[at.PRODUCT_ROUNDING], *draws_by)
    last, last_numbers = None, numbers
    if result:
        plain = result[InQuantizer.FORMAT], result[InQuantizer.ROUNDING]
        last, last_numbers = _known(*plain, 0, 0, device)
    roundings = Roundings(inner, product, outer, last, acc[at.CHUNK] > 0)
    return roundings, Constants(numbers, product_numbers, outer_numbers, last_numbers)


def _known(
    fmt: tuple[int, ...], mode: int, bits: int, rng: int, device: torch.device
) -> tuple[Known, Numbers | TableNumbers]:
    rule, numbers = rule_of(fmt, mode, bits, rng, device=device)
    return Known(rule), numbers


def draws(roundings: Roundings) -> bool:
    """Whether one of the roundings is stochastic."""
    return any(
        rule is not None and rule.mode == STOCHASTIC.value
        for rule in (roundings.sum, roundings.product, roundings.outer)
    )
