"""What planning says of products is what the triton adapter starts for them."""

import pytest
import torch

from lpkernels.arithmetic import Accumulator
from lpkernels.backends import planning
from lpkernels.formats import FixedFormat

pytestmark = pytest.mark.triton
pytest.importorskip("triton")

from lpkernels.backends.planning import triton as plans  # noqa: E402
from lpkernels.backends.planning import triton_tiers, triton_tiles  # noqa: E402
from lpkernels.backends.triton import BACKEND, _launch, _stages  # noqa: E402
from lpkernels.backends.triton._roundings import roundings_of  # noqa: E402
from tests.backends.planning.calls import CASES, Case, call, run  # noqa: E402
from tests.backends.triton.launches import Launch, recorded  # noqa: E402

not_interpreted = pytest.mark.skipif(
    _launch.interpreting(), reason="the interpreter's tiles are others"
)
PRODUCTS = ("fast_kernel", "wide_kernel", "finish_kernel")


@not_interpreted
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_kernels_tiles_and_sizes_are_those_that_are_launched(case: Case) -> None:
    torch.manual_seed(0)
    with recorded() as calls:
        run(BACKEND, case)
    started = [launch for launch in calls if launch.name in PRODUCTS]
    shapes = planning.products(call(case), "triton")
    # A tensor on the CPU has one processor.
    found = [plans.plan(shape, case.acc, 1) for shape in shapes]
    kinds = triton_tiers.tiers(case.acc.to_ints())
    other = 1 + (len(kinds) > 1)
    assert sum(plan.launches - other for plan in found) == len(started)
    last = [launch for launch in started if launch.name == "wide_kernel"]
    sizes = [launch.arguments[8:11] for launch in last]
    assert [(s.m, s.n, s.k) for s in shapes] == sizes
    for shape, plan in zip(shapes, found, strict=True):
        assert plan.tile in tiles_of(started, (shape.m, shape.n, shape.k), plan.kernel, case.acc)


def tiles_of(
    started: list[Launch], sizes: tuple[int, int, int], kernel: str, acc: Accumulator
) -> list[tuple[int, int]]:
    """Of the launches of one kernel for a product of these sizes."""
    found = []
    for launch in started:
        certified = launch.name == "fast_kernel"
        first = 11 if certified else 8
        name = plans.kernel_name(launch.told["TIER"], acc) if certified else "wide"
        if launch.name != "finish_kernel" and launch.arguments[first : first + 3] == sizes:
            found += [(launch.told["BM"], launch.told["BN"])] * (name == kernel)
    return found


ACCUMULATORS = [
    Accumulator("e6m9"),
    Accumulator("e6m9", chunk=64),
    Accumulator("e5m10", chunk=8, outer="e6m0"),
    Accumulator("e5m10", chunk=8, outer="fixed16_f8"),
    Accumulator("e5m10", chunk=8, outer="e6m9", outer_rounding="stochastic", rng="philox"),
    Accumulator("e6m9", "stochastic", random_bits=20),
    Accumulator("e6m9", "stochastic", random_bits=13, rng="philox"),
    Accumulator("e6m9", "to_odd", chunk=16),
    Accumulator(FixedFormat(16, 8, overflow="wrap")),
]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("acc", ACCUMULATORS, ids=str)
def test_the_largest_tile_is_that_of_the_kernels(acc: Accumulator, swapped: bool) -> None:
    ints = acc.to_ints()
    for kind in range(len(triton_tiers.NAMES)):
        planned = triton_tiles.largest_tile(kind, triton_tiles.beside(ints), swapped)
        assert planned == _stages.largest_tile(kind, roundings_of(ints)[0], swapped)
