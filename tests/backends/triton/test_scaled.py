"""Every family of block formats on the triton backend, against the reference, to the bit: codes and
scales, values, counts, and packed blocks."""

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import lpkernels as lp
from lpkernels.arithmetic import Quantizer
from lpkernels.backends import _reference
from lpkernels.backends.triton import BACKEND
from lpkernels.backends.triton.elementwise import tiles
from lpkernels.formats import BlockFormat, parse_format
from lpkernels.formats.integers import block_by_block
from lpkernels.rounding import ROUNDINGS
from tests.backends import by_hand
from tests.backends.scaled_cases import BLOCK_FORMATS
from tests.compare import assert_bit_equal
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
#: In place of the largest magnitude; of the last three nothing can be made.
AMAXES = (0.75, 0.0, 1e-42, 1e39, 2.0**-200, -1.0, float("inf"), float("nan"))


def block_format(name: str) -> BlockFormat:
    fmt = parse_format(name)
    assert isinstance(fmt, BlockFormat)
    return fmt


def assert_scaled(
    x: Tensor, quantizer: Quantizer, device: str, amax: float | None = None, name: str = ""
) -> None:
    """Codes, scales, the product of the three parts, and the stream where blocks are packed."""
    name = f"{name} {quantizer} {tuple(x.shape)} {x.dtype} {amax}"
    given = None if amax is None else torch.tensor([amax], dtype=torch.float64)
    call = (quantizer.to_ints(), torch.tensor(SEED), 3, SITE)
    want = by_hand.scaled(REFERENCE, x, *call, given)
    got = by_hand.scaled(BACKEND, x.to(device), *call, None if given is None else given.to(device))
    for part, one, other in zip(("codes", "scales", "t"), got, want, strict=True):
        assert_bit_equal(one, other, f"{part} {name}")
    ints, there = quantizer.fmt.to_ints(), [part.to(device) for part in want]
    product = by_hand.dequantize(REFERENCE, *want, ints)
    assert_bit_equal(by_hand.dequantize(BACKEND, *there, ints), product, f"values {name}")
    if block_by_block(ints) and not any(part.isnan().any() for part in want):
        stream = by_hand.pack_scaled(BACKEND, *there[:2], ints)
        assert_bit_equal(stream, by_hand.pack_scaled(REFERENCE, *want[:2], ints), f"stream {name}")
        assert_bit_equal(BACKEND.unpack(stream, ints, list(x.shape)), product, f"stream {name}")


def values(shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> Tensor:
    x = tensor_values(shape, kind)
    # What float32 cannot hold takes part where it can.
    return x.double() * 2.0**-180 if kind == "tiny" and dtype == torch.float64 else x.to(dtype)


KINDS = ("normal", "wide", "special", "tiny")
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.float16)


@pytest.mark.parametrize("turn", range(len(BLOCK_FORMATS)), ids=lambda i: str(BLOCK_FORMATS[i]))
def test_every_family(turn: int, device: str) -> None:
    """Formats take turns with kinds of values, modes, types and shapes."""
    fmt = BLOCK_FORMATS[turn]
    modes = ROUNDINGS if fmt.steps == "exact" else ("nearest_even", "stochastic")
    for i in (turn, turn + 1):
        dtype, kind = DTYPES[i // 2 % 4], KINDS[i % 4]
        x = values(((2, 5, 37), (33, 18))[i % 2], kind, dtype)
        quantizer = Quantizer(fmt, modes[i % len(modes)])
        assert_scaled(x, quantizer, device, name=kind)
        assert_counted(BACKEND, x, quantizer, device, name=kind, ways=((260, True),))


@pytest.mark.parametrize("name", UNDERFLOWING[:4])
def test_scales_that_underflow(name: str, device: str) -> None:
    for largest in SMALL:
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


@pytest.mark.parametrize(
    "count, longest", [(15, 40), pytest.param(300, 70, marks=pytest.mark.slow)]
)
def test_any_call(count: int, longest: int, device: str) -> None:
    @settings(max_examples=count)
    @given(call=scaled_calls(longest=longest))
    def check(call: ScaledCall) -> None:
        assert_call(call, device)

    check()


LONG = ("block16_e2m1_se4m3fn_t", "tile16x16_e2m1_se4m3fn_t", "row_axis0_int8", "tensor_e4m3_te")


@pytest.mark.parametrize("name", LONG)
def test_tiles_leave_no_trace(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles are spread over programs, of a tensor with strides of its own."""
    monkeypatch.setattr(tiles, "_ELEMENTS", 32)
    x = tensor_values((19, 5), "wide").t()
    assert_scaled(x, Quantizer(name, "stochastic", random_bits=8), device)


OF_TENSOR = (
    "block16_e2m1_se4m3fn_t", "tensor_e4m3", "block16_e2m1_se4m3fn_t_te", "tensor_int8_torchao",
)  # fmt: skip


@pytest.mark.parametrize("name", OF_TENSOR)
@pytest.mark.parametrize("amax", AMAXES)
def test_a_given_amax_matches_the_reference(name: str, amax: float, device: str) -> None:
    x = values((3, 37), "special" if name.startswith("block") else "wide", torch.float32)
    quantizer = Quantizer(block_format(name))
    if amax in (0.75, -1.0):
        assert_scaled(x, quantizer, device, amax)
    limits = torch.tensor([amax], dtype=torch.float64)
    assert_counted(BACKEND, x, quantizer, device, limits, ways=((4, True),))


@pytest.mark.parametrize("name", ["nvfp4", "tile2x3_e4m3_up", "tensor_e4m3", "block5_int4_sfp32"])
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
