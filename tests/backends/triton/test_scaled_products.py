"""Products of codes by scale on the triton backend, against the reference, to the bit: every kernel
of sums, every order of scales, drawn sums, segments of all lengths."""

import numpy as np
import pytest

from lpkernels.backends.triton import BACKEND
from tests.backends.cpu_products import REFERENCE
from tests.backends.scaled_cases import ACCUMULATORS, ELEMENTS, case, product
from tests.compare import assert_bit_equal

DRAWN = (
    "e6m5_chunkscale:stochastic:order=pairwise",
    "e6m5_chunkscale:stochastic:block=4:aligned_bits=9",
)


@pytest.mark.parametrize("seed", range(15), ids=str)
def test_mixtures_match_reference(seed: int, device: str) -> None:
    a, b, scales, start = case(seed, ELEMENTS[seed % len(ELEMENTS)], 24)
    text = (*ACCUMULATORS, *DRAWN)[seed]
    with np.errstate(all="ignore"):
        want = product(REFERENCE, (a, b, scales, start), text)
    there = scales._replace(left=scales.left.to(device), right=scales.right.to(device))
    begin = None if start is None else start.to(device)
    got = product(BACKEND, (a.to(device), b.to(device), there, begin), text)
    assert_bit_equal(got.cpu(), want, text)
