"""Matrix products of the triton backend, in sequence and in other orders, and convolutions against
the reference, to the bit."""

import math

import torch

import lpkernels as lp
from lpkernels.backends import (
    NOT_FUSED,
    Convolution,
    Fused,
    _conv_geometry,
    _conv_phases,
    _conv_tables,
)
from lpkernels.backends.triton import BACKEND, _config, _layout, _products
from lpkernels.backends.triton.operands import facts as _facts
from lpkernels.backends.triton.operands import images
from tests.backends.triton.sums import DRAWN, beside_reference, pass_beside
from tests.cases import CONV_CASES, EVERY_ACCUMULATOR, MATMUL_SHAPES, ConvCase
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.operands import tensor
from tests.support.products import PASSES, Tensors, convolve, lanes_of_all_kinds, tensors_of


@each("acc", [acc for acc in EVERY_ACCUMULATOR if acc.in_sequence])
def test_sums_in_sequence(acc: lp.Accumulator, device: str) -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = lanes_of_all_kinds((12, 15), generator), lanes_of_all_kinds((9, 15), generator).mT
    beside_reference(a, b, acc, device, bias=lanes_of_all_kinds((9,), generator))


@each("shape", MATMUL_SHAPES[:6])
def test_shapes(shape: tuple[int, int, int], device: str) -> None:
    generator = torch.Generator().manual_seed(2)
    m, k, n = shape
    a, b, bias = (lanes_of_all_kinds(s, generator) for s in ((m, k), (k, n), (n,)))
    for acc in (DRAWN, lp.Accumulator("e5m4", "toward_negative", chunk=3)):
        beside_reference(a, b, acc, device, bias=bias)
    beside_reference(a, b, lp.Accumulator("e5m4"), device)


def test_a_nan_of_any_kind_becomes_the_canonical_one(device: str) -> None:
    for bits in (0x7FC00000, 0x7FFFFFFF, -1, 0x7F800001, -0x7FFFFF, _layout.ABSENT):
        a = torch.full((2, 3), bits, dtype=torch.int32).view(torch.float32)
        beside_reference(a, torch.ones(3, 4), lp.Accumulator("e5m4"), device)


@each("acc", ["e8m10", "e8m20_sat_chunk2", "e8m13:product=e8m10", "e3m3_b-100"])
def test_both_ends_of_the_exponents(acc: str, device: str) -> None:
    for left, right in ((60, 44), (112, -8), (-77, -78), (-119, -119)):
        a, b = (torch.randint(-255, 256, shape).double() for shape in ((3, 5), (5, 4)))
        a, b = (a * 2.0**left).float(), (b * 2.0**right).float()
        beside_reference(a, b, lp.accumulator(acc), device)


@each("seed, role", [(0, 1), (-1, 0), (2**63 - 1, 11)])
def test_the_seed_of_a_role(seed: int, role: int, device: str) -> None:
    a, b = torch.randn(4, 9), torch.randn(9, 5)
    acc = lp.Accumulator("e5m3", "stochastic")
    beside_reference(a, b, acc, device, seed=torch.tensor(seed), role=role)


TREES = [lp.accumulator(name) for name in (
    "e4m3:toward_negative:order=pairwise",
    "e5m4_chunk11:stochastic:order=pairwise:bits=13",
    "fixed8_f3_wrap:toward_negative:order=pairwise",
)]  # fmt: skip
OTHERS = [lp.accumulator(name) for name in (
    "e4m3:toward_negative:order=compensated",
    "e4m3:toward_negative:block=4:aligned_bits=3",
    "e5m4_chunk7:stochastic:block=3:aligned_bits=5",
)]  # fmt: skip


@each("acc", [acc for acc in EVERY_ACCUMULATOR if not acc.in_sequence])
def test_sums_in_other_orders(acc: lp.Accumulator, device: str) -> None:
    generator = torch.Generator().manual_seed(1)
    # Rows of all kinds are in one product.
    kinds = ("cancelling", "special", "wide")
    a = torch.cat([tensor((2, 21), kind, generator) for kind in kinds])
    b = torch.cat([tensor((21, 3), kind, generator) for kind in kinds], 1)
    beside_reference(a, b, acc, device, bias=tensor((9,), "cancelling", generator))


@each("acc", [*TREES, *OTHERS])
def test_short_sums(acc: lp.Accumulator, device: str) -> None:
    generator = torch.Generator().manual_seed(2)
    for k in (0, 1, 2, 3, 4):
        a, b = tensor((3, k), "cancelling", generator), tensor((k, 2), "special", generator)
        beside_reference(a, b, acc, device, bias=tensor((2,), "wide", generator))


@each("acc", [TREES[1], OTHERS[2]])
def test_batches_of_sums_in_other_orders(acc: lp.Accumulator, device: str) -> None:
    # There are more tiles than programs, which take the tiles one after the other.
    generator = torch.Generator().manual_seed(3)
    a, b = tensor((7, 2, 9), "wide", generator), tensor((7, 9, 3), "special", generator)
    beside_reference(a, b, acc, device)


@each("acc", [TREES[0], TREES[1], OTHERS[0], OTHERS[2]])
def test_positions_left_out(acc: lp.Accumulator, device: str) -> None:
    """Phases of dgrad have every third tap, and some taps fall outside."""
    case = ConvCase((1, 2, 8), (3, 2, 7), (3,), (2,), (1,))
    pass_beside("dgrad", case, tensors_of(case), acc, device)


@each("acc", [TREES[0], OTHERS[0], OTHERS[1]])
def test_results_are_rounded_and_tiles_do_not_matter(acc, device, monkeypatch):
    generator = torch.Generator().manual_seed(4)
    a, b = tensor((5, 6), "wide", generator), tensor((6, 9), "cancelling", generator)
    fused = Fused((), (), lp.Quantizer("e3m2", "to_odd").to_ints())
    for bm, bn in ((2, 16), (8, 4)):
        tile = _config.Tile(bm, bn, 1)
        monkeypatch.setattr(_products, "exact_tile", lambda *_, tile=tile: tile)
        beside_reference(a, b, acc, device, fused=fused, name=f"{tile}")


CHUNKED = lp.Accumulator("e5m4", chunk=3, outer="e5m3")
STRIDES = ConvCase((1, 2, 3, 5), (3, 2, 2, 3), (2, 2), (1, 1), (1, 1))
#: Every kind of sum occurs once; products have all of them.
KINDS = [
    *(acc for acc in EVERY_ACCUMULATOR[::4] if acc.in_sequence),
    *map(
        lp.accumulator,
        ("e5m3_chunk7:stochastic:order=pairwise",
         "e4m3:toward_negative:order=pairwise:product=e5m2", "e4m3_chunk5:order=compensated",
         "e5m4:toward_negative:block=4:aligned_bits=3",
         "e5m4_chunk7:stochastic:block=3:aligned_bits=5"),
    ),
]  # fmt: skip


def check(
    case: ConvCase,
    acc: lp.Accumulator,
    device: str,
    tensors: Tensors | None = None,
    fused: Fused = NOT_FUSED,
) -> None:
    """Every pass has the bits of the reference."""
    for name in PASSES:
        pass_beside(name, case, tensors or tensors_of(case), acc, device, fused=fused)


@each("name", CONV_CASES)
def test_cases(name: str, device: str) -> None:
    check(CONV_CASES[name], CHUNKED, device)


@each("acc", [*KINDS, DRAWN])
def test_accumulators(acc: lp.Accumulator, device: str) -> None:
    check(STRIDES, acc, device)


def test_draws_of_groups(device: str) -> None:
    check(ConvCase((2, 4, 3), (6, 2, 2), (1,), (1,), (1,), 2), DRAWN, device)


def test_no_nan_is_an_absent_tap(device: str) -> None:
    for bits in (0x7FFFFFFF, -1, 0x7F800001, _layout.ABSENT, _layout.ABSENT - 2**31):
        x, w, dy, bias = tensors_of(STRIDES)
        for t in (x, w, dy):
            t.view(-1).view(torch.int32)[1::7] = bits
        check(STRIDES, CHUNKED, device, (x, w, dy, bias))


def test_few_positions_and_many_channels(device: str) -> None:
    check(ConvCase((1, 2, 3), (5, 2, 3), (1,), (0,), (1,)), DRAWN, device)
    check(ConvCase((1, 2, 3), (34, 1, 2), (1,), (0,), (1,), 2), CHUNKED, device)


def test_an_image_whose_windows_reach_nothing_is_zero(device: str) -> None:
    # One output, on padding alone.
    check(ConvCase((1, 1, 1, 1), (2, 1, 1, 1), (9, 9), (4, 4), (1, 1)), CHUNKED, device)


def test_no_output_at_all(device: str) -> None:
    case = ConvCase((2, 2, 3, 3), (3, 2, 4, 2), (1, 1), (0, 0), (1, 1))
    x, w, dy, bias = (t.to(device) for t in tensors_of(case))
    shapes = ((2, 3, 0, 2), case.input_shape, case.weight_shape)
    for name, shape in zip(PASSES, shapes, strict=True):
        got = convolve(BACKEND, name, case, (x, w, dy, bias), CHUNKED)
        assert_bit_equal(got, torch.zeros(shape))


def test_no_channels(device: str) -> None:
    case = ConvCase((2, 0, 3), (3, 0, 2), (1,), (0,), (1,))
    x, w, dy, bias = (t.to(device) for t in tensors_of(case))
    got = convolve(BACKEND, "fprop", case, (x, w, dy, bias), lp.Accumulator("e5m10"))
    assert_bit_equal(got, lp.quantize(bias.cpu(), "e5m10").view(1, 3, 1).expand(2, 3, 2))


def test_images_are_framed_and_their_facts_leave_out_what_is_absent(device: str) -> None:
    image = torch.tensor([[[1.0, -0.0, 2.5, 0.0]]], device=device)
    frame = _conv_geometry.Frame((1, 1, 7), (0, 0, 2), 3, False, 1, 1)
    got = images.framed(image, frame, _facts.new_facts(image.device)[0], ())
    gone = _layout.ABSENT
    one, zero, half = 0x3F800000, 0, 0x40200000
    # Position p of the frame lies at p % 3 * 3 + p // 3: 0 3 6, 1 4 7, 2 5 8.
    want = [gone, -(2**31), gone, gone, half, gone, one, zero, gone]
    assert got.absent
    assert got.values.cpu().view(torch.int32)[:9].tolist() == want
    facts = got.facts.tolist()
    assert facts[_facts.HIGHEST.value] == 1
    assert facts[_facts.LOWEST.value] == 1
    assert facts[_facts.WIDTH.value] == 3
    assert facts[_facts.SPECIAL.value] == _facts.NONE.value


def test_tables_are_made_once(device: str) -> None:
    g = _conv_geometry.geometry_of(
        (2, 3, 9), (4, 3, 3), (2, 4, 5), Convolution((2,), (1,), (1,), 1)
    )
    on = torch.device(device)
    for build in (_conv_tables.fprop, _conv_tables.wgrad, _conv_phases.dgrad):
        assert _conv_tables.tables(build, g, on) is _conv_tables.tables(build, g, on)
    large = g._replace(batch=1 << 18)
    assert math.prod(large.size) * large.batch > _conv_tables.KEPT_COLUMNS
    assert _conv_tables.tables(_conv_tables.fprop, large, on)[0].sizes[2] == 5 << 18
