"""Blocks aligned by their operands on the CPU: matrix products and convolutions against the
reference, to the bit, on every instruction set."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.arithmetic import UNITS, Accumulator, accumulator
from tests.backends.cpu_products import assert_convolution, assert_matmul, tier_of
from tests.cases import CONV_CASES, accumulators_named
from tests.support.processor import Isas

INF, NAN = float("inf"), float("nan")

#: Accumulators unlike those of the `UNITS`: other modes, formats that end otherwise, cut sums, long
#: runs, draws.
ODD = accumulators_named("""
    e5m10:toward_negative:block=8:aligned_bits=12:operands=e5m2,e4m3fn
    e4m3fn:toward_positive:block=3:aligned_bits=9:operands=e5m2
    e5m2:to_odd:block=2:aligned_bits=3:operands=e5m2
    e8m10:nearest_away:block=16:aligned_bits=15:operands=e4m3fn
    e4m3fn:block=7:aligned_bits=9:operands=e5m2,e4m3fn
    e8m0:block=5:aligned_bits=9:operands=e5m2
    fp32:toward_zero:block=256:aligned_bits=40:operands=bf16
    fp32:toward_zero:block=8:aligned_bits=11:operands=e4m3fn
    e8m13:toward_zero:block=8:aligned_bits=13:operands=e4m3fn:least_exponent=6
    e5m4:stochastic:block=4:aligned_bits=6:operands=e4m3fn,e5m2
    e5m6_chunk24:stochastic:outer=e6m9:block=6:aligned_bits=13:operands=e5m2:interleaved=2:bits=13:philox
    fp32_chunk768:toward_zero:outer=e6m9:outer_rounding=nearest_even:block=128:aligned_bits=24:operands=fp16:interleaved=3
""")
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


def check_matmul(
    acc: Accumulator, sizes: tuple[int, int, int], kinds: tuple[str, ...], isas: Isas
) -> None:
    """A batch of a product of each kind, with a start and without."""
    draw = torch.Generator().manual_seed(sum(sizes))
    (m, k, n), (left, right) = sizes, acc.operands
    formats = ((m, k), left), ((k, n), right), ((m, n), acc.fmt)
    a, b, start = (
        torch.stack([values(shape, kind, fmt, draw) for kind in kinds]) for shape, fmt in formats
    )
    for initial in (None, start):
        assert_matmul(isas, a, b, acc, sizes, initial=initial)


@pytest.mark.parametrize("acc", [*CHOSEN, *ODD], ids=str)
def test_products(acc: Accumulator, isas: Isas) -> None:
    """Lanes of one panel, of several, of rows in place of columns; k in one block and in parts."""
    for sizes in ((3, 5, 7), (5, 70, 33), (2, 300, 83), (20, 40, 3)):
        check_matmul(acc, sizes, KINDS, isas)
    if acc == ODD[-1]:
        # Its runs are longer than the driver's blocks of k.
        check_matmul(acc, (3, 1600, 20), ("plain", "special"), isas)


UNIT_NAMES = [name for name in UNITS if accumulator(name).operands]


@pytest.mark.parametrize("unit", UNIT_NAMES)
def test_every_unit(unit: str, isas: Isas) -> None:
    check_matmul(accumulator(unit), (4, 130, 40), ("plain", "special"), isas)


@pytest.mark.parametrize(
    "name, size",
    [("e2m4_b-117:block=4:aligned_bits=13:operands=e2m1", 0.0),
     ("e8m2_b142:toward_zero:block=2:aligned_bits=13:operands=e2m2_b64", -63.0)],
)  # fmt: skip
def test_sums_at_the_ends_of_float32(name: str, size: float, isas: Isas) -> None:
    """The least exponent of the sums is above float32's room for it, or below its own."""
    draw = torch.Generator().manual_seed(7)
    a, b = (
        torch.randint(-7, 8, shape, generator=draw) * 2.0 ** (size - 2)
        for shape in ((5, 40), (40, 33))
    )
    assert_matmul(isas, a, b, accumulator(name))


CONVOLVED = [CHOSEN[2], CHOSEN[6], CHOSEN[8], *ODD[7:11]]


@pytest.mark.parametrize("acc", CONVOLVED, ids=str)
@pytest.mark.parametrize("name", CONV_CASES)
def test_convolutions(acc: Accumulator, name: str, isas: Isas) -> None:
    draw, case, (left, right) = torch.Generator().manual_seed(2), CONV_CASES[name], acc.operands
    for kind in ("plain", "sparse"):
        x = values(case.input_shape, kind, left, draw)
        w = values(case.weight_shape, kind, right, draw)
        grad = values(case.output_shape, kind, left, draw)
        assert_convolution(isas, case, acc, x, w, grad)


E4M3 = replace(accumulator("h100_e4m3"), block=4)


@pytest.mark.parametrize(
    "acc, tier",
    [(accumulator("h100_e4m3"), "certified"), (accumulator("a100_fp16"), "certified"),
     (accumulator("h100_fp16_fp16"), "certified"), (replace(E4M3, rounding="to_odd"), "double"),
     # A block of zeros would cut the running sum that an absent block leaves alone.
     (replace(E4M3, aligned_bits=12), "double")],
    ids=str,
)  # fmt: skip
def test_operands_choose_the_tier(acc: Accumulator, tier: str, isas: Isas) -> None:
    draw, (left, right) = torch.Generator().manual_seed(3), acc.operands
    a, b = values((8, 64), "plain", left, draw), values((64, 96), "plain", right, draw)
    for isa in isas:
        assert tier_of(a, b, acc) == ("double" if isa == "scalar" else tier)


def test_a_sum_beyond_the_format_is_made_again(isas: Isas) -> None:
    a, b = torch.full((4, 64), 100.0), torch.ones(64, 48)
    b[:, 20] = 60.0
    b[32:, 20] = -60.0
    sums = assert_matmul(isas, a, b, accumulator("h100_fp16_fp16"))
    assert sums[0, 20] == INF and sums[0, 0] == 6400
