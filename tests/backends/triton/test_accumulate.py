"""accumulate makes one rounded addition for every element; it is compared with the reference to the
bit."""

import numpy as np
import torch
from torch import Tensor

from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends import _reference, native
from lpkernels.backends.triton import BACKEND
from lpkernels.backends.triton.elementwise import accumulate
from lpkernels.rng import SITE_BIAS, SITE_OUTER
from tests.cases import ACCUMULATORS, hard_values
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.element_bits import quantized

SEED = torch.tensor(-77)
# Each addition occurs once: accumulators with equal ones would repeat it.
ADDITIONS = {(a.outermost, a.outermost_rounding, a.random_bits, a.rng): a for a in ACCUMULATORS}


def operands(acc: Accumulator) -> tuple[Tensor, Tensor]:
    """Values of the format, with hard ones beside them, as matrices of 9 columns."""
    with np.errstate(all="ignore"):
        hard = torch.from_numpy(hard_values(acc.outermost, 5).astype(np.float32))
    total = quantized(hard.flip(0).roll(37), Quantizer(acc.outermost))
    rows = hard.numel() // 9
    return total[: rows * 9].view(rows, 9), hard[: rows * 9].view(rows, 9)


@each("acc", ADDITIONS.values())
def test_matches_reference(acc: Accumulator, device: str) -> None:
    total, addend = operands(acc)
    for site, k, x in (
        (SITE_OUTER, 6, addend),
        (SITE_BIAS, 0, addend[1]),
        (SITE_OUTER, 2**33, total),
    ):
        want, got = total.clone(), total.to(device, copy=True)
        rest = ((5, 2**33 + 7), acc.to_ints(), SEED, 4, site, k)
        _reference.BACKEND.accumulate(want, x.expand_as(total), *rest)
        BACKEND.accumulate(got, x.to(device), *rest)
        assert_bit_equal(got, want, f"site {site}")


def test_strides_and_tiles_leave_no_trace(device: str, monkeypatch) -> None:
    acc = Accumulator("e5m6", "stochastic", random_bits=13)
    total, addend = operands(acc)
    want = total.clone()
    rest = ((0, 0), acc.to_ints(), SEED, 4, SITE_OUTER, 3)
    _reference.BACKEND.accumulate(want, addend, *rest)
    for elements, columns in ((8, 4), (64, 16)):
        monkeypatch.setattr(accumulate, "_ELEMENTS", elements)
        monkeypatch.setattr(accumulate, "_COLUMNS", columns)
        got = total.to(device, copy=True)
        BACKEND.accumulate(got, addend.t().contiguous().t().to(device), *rest)
        assert_bit_equal(got, want)
    empty = torch.empty(0, 3, device=device)
    BACKEND.accumulate(empty, empty, *rest)


def test_sums_of_torch_in_chunks(device: str) -> None:
    """The order is "native": with exact inner sums only the outer additions show."""
    acc = Accumulator("fp32", "stochastic", chunk=4, outer="e6m3", order="native")
    a, b, bias = (torch.randint(-3, 4, s).float() for s in ((5, 18), (18, 7), (7,)))
    plain = Accumulator("fp32", "stochastic", chunk=4, outer="e6m3")
    want = _reference.BACKEND.matmul(a, b, bias, plain.to_ints(), SEED, 4)
    on = [x.to(device) for x in (a, b, bias)]
    assert_bit_equal(native.matmul(native.Adder(BACKEND, acc.to_ints(), SEED, 4), *on), want)
