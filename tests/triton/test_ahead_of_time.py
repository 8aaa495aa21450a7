"""Machine code of the certified kernels, compiled without a GPU."""

import pytest

from lpkernels.backends.triton._config import Tile
from lpkernels.backends.triton._fast import fast_kernel
from lpkernels.backends.triton._launch import interpreting
from tests.triton.ahead_of_time import TARGETS, compiled
from tests.triton.fast_cases import FAST_CASES, FastCase
from tests.triton.machine_code import main_loop

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(interpreting(), reason="Triton's interpreter compiles nothing"),
]

CASES = pytest.mark.parametrize("case", FAST_CASES, ids=[case.name for case in FAST_CASES])
SPLIT = FAST_CASES[1]


@CASES
@pytest.mark.parametrize("target", [name for name in TARGETS if name != "sm_90"])
def test_compiles(case: FastCase, target: str) -> None:
    compiled(fast_kernel, target, **case.arguments(Tile(4, 64, 1)))


@CASES
def test_main_loop(case: FastCase) -> None:
    loop = main_loop(fast_kernel, options=case.options, **case.arguments())
    assert loop.stack == 0
    assert loop.instructions / case.products <= case.most
    # Nothing was contracted.
    assert loop.arithmetic / case.products == pytest.approx(case.arithmetic, abs=0.02)


def test_contraction_would_undo_the_rounding() -> None:
    exact = main_loop(fast_kernel, **SPLIT.arguments(Tile(4, 64, 1)))
    fused = main_loop(
        fast_kernel, options={"enable_fp_fusion": True}, **SPLIT.arguments(Tile(4, 64, 1))
    )
    assert exact.counts["FADD"] == 2 * exact.counts["FMUL"]
    assert fused.counts["FADD"] + fused.counts["FMUL"] == 0


@CASES
def test_subnormals_are_not_flushed(case: FastCase) -> None:
    assert ".ftz" not in compiled(fast_kernel, **case.arguments(Tile(4, 64, 1))).asm["ptx"]
