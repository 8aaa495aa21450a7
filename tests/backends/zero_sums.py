"""Sums that end at a zero, of formats of every kind in every shape of a sum: one table, for every
backend. The sign of the zero is the contract's: +0 in formats without -0."""

import random
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from lpkernels.arithmetic import Accumulator, accumulator
from lpkernels.formats import FloatFormat, Number, TableFormat
from lpkernels.rounding import ROUNDINGS
from tests.cases import formats_named

#: Each way to end a range, with and without a sign, subnormals and a mantissa; formats that
#: processors have, and formats of other kinds.
FORMATS: list[Number] = formats_named("""
    e5m2 fp16 bf16 fp32 e6m0 e4m3fn e3m2none_sat e5m3_nosub e4m3fnuz e5m4fnuz_nosub_sat e5m9fnuz
    p3109_k8p3se p3109_k8p1se p3109_k9p5ue p3109_k8p3uf_sat fixed8_f4 ufixed5_f1_wrap posit8es1 nf4
""")

#: Shapes of sums, with the format f at each place that they have for one.
SHAPES = (
    "{f}:{mode}", "{f}_chunk2:{mode}", "{f}_chunk2:{mode}:outer=e6m9",
    "e6m9_chunk2:{mode}:outer={f}", "e6m9:{mode}:product={f}",
    "{f}:{mode}:product={f}:product_rounding={mode}", "{f}_chunk2:{mode}:order=pairwise",
    "{f}:{mode}:block=2:aligned_bits=9",
)  # fmt: skip

#: Two rows, a column, and the bias or the value from which the sum starts.
OPERANDS: dict[str, tuple[list[list[float]], list[float], float]] = {
    "one product that underflows": ([[-(2.0**-20)], [2.0**-20]], [2.0**-10], -0.0),
    "products that underflow": (
        [[-(2.0**-20)] * 3, [2.0**-21] * 3], [2.0**-10, 0.0, 2.0**-9], -(2.0**-60)
    ),
    "products below float32": ([[-(2.0**-80)], [2.0**-80]], [2.0**-80], -(2.0**-149)),
    "products that cancel": ([[1.0, -1.0, -0.0], [-1.0, 1.0, 0.0]], [1.0] * 3, -0.0),
    "a sum that the bias cancels": ([[1.0, 0.0], [0.5, 0.5]], [1.0] * 2, -1.0),
    "zeros": ([[-0.0, 0.0, -0.0], [-0.0] * 3], [1.0, -1.0, 0.5], -0.0),
    "negative zeros": ([[-0.0] * 2] * 2, [1.0] * 2, -0.0),
    "no products": ([[], []], [], -0.0),
}  # fmt: skip

ENDS = ("bare", "bias", "initial")


def _is_one_zero(fmt: Number) -> bool:
    return isinstance(fmt, FloatFormat) and fmt.one_zero


class ZeroSum(NamedTuple):
    """A product of (2, K) and (K, 1)."""

    name: str
    acc: Accumulator
    a: Tensor
    b: Tensor
    bias: Tensor | None = None
    initial: Tensor | None = None

    @property
    def has_one_zero(self) -> bool:
        return not isinstance(self.acc.outermost, FloatFormat) or _is_one_zero(self.acc.outermost)


def has_table(acc: Accumulator) -> bool:
    return any(isinstance(fmt, TableFormat) for fmt in (acc.fmt, acc.product, acc.outer))


def zero_sums() -> Iterator[ZeroSum]:
    """Every format in every shape of a sum by every rounding: bare, with a bias, and with another
    start. Each takes some of the operands."""
    draw = random.Random(0)
    for fmt, shape, end, mode in product(FORMATS, SHAPES, ENDS, ROUNDINGS):
        name = draw.choice(list(OPERANDS))
        rows, column, other = OPERANDS[name]
        acc = accumulator(shape.format(f=fmt, mode=mode))
        a, b = torch.tensor(rows).reshape(2, -1), torch.tensor(column).reshape(-1, 1)
        case = ZeroSum(f"{name}, {end}", acc, a, b)
        if end == "bias":
            case = case._replace(bias=torch.full((1,), other))
        elif end == "initial":
            case = case._replace(initial=torch.full((2, 1), other))
        yield case


def few_zero_sums() -> Iterator[ZeroSum]:
    """The cases for an interpreter: one in 29, and every bare single sum in a format with one
    zero."""
    for number, case in enumerate(zero_sums()):
        bare = case.bias is None and case.initial is None and case.acc.chunk is None
        if number % 29 == 0 or (bare and case.acc.in_sequence and _is_one_zero(case.acc.fmt)):
            yield case
