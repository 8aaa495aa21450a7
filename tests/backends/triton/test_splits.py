"""Programs that share the chunks of a sum: the bits of the cpu backend, whatever the share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lpkernels import backends
from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends import NOT_FUSED, Fused
from lpkernels.backends.planning import triton_tiers as _tiers
from lpkernels.backends.planning import triton_tiles
from lpkernels.backends.planning.triton_splits import Share
from lpkernels.backends.triton import _config, _products
from lpkernels.backends.triton._matmul import matmul
from lpkernels.backends.triton._problem import Made
from lpkernels.backends.triton.certified import stages
from tests.backends.triton import test_conv
from tests.backends.triton.test_certified import SEED, floats, only
from tests.cases import ConvCase, ids
from tests.compare import assert_bit_equal

# NumPy, in the interpreter, warns of infinities that are meant.
pytestmark = [pytest.mark.triton, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

#: One program and many share the chunks, in one pass and in several; some shares are longer than
#: `_parts.AHEAD`, some are not.
SHARES = [Share(1, 18), Share(4, 18), Share(18, 18), Share(5, 7), Share(2, 9)]
#: 70 steps are 18 chunks of 4, the last one shorter.
SHAPE = (5, 70, 33)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Made]:
    """The list of what the certified kernels made of all products so far."""
    found: list[Made] = []
    inner = stages.launch

    def launch(*arguments: object) -> Made:
        found.append(inner(*arguments))
        return found[-1]

    monkeypatch.setattr(stages, "launch", launch)
    return found


def force(monkeypatch: pytest.MonkeyPatch, share: Share) -> list[int]:
    """Makes every product take this share, and returns the list of the numbers of chunks so far."""
    chunks: list[int] = []

    def shared(count: int, *_: object) -> Share:
        chunks.append(count)
        return share

    monkeypatch.setattr(_products, "share", shared)
    return chunks


def check(
    a: Tensor,
    b: Tensor,
    acc: Accumulator,
    device: str,
    bias: Tensor | None = None,
    fused: Fused = NOT_FUSED,
) -> None:
    ints = acc.to_ints()
    want = backends.get("cpu").matmul(a, b, bias, ints, SEED, 4, fused)
    there = None if bias is None else bias.to(device)
    got = matmul(a.to(device), b.to(device), there, ints, SEED, 4, fused)
    assert_bit_equal(got.cpu(), want, str(acc))


@pytest.mark.parametrize("share", SHARES, ids=ids)
@pytest.mark.parametrize(
    "acc",
    [
        Accumulator("e6m9", chunk=4),
        Accumulator("e6m9", chunk=4, outer="e5m10", outer_rounding="stochastic"),
        Accumulator("e6m9", "stochastic", chunk=4, outer="e6m11", outer_rounding="to_odd"),
        Accumulator("e6m9", chunk=4, outer="e5m7", outer_rounding="stochastic", rng="philox"),
    ],
    ids=ids,
)
def test_shares_do_not_change_bits(
    acc: Accumulator, share: Share, device: str, made: list[Made], monkeypatch
) -> None:
    chunks = force(monkeypatch, share)
    m, k, n = SHAPE
    fused = Fused((), (), Quantizer("e5m6").to_ints())
    check(floats((m, k), 3), floats((k, n), 4), acc, device, floats((n,), 5, bits=20), fused)
    assert chunks == [18]
    assert all(int(found.values.min()) > 0 for found in made)


@pytest.mark.parametrize(
    ("acc", "tier"),
    [
        (Accumulator("e5m10", chunk=8, outer="e6m9"), _tiers.HALF),
        (Accumulator("fp32", chunk=7), _tiers.PLAIN),
        (Accumulator("e6m9_nosub", chunk=10), _tiers.FUSED),
        (Accumulator("e6m11", chunk=9, outer="fp32"), _tiers.SPLIT),
        (Accumulator("e6m9", product="e5m2", chunk=6), _tiers.FLOOR),
        (Accumulator("e4m3fn_sat", chunk=7), _tiers.RANGE),
        (Accumulator("e6m9_nosub", product="e5m2", chunk=9), _tiers.FUSED64),
        (Accumulator("e5m10", chunk=9), _tiers.NEAREST),
        (Accumulator("e5m10", "stochastic", random_bits=3, chunk=12), _tiers.CUT),
        (Accumulator("e6m9", "stochastic", rng="philox", chunk=12), _tiers.DIRECTED),
        (Accumulator("e5m10", "toward_negative", chunk=11), _tiers.DIRECTED),
        (Accumulator("fixed12_f7", "to_odd", chunk=5, outer="fp32"), _tiers.FIXED),
    ],
    ids=ids,
)
def test_every_tier_shares(
    acc: Accumulator, tier: int, device: str, made: list[Made], monkeypatch
) -> None:
    only(monkeypatch, tier)
    m, k, n = SHAPE
    force(monkeypatch, Share(2, 3))
    check(floats((m, k), 1), floats((k, n), 2), acc, device, floats((n,), 3, bits=20))
    assert int(made[0].values.min()) > 0


@pytest.mark.parametrize("size", [1, 15, 16, 33])
def test_few_rows_or_columns(size: int, device: str, monkeypatch) -> None:
    acc = Accumulator("e6m9", chunk=8)
    force(monkeypatch, Share(3, 2))
    for m, n in ((size, 40), (40, size), (size, size)):
        check(floats((m, 27), 1), floats((27, n), 2), acc, device)
    check(floats((2, size, 27), 3), floats((2, 27, size), 4), acc, device)


@pytest.mark.parametrize("outer", [_config.Tile(1, 32, 1), _config.Tile(4, 16, 2)], ids=ids)
def test_what_adds_has_tiles_of_its_own(
    outer: _config.Tile, device: str, made: list[Made], monkeypatch
) -> None:
    """Each tile that adds lies somewhere inside one of the tiles in which the sums are made."""
    force(monkeypatch, Share(2, 3))
    made_in = _config.Tile(8, 64, 4)
    monkeypatch.setattr(triton_tiles, "certified_tile", lambda *_, **__: made_in)
    monkeypatch.setattr(stages, "outer_tile", lambda _: outer)
    a, b = floats((2, 11, 27), 1), floats((2, 27, 80), 2)
    check(a, b, Accumulator("e6m9", chunk=8), device, floats((80,), 3))
    assert int(made[0].values.min()) > 0


@pytest.mark.parametrize("share", [Share(2, 99), Share(3, 3), Share(2, 1)], ids=ids)
def test_tiles_that_fail_in_one_part_are_done_again(
    share: Share, device: str, made: list[Made], monkeypatch
) -> None:
    """Sums overflow in one chunk of one row: in the first, a middle or the last part."""
    force(monkeypatch, share)
    tile = _config.Tile(4, 32, 1)
    monkeypatch.setattr(triton_tiles, "certified_tile", lambda *_, **__: tile)
    monkeypatch.setattr(_products, "exact_tile", lambda *_, **__: tile)
    for first in (0, 20, 40):
        a, b = torch.full((9, 61), 2.0**-3), torch.ones(61, 40)
        # 20 products pass 2^15, which is half of what e5m9 holds.
        a[6, first : first + 20], b[first : first + 20, 36] = 31.0, 63.0
        check(a, b, Accumulator("e5m9", chunk=20), device)
        assert set((made.pop().values > 0).tolist()) == {False, True}


def test_a_later_tier_makes_what_an_earlier_one_leaves(
    device: str, made: list[Made], monkeypatch
) -> None:
    """The products lie below float32's normals, so float64 makes the parts."""
    force(monkeypatch, Share(3, 4))
    tiny = {"low": -100, "high": -80}
    a, b = floats((9, 45), 1, **tiny), floats((45, 33), 2, **tiny)
    check(a, b, Accumulator("e5m10", chunk=8), device)
    (found,) = made
    assert set(found.values.tolist()) == {1 + _tiers.NEAREST}


@pytest.mark.parametrize("chunk", [0, 3, 5])
def test_a_later_kernel_takes_over_in_any_pass(
    chunk: int, device: str, made: list[Made], monkeypatch
) -> None:
    """Sums of one chunk of one output leave the bound of float32, but not that of float64."""
    force(monkeypatch, Share(2, 2))
    tile = _config.Tile(4, 32, 1)
    monkeypatch.setattr(triton_tiles, "certified_tile", lambda *_, **__: tile)
    # Products have 14 bits and are integers: sums below 2^24 have no bit that float32 lacks.
    a, b = (65.0 + 2.0 * (32.0 * torch.rand(shape)).floor() for shape in ((9, 240), (240, 40)))
    here = slice(40 * chunk, 40 * chunk + 40)
    a[6, here], b[here, 36] = 127.0 * 4, 127.0 * 8
    check(a, b, Accumulator("e8m12", chunk=40), device)
    (found,) = made
    assert set(found.values.tolist()) == {1 + _tiers.SPLIT, 1 + _tiers.FUSED64}


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_specials(value: float, device: str, monkeypatch) -> None:
    """Native half precision sums special values itself; with the other accumulator the outer sums
    add them."""
    force(monkeypatch, Share(2, 3))
    a, b = floats((9, 45), 1), floats((45, 33), 2)
    a[2, 3], a[4, 20], a[4, 21], b[44, 8] = value, value, -value, value
    for acc in (Accumulator("e5m10", chunk=8), Accumulator("fp32", chunk=8, outer="e4m3fn")):
        check(a, b, acc, device)


def test_zeros_keep_their_sign(device: str, monkeypatch) -> None:
    """Chunks underflow to -0, but sums from +0 on are +0, in every pass."""
    acc = Accumulator("e4m3", chunk=2, outer_rounding="toward_negative")
    tiny, b = torch.full((3, 8), -(2.0**-9)), torch.full((8, 16), 2.0**-9)
    b[:, 5], b[4:, ::2] = -0.0, 0.0
    for share in (Share(2, 4), Share(1, 1), Share(2, 2)):
        force(monkeypatch, share)
        check(tiny, b, acc, device)
        check(tiny, b, Accumulator("e4m3", chunk=2), device)


CONVOLUTIONS = [
    ConvCase((2, 3, 7, 6), (5, 3, 3, 3), (1, 1), (1, 1), (1, 1)),
    ConvCase((1, 4, 9), (6, 4, 4), (3,), (2,), (1,)),
    ConvCase((2, 4, 8, 7), (6, 2, 3, 3), (2, 2), (1, 1), (1, 1), 2),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=ids)
@pytest.mark.parametrize("passed", ["fprop", "dgrad", "wgrad"])
def test_convolutions(passed: str, case: ConvCase, device: str, monkeypatch) -> None:
    """Phases of a strided dgrad have tables of where chunks start, some of them empty."""
    operands = [
        torch.where(x.abs() < 2.0**-3, 0.0, x).bfloat16().float() for x in test_conv.tensors(case)
    ]
    for acc in (
        Accumulator("e6m9", chunk=4),
        Accumulator("e6m9", chunk=5, outer="e5m7", outer_rounding="stochastic"),
    ):
        for share in (Share(2, 99), Share(3, 4)):
            chunks = force(monkeypatch, share)
            on = tuple(t.to(device) for t in operands)
            got = test_conv.triton(passed, case, acc, on)
            assert chunks
            assert_bit_equal(got, test_conv.reference(passed, case, acc, tuple(operands)))


def test_products_without_chunks_are_not_shared(device: str, monkeypatch, made: list[Made]) -> None:
    chunks: Callable[[], list[int]] = force(monkeypatch, Share(1, 0))
    check(floats((5, 9), 1), floats((9, 8), 2), Accumulator("e6m9"), device)
    assert chunks == [1]
