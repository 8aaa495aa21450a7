"""Few outputs of long sums on CUDA: the tiles, the parts of their sums and the kernel that adds the
parts. The kernels' own code runs on the host, on a grid of shapes; every result has the cpu
backend's bits. Sums at both ends of float32's exponents run on a device too."""

import itertools
import random

import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.backends import Fused
from lpkernels.backends.cuda import BACKEND
from tests.cases import ConvCase
from tests.loops import each
from tests.support.products import PASSES, assert_pass, assert_product, output_shape, tensors_of

ACCUMULATORS = [
    lp.accumulator(text)
    for text in (
        "e6m9_chunk8", "e6m9_chunk13", "e6m12_chunk16:outer=e5m10", "e5m9_chunk5:outer=e4m3",
        "e5m4_chunk8:outer=e8m13", "e6m9_sat_chunk8", "e5m10_chunk8:outer=fp32", "bf16_chunk16",
        "fp32_chunk16:outer=e6m9", "fp32_chunk8", "e8m14_chunk8:outer=e6m9",
        "e8m22_chunk8:outer=fp32", "e6m9_chunk8:outer=e6m9_nosub", "e6m9", "e5m10", "e4m3fn_sat",
        "e6m12", "e6m9_nosub", "e6m9_chunk8:toward_zero:outer_rounding=nearest_even",
        "e6m9_chunk8:stochastic:outer_rounding=nearest_even",
        # Outer sums are rounded as the sums of the chunks are.
        "e6m9_chunk8:toward_zero", "e6m9_chunk8:stochastic",
        "e5m10_chunk16:stochastic:outer=e4m3fn:bits=5", "e6m9_chunk8:stochastic:outer=fixed12_f4",
        "fp32_chunk8:toward_negative:outer=e6m9", "fp32_chunk8:toward_positive:outer=e6m9_nosub",
    )
]  # fmt: skip
ROWS, COLUMNS = range(1, 41), (1, 2, 7, 9, 16, 17, 32, 33, 40)


def values(rng: random.Random, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Values of few bits or of 24: about 1, at the ends of small formats, or special."""
    x = torch.randint(-7, 8, shape, generator=generator).float()
    if rng.random() < 0.4:
        x *= torch.rand(shape, generator=generator)
    kind = rng.choice(["few", "few", "large", "small", "spread", "special"])
    if kind == "large":
        return x * 2.0 ** rng.choice([5, 9, 14])
    if kind == "small":
        return x * 2.0 ** rng.choice([-9, -14, -20])
    if kind == "spread":
        return x * torch.exp2(torch.randint(-12, 8, shape, generator=generator).float())
    if kind == "special":
        x.view(-1)[rng.randrange(x.numel())] = rng.choice([float("inf"), float("nan"), -0.0, 1e-40])
    return x


@each("n", COLUMNS)
def test_products_of_few_outputs_have_the_cpus_bits(n: int, host) -> None:
    rng, generator = random.Random(n), torch.Generator().manual_seed(n)
    for m in ROWS:
        acc = rng.choice(ACCUMULATORS)
        k = rng.choice([1, 8, 9, 40, 100, 150])
        host.set_processors(rng.choice([1, 2, 7, 132]))
        a, b = values(rng, (m, k), generator), values(rng, (k, n), generator)
        bias = torch.randn(n, generator=generator) if rng.random() < 0.3 else None
        result = lp.Quantizer("e4m3").to_ints() if rng.random() < 0.3 else ()
        assert_product(BACKEND, a, b, acc, bias=bias, fused=Fused(result=result), by="cpu")


@pytest.mark.parametrize("name", PASSES)
def test_passes_of_small_convolutions_have_the_cpus_bits(name: str, host) -> None:
    rng, generator = random.Random(7), torch.Generator().manual_seed(1)
    # One group, three groups, or as many as there are channels; each accumulator has a turn.
    geometries = itertools.cycle(itertools.product((1, 3, 0), (1, 2)))
    for acc, (groups, stride) in zip(ACCUMULATORS * 2, geometries, strict=False):
        host.set_processors(rng.choice([1, 132]))
        c_in, c_out, size = 3 * rng.randint(1, 3), 3 * rng.randint(1, 5), rng.randint(5, 9)
        groups, c_out = (groups, c_out) if groups else (c_in, c_in)
        case = ConvCase(
            (2, c_in, size, size), (c_out, c_in // groups, 3, 3), (stride, stride), (1, 1), (1, 1),
            groups,
        )  # fmt: skip
        tensors = tensors_of(case, lambda shape: values(rng, shape, generator))
        assert_pass(BACKEND, name, case, tensors, acc, by="cpu")


SHAPES = {
    (128, 128): (128, 128), (120, 60): (128, 64), (60, 120): (64, 128), (250, 30): (128, 32),
    (30, 250): (32, 128), (500, 15): (128, 16), (15, 500): (16, 128), (1500, 1): (512, 1),
    (1, 30): (1, 32),
}  # fmt: skip

# The tiers that have tiles of every shape (csrc/cuda/product/tier.h), each with a format and with
# factors that ask for it: splitting in two steps and in three, and the floor; proved and watched.
TIERS = (
    ("e6m9", 1, (0,)), ("e6m12", 5, (0,)), ("e4m9", 2, (0,)), ("e4m12", 6, (0,)),
    ("e4m9", 9, (-17,)), ("e4m9", 10, (-17, 0)),
)  # fmt: skip


@each("sizes, tile", SHAPES.items())
def test_tiles_have_the_shape_of_the_product(sizes, tile: tuple[int, int], host) -> None:
    rng, generator = random.Random(3), torch.Generator().manual_seed(3)
    host.set_processors(1)
    for (fmt, tier, exponents), outer in itertools.product(TIERS, ("e6m9", "fp32", None)):
        chunks = {} if outer is None else {"chunk": 8, "outer": outer}
        a = torch.randint(-7, 8, (sizes[0], 21), generator=generator).float()
        b = torch.randint(-7, 8, (21, sizes[1]), generator=generator).float()
        a.view(-1)[0], b.view(-1)[0] = 7.0, 7.0
        a *= torch.tensor([2.0 ** exponents[i % len(exponents)] for i in range(21)])
        bias = torch.randn(sizes[1], generator=generator) if rng.random() < 0.5 else None
        assert_product(BACKEND, a, b, lp.Accumulator(fmt, **chunks), bias=bias, by="cpu")
        assert host.last_tier()[0] == tier, fmt
    ones = torch.ones(sizes[0], 16), torch.ones(16, sizes[1])
    for chunk in (8, None):
        BACKEND.matmul(*ones, None, lp.Accumulator("e6m9", chunk=chunk).to_ints(), None, 0)
        assert host.last_tile() == tile


# The same for tiers whose tiles have costs of their own, by the bits of the operands: float32's own
# sums, made odd and in double. The factors of those made odd lie further apart than doubles reach.
OTHER_TIERS = (
    ("fp32", 20, 24, (0,)), ("e8m10", 4, 24, (0, -60)), ("e8m14", 8, 24, (0, -60)),
    ("e6m9", 12, 24, (2, -40)), ("e8m14", 13, 16, (0,)), ("e6m9", 14, 16, (0, -12)),
)  # fmt: skip
#: Float32's own sums of one row have tiles of 128 columns where these are few.
OTHER_SHAPES = {**SHAPES, (1, 700): (1, 32)}
del OTHER_SHAPES[(1, 30)]


@each("tier, shape", OTHER_TIERS, OTHER_SHAPES.items())
def test_tiles_of_other_tiers_have_the_shape_of_the_product(tier, shape, host) -> None:
    (fmt, number, bits, exponents), ((m, n), tile) = tier, shape
    generator = torch.Generator().manual_seed(number)
    scale = torch.tensor([2.0 ** exponents[i % len(exponents)] for i in range(8)])
    a, b = (
        torch.randint(1 - 2**bits, 2**bits, shape, generator=generator) / 2.0**bits
        for shape in ((m, 8), (8, n))
    )
    # Now and then a zero of either sign.
    a[torch.rand(a.shape, generator=generator) < 0.1] = -0.0
    host.set_processors(1)
    for outer in ("e6m9", "fp32"):
        acc = lp.Accumulator(fmt, chunk=8, outer=outer)
        assert_product(BACKEND, a * scale, b, acc, by="cpu")
        assert (host.last_tier()[0], host.last_tile()) == (number, tile)


def test_which_products_are_split(host) -> None:
    acc = lp.Accumulator("e6m9", chunk=8).to_ints()
    for processors, splits in ((1, 1), (132, 5)):
        host.set_processors(processors)
        BACKEND.matmul(torch.ones(100, 40), torch.ones(40, 100), None, acc, None, 0)
        assert host.last_splits() == splits


FORMATS = ("e8m3", "e8m7", "e8m10", "e8m13", "e8m15", "e8m20", "e8m21")
#: Sums over the whole range of a format: in chunks, stopped at max, cut and drawn; formats that
#: begin, or end, far from 1.
END_ACCUMULATORS = [
    *(
        lp.accumulator(fmt + rest)
        for fmt in FORMATS
        for rest in ("", "_chunk2", "_chunk3:outer=fp32", "_sat", "_sat_chunk2", ":toward_zero")
    ),
    *map(
        lp.accumulator,
        ("e8m10_chunk8:stochastic:outer_rounding=nearest_even",
         "e8m10_chunk8:stochastic:outer=e4m5_sat", "e8m13_chunk3:toward_zero:outer=e8m9",
         "e8m13:product=e8m10", "e3m3_b-100", "e3m3_b-100_chunk2:outer=e8m13", "e4m5none_b130_sat"),
    ),
]  # fmt: skip

#: Exponents of the last places of both operands.
EXPONENTS = [
    (60, 44), (44, 60), (112, -8), (-9, 113), (120, 4), (60, 30), (20, 20), (-60, -60), (-77, -78),
    (-120, -20), (-20, -120), (-119, -119), (-110, 100),
]  # fmt: skip


def end_values(shape: tuple[int, ...], exponent: int) -> Tensor:
    """Values of at most eight bits, the widest among them."""
    x = torch.randint(-255, 256, shape).double()
    x.view(-1)[0] = 129
    return (x * 2.0**exponent).float()


@each("fmt", FORMATS)
def test_one_product_below_two_to_the_120(fmt: str, device: str) -> None:
    """It is exact or rounded once; scaled by 2^-127, it would be NaN."""
    a, b = torch.tensor([[129 * 2.0**60]]), torch.tensor([[129 * 2.0**44]])
    for text in (fmt, f"{fmt}_sat_chunk2"):
        assert_product(BACKEND, a, b, lp.accumulator(text), device)


def test_certified_kernels_keep_large_sums(host) -> None:
    a, b = end_values((3, 5), 60), end_values((5, 4), 44)
    BACKEND.matmul(a, b, None, lp.Accumulator("e8m10").to_ints(), None, 0)
    tier, redone = host.last_tier()
    assert tier > 0 and not redone


@each("acc", END_ACCUMULATORS)
def test_matmul_matches_the_cpu(acc: lp.Accumulator, device: str) -> None:
    m, k, n = (30, 33, 40) if device == "cuda" else (3, 7, 4)
    for left, right in EXPONENTS:
        a, b = end_values((m, k), left), end_values((k, n), right)
        assert_product(BACKEND, a, b, acc, device, by="cpu", name=f"2^{left}, 2^{right}")


@each("acc", END_ACCUMULATORS[::3] + END_ACCUMULATORS[-5:])
def test_convolutions_match_the_cpu(acc: lp.Accumulator, device: str) -> None:
    case = ConvCase((1, 2, 4, 5), (3, 2, 3, 2), (1, 2), (1, 1), (1, 1))
    for left, right in EXPONENTS[:4] if device == "cuda" else EXPONENTS:
        for name in PASSES:
            tensors = (
                end_values(case.input_shape, left),
                end_values(case.weight_shape, right),
                end_values(output_shape(case), right if name == "wgrad" else left),
                torch.zeros(case.weight_shape[0]),
            )
            assert_pass(BACKEND, name, case, tensors, acc, device, by="cpu")
