"""Native chunks by tl.dot: outer additions, bias and result to the bit, where chunks are exact."""

import numpy as np
import pytest
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels import ops
from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends import NOT_FUSED, Fused
from lpkernels.backends.planning.triton_tiers import single_outer
from lpkernels.formats import parse_format
from tests.cases import hard_values
from tests.compare import assert_bit_equal

pytestmark = [
    pytest.mark.triton,
    # The interpreter computes with NumPy, which warns of every infinity less itself.
    pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning"),
]
native = pytest.importorskip("lpkernels.backends.triton._native")
backend = pytest.importorskip("lpkernels.backends.triton").BACKEND

SEED = torch.tensor(987654321)
ROLE = 4
#: Sums of 64 products of its values are exact in float32 in any order.
NARROW = "fp6_e2m3"
#: Outer accumulators: rounded in float32, saturating, with NaN beyond max, and not in float32.
OUTER = (
    {"outer": "e6m9"},
    {"outer": "e4m3_sat"},
    {"outer": "e4m3fn"},
    {"outer": "bf16"},
    {"outer": "fixed12_f4"},
    {"outer": "e6m9", "rounding": "toward_negative"},
    {"outer": "e5m7", "rounding": "stochastic"},
)


def native_and_not(chunk: int, **options: str) -> tuple[Accumulator, Accumulator]:
    """One accumulator of order "native", and the sequential one with the same outer additions."""
    rounding = options.pop("rounding", "nearest_even")
    acc = Accumulator("fp32", rounding, order="native", chunk=chunk, **options)
    return acc, Accumulator("fp32", outer_rounding=rounding, chunk=chunk, **options)


def narrow(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return lp.quantize(torch.randn(*shape, generator=generator), NARROW, backend="reference")


@pytest.mark.parametrize("options", OUTER, ids=str)
@pytest.mark.parametrize("shape", [(20, 35, 33), (1, 0, 2), (2, 7, 9, 5)], ids=str)
def test_a_product_has_the_bits_of_exact_chunks(device, shape, options):
    acc, exact = native_and_not(16, **options)
    *batch, m, k, n = shape
    a, b, bias = narrow(*batch, m, k), narrow(*batch, k, n), narrow(n)
    got = backend.matmul(
        a.to(device), b.to(device), bias.to(device), acc.to_ints(), SEED.to(device), ROLE
    )
    want = ops.matmul(a, b, bias, exact.to_ints(), SEED, ROLE, "reference")
    assert_bit_equal(got, want, f"{shape} {acc}")


@pytest.mark.parametrize("fmt", [NARROW, "bf16", "e4m3fn", None])
def test_operands_are_rounded_as_they_are_read(device, fmt):
    acc, exact = native_and_not(4, outer="e5m4")
    quantizer = Quantizer(fmt).to_ints() if fmt else ()
    fused = Fused(quantizer, quantizer, Quantizer("e5m2").to_ints())
    # Multiples of 2^-3 below 4, whose sums are exact however wide they stay.
    a, b = (torch.randint(-31, 32, (9, 9)).float() / 8 for _ in range(2))
    call = (None, acc.to_ints(), None, ROLE, fused)
    got = backend.matmul(a.to(device), b.to(device), *call)
    want = ops.matmul(a, b, None, exact.to_ints(), None, ROLE, "reference", fused)
    assert_bit_equal(got, want)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("e5m2", "e4m3fn", "FLOAT16"),
        ("e4m3fn", "bf16", "BFLOAT16"),
        ("e5m10", "e8m7", "FLOAT32"),
        ("e5m2", "", "FLOAT32"),
        ("e5m2", "fixed8_f4", "FLOAT32"),
        ("tf32", "e5m2", "FLOAT32"),
    ],
)
def test_tensor_cores_take_half_precision_that_holds_the_formats(left, right, expected):
    ints = [Quantizer(fmt).to_ints() if fmt else () for fmt in (left, right)]
    assert native.dot_type(*ints) == getattr(native, expected)


@pytest.mark.parametrize("name", ["e6m9", "e4m3fn", "e3m2_sat", "e5m21"])
def test_any_two_float32_are_added_with_one_rounding(device, name):
    fmt = parse_format(name)
    acc, exact = native_and_not(1, outer=name)
    assert single_outer(acc.to_ints())
    with np.errstate(over="ignore", invalid="ignore"):
        values = hard_values(fmt, 20).astype(np.float32)
    near = np.concatenate([values, np.nextafter(values, 0), np.nextafter(values, np.float32(9e9))])
    wide = torch.from_numpy(np.random.default_rng(3).permutation(near))
    a = wide[: wide.numel() // 3 * 3].view(-1, 3)
    one = torch.ones(3, 1)
    got = backend.matmul(a.to(device), one.to(device), None, acc.to_ints(), None, 0)
    want = ops.matmul(a, one, None, exact.to_ints(), None, 0, "reference")
    assert_bit_equal(got, want, name)


@pytest.mark.parametrize("name", ["e8m7", "e5m22", "fp32", "e6m9_nosub", "fixed8_f4"])
def test_other_outer_formats_are_rounded_in_float64(name):
    assert not single_outer(native_and_not(1, outer=name)[0].to_ints())


@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions(device, stride):
    acc, exact = native_and_not(8, outer="e6m9")
    x, w = narrow(2, 4, 6, 5), narrow(6, 2, 3, 3)
    g = narrow(2, 6, *((size + 2 - 3) // stride + 1 for size in (6, 5)))
    numbers = ([stride] * 2, [1, 1], [1, 1], 2)
    for name, operands in (
        ("conv_fprop", (x, w, None)),
        ("conv_dgrad", (g, w, list(x.shape))),
        ("conv_wgrad", (x, g, list(w.shape))),
    ):
        on = [o.to(device) if isinstance(o, Tensor) else o for o in operands]
        got = getattr(backend, name)(*on, *numbers, acc.to_ints(), None, ROLE, NOT_FUSED)
        want = getattr(ops, name)(*operands, *numbers, exact.to_ints(), None, ROLE, "reference")
        assert_bit_equal(got, want, name)
