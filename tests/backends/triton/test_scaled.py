"""Every family of block formats on the triton backend, against the reference, to the bit: codes and
scales, values, counts, and packed blocks."""

from itertools import product

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

import lpkernels as lp
from lpkernels.arithmetic import Quantizer
from lpkernels.backends import _reference
from lpkernels.backends.triton import BACKEND
from lpkernels.backends.triton.elementwise import tiles
from lpkernels.formats import BlockFormat, parse_format
from lpkernels.formats.integers import block_by_block
from tests.backends import by_hand
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.elements import (
    SEED,
    SITE,
    SMALL,
    UNDERFLOWING,
    assert_counted,
    small_tensor,
    tensor_values,
)
from tests.support.strategies import LAYOUTS, ScaledCall, scaled_calls

REFERENCE = _reference.BACKEND
MODES = (
    "nearest_even", "stochastic", "toward_zero", "nearest_away", "to_odd", "toward_positive",
    "toward_negative",
)  # fmt: skip
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
#: Each rule, scale, shape of a tile, kind of element, target and program.
EXACT = (
    "block32_e4m3", "block32_e4m3_up", "block5_axis0_e2m1_ceil", "block7_e2m3_even",
    "block3_int8f6",
    "block32_e2m1_up_to4.5", "block16_e2m1_se4m3fn_t", "tile16x16_e2m1_se4m3fn_t",
    "block4_axis0_e4m3_se5m3fn_up", "tile2x3_int4_sbf16_t_to5.0", "row_e4m3", "row_axis0_int8",
    "tensor_e5m2_up", "tensor_int8_to127.5", "block32_int4_sfp32", "tile5x4_bf16_sfp32",
    "block16_e2m1_se4m3fn_t_to5.647059", "tile3x2_e3m2_even", "block6_e5m0_se3m2_nosub",
)  # fmt: skip
PROGRAMS = (
    "block16_e2m1_se4m3fn_t_te", "tile16x16_e2m1_se4m3fn_t_te", "block32_e4m3_up_te",
    "block32_axis0_e5m2_up_te", "block8_e4m3_up_te", "tensor_e4m3_te", "row_e5m2_te",
    "block16_e2m1_se4m3fn_t_torchao", "block16_e2m1_se4m3fn_torchao", "block32_e2m1_torchao",
    "block32_e3m2_even_torchao", "block32_e4m3_up_torchao", "tensor_e4m3_torchao",
    "tile4x4_e4m3_up_torchao", "row_int8_torchao", "block32_int4_sfp32_to7.5_torchao",
    "row_int8_to127.5_torchao", "block32_e2m1_sfp32_deepgemm", "block32_e2m1_up_deepgemm",
    "block16_e4m3_sfp32_deepgemm", "tile4x4_e4m3_up_deepgemm",
)  # fmt: skip
KINDS = ("normal", "wide", "special", "tiny")
#: In place of the largest magnitude; of the last three nothing can be made.
AMAXES = (0.75, 0.0, 1e-42, 1e39, 2.0**-200, -1.0, float("inf"), float("nan"))


def block_format(name: str) -> BlockFormat:
    fmt = parse_format(name)
    assert isinstance(fmt, BlockFormat)
    return fmt


def assert_scaled(
    x: Tensor, quantizer: Quantizer, device: str, amax: float | None = None, name: str = ""
) -> None:
    """Codes, scales, and the product of the three parts."""
    name = f"{name} {quantizer} {tuple(x.shape)} {x.dtype} {amax}"
    given = None if amax is None else torch.tensor([amax], dtype=torch.float64)
    call = (quantizer.to_ints(), torch.tensor(SEED), 3, SITE)
    want = by_hand.scaled(REFERENCE, x, *call, given)
    got = by_hand.scaled(BACKEND, x.to(device), *call, None if given is None else given.to(device))
    for part, one, other in zip(("codes", "scales", "t"), got, want, strict=True):
        assert_bit_equal(one, other, f"{part} {name}")
    ints = quantizer.fmt.to_ints()
    product = by_hand.dequantize(BACKEND, *(part.to(device) for part in want), ints)
    assert_bit_equal(product, by_hand.dequantize(REFERENCE, *want, ints), f"values {name}")


def values(shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> Tensor:
    x = tensor_values(shape, kind)
    # What float32 cannot hold takes part where it can.
    return x.double() * 2.0**-180 if kind == "tiny" and dtype == torch.float64 else x.to(dtype)


@each("name", [*EXACT, *PROGRAMS])
def test_every_family_matches_the_reference(name: str, device: str) -> None:
    """Formats take turns with kinds of values, modes, types and shapes."""
    fmt = block_format(name)
    turn = (*EXACT, *PROGRAMS).index(name)
    modes = MODES if fmt.steps == "exact" else MODES[:2]
    for i in (turn, turn + 1):
        dtype, kind = DTYPES[i // 2 % 4], KINDS[i % 4]
        x = values(((2, 5, 37), (33, 18))[i % 2], kind, dtype)
        quantizer = Quantizer(fmt, modes[i % len(modes)])
        if i % 2:
            assert_scaled(x, quantizer, device, name=kind)
        else:
            assert_counted(BACKEND, x, quantizer, device, name=kind, ways=((260, True),))


@each("name, largest", UNDERFLOWING[:4], SMALL)
def test_scales_that_underflow(name: str, largest: float, device: str) -> None:
    assert_scaled(small_tensor(largest), Quantizer(name), device, name=f"{largest}")


def assert_call(call: ScaledCall, device: str) -> None:
    """Of calls with an amax, values and counts; of others codes and scales too."""
    x = LAYOUTS[call.layout](call.x)
    name = f"{call.layout} {call.quantizer} {tuple(x.shape)} {x.dtype} {call.amax}"
    if call.amax is None:
        return assert_scaled(x, call.quantizer, device, name=name)
    limits = torch.tensor([call.amax], dtype=torch.float64)
    return assert_counted(
        BACKEND, x, call.quantizer, device, limits, name=name, ways=((260, True),)
    )


ANY_CALL = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@settings(ANY_CALL, max_examples=12)
@given(call=scaled_calls(longest=40))
def test_any_call_matches_the_reference(device: str, call: ScaledCall) -> None:
    assert_call(call, device)


@pytest.mark.slow
@settings(ANY_CALL, max_examples=300)
@given(call=scaled_calls())
def test_many_calls_match_the_reference(device: str, call: ScaledCall) -> None:
    assert_call(call, device)


LONG = ("block16_e2m1_se4m3fn_t", "tile16x16_e2m1_se4m3fn_t", "row_axis0_int8", "tensor_e4m3_te")


@each("name", LONG)
def test_tiles_leave_no_trace(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles are spread over programs, of a tensor with strides of its own."""
    monkeypatch.setattr(tiles, "_ELEMENTS", 32)
    x = tensor_values((19, 5), "wide").t()
    assert_scaled(x, Quantizer(name, "stochastic", random_bits=8), device)


OF_TENSOR = (
    "block16_e2m1_se4m3fn_t", "tensor_e4m3", "block16_e2m1_se4m3fn_t_te", "tensor_int8_torchao",
)  # fmt: skip


@each("name, amax", product(OF_TENSOR, AMAXES))
def test_a_given_amax_matches_the_reference(name: str, amax: float, device: str) -> None:
    x = values((3, 37), "special" if name.startswith("block") else "wide", torch.float32)
    quantizer = Quantizer(block_format(name))
    if amax in (0.75, -1.0):
        assert_scaled(x, quantizer, device, amax)
    limits = torch.tensor([amax], dtype=torch.float64)
    assert_counted(BACKEND, x, quantizer, device, limits, ways=((4, True),))


def test_one_nan_spoils_its_tile_alone(device: str) -> None:
    x = torch.randn(4, 48)
    x[1, 17], x[2, 40] = float("nan"), float("inf")
    ints = Quantizer("nvfp4").to_ints()
    codes, scale, t = by_hand.scaled(BACKEND, x.to(device), ints, None, 0, SITE, None)
    bad = [(int(i), int(j)) for i, j in scale.isnan().nonzero()]
    assert bad == [(1, 1), (2, 2)]
    assert codes.isfinite().all() and t.isfinite()


@each("name", [*EXACT, *PROGRAMS])
def test_codes_and_scales_pack_as_the_reference(name: str, device: str) -> None:
    fmt = block_format(name)
    ints = fmt.to_ints()
    if not block_by_block(ints):
        return
    # DeepGEMM gives a block of NaN the largest scale, and its codes have no NaN.
    for kind in ("wide", "tiny" if fmt.steps == "deepgemm" else "special"):
        x = tensor_values((3, 37), kind)
        parts = by_hand.scaled(REFERENCE, x, Quantizer(fmt).to_ints(), None, 0, SITE, None)[:2]
        want = by_hand.pack_scaled(REFERENCE, *parts, ints)
        got = by_hand.pack_scaled(BACKEND, *(part.to(device) for part in parts), ints)
        assert_bit_equal(got, want, f"{fmt} {kind}")
        unpacked = BACKEND.unpack(got, ints, list(x.shape))
        assert_bit_equal(unpacked, REFERENCE.unpack(want, ints, x.shape), f"{fmt} {kind}")


@each("name", ["nvfp4", "tile2x3_e4m3_up", "tensor_e4m3", "block5_int4_sfp32"])
def test_streams_behind_their_scales_are_read(
    name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LPKERNELS_BACKEND", "triton")
    x = tensor_values((3, 37), "special").to(device)
    q = lp.scaled(x, name)
    assert_bit_equal(lp.unpack(lp.pack(q), name, x.shape), q.dequantize(), name)


def test_pack_names_the_code_that_there_is_not(device: str) -> None:
    fmt = block_format("block4_int4")
    codes, scale = torch.zeros(2, 4, device=device), torch.ones(2, 1, device=device)
    codes[1, 2] = -8.0
    ints = fmt.to_ints()
    want = by_hand.pack_scaled(REFERENCE, codes.cpu(), scale.cpu(), ints)
    assert_bit_equal(by_hand.pack_scaled(BACKEND, codes, scale, ints), want)
    codes[0, 3] = 1.5
    with pytest.raises(ValueError, match=r"element 3 \(in row-major order\) is 1.5"):
        by_hand.pack_scaled(BACKEND, codes, scale, ints)
