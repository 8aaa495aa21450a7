"""fnuz and P3109 on the triton backend, against the oracle of tests/oracles/one_zero.py and, in
sums, the reference."""

import itertools

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels.backends import get
from lpkernels.formats import parse_format
from lpkernels.rounding import ROUNDINGS
from tests.compare import assert_bit_equal
from tests.oracles.one_zero import SMALL, Small, decoded, hard, rounded
from tests.support.elements import assert_codes

#: Each kind of format with few bits, and the formats of 8 bits that are used most.
SOME = [fmt for fmt in SMALL if (fmt.k, fmt.p) in ((4, 2), (4, 1), (8, 3), (8, 4))]


@pytest.mark.parametrize("fmt", SOME, ids=str)
def test_rounding_and_counts(fmt: Small, device: str) -> None:
    with np.errstate(over="ignore"):
        x = hard(fmt).astype(np.float32)
    wide, x32 = x.astype(np.float64), torch.from_numpy(x).to(device)
    for overflow, mode in itertools.product(("saturate", "nan"), ROUNDINGS[:-1]):
        ours = parse_format(f"{fmt.name}_{overflow[:3]}")
        want, beyond = rounded(wide, fmt, mode, overflow)
        counts = torch.zeros(4, dtype=torch.int64, device=device)
        got = lp.quantize(x32, ours, mode, backend="triton", counts=counts)
        assert_bit_equal(got.cpu(), want.astype(np.float32), f"{mode} to {ours}")
        lost = np.isfinite(x) & (x != 0) & (want == 0) & ~beyond
        assert counts.tolist()[:2] == [beyond.sum(), lost.sum()], f"{mode} to {ours}"
        got = lp.quantize(x32.double(), ours, mode, backend="triton")
        assert_bit_equal(got.double().cpu(), want, f"{mode} to {ours}")


@pytest.mark.parametrize("fmt", SOME, ids=str)
def test_codes(fmt: Small, device: str) -> None:
    values = torch.from_numpy(decoded(fmt)).float()
    assert_codes(
        get("triton"), torch.cat([values, torch.tensor([-0.0])]), parse_format(fmt.name), device
    )
