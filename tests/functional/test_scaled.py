"""lp.scaled and lp.Scaled: codes and scales, packed, in torch's types, compiled; refusals."""

import copy
import io
import math
import pickle

import pytest
import torch

import lpkernels as lp
from lpkernels import ops
from lpkernels.formats.grids import misfit
from tests.compare import assert_bit_equal
from tests.support.processor import flushed

FORMATS = """
    mxfp8 mxfp4_up mxint8 nvfp4 nvfp4_2d fp8_tensor fp8_row row_axis0_e5m2 int8_row int4_g32
    tile2x3_e2m1_se4m3fn_t tile2x2_e4m3_up block5_axis0_e3m2_ceil block4_e2m1_sbf16
    block4_int4_sfp32_to7.5 block4_e2m3_se5m3fn tensor_e2m1_se8m0 block8_nf4_sfp32
""".split()
SHAPES = [(), (1,), (7,), (5, 13), (3, 4, 6), (0,), (2, 0, 3)]


def values(*shape: int) -> torch.Tensor:
    """Normal values with a NaN and an infinity among them."""
    x = torch.randn(shape)
    if x.numel() > 12:
        x.view(-1)[[3, -1]] = torch.tensor([math.nan, math.inf])
    return x


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fmt", FORMATS)
def test_parts_multiply_to_quantize_and_pack_round_trips(fmt, shape):
    if misfit(lp.parse_format(fmt).to_ints(), len(shape)) is not None:
        return
    x = values(*shape)
    q = lp.scaled(x, fmt)
    want = lp.quantize(x, fmt)
    assert q.fmt == lp.parse_format(fmt)
    assert q.shape == q.values.shape == x.shape
    assert q.tensor_scale.shape == ()
    assert_bit_equal(q.dequantize(), want)
    codes = lp.pack(q)
    assert codes.shape == (ops.packed_bytes(q.fmt.to_ints(), shape),)
    assert_bit_equal(lp.unpack(codes, fmt, shape), want)


@pytest.mark.parametrize(
    "fmt, shape, grid",
    [
        ("mxfp8", (3, 33), (3, 2)),
        ("block4_axis0_e4m3", (9, 2), (3, 2)),
        ("tile2x3_e4m3_up", (2, 5, 7), (2, 3, 3)),
        ("fp8_row", (3, 5), (3, 1)),
        ("row_axis0_e4m3", (3, 5), (1, 5)),
        ("fp8_tensor", (2, 3, 4), (1, 1, 1)),
        ("fp8_tensor", (2, 0), (1, 0)),
        ("nvfp4", (), ()),
    ],
)
def test_scales_lie_on_the_grid_of_blocks(fmt, shape, grid):
    assert lp.scaled(torch.ones(shape), fmt).scale.shape == grid


@pytest.mark.parametrize(
    "fmt", ["nvfp4_46_row", "block16_axis0_e2m1_se4m3fn_trow_te", "nvfp4_46_2d"]
)
def test_the_choice_of_a_block_is_not_stored(fmt):
    q = lp.scaled(values(32, 48), fmt)
    t = q.tensor_scale.reshape(-1).view(torch.uint8)
    want = [t, lp.pack(q.scale, "e4m3fn"), lp.pack(q.values, "fp4_e2m1")]
    assert_bit_equal(lp.pack(q), torch.cat(want))
    again = lp.Scaled.from_tensors(*q.tensors(), fmt)
    for name in ("values", "scale", "tensor_scale"):
        assert_bit_equal(getattr(again, name), getattr(q, name))


def test_blocks_that_are_packed_apart():
    x = torch.tensor([[6.0, -3.0, 0.5, 1.0], [0.0, -0.0, math.nan, 1.0]])
    q = lp.scaled(x, "block2_e2m1_se4m3fn_t", amax=2688.0)
    assert q.tensor_scale == 1
    assert q.scale.tolist()[0] == [1.0, 0.171875]
    # t, then e4m3 scales, then e2m1 elements, the first in the low bits; NaN is 0x7f.
    want = [0, 0, 0x80, 0x3F, 0x38, 0x23, 0, 0x7F, 0xD7, 0x75, 0x80, 0]
    assert lp.pack(q).tolist() == want
    q = lp.scaled(x, "tile2x2_e2m1_up")
    assert lp.pack(q).tolist() == [127, 255, 0xD7, 0, 0x80, 0]
    q = lp.scaled(x, "fp8_tensor")
    assert lp.pack(q).tolist() == [0, 0, 0xC0, 0x7F, *[0] * 8]


@pytest.mark.parametrize("fmt", ["block4_e4m3", "block4_axis0_e2m1"])
def test_values_that_tell_their_scales_are_packed_alike(fmt):
    x = torch.randn(5, 13)
    assert_bit_equal(lp.pack(lp.quantize(x, fmt), fmt), lp.pack(lp.scaled(x, fmt)))


@pytest.mark.parametrize(
    "amax", [3.0, torch.tensor(3.0), torch.tensor([[3.0]], dtype=torch.bfloat16)]
)
def test_amax_stands_for_the_largest_magnitude(amax):
    x = torch.tensor([1.0, -2.0, 100.0])
    q = lp.scaled(x, "fp8_tensor", amax=amax)
    assert q.scale.item() == torch.tensor(3.0).div(448).item()
    assert q.values[2] == 448
    assert_bit_equal(lp.quantize(x, "fp8_tensor", amax=amax), q.dequantize())
    t = lp.scaled(x, "nvfp4", amax=amax).tensor_scale
    assert t == torch.tensor(3.0) / 2688


def test_amax_counts_and_writes_like_quantize():
    x, counts = torch.tensor([1.0, -2.0, 100.0, 0.0]), torch.zeros(4, dtype=torch.int64)
    y = lp.quantize(x, "fp8_tensor", amax=2.0, counts=counts)
    assert counts.tolist() == [1, 0, 1, 0]
    out = torch.empty(4)
    assert lp.quantize(x, "fp8_tensor", amax=2.0, out=out) is out
    assert_bit_equal(out, y)


def test_gradients_pass_quantize_and_end_at_scaled():
    x = torch.randn(3, 8, requires_grad=True)
    lp.quantize(x, "nvfp4", amax=2.0).sum().backward()
    assert_bit_equal(x.grad, torch.ones(3, 8))
    q = lp.scaled(x, "nvfp4")
    assert not (q.values.requires_grad or q.scale.requires_grad or q.tensor_scale.requires_grad)


def test_draws_are_keyed_by_the_index_in_the_tensor():
    x, seed = torch.rand(6, 10), torch.tensor(5)
    q = lp.scaled(x, "tile2x5_e2m1_sfp32", "stochastic", generator=seed)
    y = lp.quantize(x, "tile2x5_e2m1_sfp32:stochastic", generator=seed)
    assert_bit_equal(q.dequantize(), y)
    # The blocks of one scale draw what one block draws.
    x = torch.rand(4, 4) + 6
    one = lp.scaled(x, "tensor_int8_se8m0_up", "stochastic", generator=seed)
    for fmt in ("block2_int8_up", "block2_axis0_int8_up", "tile2x2_int8_up"):
        assert_bit_equal(lp.scaled(x, fmt, "stochastic", generator=seed).values, one.values)


def test_scaled_is_made_by_hand():
    q = lp.Scaled(torch.tensor([3.0, -6.0]), torch.tensor([0.5]), None, "block2_e2m1_sfp32")
    assert q.dequantize().tolist() == [1.5, -3.0]
    assert q.tensor_scale == 1
    t = torch.tensor(2.0)
    assert lp.Scaled(q.values, q.scale, t, "block2_e2m1_se4m3fn_t").dequantize().tolist() == [3, -6]
    with pytest.raises(AttributeError):
        q.values = t
    assert repr(q).startswith("Scaled('block2_e2m1_sfp32', values=tensor([ 3., -6.])")


def saved(q: lp.Scaled) -> lp.Scaled:
    file = io.BytesIO()
    torch.save(q, file)
    file.seek(0)
    return torch.load(file)


def mapped(q: lp.Scaled) -> lp.Scaled:
    return torch.utils._pytree.tree_map(torch.clone, q)


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda q: pickle.loads(pickle.dumps(q)), saved, mapped]
)
def test_scaled_is_copied_and_saved(again):
    q = lp.scaled(torch.randn(3, 20), "nvfp4")
    other = again(q)
    assert type(other) is lp.Scaled
    assert other.fmt == q.fmt
    for name in ("values", "scale", "tensor_scale"):
        assert_bit_equal(getattr(other, name), getattr(q, name))


@pytest.mark.parametrize(
    "fmt, elements, scale",
    [
        ("fp8_tensor", torch.float8_e4m3fn, torch.float32),
        ("fp8_e5m2_tensor", torch.float8_e5m2, torch.float32),
        ("mxfp8", torch.float8_e4m3fn, torch.float8_e8m0fnu),
        ("mxfp6_e2m3_up", torch.uint8, torch.float8_e8m0fnu),
        ("nvfp4", torch.float4_e2m1fn_x2, torch.float8_e4m3fn),
        ("mxint8", torch.int8, torch.float8_e8m0fnu),
        ("int8_row", torch.int8, torch.float32),
        ("int4_g32", torch.uint8, torch.float32),
        ("block8_nf4_sfp32", torch.uint8, torch.float32),
        ("block4_e2m1_se5m3fn", torch.float4_e2m1fn_x2, torch.uint8),
        ("block4_e3m2_se3m2ieee", torch.uint8, torch.uint8),
        ("block4_e4m3_sbf16", torch.float8_e4m3fn, torch.bfloat16),
        ("block4_e4m3_se5m2", torch.float8_e4m3fn, torch.float8_e5m2),
    ],
)
def test_tensors_have_torch_types_and_come_back(fmt, elements, scale):
    for shape in ((6, 40), (2, 3, 4), (0, 2)):
        q = lp.scaled(values(*shape), fmt)
        parts = q.tensors()
        assert (parts[0].dtype, parts[1].dtype) == (elements, scale)
        half = elements == torch.float4_e2m1fn_x2
        assert parts[0].shape == (*shape[:-1], shape[-1] // 2 if half else shape[-1])
        assert parts[1].shape == q.scale.shape
        on_meta = lp.scaled(values(*shape).to("meta"), fmt).tensors()
        assert [(t.shape, t.dtype) for t in on_meta] == [(t.shape, t.dtype) for t in parts]
        back = lp.Scaled.from_tensors(*parts, fmt)
        assert_bit_equal(back.values, q.values)
        assert_bit_equal(back.scale, q.scale)


@pytest.mark.parametrize("fmt", [
    "nvfp4", "mxfp8", "block4_axis-2_e4m3", "block4_axis0_e4m3", "row_e4m3", "tile2x4_e4m3",
    "nvfp4_2d", "fp8_tensor",
])  # fmt: skip
def test_a_transposed_matrix_has_its_blocks_along_the_other_axis(fmt):
    x = values(3, 6, 40)
    q = lp.scaled(x, fmt)
    want = lp.scaled(x.mT, q.mT.fmt)
    for name in ("values", "scale", "tensor_scale"):
        assert_bit_equal(getattr(q.mT, name).contiguous(), getattr(want, name), name)
    assert q.mT.mT.fmt.to_ints() == (q.fmt if q.fmt.axis != 0 else q.mT.fmt).to_ints()
    assert_bit_equal(q.mT.dequantize(), q.dequantize().mT.contiguous())
    with pytest.raises(ValueError, match=r"Scaled.mT: expected two dimensions .*shape \(40,\)"):
        _ = lp.scaled(x[0, 0], "mxfp8").mT


def test_the_first_code_of_two_is_in_the_low_bits():
    q = lp.scaled(torch.tensor([6.0, -3.0, 0.0, 1.0]), "tensor_e2m1")
    assert q.tensors()[0].view(torch.uint8).tolist() == [0xD7, 0x20]


def test_small_scales_survive_flushed_denormals():
    q = lp.scaled(torch.zeros(2, 32), "mxfp8")
    amaxes = (torch.tensor(2.0**-140), torch.tensor(-(2.0**-130)).bfloat16())
    with flushed():
        elements, scale, _ = q.tensors()
        back = lp.Scaled.from_tensors(elements, scale, None, "mxfp8")
        codes = lp.pack(lp.scaled(torch.zeros(2, 32), "tile2x32_e4m3_up"))
        small, below = (lp.scaled(torch.ones(2), "tensor_e4m3", amax=each_) for each_ in amaxes)
    # 2^-140 / 448 is rounded to the smallest subnormal.
    assert small.scale.view(torch.int32).item() == 1
    assert below.scale.isnan()
    assert scale.view(torch.uint8).tolist() == [[0], [0]]
    assert_bit_equal(back.scale, q.scale)
    assert codes[0] == 0


def test_fp8_tensors_go_into_scaled_mm():
    a, b = (lp.scaled(torch.randn(rows_, 32), "fp8_tensor") for rows_ in (16, 48))
    (left, s, _), (right, r, _) = a.tensors(), b.tensors()
    y = torch._scaled_mm(left, right.t(), scale_a=s, scale_b=r, out_dtype=torch.float32)
    # Products of codes and their sums are exact in float32 but for the last bits.
    want = a.dequantize().double() @ b.dequantize().double().t()
    assert torch.allclose(y.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fmt", ["nvfp4", "fp8_tensor", "mxfp8_up", "row_e4m3_to100", "tile4x4_e4m3_up"]
)
def test_compiled_and_exported_with_dynamic_shapes(fmt):
    parsed = lp.parse_format(fmt)

    class Both(torch.nn.Module):
        def forward(self, x):
            q = lp.scaled(x, parsed)
            return q, q.dequantize(), lp.quantize(x, fmt), lp.scaled(x, fmt).scale

    torch._dynamo.reset()
    compiled = torch.compile(Both(), fullgraph=True, dynamic=True, backend="aot_eager")
    sizes = ({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO},)
    exported = torch.export.export(Both(), (torch.randn(6, 96),), dynamic_shapes=sizes).module()
    for shape in ((6, 96), (8, 128), (10, 65)):
        x = torch.randn(shape)
        want = Both()(x)
        for got in (compiled(x), exported(x)):
            assert got[0].fmt == parsed
            assert_bit_equal(got[0].values, want[0].values)
            assert_bit_equal(got[0].scale, want[0].scale)
            assert_bit_equal(got[0].tensor_scale, want[0].tensor_scale)
            for one, other in zip(got[1:], want[1:], strict=True):
                assert_bit_equal(one, other)
