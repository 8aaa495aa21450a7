"""Few outputs of long sums on CUDA: the tiles, the parts of their sums and the kernel that adds the
parts. The kernels' own code runs on the host, on a grid of shapes; every result has the cpu
backend's bits."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

import lpkernels as lp
from lpkernels.backends import NOT_FUSED, Fused
from lpkernels.backends.cuda import BACKEND
from tests.compare import assert_bit_equal
from tests.support import cuda_host

CPU = lp.backends.get("cpu")

pytestmark = pytest.mark.skipif(bool(cuda_host.reason()), reason=cuda_host.reason())

ACCUMULATORS = [
    lp.Accumulator("e6m9", chunk=8),
    lp.Accumulator("e6m9", chunk=13),
    lp.Accumulator("e6m12", chunk=16, outer="e5m10"),
    lp.Accumulator("e5m9", chunk=5, outer="e4m3"),
    lp.Accumulator("e5m4", chunk=8, outer="e8m13"),
    lp.Accumulator("e6m9_sat", chunk=8),
    lp.Accumulator("e5m10", chunk=8, outer="fp32"),
    lp.Accumulator("bf16", chunk=16),
    lp.Accumulator("fp32", chunk=16, outer="e6m9"),
    lp.Accumulator("fp32", chunk=8),
    lp.Accumulator("e8m14", chunk=8, outer="e6m9"),
    lp.Accumulator("e8m22", chunk=8, outer="fp32"),
    lp.Accumulator("e6m9", chunk=8, outer="e6m9_nosub"),
    lp.Accumulator("e6m9"),
    lp.Accumulator("e5m10"),
    lp.Accumulator("e4m3fn_sat"),
    lp.Accumulator("e6m12"),
    lp.Accumulator("e6m9_nosub"),
    lp.Accumulator("e6m9", "toward_zero", chunk=8, outer_rounding="nearest_even"),
    lp.Accumulator("e6m9", "stochastic", chunk=8, outer_rounding="nearest_even"),
    # Outer sums are rounded as the sums of the chunks are.
    lp.Accumulator("e6m9", "toward_zero", chunk=8),
    lp.Accumulator("e6m9", "stochastic", chunk=8),
    lp.Accumulator("e5m10", "stochastic", chunk=16, outer="e4m3fn", random_bits=5),
    lp.Accumulator("e6m9", "stochastic", chunk=8, outer="fixed12_f4"),
    lp.Accumulator("fp32", "toward_negative", chunk=8, outer="e6m9"),
    lp.Accumulator("fp32", "toward_positive", chunk=8, outer="e6m9_nosub"),
]
ROWS, COLUMNS = range(1, 41), (1, 2, 7, 9, 16, 17, 32, 33, 40)


def values(rng: random.Random, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Values of few bits or of 24: about 1, at the ends of small formats, or with infinity or NaN
    among them."""
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


@pytest.mark.parametrize("n", COLUMNS)
def test_products_of_few_outputs_have_the_cpus_bits(n: int) -> None:
    rng, generator = random.Random(n), torch.Generator().manual_seed(n)
    seed = torch.tensor(5)
    with cuda_host.on_host() as loaded:
        for m in ROWS:
            acc = rng.choice(ACCUMULATORS)
            k = rng.choice([1, 8, 9, 40, 100, 150])
            loaded.set_processors(rng.choice([1, 2, 7, 132]))
            a, b = values(rng, (m, k), generator), values(rng, (k, n), generator)
            bias = torch.randn(n, generator=generator) if rng.random() < 0.3 else None
            result = lp.Quantizer("e4m3").to_ints() if rng.random() < 0.3 else ()
            call = (bias, acc.to_ints(), seed, 1, Fused((), (), result) if result else NOT_FUSED)
            got, want = BACKEND.matmul(a, b, *call), CPU.matmul(a, b, *call)
            assert_bit_equal(got, want, f"{m}x{k}x{n} {acc}")
        loaded.set_processors(132)


@pytest.mark.parametrize("gemm", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 3, 0], ids=["one group", "three groups", "depthwise"])
def test_passes_of_small_convolutions_have_the_cpus_bits(
    gemm: str, stride: int, groups: int
) -> None:
    rng, generator = random.Random(7), torch.Generator().manual_seed(stride)
    with cuda_host.on_host() as loaded:
        for acc in ACCUMULATORS:
            loaded.set_processors(rng.choice([1, 132]))
            c_in, c_out, size = 3 * rng.randint(1, 3), 3 * rng.randint(1, 5), rng.randint(5, 9)
            out = (size - 1) // stride + 1
            parts = groups or c_in
            c_out = c_out if groups else c_in
            geometry = ([stride, stride], [1, 1], [1, 1], parts)
            x, w = (2, c_in, size, size), (c_out, c_in // parts, 3, 3)
            y = (2, c_out, out, out)
            shapes = {"fprop": (x, w), "dgrad": (y, w), "wgrad": (x, y)}[gemm]
            third = {"fprop": None, "dgrad": list(x), "wgrad": list(w)}[gemm]
            a, b = (values(rng, shape, generator) for shape in shapes)
            call = (third, *geometry, acc.to_ints(), torch.tensor(5), 1)
            got = getattr(BACKEND, f"conv_{gemm}")(a, b, *call)
            want = getattr(CPU, f"conv_{gemm}")(a, b, *call)
            assert_bit_equal(got, want, f"{gemm} of {x} by {w} {acc}")
        loaded.set_processors(132)


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


@pytest.mark.parametrize(("sizes", "tile"), SHAPES.items())
def test_tiles_have_the_shape_of_the_product(sizes: tuple[int, int], tile: tuple[int, int]) -> None:
    rng, generator = random.Random(3), torch.Generator().manual_seed(3)
    with cuda_host.on_host() as loaded:
        loaded.set_processors(1)
        for (fmt, tier, exponents), outer in itertools.product(TIERS, ("e6m9", "fp32", None)):
            chunks = {} if outer is None else {"chunk": 8, "outer": outer}
            acc = lp.Accumulator(fmt, **chunks).to_ints()
            a = torch.randint(-7, 8, (sizes[0], 21), generator=generator).float()
            b = torch.randint(-7, 8, (21, sizes[1]), generator=generator).float()
            a.view(-1)[0], b.view(-1)[0] = 7.0, 7.0
            a *= torch.tensor([2.0 ** exponents[i % len(exponents)] for i in range(21)])
            bias = torch.randn(sizes[1], generator=generator) if rng.random() < 0.5 else None
            got, want = (be.matmul(a, b, bias, acc, None, 0) for be in (BACKEND, CPU))
            assert loaded.last_tier()[0] == tier, fmt
            assert_bit_equal(got, want, f"{sizes} {fmt} {exponents}")
        ones = torch.ones(sizes[0], 16), torch.ones(16, sizes[1])
        for chunk in (8, None):
            BACKEND.matmul(*ones, None, lp.Accumulator("e6m9", chunk=chunk).to_ints(), None, 0)
            assert loaded.last_tile() == tile
        loaded.set_processors(132)


# The same for tiers whose tiles have costs of their own, by the bits of the operands: float32's own
# sums, made odd and in double. The factors of those made odd lie further apart than doubles reach.
OTHER_TIERS = (
    ("fp32", 20, 24, (0,)), ("e8m10", 4, 24, (0, -60)), ("e8m14", 8, 24, (0, -60)),
    ("e6m9", 12, 24, (2, -40)), ("e8m14", 13, 16, (0,)), ("e6m9", 14, 16, (0, -12)),
)  # fmt: skip
#: Float32's own sums of one row have tiles of 128 columns where these are few.
OTHER_SHAPES = {**SHAPES, (1, 700): (1, 32)}
del OTHER_SHAPES[(1, 30)]


@pytest.mark.parametrize(("fmt", "tier", "bits", "exponents"), OTHER_TIERS)
@pytest.mark.parametrize(("sizes", "tile"), OTHER_SHAPES.items())
def test_tiles_of_other_tiers_have_the_shape_of_the_product(
    sizes: tuple[int, int], tile: tuple[int, int], fmt: str, tier: int, bits: int,
    exponents: tuple[int, ...],
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(tier)
    scale = torch.tensor([2.0 ** exponents[i % len(exponents)] for i in range(8)])
    a, b = (
        torch.randint(1 - 2**bits, 2**bits, shape, generator=generator) / 2.0**bits
        for shape in ((sizes[0], 8), (8, sizes[1]))
    )
    # Now and then a zero of either sign.
    a[torch.rand(a.shape, generator=generator) < 0.1] = -0.0
    with cuda_host.on_host() as loaded:
        loaded.set_processors(1)
        for outer in ("e6m9", "fp32"):
            acc = lp.Accumulator(fmt, chunk=8, outer=outer).to_ints()
            got, want = (be.matmul(a * scale, b, None, acc, None, 0) for be in (BACKEND, CPU))
            assert (loaded.last_tier()[0], loaded.last_tile()) == (tier, tile)
            assert_bit_equal(got, want, f"{sizes} {fmt}")
        loaded.set_processors(132)


def test_which_products_are_split() -> None:
    a, b = torch.ones(100, 40), torch.ones(40, 100)
    acc = lp.Accumulator("e6m9", chunk=8).to_ints()
    with cuda_host.on_host() as loaded:
        for processors, splits in ((1, 1), (132, 5)):
            loaded.set_processors(processors)
            BACKEND.matmul(a, b, None, acc, None, 0)
            assert loaded.last_splits() == splits
        loaded.set_processors(132)
