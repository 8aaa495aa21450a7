"""The plans of the predictions match the launches that the triton adapter starts for products."""

import itertools

import pytest

import lpkernels as lp
from bench.predict import triton_plans as plans
from bench.predict.shapes import products
from lpkernels.arithmetic import Accumulator
from lpkernels.backends import Fused
from lpkernels.backends.planning import triton_tiers, triton_tiles
from lpkernels.backends.triton import BACKEND, _products
from lpkernels.backends.triton._roundings import roundings_of
from lpkernels.backends.triton.certified import stages
from tests.backends.triton.launches import Launch, recorded
from tests.loops import each
from tests.predict.calls import CASES, E5M2, Case, call, run

PRODUCTS = ("certified_kernel", "exact_kernel")


@each("case, processors", itertools.product(CASES.values(), [1, 132]))
def test_kernels_tiles_and_sizes_are_those_that_are_launched(
    case: Case, processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_products, "processors", lambda _: processors)
    with recorded() as calls:
        run(BACKEND, case)
    started = [launch for launch in calls if launch.name in PRODUCTS]
    shapes = products(call(case), "triton")
    found = [plans.plan(shape, case.acc, processors) for shape in shapes]
    assert sum(plan.launches for plan in found) == len(started)
    last = [launch for launch in started if launch.name == "exact_kernel" and ends(launch)]
    sizes = [sizes_of(launch) for launch in last]
    assert [(s.m, s.n, s.k) for s in shapes] == sizes
    for shape, plan in zip(shapes, found, strict=True):
        assert plan.tile in tiles_of(started, (shape.m, shape.n, shape.k), plan.kernel, case.acc)


def ends(launch: Launch) -> bool:
    """Whether a last kernel is that of the last pass over a product's chunks."""
    return launch.argument("final") == 1


def sizes_of(launch: Launch) -> tuple[int, ...]:
    return tuple(launch.argument(name) for name in ("M", "N", "K"))


def tiles_of(
    started: list[Launch], sizes: tuple[int, int, int], kernel: str, acc: Accumulator
) -> list[tuple[int, int]]:
    """The tiles in the launches of one kernel for a product of these sizes."""
    found = []
    for launch in started:
        tiers = launch.told.get("TIERS", ())
        names = [plans.kernel_name(tier, acc) for tier in tiers] or [plans.EXACT]
        if sizes_of(launch) == sizes and kernel in names:
            found.append((launch.told["BM"], launch.told["BN"]))
    return found


_CHUNKED, _OPERANDS = Accumulator("e6m9", chunk=64), Fused(E5M2, E5M2)
_HALF = ((1, 1), (1, 1), (1, 1), 1)
SHARED = {
    "few channels": Case(
        "conv_wgrad", ((8, 16, 32, 32), (16, 16, 3, 3), *_HALF), _CHUNKED, fused=_OPERANDS
    ),
    "rounded": Case(
        "conv_wgrad", ((8, 3, 9, 9), (24, 3, 3, 3), *_HALF), _CHUNKED,
        fused=Fused(E5M2, E5M2, E5M2),
    ),
    "phases": Case(
        "conv_dgrad", ((2, 9, 8, 8), (300, 9, 3, 3), (2, 2), (1, 1), (1, 1), 1), _CHUNKED,
        fused=_OPERANDS,
    ),
    "two passes": Case("matmul", ((64, 200704), (200704, 32)), Accumulator("e6m9", chunk=4)),
}  # fmt: skip


@pytest.mark.parametrize("case", SHARED.values(), ids=SHARED)
def test_splits_and_scratch_are_those_that_are_launched(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_products, "processors", lambda _: 132)
    with recorded() as calls:
        run(BACKEND, case)
    shapes = products(call(case), "triton")
    certified = [launch for launch in calls if launch.name == "certified_kernel"]
    for shape in shapes:
        plan = plans.plan(shape, case.acc, 132)
        sizes = (shape.m, shape.n, shape.k)
        mine = [launch for launch in certified if sizes_of(launch) == sizes]
        shared = [launch for launch in mine if launch.argument("parts") is not None]
        if plan.kernel != plans.EXACT:
            assert (plan.splits > 1) == bool(shared)
        if not shared:
            continue
        # Each kernel has its own account of what is made; all have the same sums of chunks.
        groups = triton_tiers.groups(triton_tiers.tiers(case.acc.to_ints()))
        made = [launch.argument("made").numel() for launch in shared[: len(groups)]]
        assert plan.scratch == 4 * (sum(made) + shared[0].argument("parts").numel())
        if plan.kernel != plans.EXACT:
            assert shared[0].grid == (plan.tiles, plan.splits)
        # A thread has 16 sums of float64 or 32 of float32.
        for launch in shared:
            lanes = 32 * launch.told["num_warps"]
            most = 16 if max(launch.told["TIERS"]) >= triton_tiers.FUSED64 else 32
            assert launch.told["BM"] * launch.told["BN"] <= most * lanes
        # Every tier makes the chunks of all passes once, and each pass has a kernel that adds.
        spans = {(launch.argument("begin"), launch.argument("end")) for launch in shared}
        assert sum(end - begin for begin, end in spans) == shared[-1].argument("end")
        assert plan.launches == len(spans) * (len(groups) + 1)
    assert any(launch.argument("parts") is not None for launch in certified)


ACCUMULATORS = (
    "e6m9", "e6m9_chunk64", "e5m10_chunk8:outer=e6m0", "e5m10_chunk8:outer=fixed16_f8",
    "e5m10_chunk8:outer=e6m9:outer_rounding=stochastic:philox", "e6m9:stochastic:bits=20",
    "e6m9:stochastic:bits=13:philox", "e6m9_chunk16:to_odd", "fixed16_f8_wrap",
)  # fmt: skip


@each("text, swapped", itertools.product(ACCUMULATORS, [False, True]))
def test_the_largest_tile_is_that_of_the_kernels(text: str, swapped: bool) -> None:
    ints = lp.accumulator(text).to_ints()
    alone = [(kind,) for kind in range(len(triton_tiers.NAMES))]
    for group in (*alone, *triton_tiers.groups(triton_tiers.tiers(ints))):
        planned = triton_tiles.largest_tile(group, triton_tiles.beside(ints), swapped)
        assert planned == stages.largest_tile(group, roundings_of(ints)[0], swapped)
