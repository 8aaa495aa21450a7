"""range= of lp.quantize and lp.count: the ends of an affine format, given."""

import math

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels.reference import twin
from lpkernels.rounding import ROUNDINGS
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.composition import SEED, how

AFFINES = ["affine4", "affine8", "affine3_sym", "affine4_axis0", "affine5_sym_axis1"]


def values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape) * torch.exp2(torch.randint(-6, 6, shape).float())


def ends_of(x: torch.Tensor, fmt: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the largest value of x, or of every slice of a format with an axis."""
    axis = lp.parse_format(fmt).axis
    if axis is None:
        return x.amin(), x.amax()
    others = [d for d in range(x.dim()) if d != axis % x.dim()]
    return x.amin(others), x.amax(others)


# The published quantizer's own vectors: Fu et al. 2021 (CPT), modules/quantize.py.
VECTOR = [-1.0, -0.4, 0.1, 0.7, 1.5]
PUBLISHED = {2: [0, 1, 1, 2, 3], 3: [0, 2, 3, 5, 7], 4: [0, 4, 7, 10, 15]} | {
    8: [0, 61, 112, 173, 255]
}


@each("bits", PUBLISHED)
def test_the_published_codes(bits, backend):
    x = torch.tensor(VECTOR)
    step = 2.5 / (2**bits - 1)
    want = torch.tensor([code * step - 1 for code in PUBLISHED[bits]], dtype=torch.float64).float()
    fmt = lp.AffineFormat(bits)
    for ends in ((-1.0, 1.5), (x.min(), x.max()), torch.tensor([-1.0, 1.5])):
        got = lp.quantize(x, fmt, range=ends, backend=backend)
        assert_bit_equal(got, want)
        assert_bit_equal(got, lp.quantize(x, fmt, backend=backend))


@each("rounding", ROUNDINGS)
@each("fmt", AFFINES)
def test_the_ends_of_the_tensor_change_nothing(fmt, rounding, backend):
    x, rest = values(4, 9), how(backend)
    got = lp.quantize(x, fmt, rounding, range=ends_of(x, fmt), **rest)
    assert_bit_equal(got, lp.quantize(x, fmt, rounding, **rest))


@each("rounding", ROUNDINGS)
@each("fmt", AFFINES)
def test_a_narrower_range_matches_the_reference(fmt, rounding, backends):
    x, quantizer = values(6, 9), lp.Quantizer(fmt, rounding)
    x[0, :3] = torch.tensor([math.inf, -math.inf, math.nan])
    axis = quantizer.fmt.axis
    ends = torch.sort(torch.randn(2, 1 if axis is None else x.shape[axis]), dim=0)[0]
    want = twin.quantize(x.numpy(), quantizer, seed=SEED, limits=ends.double().numpy())
    for backend in backends:
        rest = how(backend)
        for given in (ends, tuple(ends), ends.double(), list(ends.unbind())):
            if axis is None and isinstance(given, torch.Tensor):
                given = given.reshape(2)
            assert_bit_equal(lp.quantize(x, quantizer, range=given, **rest), want)
        counts = torch.zeros(4, dtype=torch.int64)
        got = lp.quantize(x, quantizer, range=tuple(ends), counts=counts, **rest)
        assert_bit_equal(got, want)
        assert_bit_equal(lp.count(x, quantizer, range=tuple(ends), **rest), counts)
        assert counts[0] > 0


def test_values_outside_take_the_end_codes(backend):
    x = torch.tensor([-5.0, -0.0, 0.4, 0.6, 3.0, 9.0, math.inf, -math.inf, math.nan])
    got = lp.quantize(x, "affine2", range=(0, 3), backend=backend)
    want = [0.0, 0.0, 0.0, 1.0, 3.0, 3.0, 3.0, 0.0, math.nan]
    assert_bit_equal(got, torch.tensor(want))


def test_a_single_value_and_the_smallest_step(backend):
    x = torch.tensor([0.5, 0.5 + 2**-20, 2.0])
    got = lp.quantize(x, "affine1", range=(0.5, 0.5), backend=backend)
    assert got.tolist() == [0.5, np.float32(0.5 + 1e-8), np.float32(0.5 + 1e-8)]


@each("ends", [(1, 0), (math.nan, 0), (0, math.inf), (-math.inf, 0), (math.inf, math.inf)])
def test_ends_in_tensors_that_are_none_give_nan(ends, backend):
    x = torch.tensor([[0.0, 1.0, math.inf], [0.5, -1.0, 2.0]])
    bad = torch.tensor([[ends[0], -1.0], [ends[1], 2.0]])
    counts = torch.zeros(4, dtype=torch.int64)
    for fmt in ("affine2_axis0", "affine2_sym_axis0"):
        got = lp.quantize(x, fmt, range=bad, counts=counts, backend=backend)
        assert got[0].isnan().all()
        assert not got[1].isnan().any()
    assert counts.tolist() == [0, 2, 2, 2]


def test_out_and_the_gradient(backend):
    x = values(9)
    out = torch.empty(9)
    lp.quantize(x, "affine4", range=(-1.0, 1.0), out=out, backend=backend)
    x.requires_grad_()
    ends = torch.tensor([-1.0, 1.0], requires_grad=True)
    y = lp.quantize(x, "affine4", range=ends, backend=backend)
    assert_bit_equal(y.detach(), out)
    y.sum().backward()
    assert_bit_equal(x.grad, torch.ones(9))
    assert ends.grad is None


@each("fmt", ["affine4", "affine4_axis0"])
def test_empty_tensors(fmt, backend):
    x = torch.empty(0, 3)
    assert lp.quantize(x, fmt, range=(0.0, 1.0), backend=backend).shape == (0, 3)
    assert not lp.count(torch.empty(2, 0), fmt, range=(0.0, 1.0), backend=backend).any()


X = torch.ones(4, 3)


INFINITE = "must be finite with lo <= hi"
REFUSED = [
    ("e5m2", (0.0, 1.0), ValueError, "range= is the range of an AffineFormat"),
    ("block4_e2m1", (0.0, 1.0), ValueError, "range= is the range of an AffineFormat"),
    ("affine4", (1.0, 0.0), ValueError, rf"range=\(1.0, 0.0\) {INFINITE}"),
    ("affine4", (0.0, math.inf), ValueError, rf"range=.* {INFINITE}"),
    ("affine4", (math.nan, 1.0), ValueError, rf"range=.* {INFINITE}"),
    ("affine4", (-1.5e308, 1.5e308), ValueError, rf"range=.* {INFINITE}"),
    ("affine4", (0.0,), TypeError, r"range must be \(lo, hi\)"),
    ("affine4", 1.0, TypeError, r"range must be \(lo, hi\)"),
    ("affine4", "01", TypeError, r"range must be \(lo, hi\)"),
    ("affine4", ("0", 1.0), TypeError, "range's lo must be a number or a tensor, got str"),
    ("affine4", (0.0, True), TypeError, "range's hi must be a number or a tensor, got bool"),
    ("affine4", torch.zeros(2, 1).int(), TypeError, "range must be of a floating dtype"),
    ("affine4", torch.zeros(3), ValueError, r"range has shape \(3,\), expected \(2,\): "),
    ("affine4", (0.0, torch.zeros(2)), ValueError, r"range's hi has shape \(2,\), expected"),
    ("affine4", torch.zeros(2).to("meta"), ValueError, "range is on meta but x on cpu; move it"),
    (
        "affine4_axis0",
        torch.zeros(2, 3),
        ValueError,
        r"range has shape \(2, 3\), expected \(2,\) for all slices, or 4 along axis 0",
    ),
    (
        "affine4_axis1",
        (torch.zeros(4), 1.0),
        ValueError,
        r"range's lo has shape \(4,\), expected one element for all slices, or 3 along axis 1",
    ),
]


@each("fmt, ends, error, message", REFUSED)
@each("function", [lp.quantize, lp.count])
def test_wrong_ranges_are_refused(function, fmt, ends, error, message):
    with pytest.raises(error, match=f"{function.__name__}: {message}"):
        function(X, fmt, range=ends)
