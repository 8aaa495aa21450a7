"""The sums of an accumulator against exact rationals, the theory and the law."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels.rng import SITE_OUTER, SITE_PRODUCT, SITE_SUM, draws
from lpkernels.rounding import ROUNDINGS, round_scalar
from lpkernels.techniques.accumulation import accumulator_of, measure, nmse, vrr
from tests.loops import each, rows
from tests.support.refusals import refused


def operands(m: int, k: int, n: int, fmt: str = "e5m2", seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(s, generator=generator) for s in ((m, k), (k, n)))
    return lp.quantize(a, fmt).float(), lp.quantize(b, fmt).float()


class Oracle:
    """An oracle that adds one sum at a time in exact rationals and looks at every event."""

    def __init__(self, acc: lp.Accumulator, seed: int) -> None:
        self.acc, self.seed = acc, seed
        self.swamped = self.added = 0
        self.overflowed = False

    def rounded(self, value, fmt, mode: str, site: int, row: int, col: int, k: int) -> float:
        draw = int(draws(self.seed, site, row, col, k, self.acc.random_bits, self.acc.rng))
        of = {"draw": draw, "random_bits": self.acc.random_bits}
        if not math.isinf(value):
            fixed = isinstance(fmt, lp.FixedFormat)
            wide = lp.FixedFormat(24, fmt.frac_bits) if fixed else lp.FloatFormat(8, fmt.man_bits)
            free = round_scalar(value, wide, mode, **of)
            least = fmt.min if fixed else -fmt.max
            # The value must be beyond max in the same step: only there do the two formats round
            # alike.
            if abs(value) > fmt.max and not least <= free <= fmt.max:
                self.overflowed = True
        return round_scalar(value, fmt, mode, **of)

    def add(self, total: float, addend: float, fmt, site: int, key) -> float:
        if math.isinf(total) or math.isinf(addend):
            return total + addend
        exact = Fraction(total) + Fraction(addend)
        result = self.rounded(exact, fmt, self.acc.rounding, site, *key)
        if site == SITE_SUM and addend != 0:
            self.added += 1
            self.swamped += result == total
        return result

    def run(self, left, right, row: int, col: int) -> None:
        acc, inner, outer = self.acc, 0.0, 0.0
        for k, (x, y) in enumerate(zip(left, right, strict=True)):
            p = x * y
            if acc.product is not None:
                key = (SITE_PRODUCT, row, col, k)
                p = self.rounded(Fraction(p), acc.product, acc.product_rounding, *key)
            inner = self.add(inner, p, acc.fmt, SITE_SUM, (row, col, k))
            if acc.chunk and ((k + 1) % acc.chunk == 0 or k + 1 == len(left)):
                key = (row, col, k // acc.chunk)
                outer, inner = self.add(outer, inner, acc.outermost, SITE_OUTER, key), 0.0


ACCUMULATORS = [f"e4m3:{mode}" for mode in ROUNDINGS] + [
    "e3m2", "e3m3fn_sat", "e3m4none_sat", "e3m0none_sat", "e3m4none_sat:stochastic:bits=3",
    "e4m3_chunk5", "e4m3_chunk5:toward_positive:outer=e3m4", "e4m5:product=e3m1",
    "e4m5:product=e3m2none_sat:product_rounding=stochastic", "fixed8_f4", "fixed8_f4:nearest_away",
    "fixed8_f4:stochastic",
]  # fmt: skip


@each("name", ACCUMULATORS)
def test_events_are_those_of_exact_sums(name: str):
    acc = lp.accumulator(name)
    a, b = operands(3, 23, 2)
    a *= 2
    oracle = Oracle(acc, 7)
    over = 0
    for i, j in np.ndindex(3, 2):
        oracle.overflowed = False
        oracle.run(a[i].tolist(), b[:, j].tolist(), i, j)
        over += oracle.overflowed
    got = measure(a, b, acc, generator=torch.tensor(7))
    assert got.overflowed == over / 6
    assert got.swamped == oracle.swamped / oracle.added
    assert got.counted == 6
    if name == "e3m2":
        assert 0 < got.swamped < 1 and 0 < got.overflowed <= 1


def test_exact_sums_keep_everything():
    a, b = operands(8, 64, 8)
    got = measure(a, b, lp.Accumulator("fp32"))
    assert got.vrr == pytest.approx(1, abs=1e-6)
    assert got.nmse < 1e-10
    assert (got.swamped, got.overflowed, got.swamped_chunks) == (0, 0, None)
    assert (got.length, got.sums, got.product_bits) == (64, 64, 5)
    assert got.to_dict()["accumulator"] == "e8m23"
    # Native sums have no events.
    got = measure(a, b, lp.NATIVE)
    assert got.swamped is got.overflowed is None
    assert got.counted == 0
    assert got.nmse < 1e-10


def test_infinite_sums_have_no_variance_and_swamped_chunks_are_counted_apart():
    got = measure(torch.full((1, 64), 100.0), torch.full((64, 1), 100.0), "e4m3")
    assert math.isnan(got.vrr)
    assert got.overflowed == 1
    assert math.isnan(got.vrr_error)
    # Chunks of 4 are exact; the outer sum in e5m0 stops at 2^3, as 8 + 4 = 12 is between 8 and 16.
    got = measure(torch.ones(1, 64), torch.ones(64, 1), "e5m4_chunk4:outer=e5m0")
    assert got.swamped == 0
    assert got.swamped_chunks is not None and 0 < got.swamped_chunks < 1


@each("name", ["e5m3:order=pairwise", "e5m3:order=compensated", "e5m3:block=2:aligned_bits=4"])
def test_additions_in_another_order_are_not_counted(name: str):
    a, b = operands(6, 40, 5)
    with pytest.raises(NotImplementedError, match=f"measure: {name} does not add one product"):
        measure(a, b, name)
    got = measure(a, b, name, counted=0)
    assert (got.swamped, got.overflowed, got.counted) == (None, None, 0)
    assert got.nmse > 0


def test_rows_stand_for_the_rest_where_there_are_too_many():
    a, b = operands(64, 128, 16)
    all_of_them = measure(a, b, "e5m4", counted=None)
    some = measure(a, b, "e5m4", counted=8 * 128 * 16)
    assert (all_of_them.counted, some.counted) == (64 * 16, 8 * 16)
    assert some.swamped == pytest.approx(all_of_them.swamped, rel=0.2)
    assert (some.vrr, some.nmse) == (all_of_them.vrr, all_of_them.nmse)
    assert measure(a, b, "e5m4", counted=0).swamped is None


def test_a_seed_repeats_the_measurement():
    a, b = operands(8, 64, 8)
    first, again, other = (
        measure(a, b, "e5m4:stochastic", generator=torch.tensor(seed)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first.nmse != other.nmse


def test_the_knee_is_where_the_theory_puts_it():
    # x = 2^m / sqrt n: nothing is lost at 2, a third at 1/4 (Monte Carlo of the same draws: 0.993
    # and 0.671).
    short = measure(*operands(64, 256, 64), "e8m5", counted=0)
    long = measure(*operands(64, 2**14, 64), "e8m5", counted=0)
    assert short.vrr > 0.98 > vrr(5, 5, 2**10)[0]
    assert 0.60 < long.vrr < 0.74


# For sums of 2^log n products of 5 bits: rounding, length of a chunk and of a block, mantissa bits,
# and how far the measured error may lie below and above the law.
NEAREST, CUT = "nearest_even", "aligned_truncation"


@rows(
    "rounding, chunk, block, man_bits, log_n, low, high",
    # 4 <= x = 2^m / sqrt n <= 8
    *((NEAREST, None, None, *sizes, 0.85, 1.15) for sizes in ((6, 8), (7, 10), (8, 10), (9, 12))),
    (NEAREST, 64, None, 6, 13, 0.85, 1.15),
    *((CUT, None, block, m, 12, 0.8, 1.15) for block in (1, 32) for m in (7, 8)),
    (CUT, 64, None, 6, 12, 0.9, 1.1),
    ("stochastic", None, None, 5, 10, 0.6, 1.1),
)
def test_the_error_follows_the_law(rounding, chunk, block, man_bits, log_n, low, high):
    options = {} if block is None else {"block": block}
    acc = accumulator_of(lp.FloatFormat(8, man_bits), rounding, chunk=chunk, **options)
    generator = torch.Generator().manual_seed(0)
    got = measure(*operands(64, 2**log_n, 64), acc, counted=0, generator=generator)
    law = nmse(man_bits, 2**log_n, chunk=chunk, rounding=rounding)
    assert low <= got.nmse / law <= high
    assert got.nmse_error < 0.05 * got.nmse
    if block:
        # Aligned truncation loses variance in proportion to 1 / x.
        assert 0.08 < (1 - got.vrr) * 2**man_bits / 2**6 < 0.24
    if rounding == "stochastic":
        assert got.vrr > 1


def test_accumulators_of_the_theory_s_roundings():
    fmt = lp.FloatFormat(8, 6)
    assert str(accumulator_of(fmt, "nearest_even", chunk=64)) == "e8m6_chunk64"
    assert str(accumulator_of(fmt, "stochastic")) == "e8m6:stochastic"
    cut = accumulator_of(fmt, "aligned_truncation", chunk=64, block=4)
    want = "e8m6_chunk64:toward_zero:outer_rounding=nearest_even:block=4:aligned_bits=6"
    assert str(cut) == want
    with pytest.raises(ValueError, match="rounding must be one of"):
        accumulator_of(fmt, "truncation")
    with pytest.raises(ValueError, match=r"aligned_bits .*1\.\.40, got 0"):
        accumulator_of(lp.FloatFormat(5, 0), "aligned_truncation")


X = torch.ones(3, 4)
WRONG = [
    (lambda: measure(X, X, "e5m4"), ValueError, r"a must be \(M, K\) and b \(K, N\)"),
    (lambda: measure(X.double(), X.t(), "e5m4"), TypeError, r"a must be float32.*lp.quantize"),
    (lambda: measure(X, None, "e5m4"), TypeError, "b must be a torch.Tensor, got NoneType"),
    (lambda: measure(X * math.inf, X.t(), "e5m4"), ValueError, "a holds infinities or NaN"),
    (lambda: measure(X, X.t(), "e5m4", counted=-1), ValueError, "counted: expected at least 0"),
]
test_wrong_arguments = refused(WRONG)
