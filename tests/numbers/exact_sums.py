"""Sums in tables and in float formats, in rational numbers: written from the words of
docs/contract.md. Of the package only draws, and what a format's fields say."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import torch

from lpkernels.arithmetic import Accumulator, accumulator
from lpkernels.formats import FixedFormat, FloatFormat, TableFormat
from lpkernels.rng import SITE_BIAS, SITE_OUTER, SITE_PRODUCT, SITE_SUM, derive_seed, draw
from lpkernels.rounding import ROUNDINGS
from tests.compare import assert_bit_equal
from tests.numbers.exact_tables import Table

#: A number, or a float that is infinite or NaN. Zeros have no sign here.
Real = Fraction | float


@cache
def table_of(fmt: TableFormat) -> Table:
    tensors = fmt.tensors()
    return Table.of(fmt.values().tolist(), tensors.codes.tolist(), tensors.boundaries.tolist())


def floor_log2(x: Fraction) -> int:
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    return exponent if x >= Fraction(2) ** exponent else exponent - 1


def odd_double(x: Fraction) -> Fraction:
    """x to 53 bits, an inexact one to the odd neighbour."""
    if x == 0:
        return x
    unit = Fraction(2) ** (floor_log2(abs(x)) - 52)
    whole = int(abs(x) / unit)
    whole |= int(whole != abs(x) / unit)
    return whole * unit * (1 if x > 0 else -1)


def unbounded(x: Fraction, fmt: Any, rounding: str, draw: int, random_bits: int = 32) -> Fraction:
    """x rounded as if the exponent had no bound above, by the definition of the mode; what lies
    beyond an end of a table stays."""
    if isinstance(fmt, TableFormat):
        x = odd_double(x) if rounding == "stochastic" else x
        inside = fmt.min <= x <= fmt.max
        return table_of(fmt).rounded(x, rounding, draw, random_bits) if inside else x
    a = abs(x)
    if isinstance(fmt, FixedFormat):
        step, first_code = Fraction(fmt.quantum), 0
    else:
        exponent = max(floor_log2(a), fmt.emin) if a else fmt.emin
        step = Fraction(2) ** (exponent - fmt.man_bits)
        first_code = (exponent - fmt.emin) * 2**fmt.man_bits
        if not fmt.subnormals and a < Fraction(2) ** fmt.emin:
            step, first_code = Fraction(2) ** fmt.emin, 0
    quanta, rest = divmod(a / step, 1)
    odd = (quanta + first_code) % 2 == 1
    one = 2 ** (random_bits + 1)
    if rest:
        quanta += {
            "nearest_even": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and odd),
            "nearest_away": rest >= Fraction(1, 2),
            "toward_zero": False,
            "toward_positive": x > 0,
            "toward_negative": x < 0,
            "to_odd": not odd,
            "stochastic": math.floor(rest * one) + 2 * draw + 1 >= one,
        }[rounding]
    return quanta * step if x > 0 else -quanta * step


def rounded(x: Real, fmt: FloatFormat | TableFormat, rounding: str, draw: int, bits: int) -> Real:
    """x in a format, overflow and all."""
    if isinstance(fmt, TableFormat):
        if isinstance(x, float) and (math.isnan(x) or fmt.infinity == "nan"):
            return math.nan
        ends = Fraction(fmt.min), Fraction(fmt.max)
        if isinstance(x, float):
            return ends[x > 0]
        return min(max(unbounded(x, fmt, rounding, draw, bits), ends[0]), ends[1])
    result = x if isinstance(x, float) else unbounded(x, fmt, rounding, draw, bits)
    if abs(result) > fmt.max:
        end = math.copysign(fmt.max, x)
        stays = {"toward_zero", "to_odd", "toward_negative" if x > 0 else "toward_positive"}
        beyond = {
            "infinity": math.copysign(math.inf, x),
            "saturate": Fraction(end),
            "nan": math.nan,
        }
        finite = not isinstance(x, float)
        result = Fraction(end) if finite and rounding in stays else beyond[fmt.overflow]
    if not fmt.signed and result < 0:
        return Fraction(0) if fmt.overflow == "saturate" else math.nan
    return result


def total_of(addends: Sequence[Real]) -> Real:
    special = [x for x in addends if isinstance(x, float)]
    return sum(special) if special else sum(addends, Fraction(0))


@dataclass(frozen=True)
class ExactSum:
    """One output of a product of matrices, its row and column."""

    acc: Accumulator
    seed: int
    row: int
    col: int

    def rounded(self, x: Real, fmt: Any, rounding: str, site: int, k: int) -> Real:
        bits, key = self.acc.random_bits, (self.seed, site, self.row, self.col, k)
        drawn = draw(*key, bits, self.acc.rng) if rounding == "stochastic" else 0
        return rounded(x, fmt, rounding, drawn, bits)

    def add(self, k: int, *addends: Real) -> Real:
        return self.rounded(total_of(addends), self.acc.fmt, self.acc.rounding, SITE_SUM, k)

    def add_outermost(self, site: int, k: int, *addends: Real) -> Real:
        how = self.acc.outermost, self.acc.outermost_rounding
        return self.rounded(total_of(addends), *how, site, k)

    def product(self, a: float, b: float, k: int) -> Real:
        both = math.isfinite(a) and math.isfinite(b)
        exact = Fraction(a) * Fraction(b) if both else a * b
        acc = self.acc
        if acc.product is None:
            return exact
        return self.rounded(exact, acc.product, acc.product_rounding, SITE_PRODUCT, k)

    def inner(self, products: Sequence[Real], first: int) -> Real:
        """Consecutive products from position `first` on, in the accumulator's order."""
        if self.acc.order == "pairwise":
            return self.tree(products, first)
        total, lost, block = Fraction(0), Fraction(0), self.acc.block or 1
        for k in range(0, len(products), block):
            part = products[k : k + block]
            if self.acc.order == "compensated":
                term = self.add(first + k, part[0], -lost)
                following = self.add(first + k, total, term)
                lost = self.add(first + k, self.add(first + k, following, -total), -term)
                total = following
            elif self.acc.block:
                total = self.add(first + k, *self.cut([total, *part]))
            else:
                total = self.add(first + k, total, part[0])
        return total

    def tree(self, products: Sequence[Real], first: int) -> Real:
        """The left half is the largest power of two below the length; a sum of two is drawn where
        its right half begins, and a product that is alone is added to 0."""
        if len(products) <= 2:
            return self.add(first + 1, *products)
        half = 2 ** ((len(products) - 1).bit_length() - 1)
        left, right = self.tree(products[:half], first), self.tree(products[half:], first + half)
        return self.add(first + half, left, right)

    def cut(self, addends: Sequence[Real]) -> Sequence[Real]:
        """Addends cut toward zero to a common place, which the largest of them sets."""
        largest = max(map(abs, addends), default=0)
        if any(isinstance(x, float) for x in addends) or largest == 0:
            return addends
        unit = Fraction(2) ** (floor_log2(largest) - (self.acc.aligned_bits or 0))
        return [int(x / unit) * unit for x in addends]

    def result(self, products: Sequence[Real], bias: float) -> float:
        acc = self.acc
        if acc.chunk is None:
            total = self.inner(products, 0)
        else:
            total = Fraction(0)
            for chunk, first in enumerate(range(0, len(products), int(acc.chunk))):
                part = self.inner(products[first : first + int(acc.chunk)], first)
                total = self.add_outermost(SITE_OUTER, chunk, total, part)
        return float(self.add_outermost(SITE_BIAS, 0, total, Fraction(bias))) + 0.0


def exact_sums(
    a: np.ndarray, b: np.ndarray, bias: np.ndarray, acc: Accumulator, seed: int
) -> np.ndarray:
    """a @ b + bias in float32. acc: with an outermost format that has no -0."""
    out = np.zeros((len(a), b.shape[1]), np.float32)
    for m, n in np.ndindex(out.shape):
        sums = ExactSum(acc, seed, m, n)
        pairs = zip(a[m].tolist(), b[:, n].tolist(), strict=True)
        products = [sums.product(*pair, k) for k, pair in enumerate(pairs)]
        out[m, n] = sums.result(products, float(bias[n]))
    out.view(np.uint32)[np.isnan(out)] = 0x7FC00000
    return out


#: Tables, and formats without a sign of each overflow.
FORMATS = (
    "posit8es1 p3109_k8p3ue nf4 p3109_k7p4uf_sat posit11es2 supernormal_e3m2_1_1 p3109_k8p5ue_nan "
    "log6s3 p3109_k9p6uf_sat posit6es3"
).split()
#: Ways of a sum, with its format and two others.
WAYS = (
    "{0}:{mode}", "{0}:{mode}:product={1}:product_rounding={mode}:philox",
    "{0}_chunk4:{mode}:outer={1}", "{0}_chunk3:{mode}:product={1}:outer={2}:outer_rounding={other}",
    "e5m4_chunk4:{mode}:product={1}:product_rounding={other}:outer={0}:outer_rounding={mode}",
    "{0}:{mode}:order=pairwise", "{0}_chunk5:{mode}:outer={1}:order=pairwise:product={2}",
    "{0}:{mode}:order=compensated", "{0}:{mode}:block=4:aligned_bits=9",
    "{0}_chunk7:{mode}:outer={1}:block=3:aligned_bits=4",
)  # fmt: skip


def accumulators(step: int = 1) -> Iterator[Accumulator]:
    """Every mode and way of a sum, in each of the formats; of these every step-th."""
    every = [
        (mode, way) for mode in ROUNDINGS for way in WAYS if "comp" not in way or mode[0] != "s"
    ]
    cases = [(at, *case) for at in range(len(FORMATS)) for case in every]
    for number, (at, mode, way) in list(enumerate(cases))[::step]:
        three = [FORMATS[(at + i * (number % 7 + 1)) % len(FORMATS)] for i in range(3)]
        text = way.format(*three, mode=mode, other=ROUNDINGS[number % 6])
        yield accumulator(f"{text}:bits={1 + number % 24}" if "stochastic" in text else text)


def operands(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Factors and a bias. The first row and column are positive, zeros have both signs, and in
    some cases values are large, tiny, infinite or NaN."""
    rng = np.random.default_rng(number)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 9), (9, 2)))
    a *= (0.25, 1.0, 8.0, 2.0**-20)[number % 4]
    a[0], b[:, 0] = np.abs(a[0]), np.abs(b[:, 0])
    a[:, 2], b[3, 1] = (-0.0, 0.0), -0.0
    if number % 9 == 0:
        a[1, 5], b[7, 1] = np.inf, (np.nan, 1e30)[number % 2]
    return a, b, np.array([0.25, -1e-9], np.float32)


SEED, ROLE = torch.tensor(7), 3
DERIVED = derive_seed(int(SEED), ROLE)


def assert_sums(
    product: Callable[..., np.ndarray], ways: Iterable[str] = ("",), step: int = 1
) -> None:
    """product(a, b, bias, acc) is the exact sum, drawn with the seed DERIVED, in every way."""
    for number, acc in enumerate(accumulators(step)):
        a, b, bias = operands(number)
        want = exact_sums(a, b, bias, acc, DERIVED)
        for way in ways:
            assert_bit_equal(product(a, b, bias, acc), want, f"{way} {number} {acc}")


def product_of(backend: Any, device: str = "cpu") -> Callable[..., np.ndarray]:
    """The product of a backend, for `assert_sums`."""

    def product(*arrays: Any) -> np.ndarray:
        on = [torch.from_numpy(x).to(device) for x in arrays[:3]]
        return backend.matmul(*on, arrays[3].to_ints(), SEED, ROLE).cpu().numpy()

    return product
