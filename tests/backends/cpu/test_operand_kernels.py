"""Blocks aligned by their operands on the CPU, and sums that start elsewhere: matrix products and
convolutions against the reference, to the bit, on every instruction set."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import lpkernels as lp
from lpkernels.arithmetic import UNITS, Accumulator, accumulator
from lpkernels.backends import cpu
from tests.backends.cpu_products import assert_convolution, assert_matmul, tier_of
from tests.cases import CONV_CASES, ConvCase, accumulators_named
from tests.loops import each, rows
from tests.support.processor import Isas

INF, NAN = float("inf"), float("nan")

#: Accumulators unlike those of the `UNITS`: other modes, formats that end otherwise, cut sums, long
#: runs, draws.
ODD = [
    accumulator(name)
    for name in (
        "e5m10:toward_negative:block=8:aligned_bits=12:operands=e5m2,e4m3fn",
        "e4m3fn:toward_positive:block=3:aligned_bits=9:operands=e5m2",
        "e5m2:to_odd:block=2:aligned_bits=3:operands=e5m2",
        "e8m10:nearest_away:block=16:aligned_bits=15:operands=e4m3fn",
        "e4m3fn:block=7:aligned_bits=9:operands=e5m2,e4m3fn",
        "e8m0:block=5:aligned_bits=9:operands=e5m2",
        "fp32:toward_zero:block=256:aligned_bits=40:operands=bf16",
        # A running sum that every block cuts, and that least_exponent cuts too.
        "fp32:toward_zero:block=8:aligned_bits=11:operands=e4m3fn",
        "e8m13:toward_zero:block=8:aligned_bits=13:operands=e4m3fn:least_exponent=6",
        "e5m4:stochastic:block=4:aligned_bits=6:operands=e4m3fn,e5m2",
        "e5m6_chunk24:stochastic:outer=e6m9:block=6:aligned_bits=13:operands=e5m2:interleaved=2"
        ":bits=13:philox",
        # A run longer than the driver's blocks of k.
        "fp32_chunk768:toward_zero:outer=e6m9:outer_rounding=nearest_even:block=128"
        ":aligned_bits=24:operands=fp16:interleaved=3",
    )
]
#: One unit of every arithmetic.
CHOSEN = accumulators_named("""
    v100_fp16 a100_tf32 h100_bf16 h100_fp16_fp16 ada_e5m2 ada_e4m3_fp16 h100_e4m3 h100_fp8_mma
    h100_fp8_mma_fp16
""")
KINDS = ("plain", "sparse", "wide", "tiny", "large", "cancelling", "special", "raw")


def values(shape: tuple[int, ...], kind: str, fmt: lp.FloatFormat, draw: torch.Generator) -> Tensor:
    """Values of a format ("raw": of none) where blocks go wrong: zeros of both signs, binades far
    apart or at either end of the format, pairs that cancel, infinities and NaN."""
    x = torch.randn(shape, generator=draw)
    chance = torch.rand(shape, generator=draw)
    if kind in ("wide", "tiny", "large"):
        low, high = {"wide": (-20, 20), "tiny": (-60, -4), "large": (0, 100)}[kind]
        x = x * torch.exp2(torch.randint(low, high, shape, generator=draw).float())
    if kind == "raw":
        return x
    x = lp.quantize(x, fmt)
    if kind == "cancelling":
        x[..., 1::2] = -x[..., : 2 * (shape[-1] // 2) : 2]
    if kind == "sparse":
        x = torch.where(chance < 0.7, torch.zeros(()).copysign(x), x)
    if kind == "special":
        x[chance < 0.06] = -0.0
        x[chance < 0.03] = 1e-45
        x[chance < 0.02] = INF
        x[chance < 0.01] = NAN
    return x


def sides(acc: Accumulator) -> tuple[lp.FloatFormat, lp.FloatFormat]:
    assert acc.operands is not None
    return acc.operands


def check_matmul(
    acc: Accumulator, sizes: tuple[int, int, int], kinds: tuple[str, ...], isas: Isas | list[str]
) -> None:
    """A batch of a product of each kind, with a start and without."""
    draw = torch.Generator().manual_seed(sum(sizes))
    m, k, n = sizes
    formats = ((m, k), sides(acc)[0]), ((k, n), sides(acc)[1]), ((m, n), acc.fmt)
    a, b, start = (
        torch.stack([values(shape, kind, fmt, draw) for kind in kinds]) for shape, fmt in formats
    )
    for initial in (None, start):
        assert_matmul(isas, a, b, acc, sizes, initial=initial)


# Lanes of one panel, of several, of rows in place of columns; k in one block and in parts.
@each("sizes, acc", [(3, 5, 7), (5, 70, 33), (2, 300, 83), (20, 40, 3)], [*CHOSEN, *ODD])
def test_matmul_matches_reference(acc: Accumulator, sizes: tuple[int, ...], isas: Isas) -> None:
    check_matmul(acc, sizes, KINDS, isas)


@rows(
    "name, size",
    ("e2m4_b-117:block=4:aligned_bits=13:operands=e2m1", 0.0),
    ("e8m2_b142:toward_zero:block=2:aligned_bits=13:operands=e2m2_b64", -63.0),
)
def test_sums_at_the_ends_of_float32(name: str, size: float, isas: Isas) -> None:
    """The least exponent of the sums is above float32's room for it, or below its own."""
    draw = torch.Generator().manual_seed(7)
    a, b = (
        torch.randint(-7, 8, shape, generator=draw) * 2.0 ** (size - 2)
        for shape in ((5, 40), (40, 33))
    )
    assert_matmul(isas, a, b, accumulator(name))


@each("unit", UNITS)
def test_every_unit_matches_reference(unit: str, isas: Isas) -> None:
    if accumulator(unit).operands is None:
        pytest.skip("its blocks are aligned by products")
    check_matmul(accumulator(unit), (4, 130, 40), ("plain", "special"), isas)


def test_a_run_longer_than_a_block_of_k(isas: Isas) -> None:
    check_matmul(ODD[-1], (3, 1600, 20), ("plain", "special"), isas)


formats = st.sampled_from(["e4m3fn", "e5m2", "fp16", "bf16", "e3m4", "e4m3_nosub"])


@settings(max_examples=30, deadline=None)
@given(
    fmt=st.sampled_from(["fp32", "fp16", "e8m13", "e5m2", "e4m3fn", "e6m9_sat", "e4m7_nosub"]),
    rounding=st.sampled_from(["toward_zero", "nearest_even", "toward_positive", "stochastic"]),
    block=st.integers(1, 40),
    bits=st.integers(1, 40),
    operands=st.tuples(formats, formats),
    least=st.none() | st.integers(-60, 20),
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 90), st.integers(1, 70)),
    kind=st.sampled_from(KINDS),
)
def test_any_accumulator(fmt, rounding, block, bits, operands, least, sizes, kind) -> None:
    acc = Accumulator(
        fmt, rounding, block=block, aligned_bits=bits, operands=operands, least_exponent=least
    )
    check_matmul(acc, sizes, (kind,), [cpu.BACKEND.isa()])


@each("case, acc", CONV_CASES.values(), [CHOSEN[2], CHOSEN[6], CHOSEN[8], *ODD[7:11]])
def test_convolutions_match_reference(acc: Accumulator, case: ConvCase, isas: Isas) -> None:
    draw = torch.Generator().manual_seed(2)
    left, right = sides(acc)
    for kind in ("plain", "sparse"):
        x = values(case.input_shape, kind, left, draw)
        w = values(case.weight_shape, kind, right, draw)
        grad = values(case.output_shape, kind, left, draw)
        assert_convolution(isas, case, acc, x, w, grad)


E4M3 = replace(accumulator("h100_e4m3"), block=4)


@rows(
    "acc, tier",
    (accumulator("h100_e4m3"), "certified"), (accumulator("a100_fp16"), "certified"),
    (accumulator("h100_fp16_fp16"), "certified"), (replace(E4M3, rounding="to_odd"), "double"),
    # A block of zeros would cut the running sum that an absent block leaves alone.
    (replace(E4M3, aligned_bits=12), "double"),
)  # fmt: skip
def test_operands_choose_the_tier(acc: Accumulator, tier: str, isas: Isas) -> None:
    draw = torch.Generator().manual_seed(3)
    left, right = sides(acc)
    a, b = values((8, 64), "plain", left, draw), values((64, 96), "plain", right, draw)
    for isa in isas:
        assert tier_of(a, b, acc) == ("double" if isa == "scalar" else tier)


def test_a_sum_beyond_the_format_is_made_again(isas: Isas) -> None:
    a, b = torch.full((4, 64), 100.0), torch.ones(64, 48)
    b[:, 20] = 60.0
    b[32:, 20] = -60.0
    made = assert_matmul(isas, a, b, accumulator("h100_fp16_fp16"))
    assert made[0, 20] == INF and made[0, 0] == 6400


@each(
    "name",
    ["e6m9", "e5m10", "fp32:toward_negative", "e5m4:stochastic", "e5m10:product=e4m3",
     "fixed16_f8_wrap:toward_zero", "e4m3fn_sat:order=compensated",
     "e6m9_chunk16:toward_negative:outer=e5m4", "e5m6_chunk9:stochastic:order=pairwise",
     "fp32:toward_zero:block=4:aligned_bits=9"],
)  # fmt: skip
def test_sums_start_elsewhere_in_every_order(name: str, isas: Isas) -> None:
    draw = torch.Generator().manual_seed(4)
    fmt = lp.parse_format("fp16")
    for kind in ("plain", "special"):
        for m, k, n in ((3, 0, 5), (4, 30, 17), (20, 300, 3)):
            a, b = values((2, m, k), kind, fmt, draw), values((k, n), kind, fmt, draw)
            start = values((2, m, n), "raw" if kind == "plain" else kind, fmt, draw)
            assert_matmul(isas, a, b, accumulator(name), (m, k, n), initial=start)
