"""Scaled formats against torchao 0.18, which people train with: scales and codes of 10^6 values.

torchao itself runs in `make prove`, which installs it; tests/reference/test_scaled_vectors.py
compares with its recorded results. Known differences, of torchao's eager code:

- MX, a block whose scale has the byte 0: its codes are half of the right ones, or zeros.
- MX with RCEIL takes ceil(log2(a / M)) in float32, which is one too small just above a power of two
  for most exponents. It is compared where log2 is right.
- An infinity: its scale is finite there; here the block is NaN.
- NVFP4: the codes of a block whose scale is NaN are 0 here.
- Scales that are powers of two are exp2(floor(log2 S)) there, which float32 may round up to the
  next power: such blocks are left out.
"""

import numpy as np
import pytest
import torch

from lpkernels.arithmetic import Quantizer
from lpkernels.formats import FloatFormat
from lpkernels.reference.packing import encode
from lpkernels.reference.values import widen
from tests.oracles.scaled_parts import scaled

pytest.importorskip("torchao", reason="torchao is not installed")
pytestmark = pytest.mark.slow

from torchao.float8.config import ScalingGranularity  # noqa: E402
from torchao.float8.float8_utils import tensor_to_scale, to_fp8_saturated  # noqa: E402
from torchao.prototype.mx_formats.config import ScaleCalculationMode  # noqa: E402
from torchao.prototype.mx_formats.mx_tensor import to_mx  # noqa: E402
from torchao.prototype.mx_formats.nvfp4_tensor import (  # noqa: E402
    nvfp4_quantize,
    per_tensor_amax_to_scale,
)
from torchao.prototype.quantized_training.int8 import quantize_int8_rowwise  # noqa: E402
from torchao.quantization.quant_primitives import (  # noqa: E402
    MappingType,
    choose_qparams_affine,
    quantize_affine,
)

ROWS, COLUMNS = 2048, 512
MX = {
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e2m3": "fp6_e2m3",
    "e3m2": "fp6_e3m2",
    "e2m1": torch.float4_e2m1fn_x2,
}
RULES = {"": "FLOOR", "_ceil": "CEIL", "_even": "EVEN", "_up": "RCEIL"}


def values(least: int, most: int) -> np.ndarray:
    """float32 values whose exponents vary by row, by block and a little within blocks."""
    rng = np.random.default_rng(20261127)
    shape = (ROWS, COLUMNS // 32, 32)
    by_block = rng.integers(least, most, (ROWS, 1, 1)) + rng.integers(-9, 9, (*shape[:2], 1))
    x = np.ldexp(rng.standard_normal(shape), by_block + rng.integers(-4, 2, shape))
    # Ties and powers of two in some blocks.
    ties = np.ldexp(rng.integers(-32, 33, shape) / 8.0, by_block)
    x = np.where(rng.random((*shape[:2], 1)) < 0.2, ties, x)
    return x.reshape(ROWS, COLUMNS).astype(np.float32)


def codes_of(x: np.ndarray, fmt: FloatFormat) -> np.ndarray:
    codes, known = encode(widen(x), fmt)
    assert known.all()
    return codes.astype(np.uint8)


def unpacked(packed: torch.Tensor) -> np.ndarray:
    """The 4-bit codes of bytes, the first in the low four bits."""
    both = packed.view(torch.uint8).numpy()
    return np.stack([both & 15, both >> 4], axis=-1).reshape(both.shape[0], -1)


def assert_same(got: np.ndarray, want: np.ndarray, where: np.ndarray | None, name: str) -> None:
    differ = got != want if where is None else (got != want) & where
    assert not differ.any(), (name, int(differ.sum()), got[differ][:4], want[differ][:4])


@pytest.mark.parametrize("element", MX)
def test_microscaling(element: str) -> None:
    x = values(-100, 100)
    fmt = Quantizer.parse(f"block32_{element}").fmt.element
    for suffix, mode in RULES.items():
        name = f"block32_{element}{suffix}_torchao"
        q = scaled(x, name)
        scale, codes = to_mx(torch.from_numpy(x), MX[element], 32, ScaleCalculationMode[mode])
        scale = scale.view(torch.uint8).numpy().reshape(ROWS, -1)
        theirs = codes.view(torch.uint8).numpy() if element != "e2m1" else unpacked(codes)
        fine = (scale > 0) & (scale < 255)
        if mode == "RCEIL":
            largest = np.abs(x.reshape(ROWS, -1, 32)).max(-1) / np.float32(fmt.max)
            fine &= np.ceil(np.log2(largest)) == np.ceil(np.log2(largest.astype(np.float64)))
        assert fine.mean() > 0.99
        ours = (q.scale.view(np.uint32) >> 23).astype(np.uint8)
        assert_same(ours, scale, fine, name)
        assert_same(codes_of(q.values, fmt), theirs.reshape(x.shape), fine.repeat(32, -1), name)


@pytest.mark.parametrize("whole", [False, True])
def test_nvfp4(whole: bool) -> None:
    x = values(-12, 12)
    name = "nvfp4_torchao" if whole else "block16_e2m1_se4m3fn_torchao"
    q = scaled(x, name)
    t = torch.from_numpy(np.asarray(q.tensor_scale)) if whole else None
    if whole:
        assert q.tensor_scale == np.abs(x).max() / np.float32(2688)
    scale, codes = nvfp4_quantize(torch.from_numpy(x), 16, t)
    fmt = Quantizer.parse(name).fmt
    assert_same(codes_of(q.scale, fmt.scale), scale.view(torch.uint8).numpy(), None, name)
    assert_same(codes_of(q.values, fmt.element), unpacked(codes), None, name)


def test_nvfp4_of_every_size() -> None:
    """Small tensors whose exponents are any of float32's; the bits of a NaN as a scale differ."""
    rng = np.random.default_rng(62)
    for _ in range(2000):
        shape = (rng.integers(1, 5), 16 * rng.integers(1, 4))
        exponents = rng.integers(-150, 128) + rng.integers(-rng.choice([1, 20, 60]), 1, shape)
        x = np.ldexp(rng.uniform(-1.9, 1.9, shape), np.clip(exponents, -150, 127))
        x = np.where(rng.random(shape) < rng.choice([0, 0.1, 0.9, 1]), rng.choice([0, -0.0]), x)
        x = x.astype(np.float32)
        for name in ("nvfp4_torchao", "block16_e2m1_se4m3fn_torchao"):
            q, fmt = scaled(x, name), Quantizer.parse(name).fmt
            t = per_tensor_amax_to_scale(torch.from_numpy(np.abs(x)).max())
            if not fmt.tensor_scale:
                t = None
            scale, codes = nvfp4_quantize(torch.from_numpy(x), 16, t)
            assert t is None or t.numpy() == q.tensor_scale
            numbers, theirs = ~np.isnan(q.scale), scale.view(torch.uint8).numpy()
            assert_same(codes_of(q.scale, fmt.scale), theirs & 127, None, name)
            known = numbers.repeat(16, -1)
            assert_same(codes_of(q.values, fmt.element), unpacked(codes), known, name)


@pytest.mark.parametrize("element", ["e4m3", "e5m2"])
@pytest.mark.parametrize("power", [False, True])
def test_float8(element: str, power: bool) -> None:
    x = values(-30, 30)
    for where, axis in (("tensor", None), ("row", -1), ("row_axis0", 0)):
        name = f"{where}_{element}{'_se8m0_up' if power else ''}_torchao"
        q = scaled(x, name)
        kind = ScalingGranularity.TENSORWISE if axis is None else ScalingGranularity.AXISWISE
        given = {} if axis is None else {"axiswise_dim": axis}
        encode_by = tensor_to_scale(
            torch.from_numpy(x), MX[element], scaling_granularity=kind,
            round_scales_to_power_of_2=power, **given,
        )  # fmt: skip
        theirs = to_fp8_saturated(torch.from_numpy(x) * encode_by, MX[element])
        scale = (1.0 / encode_by).numpy().reshape(q.scale.shape)
        # Where log2 rounds up to the next power of two.
        fine = (np.frexp(scale)[0] == 0.5) & (scale == q.scale) if power else scale == q.scale
        assert fine.mean() > (0.99 if power else 0.999999), name
        fmt = Quantizer.parse(name).fmt.element
        same = np.broadcast_to(fine, x.shape)
        assert_same(codes_of(q.values, fmt), theirs.view(torch.uint8).numpy(), same, name)


def test_integers() -> None:
    x = values(-20, 20)
    q = scaled(x, "row_int8_torchao")
    codes, scale = quantize_int8_rowwise(torch.from_numpy(x))
    assert_same(q.values, codes.numpy(), None, "row_int8_torchao")
    assert_same(q.scale[:, 0], scale.numpy(), None, "row_int8_torchao")
    for name, size, least, most in (
        ("block32_int4_sfp32_to7.5_torchao", (1, 32), -8, 7),
        ("row_int8_to127.5_torchao", (1, COLUMNS), -128, 127),
    ):
        q = scaled(x, name)
        kinds = (MappingType.SYMMETRIC, size, torch.int8, least, most)
        # torchao's own default, in float32.
        s, zero = choose_qparams_affine(torch.from_numpy(x), *kinds, eps=2.0**-23)
        codes = quantize_affine(torch.from_numpy(x), size, s, zero, torch.int8, least, most)
        assert_same(q.scale, s.numpy().reshape(q.scale.shape), None, name)
        assert_same(q.values, codes.numpy(), None, name)
