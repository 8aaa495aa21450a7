"""lp.quantize: values, dtypes, strides, out, gradients, draws and messages, on every backend."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import lpkernels as lp
from lpkernels.backends import BINS, COUNTS
from lpkernels.reference.counting import quantize_counting
from lpkernels.rounding import ROUNDINGS
from tests.cases import SPECIAL_VALUES
from tests.compare import assert_bit_equal
from tests.support import strategies
from tests.support.autograd import SEED, how


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values over the range of small formats, ties, zeros, infinities and NaN among them. A tie in
    float64 is none: a bit that float32 lacks lies behind it."""
    x = torch.randn(shape) * torch.exp2(torch.randint(-20, 20, shape).float())
    ties = torch.randint(-15, 16, shape) * torch.exp2(torch.randint(-9, 5, shape).float())
    x = torch.where(torch.rand(shape) < 0.5, x, ties)
    flat = x.view(-1)
    count = min(len(SPECIAL_VALUES), flat.numel())
    flat[:count] = torch.tensor(SPECIAL_VALUES[:count])
    return x.double() * (1 + 2**-40) if dtype == torch.float64 else x.to(dtype)


FORMATS = """
    e5m2 fp8_e4m3 e6m9_nosub fp16 bf16 fixed8_f4 fixed8_f4_wrap affine8 affine3_sym affine4_axis0
    affine5_sym_axis1 block4_e2m1 block4_axis0_e4m3
""".split()
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHAPES = ((), (0,), (3, 0), (7,), (5, 9), (2, 3, 4))
LAYOUTS = {
    **strategies.LAYOUTS,
    # torch has this bit for parts of complex numbers.
    "negative bit": lambda x: torch.complex(x, -x).conj().imag if x.itemsize > 2 else x,
}
#: Tensors to write into; the other name stands for the argument itself.
OUTPUTS: dict[str, Callable[[tuple[int, ...]], torch.Tensor | None]] = {
    "none": lambda shape: None,
    "dense": torch.empty,
    "transposed": lambda shape: torch.empty(shape[::-1]).permute(tuple(range(len(shape)))[::-1]),
    "resized": lambda shape: torch.empty(0),
}


def holding(dtype: torch.dtype, fmt: lp.FloatFormat | lp.FixedFormat) -> torch.dtype:
    """The dtype of a result: that of the tensor, where a cast keeps every value of a float."""
    if not isinstance(fmt, lp.FloatFormat):
        return torch.float32
    values = torch.from_numpy(fmt.values())
    return dtype if torch.equal(values.to(dtype).double(), values) else torch.float32


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fmt=st.sampled_from(FORMATS),
    rounding=st.sampled_from(ROUNDINGS),
    random_bits=st.sampled_from([None, 1, 8, 13, 32]),
    dtype=st.sampled_from(DTYPES),
    shape=st.sampled_from(SHAPES),
    layout=st.sampled_from(list(LAYOUTS)),
    output=st.sampled_from([*OUTPUTS, "itself"]),
    length=st.sampled_from([0, COUNTS, COUNTS + BINS]),
    is_ranged=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_values_and_counts_of_every_call_are_the_references(
    backends, fmt, rounding, random_bits, dtype, shape, layout, output, length, is_ranged, seed
):
    bits = random_bits if rounding == "stochastic" else None
    quantizer = lp.Quantizer(fmt, rounding, random_bits=bits)
    axis = getattr(quantizer.fmt, "axis", None)
    assume(axis in (None, -1) or axis < len(shape))
    torch.manual_seed(seed)
    x = LAYOUTS[layout](values(*shape, dtype=dtype))
    limits, call = None, {}
    if is_ranged and isinstance(quantizer.fmt, lp.AffineFormat):
        ends = torch.sort(torch.randn(2, 1 if axis is None else shape[axis]), dim=0)[0]
        limits, call = ends.double().numpy(), {"range": tuple(ends)}
    array = x.float() if dtype == torch.bfloat16 else x
    want, want_counts = quantize_counting(
        array.resolve_neg().contiguous().numpy(), quantizer, seed=SEED, limits=limits
    )
    for backend in backends:
        assert_bit_equal(
            lp.count(x, quantizer, histogram=True, **call, **how(backend)), want_counts, backend
        )
        is_same = output == "itself" and dtype == torch.float32
        argument = x.clone() if is_same else x
        out = argument if is_same else OUTPUTS.get(output, OUTPUTS["none"])(shape)
        counts = torch.full((length,), 3) if length else None
        got = lp.quantize(argument, quantizer, out=out, counts=counts, **call, **how(backend))
        assert out is None or got is out
        assert got.dtype == (holding(dtype, quantizer.fmt) if out is None else out.dtype)
        # torch widens NaN of 16 bits to several NaN; test_nan_bits.py compares those of 16 bits.
        widened = got if got.dtype == torch.float32 else got.float().where(~got.isnan(), math.nan)
        assert_bit_equal(widened, want, backend)
        if counts is not None:
            assert_bit_equal(counts - 3, want_counts[:length], backend)


@pytest.mark.parametrize("fmt", ["e5m2:toward_zero", lp.Quantizer("e5m2", "toward_zero")])
def test_quantize_takes_a_quantizer(fmt, backend):
    x = values(40)
    want = lp.quantize(x, lp.FloatFormat(5, 2), "toward_zero", backend="reference")
    assert_bit_equal(lp.quantize(x, fmt, backend=backend), want)
    assert_bit_equal(lp.quantize(x, fmt, "toward_zero", backend=backend), want)


def test_quantize_keeps_dense_strides(backend):
    x = values(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert lp.quantize(x, "e5m2", backend=backend).stride() == x.stride()


def test_a_block_longer_than_every_line_is_that_line(backend):
    x, long, short = values(6, 8), lp.BlockFormat("e2m1", 2**62), lp.BlockFormat("e2m1", 8)
    want = lp.quantize(x, short, backend="reference")
    assert_bit_equal(lp.quantize(x, long, backend=backend), want)
    assert_bit_equal(lp.unpack(lp.pack(want, long), long, x.shape), want)


def test_quantize_takes_parameters_and_inference_tensors_and_returns_a_new_tensor(backend):
    parameter = torch.nn.Parameter(torch.tensor([1.1]))
    with torch.no_grad():
        assert lp.quantize(parameter, "e5m2", backend=backend).item() == 1.0
    with torch.inference_mode():
        assert lp.quantize(torch.tensor([1.1]), "e5m2", backend=backend).item() == 1.0
    x = torch.ones(4)
    assert lp.quantize(x, "fp32", backend=backend).data_ptr() != x.data_ptr()


@pytest.mark.parametrize("fmt", ["e5m2", "affine4", "block4_e2m1"])
def test_quantize_works_in_place_and_on_overlapping_views(fmt, backend):
    x = values(64)
    want = lp.quantize(x[:-1], fmt, backend="reference")
    shifted = x.clone()
    lp.quantize(shifted[:-1], fmt, out=shifted[1:], backend=backend)
    assert_bit_equal(shifted[1:], want)
    same = x[:-1].clone()
    lp.quantize(same, fmt, out=same, backend=backend)
    assert_bit_equal(same, want)


def test_quantize_out_tells_autograd(backend):
    weight = torch.ones(3, requires_grad=True)
    saved = torch.ones(3)
    product = weight * saved
    lp.quantize(torch.ones(3), "e5m2", out=saved, backend=backend)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_quantize_takes_out_without_gradients_though_x_requires_them():
    x, out = torch.ones(4, requires_grad=True), torch.empty(4)
    with torch.no_grad():
        assert lp.quantize(x, "e5m2", out=out) is out


@pytest.mark.parametrize("dtype", DTYPES)
def test_quantize_gradient_is_straight_through_and_differentiable_again(dtype, backend):
    x = torch.linspace(-3, 3, 12, dtype=dtype, requires_grad=True)
    counts = torch.zeros(4, dtype=torch.int64)
    y = lp.quantize(x, "e6m9", counts=counts, backend=backend)
    grad = torch.arange(12, dtype=y.dtype)
    (got,) = torch.autograd.grad(y, x, grad, retain_graph=True)
    assert_bit_equal(got, grad.to(dtype))
    (first,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
    assert_bit_equal(first.detach(), (3 * y.detach() ** 2).to(dtype))
    (second,) = torch.autograd.grad(first.sum(), x)
    assert_bit_equal(second, (6 * y.detach()).to(dtype))
    assert not lp.count(x, "e6m9", backend=backend).requires_grad


def test_quantize_follows_manual_seed_and_draws_anew_each_call(backend):
    x = torch.rand(200)
    draws = []
    for seed in (3, 3, 4, None):
        if seed is not None:
            torch.manual_seed(seed)
        draws.append(lp.quantize(x, "e5m2", "stochastic", backend=backend))
    assert_bit_equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[2], draws[3])


def test_quantize_deterministic_modes_leave_generators_alone():
    generator = torch.Generator().manual_seed(1)
    before, default = generator.get_state(), torch.get_rng_state()
    lp.quantize(torch.rand(3, generator=torch.Generator()), "e5m2", generator=generator)
    assert torch.equal(generator.get_state(), before)
    assert torch.equal(torch.get_rng_state(), default)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_a_dtype_is_the_format_of_its_values(dtype: torch.dtype):
    # NaN has one code here, and keeps its sign in torch.
    x = values(40, 50).nan_to_num(0.0, math.inf, -math.inf)
    assert_bit_equal(lp.quantize(x, dtype), x.to(dtype).float())
    fmt = lp.Quantizer(dtype).fmt
    assert fmt == lp.Accumulator(dtype).fmt == lp.formats.as_format(dtype)
    assert lp.Recipe(input=dtype, fprop=dtype) == lp.Recipe(input=fmt, fprop=fmt)


def test_too_large_for_float8_e4m3fn_becomes_nan():
    assert lp.quantize(torch.tensor(1e9), torch.float8_e4m3fn).isnan()
    assert lp.pack(torch.tensor([448.0]), torch.float8_e4m3fn).tolist() == [0x7E]
