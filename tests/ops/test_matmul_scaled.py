"""The operator of products by scale: torch.library.opcheck, and what it refuses."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from lpkernels.arithmetic import Accumulator, accumulator

OP = torch.ops.lpkernels._multiply
LEFT, RIGHT = torch.randn(4, 8), torch.randn(8, 3)
SCALES = torch.ones(4, 2), torch.ones(3, 1)
ACC = Accumulator("e6m9", chunk="scale").to_ints()
GROUPED = accumulator("model_b200_mxf4").to_ints()


SIZES = (4, 0, 0, -127)


def call(
    left: Tensor = LEFT, scales: Sequence[Tensor] = SCALES, sizes: Sequence[int] = SIZES,
    start: Tensor | None = None, acc: Sequence[int] = ACC, backend: str = "cpu",
) -> tuple[object, ...]:  # fmt: skip
    rest = ([4, 3], (1,), acc, None, 0, backend, (), (), ())
    return ("matmul", left, RIGHT, None, start, *rest, *scales, sizes)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_opcheck(backend: str) -> None:
    tests = ("test_schema", "test_faketensor")
    for start in (None, torch.randn(4, 3)):
        torch.library.opcheck(OP.default, call(start=start, backend=backend), test_utils=tests)


@pytest.mark.parametrize("change,message", [
    ({"scales": (torch.ones(4, 3), SCALES[1])}, "scales of the left operand"),
    ({"scales": (SCALES[0], torch.ones(3, 1).double())}, "scales of the right operand"),
    ({"scales": (SCALES[0], None)}, "two scales or none"),
    ({"sizes": (4, 0)}, "two sizes"),
    ({"sizes": (-1, 0, 0, 0)}, "scales of the left operand"),
    ({"sizes": (4, 0, 0, 301)}, "an exponent"),
    ({"acc": GROUPED}, "scales that change between groups of 16"),
    ({"acc": Accumulator("e6m9", chunk=4).to_ints()}, "chunk='scale'"),
    ({"left": torch.randn(8)}, "expected a"),
])  # fmt: skip
def test_wrong_calls_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OP(*call(**change))
