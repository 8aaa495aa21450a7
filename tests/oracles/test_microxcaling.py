"""Blocks of 32 against microxcaling, Microsoft's library of MX formats, live: 10^6 values.

It is on no package index: a checkout of github.com/microsoft/microxcaling on PYTHONPATH runs these
tests. tests/reference/test_scaled_vectors.py compares with its recorded results. Its results have
no -0.
"""

import numpy as np
import pytest
import torch

from tests.compare import assert_bit_equal
from tests.oracles.scaled_parts import scaled, wide_blocks

mx_ops = pytest.importorskip("mx.mx_ops", reason="microxcaling is not installed")
pytestmark = pytest.mark.slow

ELEMENTS = {
    **{"fp8_e4m3": "e4m3", "fp8_e5m2": "e5m2", "fp6_e2m3": "e2m3", "fp6_e3m2": "e3m2"},
    **{"fp4_e2m1": "e2m1", "int8": "int8f6", "int4": "int4f2"},
}


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("mode, ours", [("even", "nearest_even"), ("nearest", "nearest_away")])
def test_blocks(element: str, mode: str, ours: str) -> None:
    x = wide_blocks(31_250)
    how = {"axes": [-1], "block_size": 32, "round": mode}
    want = mx_ops._quantize_mx(torch.from_numpy(x), 8, element, **how).numpy()
    q = scaled(x, f"block32_{ELEMENTS[element]}:{ours}")
    assert_bit_equal(q.values * q.scale + np.float32(0), want + np.float32(0), element)
