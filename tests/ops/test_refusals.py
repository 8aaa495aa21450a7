"""Wrong calls of the private operators, and the words that the errors have."""

from functools import partial
from typing import Any

import pytest
import torch

from lpkernels import ops
from lpkernels.arithmetic import NATIVE, Accumulator, accumulator
from lpkernels.backends import How, matmul_of, native
from lpkernels.ops._products import crossing
from tests.support.refusals import refused

OP = torch.ops.lpkernels
SCALES = torch.ones(4, 2), torch.ones(3, 1)


def hadamard(**wrong: Any) -> Any:
    call = {"x": torch.zeros(3, 32), "size": 16, "signs": "te", "axis": 1, **wrong}
    return partial(ops.hadamard, **call)


def scaled(
    left: Any = None, scales: Any = SCALES, sizes: Any = (4, 0, 0, -127), acc: Any = None
) -> Any:
    left = torch.randn(4, 8) if left is None else left
    acc = acc or Accumulator("e6m9", chunk="scale")
    rest = ([4, 3], (1,), acc.to_ints(), None, 0, "cpu", (), (), ())
    call = ("matmul", left, torch.randn(8, 3), None, None, *rest, *scales, sizes)
    return partial(OP._multiply, *call)


def convolution(length: int) -> Any:
    """Of an image with two places by a longer kernel."""
    conv = ops.Convolution((1,), (0,), (1,), 1)
    product = ops.fprop_of(torch.ones(1, 1, 2), torch.ones(1, 1, length), None, conv)
    return OP._multiply(*crossing(product, How(Accumulator("e6m9").to_ints()), "cpu"))


test_wrong_values_are_refused = refused(
    [
        (hadamard(size=8), r"hadamard must be one of \(16, 32, 64, 128\) or None, got 8"),
        (hadamard(size=48), "one of"),
        (hadamard(size=32, signs="te"), "give a seed"),
        (hadamard(signs="random"), "'te' or a seed"),
        (hadamard(signs=2**32), "signs must be in"),
        (hadamard(axis=2), "axis of 2 dimensions"),
        (hadamard(x=torch.zeros(3, 40)), "that 16 divides"),
        (hadamard(x=torch.zeros(3, 32).double()), "float32"),
        (lambda: OP._hadamard(torch.zeros(3, 40), 16, 1, "cpu"), "16 divides"),
        (scaled(scales=(torch.ones(4, 3), SCALES[1])), "scales of the left operand"),
        (scaled(scales=(SCALES[0], SCALES[1].double())), "scales of the right operand"),
        (scaled(scales=(SCALES[0], None)), "two scales or none"),
        (scaled(sizes=(4, 0)), "two sizes"),
        (scaled(sizes=(-1, 0, 0, 0)), "scales of the left operand"),
        (scaled(sizes=(4, 0, 0, 301)), "an exponent"),
        (scaled(acc=accumulator("model_b200_mxf4")), "scales that change between groups of 16"),
        (scaled(acc=Accumulator("e6m9", chunk=4)), "chunk='scale'"),
        (scaled(left=torch.randn(8)), "expected a"),
        (
            lambda: native.multiply(
                None, matmul_of(torch.ones(2, 2), torch.ones(2, 2)), How(NATIVE.to_ints())
            ),
            "native sums without chunks are torch's own function",
        ),
        *((partial(convolution, n), "kernel that fits into the padded image") for n in (4, 5)),
    ],
    ValueError,
)


@pytest.mark.parametrize("transform", [0, 17, 32, -1, 16 + (2**33 << 8)])
def test_numbers_that_are_no_hadamard_transform_are_refused(transform: int) -> None:
    with pytest.raises((ValueError, TypeError)):
        OP._hadamard(torch.zeros(3, 32), transform, 1, "cpu")
