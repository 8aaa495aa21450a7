"""Matrix products of the triton backend, in sequence and in other orders, and convolutions against
the reference, to the bit."""

import pytest
import torch

import lpkernels as lp
from lpkernels.backends import (
    Fused,
)
from lpkernels.backends.planning.triton_tiles import Tile
from lpkernels.backends.triton import BACKEND, _layout, _products
from tests.backends.triton.sums import DRAWN, beside_reference, pass_beside
from tests.cases import CONV_CASES, EVERY_ACCUMULATOR, ConvCase
from tests.compare import assert_bit_equal
from tests.support.products import PASSES, convolve, tensor, tensors_of


@pytest.mark.parametrize("acc", EVERY_ACCUMULATOR, ids=str)
def test_products(acc: lp.Accumulator, device: str) -> None:
    """Rows of all kinds are in one product."""
    generator = torch.Generator().manual_seed(1)
    kinds = ("cancelling", "special", "wide")
    a = torch.cat([tensor((2, 21), kind, generator) for kind in kinds])
    b = torch.cat([tensor((21, 3), kind, generator) for kind in kinds], 1)
    beside_reference(a, b, acc, device, bias=tensor((9,), "cancelling", generator))


@pytest.mark.parametrize("acc", ["e8m10", "e8m20_sat_chunk2", "e8m13:product=e8m10", "e3m3_b-100"])
def test_both_ends_of_the_exponents(acc: str, device: str) -> None:
    for left, right in ((60, 44), (112, -8), (-77, -78), (-119, -119)):
        a, b = (torch.randint(-255, 256, shape).double() for shape in ((3, 5), (5, 4)))
        a, b = (a * 2.0**left).float(), (b * 2.0**right).float()
        beside_reference(a, b, lp.accumulator(acc), device)


@pytest.mark.parametrize("seed, role", [(0, 1), (-1, 0), (2**63 - 1, 11)])
def test_the_seed_of_a_role(seed: int, role: int, device: str) -> None:
    a, b = torch.randn(4, 9), torch.randn(9, 5)
    acc = lp.Accumulator("e5m3", "stochastic")
    beside_reference(a, b, acc, device, seed=torch.tensor(seed), role=role)


TREES = [lp.accumulator(name) for name in (
    "e4m3:toward_negative:order=pairwise",
    "e5m4_chunk11:stochastic:order=pairwise:bits=13",
    "fixed8_f3_wrap:toward_negative:order=pairwise",
)]  # fmt: skip
OTHERS = [lp.accumulator(name) for name in (
    "e4m3:toward_negative:order=compensated",
    "e4m3:toward_negative:block=4:aligned_bits=3",
    "e5m4_chunk7:stochastic:block=3:aligned_bits=5",
)]  # fmt: skip


@pytest.mark.parametrize("acc", [TREES[1], OTHERS[2]], ids=str)
def test_batches_of_sums_in_other_orders(acc: lp.Accumulator, device: str) -> None:
    # There are more tiles than programs, which take the tiles one after the other.
    generator = torch.Generator().manual_seed(3)
    a, b = tensor((7, 2, 9), "wide", generator), tensor((7, 9, 3), "special", generator)
    beside_reference(a, b, acc, device)


@pytest.mark.parametrize("acc", [TREES[0], TREES[1], OTHERS[0], OTHERS[2]], ids=str)
def test_positions_left_out(acc: lp.Accumulator, device: str) -> None:
    """Phases of dgrad have every third tap, and some taps fall outside."""
    case = ConvCase((1, 2, 8), (3, 2, 7), (3,), (2,), (1,))
    pass_beside("dgrad", case, tensors_of(case), acc, device)


@pytest.mark.parametrize("acc", [TREES[0], OTHERS[0], OTHERS[1]], ids=str)
def test_results_are_rounded_and_tiles_do_not_matter(acc, device, monkeypatch):
    generator = torch.Generator().manual_seed(4)
    a, b = tensor((5, 6), "wide", generator), tensor((6, 9), "cancelling", generator)
    fused = Fused((), (), lp.Quantizer("e3m2", "to_odd").to_ints())
    for bm, bn in ((2, 16), (8, 4)):
        tile = Tile(bm, bn, 1)
        monkeypatch.setattr(_products, "exact_tile", lambda *_, tile=tile: tile)
        beside_reference(a, b, acc, device, fused=fused, name=f"{tile}")


CHUNKED = lp.Accumulator("e5m4", chunk=3, outer="e5m3")
STRIDES = ConvCase((1, 2, 3, 5), (3, 2, 2, 3), (2, 2), (1, 1), (1, 1))


CASES = CONV_CASES | {
    "few positions": ConvCase((1, 2, 3), (5, 2, 3), (1,), (0,), (1,)),
    "many channels": ConvCase((1, 2, 3), (34, 1, 2), (1,), (0,), (1,), 2),
    "draws of groups": ConvCase((2, 4, 3), (6, 2, 2), (1,), (1,), (1,), 2),
    "an output on padding alone": ConvCase((1, 1, 1, 1), (2, 1, 1, 1), (9, 9), (4, 4), (1, 1)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_convolutions(case: ConvCase, device: str) -> None:
    for name in PASSES:
        acc = DRAWN if case.groups > 1 else CHUNKED
        pass_beside(name, case, tensors_of(case), acc, device)


@pytest.mark.parametrize("acc", EVERY_ACCUMULATOR[::6], ids=str)
def test_convolutions_sum_in_every_way(acc: lp.Accumulator, device: str) -> None:
    for name in PASSES:
        pass_beside(name, STRIDES, tensors_of(STRIDES), acc, device)


NANS = (0x7FC00000, 0x7FFFFFFF, -1, 0x7F800001, -0x7FFFFF, _layout.ABSENT, _layout.ABSENT - 2**31)


@pytest.mark.parametrize("bits", NANS, ids=hex)
def test_no_nan_is_an_absent_tap(bits: int, device: str) -> None:
    a = torch.full((2, 3), bits, dtype=torch.int32).view(torch.float32)
    beside_reference(a, torch.ones(3, 4), lp.Accumulator("e5m4"), device)
    tensors = tensors_of(STRIDES)
    for t in tensors[:3]:
        t.view(-1).view(torch.int32)[1::7] = bits
    for name in PASSES:
        pass_beside(name, STRIDES, tensors, CHUNKED, device)


def test_no_channels(device: str) -> None:
    case = ConvCase((2, 0, 3), (3, 0, 2), (1,), (0,), (1,))
    tensors = tensors_of(case)
    got = convolve(BACKEND, "fprop", case, tuple(t.to(device) for t in tensors), CHUNKED)
    assert_bit_equal(got, lp.quantize(tensors[3], "e5m3").view(1, 3, 1).expand(2, 3, 2))


def test_no_output_at_all(device: str) -> None:
    case = ConvCase((2, 2, 3, 3), (3, 2, 4, 2), (1, 1), (0, 0), (1, 1))
    x, w, dy, bias = (t.to(device) for t in tensors_of(case))
    shapes = ((2, 3, 0, 2), case.input_shape, case.weight_shape)
    for name, shape in zip(PASSES, shapes, strict=True):
        got = convolve(BACKEND, name, case, (x, w, dy, bias), CHUNKED)
        assert_bit_equal(got, torch.zeros(shape))
