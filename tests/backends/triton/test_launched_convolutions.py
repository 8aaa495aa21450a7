"""The kernels of convolutions of sums in other orders: their launches are recorded and bound as
Triton binds them, but not started."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lpkernels.arithmetic import Accumulator
from lpkernels.backends import NOT_FUSED, Fused
from tests.cases import ConvCase

pytestmark = pytest.mark.triton
pytest.importorskip("triton")

from tests.backends.triton import test_conv  # noqa: E402
from tests.backends.triton.launches import keys, recorded  # noqa: E402

E5M2 = (*Accumulator("e5m2").fmt.to_ints(), 0, 0, 0, 0)
CASES = {
    "tree": (Accumulator("e5m10", order="pairwise"), Fused(E5M2, E5M2, E5M2)),
    "compensated": (Accumulator("e5m10", order="compensated", product="e4m3"), NOT_FUSED),
    "aligned": (
        Accumulator("e8m13", "toward_zero", block=4, aligned_bits=24, chunk=8, outer="fp32"),
        NOT_FUSED,
    ),
}  # fmt: skip


@pytest.fixture
def launches() -> Iterator[list[Any]]:
    """Every launch of a convolution."""
    with recorded() as calls:
        yield calls


def convolve(acc: Accumulator, case: ConvCase, fused: Fused) -> None:
    shapes = (case.input_shape, case.weight_shape, test_conv.output_shape(case))
    x, w, dy = (torch.zeros(shape) for shape in shapes)
    test_conv.triton("fprop", case, acc, (x, w, dy, torch.zeros(len(w))), fused)


@pytest.mark.parametrize("name", CASES)
def test_one_kernel_for_all_sizes(name: str, launches: list[Any]) -> None:
    acc, fused = CASES[name]
    found = []
    for n, c, size, k in ((8, 16, 33, 3), (16, 9, 48, 3), (7, 12, 64, 5)):
        case = ConvCase((n, c, size, size + 1), (64, c, k, k), (2, 2), (k // 2, 1), (1, 1))
        convolve(acc, case, fused)
        found.append(keys(launches))
    assert len(found[0]) == 3
    assert found[0] == found[1] == found[2]
