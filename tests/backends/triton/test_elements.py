"""Elementwise work on the triton backend in small tiles and with strides, which leave no trace;
test_shared.py has formats, modes and values."""

from functools import partial

import pytest
import torch

import lpkernels as lp
from lpkernels.arithmetic import Quantizer
from lpkernels.backends.triton import BACKEND
from lpkernels.backends.triton.elementwise import (
    accumulate,
    affine,
    counts,
    packing,
    quantize,
    tiles,
)
from lpkernels.backends.triton.rounding.rule import rule_of
from lpkernels.formats import parse_format
from lpkernels.rng import SITE_OUTER
from tests.backends import by_hand
from tests.backends.shared_elements import assert_scaled
from tests.backends.triton.launches import EVERY as EVERY_TARGET
from tests.backends.triton.launches import compiled
from tests.compare import assert_bit_equal
from tests.support.elements import (
    REFERENCE,
    TENSOR_FORMATS,
    assert_codes_or_refused,
    assert_counted,
    assert_quantized,
    quantized,
    tensor_values,
)

check_quantized = partial(assert_quantized, BACKEND)
check_counted = partial(assert_counted, BACKEND)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices and blocks are spread over programs; parts of a block follow each other."""
    monkeypatch.setattr(affine, "_RANGE_TILE", 16)
    monkeypatch.setattr(affine, "_LINE_TILE", 8)
    monkeypatch.setattr(affine, "_COLUMNS", 4)
    monkeypatch.setattr(tiles, "_ELEMENTS", 8)
    monkeypatch.setattr(quantize, "_BLOCK", 16)


@pytest.mark.parametrize("fmt", [*TENSOR_FORMATS[::2], "block32_axis0_e4m3", "e5m2"], ids=str)
def test_tiles_and_strides_leave_no_trace(fmt, device: str, small_tiles: None) -> None:
    x = tensor_values((2, 6, 9), "special")
    check_quantized(x, Quantizer(fmt, "stochastic", random_bits=8), device)
    for view in (x.transpose(0, 2), x[:, ::2], x[:, :1].expand(2, 6, 9), x[:, :0]):
        check_quantized(view, Quantizer(fmt), device)
    check_counted(x.transpose(0, 2)[:, ::2], Quantizer(fmt), device)
    out = torch.empty(x.shape[::-1], device=device).permute(2, 1, 0)
    lp.quantize(x.to(device), fmt, out=out, backend="triton")
    assert_bit_equal(out.contiguous(), quantized(x, Quantizer(fmt)))


@EVERY_TARGET
@pytest.mark.parametrize("mode", ["nearest_even", "to_odd", "stochastic"])
def test_narrow_inputs_need_no_float64(mode: str, target: str) -> None:
    """The kernels also flush no subnormals and contract no product with a sum."""
    quantizer = Quantizer("e4m3", mode, random_bits=8 if mode == "stochastic" else None)
    ints = quantizer.to_ints()
    rule, numbers = rule_of(ints[:-4], *ints[-4:-1])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        by = quantize.way(ints[:-4], dtype, dtype)
        result = compiled(
            quantize.quantize_kernel, target, x_ptr=dtype, out_ptr=dtype, counts_ptr=None,
            count=1 << 20, N=numbers, U=numbers, seed_ptr=torch.int64, role=0, site=4, R=rule,
            RU=rule, BY=by, W=counts.Wanted(True, False, False), BLOCK=1024,
        )  # fmt: skip
        text = result.asm.get("ptx") or result.asm["amdgcn"]
        assert not any(word in text for word in (".f64", "_f64", ".ftz", "fma.rn")), str(dtype)


def test_strides_and_tiles_leave_no_trace_in_additions(device: str, monkeypatch) -> None:
    ints = lp.accumulator("e5m6:stochastic:bits=13").to_ints()
    addend = tensor_values((50, 9), "special")
    total = quantized(addend.roll(1), Quantizer("e5m6"))
    want, rest = total.clone(), ((0, 0), ints, torch.tensor(-77), 4, SITE_OUTER, 3)
    by_hand.accumulate(REFERENCE, want, addend, *rest)
    for values, columns in ((8, 4), (64, 16)):
        monkeypatch.setattr(accumulate, "_ELEMENTS", values)
        monkeypatch.setattr(accumulate, "_COLUMNS", columns)
        got = total.to(device, copy=True)
        by_hand.accumulate(BACKEND, got, addend.t().contiguous().t().to(device), *rest)
        assert_bit_equal(got, want)
    empty = torch.empty(0, 3, device=device)
    by_hand.accumulate(BACKEND, empty, empty, *rest)


LONG = ("block16_e2m1_se4m3fn_t", "tile16x16_e2m1_se4m3fn_t", "row_axis0_int8", "tensor_e4m3_te")


@pytest.mark.parametrize("name", LONG)
def test_tiles_leave_no_trace_in_codes_and_scales(name: str, device: str, monkeypatch) -> None:
    """Tiles are spread over programs, of a tensor with strides of its own."""
    monkeypatch.setattr(tiles, "_ELEMENTS", 32)
    x = tensor_values((19, 5), "wide").t()
    assert_scaled(BACKEND, x, Quantizer(name, "stochastic", random_bits=8), device, ("",))


@pytest.mark.parametrize("fmt", ["e4m3", "fixed8_f4", "block5_axis0_e2m1", "block7_axis1_e2m3"])
def test_tiles_leave_no_trace_in_packed_codes(fmt: str, device: str, monkeypatch) -> None:
    """Values and the first refusal, across programs."""
    monkeypatch.setattr(packing, "_WORDS", 4)
    monkeypatch.setattr(tiles, "_ELEMENTS", 8)
    values = quantized(tensor_values((2, 5, 9), "normal"), Quantizer(fmt))
    wrong = values.clone()
    wrong.view(-1)[[41, 77]] = 1e-30
    for x in (values, wrong):
        assert_codes_or_refused(BACKEND, x, parse_format(fmt), device)


@pytest.mark.parametrize("name", ["nvfp4", "tile2x3_e4m3_up", "tensor_e4m3", "block5_int4_sfp32"])
def test_streams_behind_their_scales_are_read(name: str, device: str, monkeypatch) -> None:
    monkeypatch.setenv("LPKERNELS_BACKEND", "triton")
    x = tensor_values((3, 37), "special").to(device)
    q = lp.scaled(x, name)
    assert_bit_equal(lp.unpack(lp.pack(q), name, x.shape), q.dequantize(), name)


def test_pack_names_the_code_that_there_is_not(device: str) -> None:
    ints = parse_format("block4_int4").to_ints()
    codes, scale = torch.zeros(2, 4, device=device), torch.ones(2, 1, device=device)
    codes[1, 2] = -8.0
    want = by_hand.pack_scaled(REFERENCE, codes.cpu(), scale.cpu(), ints)
    assert_bit_equal(by_hand.pack_scaled(BACKEND, codes, scale, ints), want)
    codes[0, 3] = 1.5
    with pytest.raises(ValueError, match=r"element 3 \(in row-major order\) is 1.5"):
        by_hand.pack_scaled(BACKEND, codes, scale, ints)
