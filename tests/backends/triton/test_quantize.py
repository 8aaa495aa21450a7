"""quantize for float and fixed formats, those rounded in float32 and those in float64, to the
bit."""

from itertools import product

import numpy as np
import pytest
import torch

from lpkernels.arithmetic import Quantizer
from lpkernels.backends.triton import BACKEND
from lpkernels.backends.triton.elementwise import quantize
from lpkernels.backends.triton.rounding.rule import rule_of
from lpkernels.formats import FloatFormat, parse_format
from tests.backends.triton.launches import EVERY, compiled
from tests.cases import DETERMINISTIC, ROUND_FORMATS, hard_values
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.element_bits import quantized
from tests.support.elements import (
    END_FORMATS,
    SEED,
    SITE,
    Format,
    expected,
    float32_values,
)

WIDE_TILE = 1 << 13
ALL = [*ROUND_FORMATS, *END_FORMATS]


def quantizers(fmt: Format, random_bits: tuple[int, ...]) -> list[Quantizer]:
    """Quantizers of every mode; the last mode comes with a few numbers of bits, and once with the
    other generator."""
    fast = [Quantizer(fmt, "stochastic", random_bits=bits) for bits in random_bits]
    philox = Quantizer(fmt, "stochastic", random_bits=random_bits[0], rng="philox")
    return [*(Quantizer(fmt, mode) for mode in DETERMINISTIC), *fast, philox]


@each("fmt", ALL)
def test_float32_matches_round_array(fmt: Format, device: str, monkeypatch) -> None:
    """Both ways of rounding are tested: most float formats are rounded in float32, fixed ones in
    float64."""
    monkeypatch.setattr(quantize, "_BLOCK", WIDE_TILE)
    x = float32_values(fmt, 12)
    for quantizer in quantizers(fmt, (32,)):
        got = quantized(torch.from_numpy(x), quantizer, BACKEND, device)
        assert_bit_equal(got, expected(x, quantizer), f"{quantizer}")


@each("fmt", ALL)
def test_float64_matches_round_array(fmt: Format, device: str, monkeypatch) -> None:
    """Values are rounded straight to the format, never to float32 first, into float32 and into
    float64."""
    monkeypatch.setattr(quantize, "_BLOCK", WIDE_TILE)
    x = hard_values(fmt, 20)
    chosen = quantizers(fmt, (17,))
    turn = ALL.index(fmt)
    for quantizer in {chosen[0], chosen[turn % len(chosen)]}:
        want = expected(x, quantizer)
        assert_bit_equal(
            quantized(torch.from_numpy(x), quantizer, BACKEND, device), want, f"{quantizer}"
        )
        if isinstance(fmt, FloatFormat):
            got = quantized(torch.from_numpy(x), quantizer, BACKEND, device, torch.float64)
            wide = np.where(np.isnan(want), np.nan, want.astype(np.float64))
            assert_bit_equal(got, wide, f"{quantizer} to float64")


@each(
    "name, dtype",
    product(["e4m3", "e5m2_sat", "e3m2_nosub", "e5m0"], [torch.float16, torch.bfloat16]),
)
def test_16_bit_patterns_match_round_array(name: str, dtype: torch.dtype, device: str, monkeypatch):
    """All 65536 patterns are rounded into the same type and into float32; every NaN in a result has
    the same bits."""
    monkeypatch.setattr(quantize, "_BLOCK", 1 << 16)
    fmt = parse_format(name)
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    for quantizer in quantizers(fmt, (8, 23)):
        want = torch.from_numpy(expected(x.float().numpy(), quantizer))
        assert_bit_equal(quantized(x, quantizer, BACKEND, device), want, f"{quantizer} to float32")
        if fmt.fits_in(5, 10) or dtype == torch.bfloat16:
            got = quantized(x, quantizer, BACKEND, device, dtype).cpu()
            canonical = {torch.float16: 0x7E00, torch.bfloat16: 0x7FC0}[dtype]
            bits = torch.where(want.isnan(), canonical, want.to(dtype).view(torch.int16))
            assert_bit_equal(got.view(torch.int16), bits.to(torch.int16), f"{quantizer}")


@each("rounding", ["nearest_even", "stochastic"])
def test_strides_and_tiles_leave_no_trace(rounding: str, device: str, monkeypatch) -> None:
    quantizer = Quantizer("e4m3", rounding, random_bits=8 if rounding == "stochastic" else None)
    base = torch.randn(4, 6, 10)
    layouts = [
        base,
        base[0, 0, :1].view(()),
        base[:, :0],
        base.transpose(0, 2),
        base[:, ::2, 1:],
        base[:, :1].expand(4, 6, 10),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ]
    for tile, x in product((16, 1024), layouts):
        monkeypatch.setattr(quantize, "_BLOCK", tile)
        dense = x.contiguous()
        want = expected(dense.numpy().ravel(), quantizer).reshape(x.shape)
        assert_bit_equal(quantized(x, quantizer, BACKEND, device), want)
        out = torch.empty(x.shape[::-1], device=device).permute(tuple(reversed(range(x.dim()))))
        BACKEND.quantize(x.to(device), quantizer.to_ints(), torch.tensor(SEED), 0, SITE, out)
        assert_bit_equal(out.contiguous(), want)


@EVERY
@pytest.mark.parametrize("mode", ["nearest_even", "to_odd", "stochastic"])
def test_narrow_inputs_need_no_float64(mode: str, target: str) -> None:
    """The kernels also flush no subnormals and contract no product with a sum."""
    quantizer = Quantizer("e4m3", mode, random_bits=8 if mode == "stochastic" else None)
    ints = quantizer.to_ints()
    rule, numbers = rule_of(ints[:-4], *ints[-4:-1])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        by = quantize.way(ints[:-4], dtype, dtype)
        result = compiled(
            quantize.quantize_kernel, target, x_ptr=dtype, out_ptr=dtype, count=1 << 20,
            N=numbers, seed_ptr=torch.int64, role=0, site=4, R=rule, BY=by, BLOCK=1024,
        )  # fmt: skip
        text = result.asm.get("ptx") or result.asm["amdgcn"]
        assert not any(word in text for word in (".f64", "_f64", ".ftz", "fma.rn")), str(dtype)
