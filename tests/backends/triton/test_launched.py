"""The kernels of products, convolutions and quantizers: their launches are recorded and bound as
Triton binds them, but not started."""

from collections.abc import Iterator

import pytest
import torch

import lpkernels as lp
from lpkernels.arithmetic import Accumulator, Quantizer, as_quantizer
from lpkernels.backends import NOT_FUSED, Fused
from lpkernels.backends.planning import triton_tiers as _tiers
from lpkernels.backends.triton import BACKEND
from tests.backends.triton.launches import TARGETS, Launch, keys, recorded
from tests.cases import ConvCase
from tests.loops import each
from tests.support.products import convolve, tensors_of

E5M2, FIXED = (as_quantizer(text).to_ints() for text in ("e5m2", "fixed8_f4_wrap:to_odd"))
#: Every branch of the kernels: modes, products, chunks, both generators, fixed point.
SEQUENCES = {
    "e5m10": Fused(E5M2, FIXED, E5M2),
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
        groups = _tiers.groups(_tiers.tiers(acc.to_ints(), nvidia=nvidia))
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
