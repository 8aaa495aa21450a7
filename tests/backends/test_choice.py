"""The order of cuda and triton follows from the counts of their kernels."""

import statistics

import pytest
import torch

from bench.predict.counts import CUDA, TRITON
from lpkernels import backends
from tests.loops import each

#: The kernels of both backends for the same operands and accumulator: cuda's kernel, its layout in
#: `bench.predict.counts.Layouts`, triton's kernel.
PAIRS = {
    "matmul": [
        ("half precision", "packed", "half"), ("bfloat16", "packed", "brain"),
        ("float32", "packed", "plain"), ("two steps, watched", "packed", "fused"),
        ("two steps, watched", "packed_chunks", "fused, chunks"),
        ("floor, watched", "packed", "floor"), ("floor, clipped", "packed", "range"),
        ("double, floor", "packed", "nearest64"), ("toward zero", "packed", "toward_zero"),
        ("stochastic", "packed", "stochastic"),
    ],
    "conv_fprop": [
        ("half precision", "tables", "half, image"),
        ("two steps, watched", "tables", "fused, image"),
        ("floor, watched", "tables", "floor, image"),
    ],
}  # fmt: skip


@each("operation, ratio", [("matmul", 1.08), ("conv_fprop", 1.19)])
def test_the_backend_of_fewer_instructions_is_first(operation: str, ratio: float) -> None:
    ratios = [
        TRITON[triton].product / getattr(CUDA[cuda], layout).product
        for cuda, layout, triton in PAIRS[operation]
    ]
    assert round(statistics.geometric_mean(ratios), 2) == ratio
    assert backends.gpu_orders()[operation] == ("cuda", "triton")


def test_the_first_backend_that_has_the_operation_is_chosen(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def why_not(name: str) -> str:
        asked.append(name)
        return f"no {name} here"

    monkeypatch.setattr(backends, "_why_not", why_not)
    monkeypatch.setattr(backends, "_chosen", {})
    for operation, order in backends.gpu_orders().items():
        with pytest.raises(NotImplementedError, match="no cuda here"):
            backends.select("auto", operation, torch.device("cuda", 7))
        assert asked == [*order, "reference"]
        asked.clear()
