"""The launches that products, convolutions and quantizers start, recorded and bound as Triton binds
them: predictions have the same plans, and few kernels are compiled. Accumulators have tiers."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import lpkernels as lp
from bench.predict import triton_plans as plans
from bench.predict.shapes import products
from lpkernels.arithmetic import Accumulator, Quantizer, accumulator, as_quantizer
from lpkernels.backends import NOT_FUSED, Fused
from lpkernels.backends.planning import triton_tiers, triton_tiles
from lpkernels.backends.planning.triton_tiers import CUT, FIXED, NAMES, single_outer, tiers
from lpkernels.backends.triton import BACKEND, _products
from lpkernels.backends.triton._roundings import roundings_of
from lpkernels.backends.triton.certified import stages
from tests.backends.triton.launches import TARGETS, Launch, keys, recorded
from tests.cases import ConvCase
from tests.loops import each, rows
from tests.predict.calls import CASES, E5M2, Case, call, run
from tests.support.products import convolve, tensors_of


@each("case, processors", CASES.values(), [1, 132])
def test_kernels_tiles_and_sizes_are_those_that_are_launched(case, processors, monkeypatch):
    monkeypatch.setattr(_products, "processors", lambda _: processors)
    with recorded() as calls:
        run(BACKEND, case)
    started = [launch for launch in calls if launch.name in ("certified_kernel", "exact_kernel")]
    shapes = products(call(case), "triton")
    found = [plans.plan(shape, case.acc, processors) for shape in shapes]
    assert sum(plan.launches for plan in found) == len(started)
    last = [launch for launch in started if launch.name == "exact_kernel" and ends(launch)]
    sizes = [sizes_of(launch) for launch in last]
    assert [(s.m, s.n, s.k) for s in shapes] == sizes
    for shape, plan in zip(shapes, found, strict=True):
        assert plan.tile in tiles_of(started, (shape.m, shape.n, shape.k), plan.kernel, case.acc)


def ends(launch: Launch) -> bool:
    """Whether a last kernel belongs to the last pass over a product's chunks."""
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
_FEW, _ROUNDED = ((8, 16, 32, 32), (16, 16, 3, 3)), ((8, 3, 9, 9), (24, 3, 3, 3))
_PHASES = ((2, 9, 8, 8), (300, 9, 3, 3), (2, 2), (1, 1), (1, 1), 1)
SHARED = {
    "few channels": Case("conv_wgrad", (*_FEW, *_HALF), _CHUNKED, fused=_OPERANDS),
    "rounded": Case("conv_wgrad", (*_ROUNDED, *_HALF), _CHUNKED, fused=Fused(E5M2, E5M2, E5M2)),
    "phases": Case("conv_dgrad", _PHASES, _CHUNKED, fused=_OPERANDS),
    "two passes": Case("matmul", ((64, 200704), (200704, 32)), Accumulator("e6m9", chunk=4)),
}


@pytest.mark.parametrize("case", SHARED.values(), ids=SHARED)
def test_splits_and_scratch_are_those_that_are_launched(case, monkeypatch):
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


@each("text, swapped", ACCUMULATORS, [False, True])
def test_the_largest_tile_is_that_of_the_kernels(text: str, swapped: bool) -> None:
    ints = lp.accumulator(text).to_ints()
    alone = [(kind,) for kind in range(len(triton_tiers.NAMES))]
    for group in (*alone, *triton_tiers.groups(triton_tiers.tiers(ints))):
        planned = triton_tiles.largest_tile(group, triton_tiles.beside(ints), swapped)
        assert planned == stages.largest_tile(group, roundings_of(ints)[0], swapped)


WRAPPED = as_quantizer("fixed8_f4_wrap:to_odd").to_ints()
#: Every branch of the kernels: modes, products, chunks, both generators, fixed point.
SEQUENCES = {
    "e5m10": Fused(E5M2, WRAPPED, E5M2),
    "fp32:toward_negative": NOT_FUSED,
    "e5m6_chunk7:stochastic:product=e4m3:product_rounding=stochastic:bits=13:outer=fixed12_f6":
        NOT_FUSED,
    "fixed12_f6:stochastic:product=fixed9_f4_wrap:philox": NOT_FUSED,
}  # fmt: skip
ORDERS = {
    "e5m10:order=pairwise": Fused(E5M2, E5M2, E5M2),
    "e5m10:order=compensated:product=e4m3": NOT_FUSED,
    "e8m13_chunk8:toward_zero:block=4:aligned_bits=24:outer=fp32": NOT_FUSED,
}


@pytest.fixture
def launches() -> Iterator[list[Launch]]:
    with recorded() as calls:
        yield calls


def multiply(
    acc: Accumulator,
    *,
    shape: tuple[int, int, int] = (300, 40, 300),
    seed: int = 5,
    role: int = 1,
    fused: Fused = NOT_FUSED,
) -> None:
    m, k, n = shape
    a, b, bias = torch.zeros(m, k), torch.zeros(k, n), torch.zeros(n)
    BACKEND.matmul(a, b, bias, acc.to_ints(), torch.tensor(seed), role, fused)


def test_products_have_one_kernel_for_formats_of_one_rule_and_for_all_seeds(launches) -> None:
    acc = Accumulator("e5m4", "stochastic", chunk=4, outer="e6m9")
    multiply(acc)
    first = keys(launches)
    assert len(first) == 4
    multiply(Accumulator("e4m7", "stochastic", chunk=20, outer="e5m3"))
    assert keys(launches) == first
    multiply(acc, seed=-1, role=9, shape=(1000, 17, 515))
    assert keys(launches) == first
    multiply(Accumulator("e5m4", "stochastic"))
    assert keys(launches) != first


@pytest.mark.parametrize("target", TARGETS)
def test_every_launch_of_a_product_is_expected(target: str, launches, monkeypatch) -> None:
    nvidia = target != "gfx942"
    if not nvidia:
        monkeypatch.setattr(torch.version, "hip", "6.0")
    for text, fused in SEQUENCES.items():
        acc = lp.accumulator(text)
        multiply(acc, fused=fused)
        groups = triton_tiers.groups(triton_tiers.tiers(acc.to_ints(), nvidia=nvidia))
        certified = ["certified_kernel"] * len(groups)
        names = ["pack_operand_kernel", "pack_operand_kernel", *certified, "exact_kernel"]
        assert [launch.name for launch in launches] == names, text
        launches.clear()


@each("text, fused", ORDERS.items())
def test_convolutions_have_one_kernel_for_all_sizes(text: str, fused: Fused, launches) -> None:
    found = []
    for n, c, size, k in ((8, 16, 33, 3), (16, 9, 48, 3), (7, 12, 64, 5)):
        case = ConvCase((n, c, size, size + 1), (64, c, k, k), (2, 2), (k // 2, 1), (1, 1))
        tensors = tensors_of(case, torch.zeros)
        convolve(BACKEND, "fprop", case, tensors, lp.accumulator(text), fused)
        found.append(keys(launches))
    assert len(found[0]) == 3
    assert found[0] == found[1] == found[2]


def quantize(fmt: str, rounding: str) -> None:
    """The bits of an affine format are arguments of the kernels, not constants."""
    x = torch.randn(3, 40, 70)
    quantizer = Quantizer(fmt, rounding).to_ints()
    BACKEND.quantize(x, quantizer, torch.tensor(5), 0, 4, torch.empty_like(x))


@each("rounding", ["nearest_even", "stochastic"])
def test_affine_formats_have_one_kernel_for_all_bits(rounding: str, launches) -> None:
    for kind in ("", "_sym", "_axis0", "_axis-1"):
        quantize(f"affine8{kind}", rounding)
        first = keys(launches)
        assert len(first) == 2
        for bits in range(2, 17):
            quantize(f"affine{bits}{kind}", rounding)
            assert keys(launches) == first, (kind, bits)
        quantize("affine8_axis0" if kind == "_sym" else "affine8_sym", rounding)
        assert keys(launches) != first, kind


#: Accumulators by their tiers. Those of bias 127 and -91 have their smallest normal value at
#: 2^-126, or their largest below 2^106; one more is too many.
TIERS = {
    "plain fused64 nearest64": "fp32",
    "fused floor fused64 nearest64": "e6m9 e5m10:product=e4m3 e6m9_chunk3:product=e4m3 e4m3_b127 "
    "e4m3_b-91",
    "fused fused64 nearest64": "e4m3_b128 e4m3_b-92",
    "split floor fused64 nearest64": "e6m11",
    "brain fused fused64 nearest64": "bf16",
    "half fused floor fused64 nearest64": "e5m10",
    "range fused64 nearest64": "e5m10_sat e4m3_sat",
    "fused fused64": "e5m3_nosub",
    "fused64 nearest64": "e8m22",
    "directed": "e5m10:toward_zero e5m10:nearest_away e5m10:toward_positive e5m1:toward_positive "
    "e5m0:to_odd e5m0:stochastic e5m10:stochastic e5m10_chunk64:stochastic "
    "e5m10_chunk6:stochastic:bits=10 e5m10:stochastic:philox e5m2:stochastic fp32:toward_zero "
    "e5m10:to_odd e4m3_b-3:to_odd",
    "fixed": "fixed16_f8 fixed16_f8:toward_zero fixed21_f8_wrap fixed16_f8_wrap:toward_zero "
    "fixed22_f8:nearest_away",
    "": "e5m10_chunk63:stochastic e5m10:stochastic:bits=13 e6m0 e4m3_b-3:to_odd:product=e4m3 "
    "e4m3_b130:to_odd fixed16_f8:stochastic fixed24_f8 fixed22_f8_wrap "
    "fixed21_f8_wrap:nearest_away fixed23_f8:nearest_away "
    "e6m9:product=e4m3:product_rounding=toward_zero e6m9:product=e4m3_nosub e6m9:order=pairwise "
    "e6m9:block=4:aligned_bits=13",
}


@each("names, accumulators", TIERS.items())
def test_of_an_accumulator(names: str, accumulators: str) -> None:
    for text in accumulators.split():
        found = tiers(accumulator(text).to_ints())
        assert " ".join(NAMES[tier] for tier in found) == names, text


def test_what_nvidia_alone_has() -> None:
    for fmt in ("e5m10", "bf16"):
        ints = Accumulator(fmt).to_ints()
        assert tiers(ints, nvidia=False) == tiers(ints)[1:]
    for mode, kinds in (("stochastic", (CUT,)), ("toward_zero", (CUT,)), ("to_odd", ())):
        assert tiers(Accumulator("e5m10", mode).to_ints(), nvidia=False) == kinds
    assert tiers(Accumulator("fixed8_f4").to_ints(), nvidia=False) == (FIXED,)
    assert tiers(Accumulator("fixed8_f4", "to_odd").to_ints(), nvidia=False) == ()


@rows(
    "how, widths",
    ({"rounding": "toward_zero"}, range(1, 21)),
    ({"rounding": "nearest_away"}, range(1, 20)),
    ({"rounding": "to_odd"}, range(0)),
    ({"rounding": "stochastic", "random_bits": 3}, range(4, 17)),
    ({"rounding": "stochastic", "random_bits": 8}, range(4, 12)),
    ({"rounding": "stochastic", "random_bits": 9}, range(0)),
    ({"rounding": "stochastic", "random_bits": 3, "rng": "philox"}, range(0)),
)
def test_the_widths_that_the_cut_of_float64_takes(how: dict[str, Any], widths: range) -> None:
    def has_cut(man_bits: int) -> bool:
        acc = Accumulator(lp.FloatFormat(6, man_bits), **how)
        return tiers(acc.to_ints(), nvidia=False) == (CUT,)

    assert list(filter(has_cut, range(24))) == list(widths)


def test_outer_additions_in_float32() -> None:
    # Beyond, the quantum is below 2^-147, or the smallest normal below those of float32.
    for outer in ("e6m9", "e5m1", "e6m21", "e4m21_b127"):
        assert single_outer(accumulator(f"e6m9_chunk4:outer={outer}").to_ints()), outer
    for outer in ("e6m9:outer_rounding=toward_zero", "e5m0", "e6m22", "e4m3_b128", "e6m9_nosub",
                  "fixed16_f8"):  # fmt: skip
        assert not single_outer(accumulator(f"e6m9_chunk4:outer={outer}").to_ints()), outer


def test_draws_follow_the_steps() -> None:
    assert tiers(Accumulator("e5m10", "stochastic").to_ints(), in_order=False) == ()
    assert tiers(Accumulator("e5m10").to_ints(), in_order=False) != ()
