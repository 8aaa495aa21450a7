"""The launches that products, convolutions and quantizers start, recorded and bound as Triton binds
them: they are as planned, and few kernels are compiled. Accumulators have tiers."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import lpkernels as lp
from lpkernels.arithmetic import Accumulator, Quantizer, accumulator, as_quantizer
from lpkernels.backends import NOT_FUSED, Fused
from lpkernels.backends.planning.triton_splits import scratch
from lpkernels.backends.planning.triton_tiers import CUT, NAMES, single_outer, tiers
from lpkernels.backends.planning.triton_tiles import Tile
from lpkernels.backends.triton import BACKEND, _products
from tests.backends import by_hand
from tests.backends.planned import planned
from tests.backends.triton.launches import Launch, keys, recorded
from tests.cases import ConvCase
from tests.support.products import convolve, tensors_of

E5M2 = as_quantizer("e5m2").to_ints()


@pytest.fixture
def launches() -> Iterator[list[Launch]]:
    with recorded() as calls:
        yield calls


@pytest.fixture
def on_132(launches: list[Launch], monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """The launches for a device of 132 processors."""
    monkeypatch.setattr(_products, "processors", lambda _: 132)
    return launches


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
    by_hand.matmul(BACKEND, a, b, bias, acc.to_ints(), torch.tensor(seed), role, fused)


def called(launches: list[Launch], name: str) -> list[Launch]:
    return [launch for launch in launches if launch.name == name]


def tile_of(launch: Launch) -> Tile:
    return Tile(*(launch.told[name] for name in ("BM", "BN", "num_warps")))


@pytest.mark.parametrize(
    "text, m, n, k",
    [
    ("e6m9", 300, 310, 40), ("e6m9_chunk64", 300, 310, 40), ("e6m9_chunk64", 16, 144, 131072),
    ("e6m9_chunk4", 32, 64, 200704), ("fp32", 300, 310, 40), ("e5m10", 9, 1000, 40)],
)  # fmt: skip
def test_products_are_launched_as_they_are_planned(text, m, n, k, on_132) -> None:
    on_132.clear()
    acc = lp.accumulator(text)
    multiply(acc, shape=(m, k, n))
    tiles, shared = planned(text, m, n, k)
    certified = called(on_132, "certified_kernel")
    programs = [-(-m // tile.bm) * -(-n // tile.bn) for tile in tiles]
    # Every pass over the chunks has each kernel once, and a last one behind them.
    passes = shared.passes(-(-k // (acc.chunk or k)))
    assert [tile_of(launch) for launch in certified] == tiles * passes
    assert len(called(on_132, "exact_kernel")) == passes
    assert [x.grid for x in certified] == [(n, shared.splits) for n in programs] * passes
    for launch, count in zip(certified, programs * passes, strict=True):
        assert launch.argument("tile_tiers").numel() == count * shared.pieces
        parts = launch.argument("parts")
        assert (4 * parts.numel() if shared.capacity else 0) == scratch(
            shared, tiles[0], programs[0]
        )


ORDERS = {
    "e5m10:order=pairwise": Fused(E5M2, E5M2, E5M2),
    "e5m10:order=compensated:product=e4m3": NOT_FUSED,
    "e8m13_chunk8:toward_zero:block=4:aligned_bits=24:outer=fp32": NOT_FUSED,
}


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


@pytest.mark.parametrize("text", ORDERS)
def test_convolutions_have_one_kernel_for_all_sizes(text: str, launches) -> None:
    found = []
    for n, c, size, k in ((8, 16, 33, 3), (16, 9, 48, 3), (7, 12, 64, 5)):
        case = ConvCase((n, c, size, size + 1), (64, c, k, k), (2, 2), (k // 2, 1), (1, 1))
        tensors = tensors_of(case, torch.zeros)
        convolve(BACKEND, "fprop", case, tensors, lp.accumulator(text), ORDERS[text])
        found.append(keys(launches))
    assert len(found[0]) == 3
    assert found[0] == found[1] == found[2]


def quantize(fmt: str, rounding: str) -> None:
    """The bits of an affine format are arguments of the kernels, not constants."""
    x = torch.randn(3, 40, 70)
    quantizer = Quantizer(fmt, rounding).to_ints()
    by_hand.quantize(BACKEND, x, quantizer, torch.tensor(5), 0, 4, torch.empty_like(x))


@pytest.mark.parametrize("kind", ["", "_sym", "_axis0", "_axis-1"])
def test_affine_formats_have_one_kernel_for_all_bits(kind: str, launches) -> None:
    quantize(f"affine8{kind}", "stochastic")
    first = keys(launches)
    assert len(first) == 2
    for bits in range(2, 17):
        quantize(f"affine{bits}{kind}", "stochastic")
        assert keys(launches) == first, bits
    quantize("affine8_axis0" if kind == "_sym" else "affine8_sym", "stochastic")
    assert keys(launches) != first


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


@pytest.mark.parametrize("names", TIERS)
def test_of_an_accumulator(names: str) -> None:
    for text in TIERS[names].split():
        found = tiers(accumulator(text).to_ints())
        assert " ".join(NAMES[tier] for tier in found) == names, text


@pytest.mark.parametrize(
    "how, widths",
    [
        ({"rounding": "toward_zero"}, range(1, 21)),
        ({"rounding": "nearest_away"}, range(1, 20)),
        ({"rounding": "to_odd"}, range(0)),
        ({"rounding": "stochastic", "random_bits": 3}, range(4, 17)),
        ({"rounding": "stochastic", "random_bits": 8}, range(4, 12)),
        ({"rounding": "stochastic", "random_bits": 9}, range(0)),
        ({"rounding": "stochastic", "random_bits": 3, "rng": "philox"}, range(0)),
    ],
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
