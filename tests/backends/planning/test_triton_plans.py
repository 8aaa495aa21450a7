"""Plans of the triton backend as it is today, without Triton: tile, tier, launches, flags."""

import subprocess
import sys

import pytest

from lpkernels.arithmetic import Accumulator, as_accumulator, as_quantizer
from lpkernels.backends.planning import Shape
from lpkernels.backends.planning.ranges import FLOAT32, Range, range_of
from lpkernels.backends.planning.triton import launches, plan

E5M2, E4M3 = (range_of(as_quantizer(name).to_ints()) for name in ("e5m2", "e4m3fn"))


def shape(m: int = 4096, n: int = 4096, k: int = 128, **more: object) -> Shape:
    return Shape(1, m, n, k, E5M2, E5M2)._replace(**more)


def test_large_products_take_the_largest_tile() -> None:
    found = plan(shape(), Accumulator("e6m9", chunk=64), 132)
    assert (found.kernel, found.tile) == ("fused", (8, 512))
    assert (found.tiles, found.waves) == (512 * 8, 32)
    # A flag of four bytes for each 8 x 512 outputs: no tile is larger.
    assert found.scratch == 4 * 512 * 8


def test_few_outputs_take_smaller_ones() -> None:
    found = plan(shape(m=16, n=144, k=131072), Accumulator("e6m9", chunk=64), 132)
    assert (found.tile, found.tiles, found.waves) == ((4, 128), 8, 1)


@pytest.mark.parametrize(
    ("kinds", "finishes", "count"), [(0, True, 1), (1, False, 3), (4, False, 7), (4, True, 8)]
)
def test_every_tier_is_started(kinds: int, finishes: bool, count: int) -> None:
    assert launches(kinds, finishes=finishes) == count


@pytest.mark.parametrize(
    ("name", "left", "right", "kernel"),
    [
        ("e6m9", E5M2, E5M2, "fused"),
        ("e6m11", E5M2, E5M2, "split"),
        ("e5m9", Range(3, -30, 2), Range(3, -30, 2), "floor"),
        ("e5m10", E4M3, E4M3, "half"),
        ("bf16", E5M2, E5M2, "brain"),
        ("fp32", E5M2, E5M2, "plain"),
        ("e4m3_sat", E4M3, E4M3, "range"),
        ("e8m22", E4M3, E4M3, "fused64"),
        ("e6m9", Range(14, -28, 2), Range(14, -28, 2), "nearest64"),
        ("e6m9", FLOAT32, FLOAT32, "wide"),
        ("e6m9:stochastic", E5M2, E5M2, "stochastic"),
        ("e6m9:stochastic:philox", E5M2, E5M2, "stochastic, philox"),
        ("e6m9:toward_negative", E5M2, E5M2, "toward_positive"),
        ("fixed16_f8:nearest_away", E5M2, E5M2, "fixed, nearest_away"),
        ("fixed16_f8_wrap", Range(3, -2, 4), Range(3, -2, 4), "fixed, wraps"),
    ],
)
def test_the_tier_is_the_first_whose_certificate_holds(
    name: str, left: Range, right: Range, kernel: str
) -> None:
    assert plan(shape(left=left, right=right), as_accumulator(name), 132).kernel == kernel


def test_sums_that_were_not_counted_are_refused() -> None:
    for name in ("native_chunk64:outer=e6m9", "e6m9:order=pairwise"):
        with pytest.raises(NotImplementedError, match=r"triton: .* are not counted"):
            plan(shape(), as_accumulator(name), 132)


def test_neither_triton_nor_the_extension_is_needed() -> None:
    code = (
        "import sys; sys.modules.update({'triton': None, 'lpkernels._C': None})\n"
        "from lpkernels.backends import planning\n"
        "print(sorted(planning.DEVICES))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "['h100']", done.stderr
