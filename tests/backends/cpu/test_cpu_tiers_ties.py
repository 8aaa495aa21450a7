"""Sums and products a trace beside a tie, a place or a draw's step, on each tier for the CPU.

If a float32 sum were rounded again, these would be rounded twice.
"""

import math

import pytest
import torch

import lpkernels as lp
from lpkernels.rounding import ROUNDINGS
from tests.backends.cpu_products import assert_matmul, tier_of
from tests.support.processor import Isas, choose


@pytest.mark.parametrize("name", "e5m10 e6m9 bf16 e5m4_sat e8m14 e6m21 e8m22".split())
@pytest.mark.parametrize("chunk", [None, 8])
def test_a_trace_beyond_a_tie_decides(name: str, chunk: int | None, isas: Isas) -> None:
    """Products lie a trace beside half a unit, where float32 would find a tie."""
    fmt = lp.parse_format(name)
    generator = torch.Generator().manual_seed(7)
    half = 2.0 ** -(fmt.man_bits + 1)
    m, k, n = 24, 40, 33
    odd = 2 * torch.randint(-4, 4, (m, k), generator=generator) + 1
    trace = torch.randint(-1, 2, (m, k), generator=generator) * 2.0**-20
    a = odd * half * (1 + trace)
    a[:, 0] = 1.5
    # The trace falls below the 24 bits of a float32 sum.
    b = torch.where(torch.rand(k, n, generator=generator) < 0.5, -1.0, 1.0) * (1 + 2.0**-23)
    b[0] = 1.0
    assert_matmul(isas, a, b, lp.Accumulator(fmt, chunk=chunk), name)


@pytest.mark.parametrize("width", [9, 10, 11, 12])
@pytest.mark.parametrize("man_bits", [10, 11, 12, 13])
def test_a_short_addend_just_below_a_tie_is_rounded_once(
    man_bits: int, width: int, isas: Isas
) -> None:
    """1 + 2^-m is odd, and the last addend, of ones, reaches almost to the middle above it."""
    below = (2**width - 1) * 2.0 ** -(man_bits + 1 + width)
    b = torch.tensor([1.0, 2.0**-man_bits, below]).unsqueeze(1).expand(3, 33)
    assert_matmul(isas, torch.ones(9, 3), b, lp.Accumulator(lp.FloatFormat(8, man_bits)), "")


def test_products_that_saturate_bring_finer_sums(isas: Isas) -> None:
    """All values are whole, but the largest product value ends 11 places behind the point."""
    generator = torch.Generator().manual_seed(8)
    a, b = (torch.randint(-6, 7, s, generator=generator).float() for s in ((24, 40), (40, 33)))
    for fmt in ("e4m10_nosub", "e4m10", "e5m10", "e6m12"):
        for product in ("e3m14_sat", "e3m14none", "e3m14"):
            assert_matmul(isas, a, b, lp.Accumulator(fmt, product=product), f"{fmt} of {product}")


@pytest.mark.parametrize("product", ["e4m3", "e5m10", "bf16", "e4m3fn", "e3m2_sat", "e5m14"])
@pytest.mark.parametrize("acc", ["e6m12", "e8m14", "e8m11:toward_zero"])
def test_a_trace_beyond_a_products_tie_decides(product: str, acc: str, isas: Isas) -> None:
    """Products of 48 bits lie around the middle between two values, in every part of the range."""
    fmt = lp.parse_format(product)
    generator = torch.Generator().manual_seed(9)
    m, k, n = 26, 5, 33
    places = [fmt.emin - fmt.man_bits, fmt.emin - 1, fmt.emin, 0, math.frexp(fmt.max)[1] - 1]
    for place in (max(p, -60) for p in places):
        # The values are odd multiples of half a last place: a whole binade of them, and more.
        tie = 2 * torch.randint(0, 2 ** min(fmt.man_bits, 9), (m, k), generator=generator) + 1
        tie = tie + 2 ** (fmt.man_bits + 1) * (tie < 2**9) * (fmt.man_bits < 10)
        near = [torch.randint(-1, 2, s, generator=generator).float() for s in ((m, k), (k, n))]
        a = tie * 2.0 ** (place - fmt.man_bits - 1) * (1 + near[0] * 2.0**-12)
        b = (1 + near[1] * 2.0**-23) * torch.where(near[1].flip(0) > 0, -1.0, 1.0)
        b[0, ::7] = 0.0
        assert_matmul(isas, a, b, lp.accumulator(f"{acc}:product={product}"), f"{place}")


@pytest.mark.parametrize(
    "mode", [mode for mode in ROUNDINGS if mode not in ("nearest_even", "to_odd")]
)
@pytest.mark.parametrize("name", ["e5m10", "e6m9_sat", "e4m3fn", "e8m14", "e8m7_sat", "e3m19"])
def test_a_trace_beyond_a_place_decides(name: str, mode: str, isas: Isas) -> None:
    """Sums lie a trace beside a value, a middle or a draw's step: subnormal sums, sums that cancel
    to zero and sums at the largest value."""
    fmt = lp.parse_format(name)
    generator = torch.Generator().manual_seed(10)
    m, k, n = 26, 6, 33
    bits = min(8, 22 - fmt.man_bits) if mode == "stochastic" else 8
    acc = lp.Accumulator(fmt, mode, random_bits=bits)
    for place in (max(fmt.emin - fmt.man_bits, -70), -2, math.frexp(fmt.max)[1] - fmt.man_bits - 2):
        quarters = torch.randint(-9, 10, (m, k), generator=generator)
        trace = [torch.randint(-1, 2, s, generator=generator).float() for s in ((m, k), (k, n))]
        a = quarters * 2.0 ** (place - 2) * (1 + trace[0] * 2.0**-20)
        b = torch.where(trace[1] > 0, -1.0, 1.0) * (1 + trace[1].flip(0) * 2.0**-23)
        a[:, 0] = torch.randint(0, 2, (m,), generator=generator) * 2.0 ** (place + fmt.man_bits)
        a[::5, 0] = fmt.max if place > 0 else 0.0
        b[0] = 1.0
        assert_matmul(isas, a, b, acc, f"{place}")


@pytest.mark.parametrize("name", ["e6m9", "e5m4", "e4m7", "e6m9_chunk300"])
def test_sums_that_overflow_to_infinity_stay_certified(name: str, isas: Isas) -> None:
    """The sums take the largest value, then products around half of its last place, then others of
    both signs. From then on the sums of some outputs are infinite; sums of others become infinite
    later or never."""
    acc = lp.accumulator(name)
    fmt = acc.fmt
    generator = torch.Generator().manual_seed(12)
    m, k, n = 29, 700, 37
    top = math.frexp(fmt.max)[1] - 1
    half_place = 2.0 ** (top - fmt.man_bits - 1)

    def some(shape: tuple[int, ...], *choices: float) -> torch.Tensor:
        return torch.tensor(choices)[torch.randint(len(choices), shape, generator=generator)]

    a = some((m, k), -1.0, 0.0, 1.0) * 2.0 ** (top - 3)
    # Every product is smaller than the sums may be.
    steps = fmt.man_bits + 2
    a[:, 0] = 2.0 ** (top - 1)
    a[:, 1:steps] = 2.0 ** torch.arange(top - 1, top - steps, -1)
    a[:, steps] = some((m,), 0.5, 0.75, 1.0, 1.5, -1.0) * half_place
    a[:, steps + 1 :][some((m,), 0.0, 0.0, 1.0) > 0] = 0.0
    b = some((k, n), -1.0, 1.0)
    b[: steps + 1] = some((1, n), -1.0, 1.0)
    # The exponent is divided between the two operands.
    a, b = a * 2.0 ** -(top // 2), b * 2.0 ** (top // 2)
    infinite = lp.matmul(a, b, acc, backend="reference").isinf().float().mean()
    assert 0.1 < infinite < 0.9
    assert_matmul(isas, a, b, acc)
    for isa in isas:
        assert tier_of(a, b, acc) == ("double" if isa == "scalar" else "certified")


def test_subnormal_sums_are_left_to_the_float_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such sums would be float32's own subnormals, and cost a certified kernel a hundred cycles."""
    choose("avx512", monkeypatch)
    generator = torch.Generator().manual_seed(11)
    a, b = (torch.randn(s, generator=generator) for s in ((24, 64), (64, 32)))
    acc = lp.Accumulator("e5m10", "toward_zero")
    for scale, tier in ((1.0, "certified"), (2.0**-10, "float")):
        assert_matmul(["avx512"], a * scale, b * scale, acc)
        assert tier_of(a * scale, b * scale, acc) == tier


@pytest.mark.parametrize("scale", [1.0, 2.0**90, 2.0**-100])
@pytest.mark.parametrize("product", [None, "e8m21"])
def test_22_bits_keep_the_even_end_of_a_bracket(scale: float, product: str | None, isas: Isas):
    """Sums of 23 to 25 bits are values of the format, ties between two of its values, and sums just
    beside either, in the binade's first and last places too."""
    generator = torch.Generator().manual_seed(12)
    m, k, n = 100, 9, 33
    # The values are whole numbers of 23 bits, among them those beside a power of two.
    start = 2**22 + torch.randint(0, 2**22, (m, 1), generator=generator)
    start[::5] = 2**23 - torch.randint(1, 4, (1,), generator=generator)
    start[1::5] = 2**22 + torch.randint(0, 3, (1,), generator=generator)
    start[::2] *= -1
    eighths = torch.randint(-4, 5, (m, k), generator=generator) / 8.0
    a = torch.cat([start, eighths], 1) * scale
    trace = 1 + 2.0**-11 * torch.randint(-1, 2, (k, n), generator=generator)
    b = torch.where(torch.rand(k, n, generator=generator) < 0.5, -trace, trace)
    b = torch.cat([torch.ones(1, n), b])
    assert_matmul(isas, a, b, lp.Accumulator("e8m22", product=product), str(scale))


@pytest.mark.parametrize(
    "name, random_bits",
    [(name, bits) for name in ("e6m9", "e5m12_sat", "e8m14", "e5m15", "e8m8")
     for bits in (1, 3, 7, 8) if bits <= 22 - lp.parse_format(name).man_bits],
)  # fmt: skip
def test_every_byte_of_a_word_is_drawn_from(name: str, random_bits: int, isas: Isas) -> None:
    """Sums lie a 24-bit place beside each step of the draws; the fields of the word take turns."""
    fmt = lp.parse_format(name)
    generator = torch.Generator().manual_seed(13)
    m, k, n = 26, 13, 33
    steps = torch.randint(0, 2 ** (random_bits + 1), (m, k), generator=generator).float()
    place = 2.0 ** -(fmt.man_bits + random_bits + 1)
    a = steps * place + torch.randint(-1, 2, (m, k), generator=generator) * 2.0**-23
    a[:, 0] = 1.0
    b = torch.where(torch.rand(k, n, generator=generator) < 0.2, -1.0, 1.0)
    for rng in ("fast", "philox"):
        for chunk in (None, 6):
            acc = lp.Accumulator(fmt, "stochastic", random_bits=random_bits, rng=rng, chunk=chunk)
            assert_matmul(isas, a, b, acc, f"{rng} {chunk}")


#: Products that never, may and must round: they have fewer bits than five, five, and more.
PRODUCTS = "e5m1 e5m2_sat e4m3 e4m3fn_sat e8m3 e5m4 e4m5 e6m5 e5m6 e6m6 e4m7".split()
OPERANDS = [
    ("e4m3fn", "e4m3fn"), ("e5m2", "e4m3fn"), ("e4m3", "e5m2"), ("fp6_e2m3", "e4m3"),
    ("e3m4", "fp6_e3m2"), ("e2m5", "e3m2"),
]  # fmt: skip


@pytest.mark.parametrize("operands", OPERANDS, ids="-".join)
def test_every_pair_of_values_in_half_precision(operands: tuple[str, str], isas: Isas) -> None:
    values = [torch.tensor(lp.parse_format(fmt).values()).float() for fmt in operands]
    # The last: products a little finer than some of the formats.
    for least, below in ((0.0, 2.0**9), (0.0, 8.0), (0.0, 1.0), (2.0**-7, 2.0)):
        a, b = (x[(x.abs() >= least) & (x.abs() < below)] for x in values)
        for product in PRODUCTS:
            for mode in ("nearest_even", "toward_negative"):
                acc = lp.Accumulator("e5m10", mode, product=product)
                assert_matmul(isas, a[:, None], b[None], acc, f"from {least} to {below}")
