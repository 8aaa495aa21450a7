"""Tables on the triton backend against the reference, to the bit, and compiled for a GPU."""

import torch
from torch import Tensor

from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends import Fused
from lpkernels.backends.triton import BACKEND
from lpkernels.formats import TableFormat
from tests.backends import by_hand
from tests.backends.cpu_products import REFERENCE, ROLE, SEED
from tests.backends.table_cases import operands, tables
from tests.compare import assert_bit_equal
from tests.support.elements import assert_quantized

POSIT = "posit8es1"


def _reference_rounded(x: Tensor, table: TableFormat) -> Tensor:
    out = torch.empty_like(x)
    by_hand.quantize(REFERENCE, x, Quantizer(table).to_ints(), None, 0, 0, out)
    return out


def test_operands_and_blocks_of_tables_are_the_references(device: str) -> None:
    a, b = operands(3)
    acc, fused = Accumulator("e6m9").to_ints(), Fused(*[Quantizer(POSIT).to_ints()] * 3)
    left, right = (_reference_rounded(x, tables()[0]) for x in (a, b))
    want = _reference_rounded(
        by_hand.matmul(REFERENCE, left, right, None, acc, SEED, ROLE), tables()[0]
    )
    got = by_hand.matmul(BACKEND, a.to(device), b.to(device), None, acc, SEED, ROLE, fused)
    assert_bit_equal(got, want, "fused")
    x = torch.randn(3, 70) * 5
    x[0, :40], x[1, 3] = 0.0, float("nan")
    for rounding in ("nearest_even", "stochastic", "to_odd"):
        for fmt in ("block64_nf4_sfp32", "block32_linear4_sfp32"):
            assert_quantized(BACKEND, x, Quantizer(fmt, rounding), device)
