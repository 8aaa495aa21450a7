"""Programs that share the chunks of a sum: the bits of the cpu backend, whatever the share."""

import pytest
import torch

import lpkernels as lp
from lpkernels.backends import Fused
from lpkernels.backends.planning import triton_tiers as _tiers
from lpkernels.backends.planning import triton_tiles
from lpkernels.backends.planning.triton_splits import Share
from lpkernels.backends.planning.triton_tiles import Tile
from lpkernels.backends.triton import _products
from lpkernels.backends.triton.certified import stages
from tests.backends.triton.sums import beside_cpu, floats, makers, only, pass_beside
from tests.cases import ConvCase
from tests.support.products import PASSES, tensors_of

#: One program and many share the chunks, in one pass and in several; some shares are longer than
#: `sequential.AHEAD`, some are not.
SHARES = [Share(1, 18), Share(4, 18), Share(18, 18), Share(5, 7), Share(2, 9)]
#: 70 steps are 18 chunks of 4, the last one shorter.
SHAPE = (5, 70, 33)


def force(monkeypatch: pytest.MonkeyPatch, share: Share) -> list[int]:
    """Makes every product take this share, and returns the list of the numbers of chunks so far."""
    chunks: list[int] = []

    def shared(count: int, *_: object) -> Share:
        chunks.append(count)
        return share

    monkeypatch.setattr(_products, "share", shared)
    return chunks


OUTER = (
    "e6m9_chunk4", "e6m9_chunk4:outer=e5m10:outer_rounding=stochastic",
    "e6m9_chunk4:stochastic:outer=e6m11:outer_rounding=to_odd",
    "e6m9_chunk4:outer=e5m7:outer_rounding=stochastic:philox",
)  # fmt: skip


@pytest.mark.parametrize("acc", OUTER)
@pytest.mark.parametrize("share", SHARES, ids=str)
def test_shares_do_not_change_bits(acc, share, device, tile_tiers, monkeypatch):
    chunks = force(monkeypatch, share)
    m, k, n = SHAPE
    a, b, bias = floats((m, k), 3), floats((k, n), 4), floats((n,), 5, bits=20)
    fused = Fused((), (), lp.Quantizer("e5m6").to_ints())
    beside_cpu(a, b, lp.accumulator(acc), device, bias=bias, fused=fused)
    assert chunks == [18]
    assert -1 not in makers(tile_tiers)


@pytest.mark.parametrize(
    "acc, tier",
    [("e5m10_chunk8:outer=e6m9", _tiers.HALF), ("fp32_chunk7", _tiers.PLAIN),
    ("e6m9_nosub_chunk10", _tiers.FUSED), ("e6m11_chunk9:outer=fp32", _tiers.SPLIT),
    ("e6m9_chunk6:product=e5m2", _tiers.FLOOR), ("e4m3fn_sat_chunk7", _tiers.RANGE),
    ("e6m9_nosub_chunk9:product=e5m2", _tiers.FUSED64), ("e5m10_chunk9", _tiers.NEAREST),
    ("e5m10_chunk12:stochastic:bits=3", _tiers.CUT),
    ("e6m9_chunk12:stochastic:philox", _tiers.DIRECTED),
    ("e5m10_chunk11:toward_negative", _tiers.DIRECTED),
    ("fixed12_f7_chunk5:to_odd:outer=fp32", _tiers.FIXED)],
)  # fmt: skip
def test_every_tier_shares(acc, tier, device, tile_tiers, monkeypatch):
    only(monkeypatch, tier)
    m, k, n = SHAPE if device == "cuda" else (5, 43, 33)
    force(monkeypatch, Share(2, 3))
    a, b, bias = floats((m, k), 1), floats((k, n), 2), floats((n,), 3, bits=20)
    beside_cpu(a, b, lp.accumulator(acc), device, bias=bias)
    assert makers(tile_tiers) == {tier}


@pytest.mark.parametrize("outer", [Tile(1, 32, 1), Tile(4, 16, 2)], ids=str)
def test_chunks_are_added_in_smaller_tiles(outer, device, tile_tiers, monkeypatch):
    """Each tile that adds lies somewhere inside one of the tiles in which the sums are made."""
    force(monkeypatch, Share(2, 3))
    made_in = Tile(8, 64, 4)
    monkeypatch.setattr(triton_tiles, "certified_tile", lambda *_, **__: made_in)
    monkeypatch.setattr(stages, "outer_tile", lambda _: outer)
    a, b = floats((2, 11, 27), 1), floats((2, 27, 80), 2)
    beside_cpu(a, b, lp.Accumulator("e6m9", chunk=8), device, bias=floats((80,), 3))
    assert -1 not in makers(tile_tiers)


@pytest.mark.parametrize("share", [Share(2, 99), Share(3, 3), Share(2, 1)], ids=str)
def test_tiles_that_fail_in_one_part_are_done_again(share, device, tile_tiers, monkeypatch):
    """Sums overflow in one chunk of one row: in the first, a middle or the last part."""
    force(monkeypatch, share)
    tile = Tile(4, 32, 1)
    monkeypatch.setattr(triton_tiles, "certified_tile", lambda *_, **__: tile)
    monkeypatch.setattr(_products, "exact_tile", lambda *_, **__: tile)
    for first in (0, 20, 40):
        a, b = torch.full((8, 61), 2.0**-3), torch.ones(61, 40)
        # 20 products pass 2^15, which is half of what e5m9 holds.
        a[6, first : first + 20], b[first : first + 20, 36] = 31.0, 63.0
        beside_cpu(a, b, lp.Accumulator("e5m9", chunk=20), device)
        assert {tier < 0 for tier in makers(tile_tiers)} == {False, True}


def test_a_later_tier_makes_what_an_earlier_one_leaves(device, tile_tiers, monkeypatch):
    """The products lie below float32's normals, so float64 makes the parts."""
    force(monkeypatch, Share(3, 4))
    tiny = {"low": -100, "high": -80}
    a, b = floats((9, 45), 1, **tiny), floats((45, 33), 2, **tiny)
    beside_cpu(a, b, lp.Accumulator("e5m10", chunk=8), device)
    assert makers(tile_tiers) == {_tiers.NEAREST}


@pytest.mark.parametrize("chunk", [0, 3, 5])
def test_a_later_kernel_takes_over_in_any_pass(chunk, device, tile_tiers, monkeypatch):
    """Sums of one chunk of one output pass the bound of float32, but not the bound of float64."""
    force(monkeypatch, Share(2, 2))
    tile = Tile(4, 32, 1)
    monkeypatch.setattr(triton_tiles, "certified_tile", lambda *_, **__: tile)
    # Products have 14 bits and are integers: sums below 2^24 have no bit that float32 lacks.
    a, b = (65.0 + 2.0 * (32.0 * torch.rand(shape)).floor() for shape in ((8, 240), (240, 40)))
    here = slice(40 * chunk, 40 * chunk + 40)
    a[6, here], b[here, 36] = 127.0 * 4, 127.0 * 8
    beside_cpu(a, b, lp.Accumulator("e8m12", chunk=40), device)
    assert makers(tile_tiers) == {_tiers.SPLIT, _tiers.FUSED64}


def test_zeros_keep_their_sign(device: str, monkeypatch) -> None:
    """Chunks underflow to -0, but sums from +0 on are +0, in every pass."""
    acc = lp.Accumulator("e4m3", chunk=2, outer_rounding="toward_negative")
    tiny, b = torch.full((3, 8), -(2.0**-9)), torch.full((8, 16), 2.0**-9)
    b[:, 5], b[4:, ::2] = -0.0, 0.0
    for share in (Share(2, 4), Share(1, 1), Share(2, 2)):
        force(monkeypatch, share)
        beside_cpu(tiny, b, acc, device)
        beside_cpu(tiny, b, lp.Accumulator("e4m3", chunk=2), device)


CONVOLUTIONS = [
    ConvCase((1, 3, 5, 4), (5, 3, 3, 3), (1, 1), (1, 1), (1, 1)),
    ConvCase((1, 4, 9), (6, 4, 4), (3,), (2,), (1,)),
    ConvCase((2, 4, 6, 5), (6, 2, 3, 3), (2, 2), (1, 1), (1, 1), 2),
]


@pytest.mark.parametrize("name", PASSES)
def test_convolutions(name: str, device: str, monkeypatch) -> None:
    """Phases of a strided dgrad have tables of where chunks start, some of them empty."""
    few = lp.Accumulator("e6m9", chunk=4)
    drawn = lp.Accumulator("e6m9", chunk=5, outer="e5m7", outer_rounding="stochastic")
    for case in CONVOLUTIONS:
        x, w, dy, bias = (
            torch.where(x.abs() < 2.0**-3, 0.0, x).bfloat16().float() for x in tensors_of(case)
        )
        for acc, share in ((few, Share(2, 99)), (few, Share(3, 4)), (drawn, Share(3, 4))):
            chunks = force(monkeypatch, share)
            pass_beside(name, case, (x, w, dy, bias), acc, device)
            assert chunks
