"""Sums in other orders on the triton backend against the reference, to the bit."""

import pytest
import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends import Fused, _reference
from tests.backends.triton import test_conv
from tests.cases import ACCUMULATORS, ConvCase, ids
from tests.compare import assert_bit_equal
from tests.support.operand_cases import tensor

backend = pytest.importorskip("lpkernels.backends.triton").BACKEND
_products = pytest.importorskip("lpkernels.backends.triton._products")
_config = pytest.importorskip("lpkernels.backends.triton._config")
pytestmark = pytest.mark.triton

SEED = torch.tensor(-1234567890123456789)
ROLE = 4
ORDERED = [acc for acc in ACCUMULATORS if not acc.in_sequence]
TREES = [
    Accumulator("e4m3", "toward_negative", order="pairwise"),
    Accumulator("e5m4", "stochastic", order="pairwise", random_bits=13, chunk=11),
    Accumulator("fixed8_f3_wrap", "toward_negative", order="pairwise"),
]
OTHERS = [
    Accumulator("e4m3", "toward_negative", order="compensated"),
    Accumulator("e4m3", "toward_negative", block=4, aligned_bits=3),
    Accumulator("e5m4", "stochastic", block=3, aligned_bits=5, chunk=7),
]


def check(a: Tensor, b: Tensor, bias: Tensor | None, acc: Accumulator, device: str) -> None:
    on = [None if x is None else x.to(device) for x in (a, b, bias)]
    got = backend.matmul(*on, acc.to_ints(), SEED.to(device), ROLE)
    want = _reference.BACKEND.matmul(a, b, bias, acc.to_ints(), SEED, ROLE)
    assert_bit_equal(got, want, f"{tuple(a.shape)} @ {tuple(b.shape)} {acc}")


@pytest.mark.parametrize("acc", ORDERED, ids=ids)
def test_sums(acc: Accumulator, device: str) -> None:
    generator = torch.Generator().manual_seed(1)
    # Rows of all kinds are in one product.
    kinds = ("cancelling", "special", "wide")
    a = torch.cat([tensor((2, 21), kind, generator) for kind in kinds])
    b = torch.cat([tensor((21, 3), kind, generator) for kind in kinds], 1)
    check(a, b, tensor((9,), "cancelling", generator), acc, device)


@pytest.mark.parametrize("acc", [*TREES, *OTHERS], ids=ids)
def test_short_sums(acc: Accumulator, device: str) -> None:
    generator = torch.Generator().manual_seed(2)
    for k in (0, 1, 2, 3, 4):
        a, b = tensor((3, k), "cancelling", generator), tensor((k, 2), "special", generator)
        check(a, b, tensor((2,), "wide", generator), acc, device)


@pytest.mark.parametrize("acc", [TREES[1], OTHERS[2]], ids=ids)
def test_batches(acc: Accumulator, device: str) -> None:
    # There are more tiles than programs, which take the tiles one after the other.
    generator = torch.Generator().manual_seed(3)
    a, b = tensor((7, 2, 9), "wide", generator), tensor((7, 9, 3), "special", generator)
    check(a, b, None, acc, device)


@pytest.mark.parametrize("acc", [TREES[0], TREES[1], OTHERS[0], OTHERS[2]], ids=ids)
def test_positions_left_out(acc: Accumulator, device: str) -> None:
    """Phases of dgrad have every third tap, and some taps fall outside."""
    case = ConvCase((1, 2, 8), (3, 2, 7), (3,), (2,), (1,))
    operands = test_conv.tensors(case)
    got = test_conv.triton("dgrad", case, acc, tuple(t.to(device) for t in operands))
    assert_bit_equal(got, test_conv.reference("dgrad", case, acc, operands))


@pytest.mark.parametrize("acc", [TREES[0], OTHERS[0], OTHERS[1]], ids=ids)
def test_results_are_rounded_and_tiles_do_not_matter(
    acc: Accumulator, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(4)
    a, b = tensor((5, 6), "wide", generator), tensor((6, 9), "cancelling", generator)
    fused = Fused((), (), Quantizer("e3m2", "to_odd").to_ints())
    want = ops.matmul(a, b, None, acc.to_ints(), SEED, ROLE, "reference", fused)
    for bm, bn in ((2, 16), (8, 4)):
        tile = _config.Tile(bm, bn, 1)
        monkeypatch.setattr(_products, "exact_tile", lambda *_, tile=tile: tile)
        got = backend.matmul(
            a.to(device), b.to(device), None, acc.to_ints(), SEED.to(device), ROLE, fused
        )
        assert_bit_equal(got, want, str((bm, bn)))
