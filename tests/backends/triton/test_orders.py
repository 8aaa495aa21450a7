"""Sums in other orders on the triton backend against the reference, to the bit."""

import pytest
import torch

import lpkernels as lp
from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends import Fused
from lpkernels.backends.triton import _config, _products
from tests.backends.triton.sums import beside_reference, pass_beside
from tests.cases import ACCUMULATORS, ConvCase
from tests.loops import each
from tests.support.operand_cases import tensor
from tests.support.products import tensors_of

ORDERED = [acc for acc in ACCUMULATORS if not acc.in_sequence]
TREES = [
    lp.accumulator("e4m3:toward_negative:order=pairwise"),
    lp.accumulator("e5m4_chunk11:stochastic:order=pairwise:bits=13"),
    lp.accumulator("fixed8_f3_wrap:toward_negative:order=pairwise"),
]
OTHERS = [
    lp.accumulator("e4m3:toward_negative:order=compensated"),
    lp.accumulator("e4m3:toward_negative:block=4:aligned_bits=3"),
    lp.accumulator("e5m4_chunk7:stochastic:block=3:aligned_bits=5"),
]


@each("acc", ORDERED)
def test_sums(acc: Accumulator, device: str) -> None:
    generator = torch.Generator().manual_seed(1)
    # Rows of all kinds are in one product.
    kinds = ("cancelling", "special", "wide")
    a = torch.cat([tensor((2, 21), kind, generator) for kind in kinds])
    b = torch.cat([tensor((21, 3), kind, generator) for kind in kinds], 1)
    beside_reference(a, b, acc, device, bias=tensor((9,), "cancelling", generator))


@each("acc", [*TREES, *OTHERS])
def test_short_sums(acc: Accumulator, device: str) -> None:
    generator = torch.Generator().manual_seed(2)
    for k in (0, 1, 2, 3, 4):
        a, b = tensor((3, k), "cancelling", generator), tensor((k, 2), "special", generator)
        beside_reference(a, b, acc, device, bias=tensor((2,), "wide", generator))


@each("acc", [TREES[1], OTHERS[2]])
def test_batches(acc: Accumulator, device: str) -> None:
    # There are more tiles than programs, which take the tiles one after the other.
    generator = torch.Generator().manual_seed(3)
    a, b = tensor((7, 2, 9), "wide", generator), tensor((7, 9, 3), "special", generator)
    beside_reference(a, b, acc, device)


@each("acc", [TREES[0], TREES[1], OTHERS[0], OTHERS[2]])
def test_positions_left_out(acc: Accumulator, device: str) -> None:
    """Phases of dgrad have every third tap, and some taps fall outside."""
    case = ConvCase((1, 2, 8), (3, 2, 7), (3,), (2,), (1,))
    pass_beside("dgrad", case, tensors_of(case), acc, device)


@each("acc", [TREES[0], OTHERS[0], OTHERS[1]])
def test_results_are_rounded_and_tiles_do_not_matter(
    acc: Accumulator, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(4)
    a, b = tensor((5, 6), "wide", generator), tensor((6, 9), "cancelling", generator)
    fused = Fused((), (), Quantizer("e3m2", "to_odd").to_ints())
    for bm, bn in ((2, 16), (8, 4)):
        tile = _config.Tile(bm, bn, 1)
        monkeypatch.setattr(_products, "exact_tile", lambda *_, tile=tile: tile)
        beside_reference(a, b, acc, device, fused=fused, name=f"{tile}")
