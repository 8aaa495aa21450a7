"""Formats, rounding modes and draws that, taken together, make every rule of the kernels."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from lpkernels.backends.triton.rounding.rule import rule_of
from lpkernels.formats import FixedFormat, FloatFormat
from lpkernels.rounding import ROUNDINGS
from tests.backends.triton.kernel_keys import rule_key

Format = FloatFormat | FixedFormat
Call = Callable[[], Any]

#: A format of each kind.
FEW = ("e5m10", "e5m0", "fixed16_f8", "fixed12_f6_wrap")
SEED = torch.tensor(5)


def all_formats() -> Iterator[Format]:
    """Float formats of every size and kind, and the kinds of fixed ones."""
    kinds = itertools.product(
        ("ieee", "fn", "none"), ("infinity", "saturate", "nan"), (True, False)
    )
    for specials, overflow, subnormals in kinds:
        for exp_bits, man_bits, bias in itertools.product(range(1, 9), range(24), (None, -3, 130)):
            try:
                yield FloatFormat(
                    exp_bits, man_bits, bias=bias, specials=specials, overflow=overflow,
                    subnormals=subnormals,
                )  # fmt: skip
            except ValueError:
                continue
    for exp_bits, man_bits in itertools.product(range(1, 9), range(11)):
        for specials, overflow, signed in (("fnuz", "nan", True), ("p3109", "saturate", False)):
            if 3 <= exp_bits + man_bits + signed <= 16:
                yield FloatFormat(
                    exp_bits, man_bits, specials=specials, overflow=overflow, signed=signed
                )
    for overflow, signed, bits in itertools.product(
        ("saturate", "wrap"), (True, False), range(2, 25)
    ):
        yield FixedFormat(bits, bits // 2, signed=signed, overflow=overflow)


def kinds() -> list[Format]:
    """Formats of `all_formats`: those of usual recipes, then the kinds that these leave out."""
    first: list[Format] = [FloatFormat(5, 10), FloatFormat(6, 9), FixedFormat(16, 8)]
    few = [
        f for f in all_formats() if isinstance(f, FixedFormat) or (f.exp_bits == 5 and f.bias > 0)
    ]
    return first + [f for f in few if isinstance(f, FixedFormat) or f.man_bits in (0, 3, 4, 10)]


def some_rules() -> list[tuple[Format, str]]:
    """A format and a mode for each `rule_key` that exists."""
    found: dict[Any, tuple[Format, str]] = {}
    for fmt, mode in itertools.product(kinds(), ROUNDINGS):
        rule = rule_of(fmt.to_ints(), ROUNDINGS.index(mode))[0]
        found.setdefault(rule_key(rule), (fmt, mode))
    return list(found.values())


def drawn() -> Iterator[dict[str, Any]]:
    """Fields of draws and generators."""
    for bits, rng in itertools.product((8, 13, 24), ("fast", "philox")):
        yield {"random_bits": bits, "rng": rng}
