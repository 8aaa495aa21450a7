"""The operators of running ranges: the ends of finite values, averages of them."""

import math

import torch

from lpkernels import ops
from tests.compare import assert_bit_equal
from tests.loops import each

INF, NAN = math.inf, math.nan
ENDS = [
    ([3.0, -1.5, 2.0], (-1.5, 3.0)),
    ([[NAN, 2.0], [INF, -INF]], (2.0, 2.0)),
    ([NAN, INF, -INF], (INF, -INF)),
    ([], (INF, -INF)),
    (-4.0, (-4.0, -4.0)),
    ([2.0**-20, -(2.0**-20)], (-(2.0**-20), 2.0**-20)),
]


@each("values, ends", ENDS)
@each("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ends_are_those_of_finite_values(values, ends, dtype) -> None:
    x = torch.tensor(values, dtype=dtype)
    ends = torch.tensor(ends).to(dtype).float()
    assert_bit_equal(ops.finite_range(x), ends)


def test_ends_of_tensors_that_require_a_gradient_record_none() -> None:
    x = torch.randn(3, 4, requires_grad=True).t()
    assert not ops.finite_range(x).requires_grad
    assert_bit_equal(ops.finite_range(x), torch.stack([x.min(), x.max()]).detach())


def test_average_takes_the_range_with_what_the_past_leaves() -> None:
    average, weight = torch.tensor([1.0, 5.0]), torch.tensor(0.5)
    got = ops.update_range(torch.tensor([-1.0, 3.0]), average, weight, 0.75)
    assert got.tolist() == [-1.0, 3.0]
    assert average.tolist() == [0.5, 4.5] and weight.item() == 0.625
    ops.update_range(torch.tensor([NAN, INF]), average, weight, 0.75)
    assert average.tolist() == [0.5, 4.5] and weight.item() == 0.625
