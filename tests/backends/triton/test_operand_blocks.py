"""Blocks aligned by their operands, as tensor cores add them, of the triton backend."""

import itertools
from typing import Any

import pytest
import torch

from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends import Fused
from tests.backends.gpu_tests import INTERPRETED
from tests.cases import CONV_CASES, ConvCase
from tests.support import products as cases
from tests.support.products import PASSES, assert_pass, assert_product, rows, short_rows, tensor
from tests.support.products import tensors_of as tensors_of_pass

# Some operands hold values that no tensor core has.
pytestmark = pytest.mark.filterwarnings("ignore:.* operand holds")
#: Convolutions with absent taps, with groups, and with phases of dgrad that leave positions out.
FEW_CASES = (
    ConvCase((2, 4, 5), (2, 2, 3), (1,), (1,), (1,), 2),
    ConvCase((1, 2, 5), (3, 2, 4), (2,), (2,), (1,)),
)


@pytest.mark.parametrize(
    "acc", [*cases.UNIT_ACCUMULATORS.values(), *cases.MODES, *cases.SHORT_MODES], ids=str
)
def test_blocks_aligned_by_operands(acc: Accumulator, adapter: Any, device: str) -> None:
    """Long rows of every kind for the named units, short ones in every mode, and rows whose sums
    float32 holds."""
    unit = acc in cases.UNIT_ACCUMULATORS.values()
    k = 21 if not unit else 37 if INTERPRETED else 75
    if acc not in cases.SHORT_MODES:
        a, b = rows(2 if unit or INTERPRETED else 9, k, 3), rows(1, k, 4).T
        assert_product(adapter, a, b, acc, device)
    if acc in cases.SHORT_MODES or (unit and not INTERPRETED):
        m, n = (3, 2) if INTERPRETED else (9, 3)
        assert_product(adapter, short_rows(m, k, 3), short_rows(n, k, 4).T, acc, device)


def test_initial_of_batches_and_rounded_results(adapter: Any, device: str) -> None:
    # Rows across and along tiles, steps of any length.
    generator = torch.Generator().manual_seed(8)
    acc = cases.UNIT_ACCUMULATORS["ada_e4m3"]
    e4m3, e5m2 = (Quantizer(name).to_ints() for name in ("e4m3fn", "e5m2"))
    for (m, n), fused in itertools.product(
        ((2, 9), (9, 2)), (Fused(), Fused(e4m3, (), e5m2), Fused(e4m3, e5m2, e5m2))
    ):
        a, b = (tensor(s, "short", generator) for s in ((3, m, 9), (3, 9, n)))
        initial = tensor((3, n, m), "cancelling", generator).mT
        assert_product(adapter, a, b, acc, device, initial=initial, fused=fused)


@pytest.mark.parametrize("exponent", [0, 37, 38, 39, 40, 41, 60], ids=str)
def test_larger_operands_are_summed_in_float64(exponent: int, adapter: Any, device: str) -> None:
    # 40 products of 2^exponent squared: where the certificate of float32 ends.
    x = tensor((3, 40), "short", torch.Generator().manual_seed(9)) * 2.0**exponent
    assert_product(adapter, x, x.T, cases.UNIT_ACCUMULATORS["h100_e4m3"], device)


@pytest.mark.parametrize("name", PASSES, ids=str)
@pytest.mark.parametrize("acc", cases.CONVOLVED, ids=str)
def test_passes_of_convolutions_with_operands(name, acc, adapter, device):
    for case in FEW_CASES if INTERPRETED else (*FEW_CASES, *CONV_CASES.values()):
        assert_pass(adapter, name, case, tensors_of_pass(case), acc, device)
