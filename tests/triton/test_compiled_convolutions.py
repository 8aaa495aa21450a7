"""The kernels of images and of sums in other orders, compiled without a GPU for every target."""

from typing import Any

import pytest
import torch

from lpkernels.arithmetic import Accumulator

_launch = pytest.importorskip("lpkernels.backends.triton._launch")
if _launch.interpreting():
    pytest.skip("the interpreter does not compile", allow_module_level=True)

from lpkernels.backends.triton import (  # noqa: E402
    _aligned,
    _compensated,
    _images,
    _operands,
    _pairwise,
    _roundings,
    _tile,
)
from tests.triton.ahead_of_time import TARGETS, compiled  # noqa: E402

pytestmark = pytest.mark.triton

F32, I32, I64 = torch.float32, torch.int32, torch.int64
#: Weights against an image: tables of lanes and steps, a bias, no step left out.
DENSE = (_tile.Side(F32, I64, None, None), _tile.Outputs(F32, *(I64,) * 7, F32, None, None), False)
#: A phase of dgrad.
SPARSE = (_tile.Side(F32, I64, None, I64), _tile.Outputs(F32, *(I64,) * 7, None, I64, I64), True)


def arguments(acc: Accumulator, layout: tuple[Any, Any, bool]) -> dict[str, Any]:
    left, outputs, absent = layout
    rule, numbers = _roundings.roundings_of(acc.to_ints())
    right = _tile.Side(F32, I64, I64, I64)
    return {
        "left": left, "left_step": 64, "right": right, "right_step": 0, "out": outputs,
        "seed_ptr": I64, "role": 1, "M": 3, "N": 99, "K": 9, "chunk": 4, "chunks": 3,
        "C": numbers, "R": rule, "SWAPPED": True, "LEFT_ABSENT": False, "RIGHT_ABSENT": absent,
        "BM": 4, "BN": 64,
    }  # fmt: skip


TREE = {"waiting": F32, "levels": 5, "tiles": 7}
KERNELS: dict[str, tuple[Any, Accumulator, tuple[Any, Any, bool], dict[str, Any]]] = {
    "pairwise": (
        _pairwise.pairwise_kernel, Accumulator("e5m10", order="pairwise"), DENSE, TREE,
    ),
    "pairwise_phase": (
        _pairwise.pairwise_kernel, Accumulator("e5m4", "stochastic", order="pairwise", chunk=21),
        SPARSE, TREE,
    ),
    "pairwise_wrap": (
        _pairwise.pairwise_kernel,
        Accumulator("fixed8_f3_wrap", "toward_negative", order="pairwise"), DENSE, TREE,
    ),
    "compensated": (
        _compensated.compensated_kernel,
        Accumulator("e5m10", order="compensated", product="e4m3"), DENSE, {},
    ),
    "aligned_phase": (
        _aligned.aligned_kernel,
        Accumulator("e8m13", "toward_zero", block=4, aligned_bits=24, chunk=8, outer="fp32"),
        SPARSE, {"block": 4, "aligned_bits": 24},
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_orders(name: str, target: str) -> None:
    kernel, acc, layout, more = KERNELS[name]
    assert compiled(kernel, target, **arguments(acc, layout), **more).asm


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_images(channels_last: bool, target: str) -> None:
    rule, numbers = _operands.read_rule((*Accumulator("e5m2").fmt.to_ints(), 0, 0, 0, 0))
    sizes = dict.fromkeys(_images.SIZES, 5)
    assert compiled(
        _images.frame_kernel, target, x_ptr=F32, out_ptr=F32, facts_ptr=I32, **sizes, N=numbers,
        R=rule, FOLD=2, CHANNELS_LAST=channels_last, LARGE=False, TC=32, TP=128,
    ).asm  # fmt: skip
