"""The operator of products by scale: torch.library.opcheck, and what it refuses."""

import pytest
import torch

from lpkernels.arithmetic import Accumulator
from tests.loops import each

OP = torch.ops.lpkernels._matmul_scaled
LEFT, RIGHT = torch.randn(4, 8), torch.randn(8, 3)
SCALES = torch.ones(4, 2), torch.ones(3, 1)
ACC = Accumulator("e6m9", chunk="scale").to_ints()


@each("backend", ["cpu", "reference"])
def test_opcheck(backend: str) -> None:
    tests = ("test_schema", "test_faketensor")
    for start in (None, torch.randn(4, 3)):
        call = (LEFT, RIGHT, *SCALES, [4, 0], False, start, ACC, None, 0, backend)
        torch.library.opcheck(OP.default, call, test_utils=tests)


@each(
    "change,message",
    [
        ({2: torch.ones(4, 3)}, "scales of the left operand"),
        ({3: torch.ones(3, 1).double()}, "scales of the right operand"),
        ({4: [4]}, "two sizes"),
        ({4: [-1, 0]}, "scales of the left operand"),
        ({7: Accumulator("e6m9", chunk=4).to_ints()}, "chunk='scale'"),
        ({0: torch.randn(8)}, "matrices of codes"),
    ],
)
def test_wrong_calls_are_refused(change: dict[int, object], message: str) -> None:
    call = [LEFT, RIGHT, *SCALES, [4, 0], False, None, ACC, None, 0, "cpu"]
    for place, value in change.items():
        call[place] = value
    with pytest.raises(ValueError, match=message):
        OP(*call)
