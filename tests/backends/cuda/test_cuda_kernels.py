"""Every kernel of csrc/cuda that makes products is started: each shape of tile, each rounding, with
operands that lie side by side and with tables.

Which tile a product takes depends on its shape and on the device's processors.
"""

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.arithmetic import Accumulator
from lpkernels.backends.cuda import BACKEND
from lpkernels.rounding import ROUNDINGS
from tests.cases import ConvCase
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.cuda_host import needs_device
from tests.support.cuda_tiles import TILES as ALL_TILES
from tests.support.operand_cases import CONVOLVED, MODES, SHORT_MODES
from tests.support.products import ROLE, SEED, assert_pass, sums_in_float32, tensors_of

CPU = lp.backends.get("cpu")


class Product(NamedTuple):
    """M x K times K x N, which tiles of this shape make. Sums are split at the ends of chunks of
    `CHUNK` where whole is not set. Where whole is set they are one sum; only float32's own sums
    then have chunks too."""

    tile: tuple[int, int]
    m: int
    n: int
    k: int
    whole: bool = False

    def __str__(self) -> str:
        return f"{'whole' if self.whole else 'split'} {self.tile[0]}x{self.tile[1]}"


CHUNK = 8
#: A tile is chosen where it has as many outputs as the product and as many chunks keep the
#: processors busy; a whole sum takes it where the outputs keep them busy.
TILED = (
    Product((128, 128), 128, 128, 96 * CHUNK), Product((128, 64), 128, 64, 48 * CHUNK),
    Product((64, 128), 64, 128, 96 * CHUNK), Product((128, 32), 128, 32, 160 * CHUNK),
    Product((32, 128), 32, 128, 160 * CHUNK), Product((128, 16), 128, 16, 300 * CHUNK),
    Product((16, 128), 16, 128, 300 * CHUNK), Product((512, 1), 512, 1, 300 * CHUNK),
    Product((1, 32), 3, 40, 5 * CHUNK),
    Product((128, 64), 9280, 64, 8, whole=True), Product((64, 128), 64, 9280, 8, whole=True),
    Product((128, 32), 18560, 32, 8, whole=True), Product((32, 128), 32, 18560, 8, whole=True),
    Product((128, 16), 36992, 16, 8, whole=True), Product((16, 128), 16, 36992, 8, whole=True),
    Product((512, 1), 240_000, 1, 8, whole=True), Product((1, 32), 1, 80_000, 8, whole=True),
)  # fmt: skip


class Tier(NamedTuple):
    """A tier with tiles of every shape: its name in the counts, a format of inner sums, and the
    exponents by which steps in turn are scaled. long: products have 26 bits, not ten."""

    name: str
    fmt: str
    exponents: tuple[int, ...]
    long: bool = False

    def accumulator(self, product: Product) -> Accumulator:
        if product.whole and self.fmt != "fp32":
            return Accumulator(self.fmt)
        # A product that is whole has two chunks, which pay for no split.
        return Accumulator(self.fmt, chunk=CHUNK // 2 if product.whole else CHUNK, outer="e6m9")

    def operands(self, product: Product) -> tuple[Tensor, Tensor]:
        """Products of ten bits, whose sums of eight have more bits than the format and stay below
        2^8: e4m9 and e4m11 end there. The first product is larger than the sums let one expect."""
        m, n, k = product.m, product.n, product.k
        scale = torch.tensor([2.0 ** self.exponents[i % len(self.exponents)] for i in range(k)])
        if self.long:
            left, right = (torch.randint(4096, 8192, size) for size in ((m, k), (k, n)))
            return left * signs(m, 1) * scale, right * signs(n) / 2048
        a = torch.randint(4, 8, (m, k)) * signs(m, 1)
        b = torch.randint(64, 128, (k, n)) * signs(n) / 32
        a[0, 0], b[0, 0] = 14.0, 127 / 32
        return a * scale, b


TIERS = (
    Tier("two steps", "e6m9", (0, -2)), Tier("two steps, watched", "e4m9", (0, -2)),
    Tier("split", "e6m11", (0, -2)), Tier("split, watched", "e4m11", (0, -2)),
    Tier("floor", "e4m9", (-15, -17)), Tier("floor, watched", "e4m9", (0, -17)),
)  # fmt: skip
#: Tiers whose tiles have costs of their own. The operands of those made odd lie further apart than
#: doubles reach.
RARE = (
    Tier("odd, two steps", "e8m10", (0, -60), long=True),
    Tier("odd, split", "e8m14", (0, -60), long=True),
    Tier("odd, floor", "e6m9", (2, -40), long=True),
    Tier("double, split", "e6m12", (0, -2), long=True),
    Tier("double, floor", "e6m9", (-2, -32), long=True),
)
FLOAT32 = Tier("float32", "fp32", (0, -2), long=True)


def tiers_of(product: Product) -> tuple[Tier, ...]:
    """The product's tiers: float32's own sums that are split have no tiles of one row."""
    row = not product.whole and product.tile[0] == 1
    return (*TIERS, *RARE) if row else (*TIERS, *RARE, FLOAT32)


def signs(*shape: int) -> Tensor:
    return 2.0 * torch.randint(0, 2, shape) - 1.0


def as_convolution(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The image and the weight of a 1-d convolution of one tap. Its positions are the rows of a and
    its channels the columns of b: the same product, with operands that have tables."""
    return a.T[None], b.T[:, :, None]


def multiplied(
    backend: Any, a: Tensor, b: Tensor, bias: Tensor | None, acc: Accumulator, *, tables: bool
) -> Tensor:
    if not tables:
        return backend.matmul(a, b, bias, acc.to_ints(), SEED, ROLE)
    geometry = ([1], [0], [1], 1)
    x, w = as_convolution(a, b)
    return backend.conv_fprop(x, w, bias, *geometry, acc.to_ints(), SEED, ROLE)


def check(a: Tensor, b: Tensor, acc: Accumulator, *, tables: bool, name: str = "") -> None:
    """The cuda backend has the bits of the cpu backend; native chunks must be exact."""
    bias = torch.randn(b.shape[1])
    got = multiplied(BACKEND, a.cuda(), b.cuda(), bias.cuda(), acc, tables=tables)
    in_sequence = sums_in_float32(acc) if acc.order == "native" else acc
    want = multiplied(CPU, a, b, bias, in_sequence, tables=tables)
    assert_bit_equal(got, want, name)


PRODUCTS = list(itertools.product(TILED, [False, True]))


def test_no_tile_is_left_out():
    split = {product.tile for product in TILED if not product.whole}
    assert split == {(rows, cols) for rows, cols, *_ in ALL_TILES["kShapes"]}
    native = {product.tile for product in NATIVE}
    assert native == {(rows, cols) for rows, cols, *_ in ALL_TILES["kTensorShapes"]}


@needs_device
@each("product, tables", PRODUCTS)
def test_every_tier_has_the_cpus_bits(product: Product, tables: bool):
    # Whole sums have many outputs: of `TIERS` the simplest and the most intricate do.
    some = (TIERS[0], TIERS[-1], *RARE, FLOAT32)
    for tier in some if product.whole else tiers_of(product):
        operands = tier.operands(product)
        check(*operands, tier.accumulator(product), tables=tables, name=tier.name)


#: Passes of depthwise convolutions.
DEPTHWISE = {
    "conv_fprop": ((1, 67, 32, 40), (67, 1, 3, 3), (1, 1), (1, 1), (1, 1), 67),
    "conv_dgrad": ((1, 67, 32, 40), (67, 1, 3, 3), (1, 1), (1, 1), (1, 1), 67),
    "conv_wgrad": ((2, 20, 12, 12), (20, 1, 3, 3), (1, 1), (1, 1), (1, 1), 20),
}
DEPTHWISE_ACC = Accumulator("e6m9", chunk=64)


@needs_device
@each("op", DEPTHWISE)
def test_a_pass_has_the_cpus_bits(op: str):
    sizes = DEPTHWISE[op]
    x, w, dy, bias = tensors_of(ConvCase(*sizes), lambda shape: torch.randint(-7, 8, shape))
    name = op.removeprefix("conv_")
    assert_pass(BACKEND, name, ConvCase(*sizes), (x, w, dy, bias), DEPTHWISE_ACC, "cuda", by="cpu")


#: Native chunks by the tiles that make them on tensor cores.
NATIVE = (
    Product((128, 128), 5, 130, 5 * CHUNK), Product((128, 64), 128, 64, 160 * CHUNK),
    Product((64, 128), 64, 128, 160 * CHUNK),
)  # fmt: skip
NATIVE_ACC = Accumulator("fp32", order="native", chunk=CHUNK, outer="e6m9")
NATIVE_PRODUCTS = list(itertools.product(NATIVE, [False, True]))


@needs_device
@each("product, tables", NATIVE_PRODUCTS)
def test_both_types_have_the_bits_of_sums_in_sequence(product: Product, tables: bool):
    for scale in (1.0, 2.0**-60):
        a = torch.randint(-7, 8, (product.m, product.k)) * scale
        b = torch.randint(-7, 8, (product.k, product.n)) / scale
        check(a, b, NATIVE_ACC, tables=tables, name=f"scaled by {scale}")


_HARDWARE = ("nearest_even", "toward_zero", "toward_positive", "toward_negative")
_NEAREST = "outer_rounding=nearest_even"
_MADE = (("e6m9", ":toward_zero"), ("e6m9", ":stochastic"), ("e8m22", ""), ("e5m10", ""))
_TEXTS = [
    # In float32's own arithmetic.
    *(f"fp32:{mode}" for mode in _HARDWARE),
    *(f"fp32_chunk8:{mode}:{_NEAREST}" for mode in _HARDWARE),
    # Cut, drawn, in double, and by the arithmetic of half precision.
    *(fmt + mode for fmt, mode in _MADE),
    *(f"{fmt}_chunk8{mode}:outer=fp32:{_NEAREST}" for fmt, mode in _MADE),
    # Chunks that end by the rounding of their sums.
    "e6m9_chunk8:toward_zero", "e6m9_chunk8:stochastic", "fp32_chunk8:toward_negative",
    # Exact sums, of exact products and of rounded ones.
    *(f"e5m6_chunk5:{mode}:outer_rounding={mode}" for mode in ROUNDINGS),
    *(f"e5m6_chunk5:{mode}:product=e4m3" for mode in ROUNDINGS),
    # Other orders.
    *(f"e5m6:{mode}:{order}" for mode in ("nearest_even", "toward_negative")
      for order in ("order=pairwise", "order=compensated", "block=4:aligned_bits=9")),
]  # fmt: skip
#: Sums whose kernels have one shape of tile: every rounding of each kind, with and without chunks;
#: and blocks that their operands align: in float32, in double, and dealt out in turns.
OTHERS = [*map(lp.accumulator, _TEXTS), SHORT_MODES[0], *CONVOLVED, MODES[0]]


@needs_device
@each("acc, tables", OTHERS, [False, True])
def test_other_sums_have_the_cpus_bits(acc: Accumulator, tables: bool):
    few = (torch.randint(-7, 8, (70, 41)) / 4, torch.randint(-7, 8, (41, 66)) / 4)
    for a, b in (few, (torch.randn(70, 41), torch.randn(41, 66))):
        check(a, b, acc, tables=tables)
