"""Blocks aligned by their operands on the CPU, and sums that start elsewhere: matrix products and
convolutions against the reference, to the bit, on every instruction set."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import lpkernels as lp
from lpkernels.arithmetic import UNITS, Accumulator
from lpkernels.backends import _reference, cpu
from lpkernels.formats import FloatFormat, parse_format
from tests.cases import CONV_CASES, ConvCase, ids
from tests.compare import assert_bit_equal
from tests.support.processor import isa

__all__ = ["isa"]

pytestmark = pytest.mark.skipif(
    not cpu.BACKEND.available(), reason=f"cpu backend: {cpu.BACKEND.why_not()}"
)

SEED = torch.tensor(987654321987654321)
ROLE = 4
INF, NAN = float("inf"), float("nan")

#: Accumulators unlike those of the `UNITS`: other modes, formats that end otherwise, cut sums, long
#: runs, draws.
ODD = [
    Accumulator("e5m10", "toward_negative", block=8, aligned_bits=12, operands=("e5m2", "e4m3fn")),
    Accumulator("e4m3fn", "toward_positive", block=3, aligned_bits=9, operands="e5m2"),
    Accumulator("e5m2", "to_odd", block=2, aligned_bits=3, operands="e5m2"),
    Accumulator("e8m10", "nearest_away", block=16, aligned_bits=15, operands="e4m3fn"),
    Accumulator("e4m3fn", block=7, aligned_bits=9, operands=("e5m2", "e4m3fn")),
    Accumulator("e8m0", block=5, aligned_bits=9, operands="e5m2"),
    Accumulator("fp32", "toward_zero", block=256, aligned_bits=40, operands="bf16"),
    # A running sum that every block cuts, and that least_exponent cuts too.
    Accumulator("fp32", "toward_zero", block=8, aligned_bits=11, operands="e4m3fn"),
    Accumulator(
        "e8m13", "toward_zero", block=8, aligned_bits=13, operands="e4m3fn", least_exponent=6
    ),
    Accumulator("e5m4", "stochastic", block=4, aligned_bits=6, operands=("e4m3fn", "e5m2")),
    Accumulator(
        "e5m6", "stochastic", rng="philox", random_bits=13, chunk=24, outer="e6m9",
        block=6, aligned_bits=13, operands="e5m2", interleaved=2,
    ),
    # A run longer than the driver's blocks of k.
    Accumulator(
        "fp32", "toward_zero", chunk=768, outer="e6m9", outer_rounding="nearest_even",
        block=128, aligned_bits=24, operands="fp16", interleaved=3,
    ),
]  # fmt: skip
#: One unit of every arithmetic.
CHOSEN = [
    UNITS[name].accumulator
    for name in (
        "v100_fp16", "a100_tf32", "h100_bf16", "h100_fp16_fp16", "ada_e5m2", "ada_e4m3_fp16",
        "h100_e4m3", "h100_fp8_mma", "h100_fp8_mma_fp16",
    )
]  # fmt: skip
KINDS = ("plain", "sparse", "wide", "tiny", "large", "cancelling", "special", "raw")


def values(shape: tuple[int, ...], kind: str, fmt: FloatFormat, draw: torch.Generator) -> Tensor:
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


def sides(acc: Accumulator) -> tuple[FloatFormat, FloatFormat]:
    assert acc.operands is not None
    return acc.operands


def check_matmul(acc: Accumulator, sizes: tuple[int, int, int], kind: str, seed: int) -> None:
    """Every kernel gives the reference's bits, with and without a start."""
    draw = torch.Generator().manual_seed(seed)
    m, k, n = sizes
    left, right = sides(acc)
    a, b = values((m, k), kind, left, draw), values((k, n), kind, right, draw)
    start = values((m, n), kind, acc.fmt, draw)
    how = (acc.to_ints(), SEED, ROLE)
    for initial in (None, start):
        got, want = (
            backend.matmul(a, b, None, *how, initial=initial)
            for backend in (cpu.BACKEND, _reference.BACKEND)
        )
        assert_bit_equal(got, want, f"{acc} {sizes} {kind}")


# Lanes of one panel, of several, of rows in place of columns; k in one block and in parts.
SHAPES = [(3, 5, 7), (5, 70, 33), (2, 300, 83), (20, 40, 3)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("acc", [*CHOSEN, *ODD], ids=ids)
def test_matmul_matches_reference(acc: Accumulator, kind: str, isa: str) -> None:
    for seed, sizes in enumerate(SHAPES[: 2 if isa in ("scalar", "avx512") else 4]):
        check_matmul(acc, sizes, kind, seed)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("e2m4_b-117:block=4:aligned_bits=13:operands=e2m1", 0.0),
        ("e8m2_b142:toward_zero:block=2:aligned_bits=13:operands=e2m2_b64", -63.0),
    ],
)
def test_sums_at_the_ends_of_float32(name: str, size: float, isa: str) -> None:
    """The least exponent of the sums' format is above those that float32 has room for, or below
    its own."""
    acc, draw = lp.accumulator(name), torch.Generator().manual_seed(7)
    a, b = (
        torch.randint(-7, 8, shape, generator=draw) * 2.0 ** (size - 2)
        for shape in ((5, 40), (40, 33))
    )
    how = (a, b, None, acc.to_ints(), SEED, ROLE)
    assert_bit_equal(cpu.BACKEND.matmul(*how), _reference.BACKEND.matmul(*how), name)


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_every_unit_matches_reference(unit) -> None:
    if unit.accumulator.operands is None:
        pytest.skip("its blocks are aligned by products")
    for kind in ("plain", "special"):
        check_matmul(unit.accumulator, (4, 130, 40), kind, 5)


def test_a_run_longer_than_a_block_of_k() -> None:
    for kind in ("plain", "special"):
        check_matmul(ODD[-1], (3, 1600, 20), kind, 6)


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
    seed=st.integers(0, 9),
)
def test_any_accumulator(fmt, rounding, block, bits, operands, least, sizes, kind, seed) -> None:
    acc = Accumulator(
        fmt, rounding, block=block, aligned_bits=bits, operands=operands, least_exponent=least
    )
    check_matmul(acc, sizes, kind, seed)


@pytest.mark.parametrize("case", CONV_CASES.values(), ids=CONV_CASES)
@pytest.mark.parametrize("acc", [CHOSEN[2], CHOSEN[6], CHOSEN[8], *ODD[7:11]], ids=ids)
def test_convolutions_match_reference(acc: Accumulator, case: ConvCase) -> None:
    draw = torch.Generator().manual_seed(2)
    left, right = sides(acc)
    how = [list(v) for v in (case.stride, case.padding, case.dilation)]
    tail = (*how, case.groups, acc.to_ints(), SEED, ROLE)
    for kind in ("plain", "sparse"):
        x = values(case.input_shape, kind, left, draw)
        w = values(case.weight_shape, kind, right, draw)
        y = _reference.BACKEND.conv_fprop(x, w, None, *tail)
        assert_bit_equal(cpu.BACKEND.conv_fprop(x, w, None, *tail), y, f"fprop {kind}")
        dy = values(tuple(y.shape), kind, left, draw)
        for name, first, second, shape in (
            ("conv_dgrad", dy, w, list(x.shape)),
            ("conv_wgrad", x, dy, list(w.shape)),
        ):
            got, want = (
                getattr(backend, name)(first, second, shape, *tail)
                for backend in (cpu.BACKEND, _reference.BACKEND)
            )
            assert_bit_equal(got, want, f"{name} {kind}")


E4M3 = replace(UNITS["h100_e4m3"].accumulator, block=4)


@pytest.mark.parametrize(
    ("acc", "tier"),
    [
        (UNITS["h100_e4m3"].accumulator, "certified"),
        (UNITS["a100_fp16"].accumulator, "certified"),
        (UNITS["h100_fp16_fp16"].accumulator, "certified"),
        (replace(E4M3, rounding="to_odd"), "double"),
        # A block of zeros would cut the running sum that an absent block leaves alone.
        (replace(E4M3, aligned_bits=12), "double"),
    ],
    ids=str,
)
def test_operands_choose_the_tier(acc: Accumulator, tier: str, monkeypatch) -> None:
    draw = torch.Generator().manual_seed(3)
    left, right = sides(acc)
    a, b = values((8, 64), "plain", left, draw), values((64, 96), "plain", right, draw)
    cpu.BACKEND.take_tiers()
    cpu.BACKEND.matmul(a, b, None, acc.to_ints(), None, ROLE)
    vectors = cpu.BACKEND.isa() != "scalar"
    assert cpu.BACKEND.take_tiers()[tier if vectors else "double"] == 1


def test_a_sum_beyond_the_format_is_made_again() -> None:
    acc = UNITS["h100_fp16_fp16"].accumulator
    a, b = torch.full((4, 64), 100.0), torch.ones(64, 48)
    b[:, 20] = 60.0
    b[32:, 20] = -60.0
    got = cpu.BACKEND.matmul(a, b, None, acc.to_ints(), None, ROLE)
    assert got[0, 20] == INF and got[0, 0] == 6400
    assert_bit_equal(got, _reference.BACKEND.matmul(a, b, None, acc.to_ints(), None, ROLE))


STARTED = [
    Accumulator("e6m9"),
    Accumulator("e5m10"),
    Accumulator("fp32", "toward_negative"),
    Accumulator("e5m4", "stochastic"),
    Accumulator("e5m10", product="e4m3"),
    Accumulator("fixed16_f8_wrap", "toward_zero"),
    Accumulator("e4m3fn_sat", order="compensated"),
    Accumulator("e6m9", "toward_negative", chunk=16, outer="e5m4"),
    Accumulator("e5m6", "stochastic", order="pairwise", chunk=9),
    Accumulator("fp32", "toward_zero", block=4, aligned_bits=9),
]


@pytest.mark.parametrize("acc", STARTED, ids=ids)
def test_sums_start_elsewhere_in_every_order(acc: Accumulator, isa: str) -> None:
    draw = torch.Generator().manual_seed(4)
    fmt = parse_format("fp16")
    for kind in ("plain", "special"):
        for m, k, n in ((3, 0, 5), (4, 30, 17), (20, 300, 3)):
            a, b = values((2, m, k), kind, fmt, draw), values((k, n), kind, fmt, draw)
            start = values((2, m, n), "raw" if kind == "plain" else kind, fmt, draw)
            got, want = (
                backend.matmul(a, b, None, acc.to_ints(), SEED, ROLE, initial=start)
                for backend in (cpu.BACKEND, _reference.BACKEND)
            )
            assert_bit_equal(got, want, f"{(m, k, n)} {kind}")
