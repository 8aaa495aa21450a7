"""The operator of Hadamard transforms: torch's checks, compiled calls, what is refused."""

import pytest
import torch

from lpkernels import ops
from tests.compare import assert_bit_equal

OP = torch.ops.lpkernels._hadamard


def test_opcheck(backend: str) -> None:
    tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
    for x in (torch.randn(3, 32), torch.randn(32, 3).bfloat16().t(), torch.zeros(0, 16)):
        torch.library.opcheck(OP.default, (x, 16, 1, backend), test_utils=tests)
    torch.library.opcheck(OP.default, (torch.randn(4, 64), 32 + (5 << 8), -1, "auto"))


def test_result_is_new_and_empty_tensors() -> None:
    x = torch.randn(3, 0, 2)
    assert ops.hadamard(x, 64, 7, 1).shape == (3, 0, 2)
    x = torch.randn(32, 4, dtype=torch.float16)
    y = ops.hadamard(x, 32, 7, 0)
    assert y.dtype == torch.float32 and y.is_contiguous()
    assert_bit_equal(ops.hadamard(x, 32, 7, -2), y)


@pytest.mark.parametrize("wrong, match", [
    ({"size": 8}, r"hadamard must be one of \(16, 32, 64, 128\) or None, got 8"),
    ({"size": 48}, "one of"),
    ({"size": 32, "signs": "te"}, "give a seed"),
    ({"signs": "random"}, "'te' or a seed"),
    ({"signs": 2**32}, "signs must be in"),
    ({"axis": 2}, "axis of 2 dimensions"),
    ({"x": torch.zeros(3, 40)}, "that 16 divides"),
    ({"x": torch.zeros(3, 32, dtype=torch.float64)}, "float32"),
])  # fmt: skip
def test_refused(wrong: dict, match: str) -> None:
    call = {"x": torch.zeros(3, 32), "size": 16, "signs": "te", "axis": 1, **wrong}
    with pytest.raises(ValueError, match=match):
        ops.hadamard(**call)


def test_wrong_calls_by_torch_are_refused() -> None:
    for transform in (0, 17, 32, -1, 16 + (2**33 << 8)):
        with pytest.raises((ValueError, TypeError)):
            OP(torch.zeros(3, 32), transform, 1, "cpu")
    with pytest.raises(ValueError, match="16 divides"):
        OP(torch.zeros(3, 40), 16, 1, "cpu")
