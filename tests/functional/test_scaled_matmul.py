"""lp.matmul of scaled operands: scales of blocks, rows and tensors. Backends are compared in
backends/cpu/test_scaled_products.py."""

from typing import Any

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels import backends
from tests.compare import assert_bit_equal


def operands(left: str, right: str, lead: tuple[int, ...] = ()) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(5)
    a = torch.randn(*lead, 9, 130, generator=generator)
    b = torch.randn(*lead[1:], 130, 37, generator=generator)
    qa = lp.scaled(a, left) if left else a
    return qa, lp.scaled(b, right) if right else b


def values(x: Any) -> torch.Tensor:
    return x.dequantize() if isinstance(x, lp.Scaled) else x


@pytest.mark.parametrize("lead", [(), (2,), (3, 2)], ids=str)
@pytest.mark.parametrize("left, right", [
    ("nvfp4", "block16_axis-2_e2m1_se4m3fn_t"), ("mxfp8_up", "block32_axis-2_e2m1_up"),
    ("nvfp4_row_te", "block16_axis-2_e2m1_se4m3fn_trow256_to4or6mae"), ("nvfp4_46_row", ""),
    ("nvfp4_46_te", "block8_axis-2_e2m1_se4m3fn_trow"),
    ("fp8_1x128", "tile32x16_e4m3_sfp32"), ("row_e4m3", "row_axis-2_int8"),
    ("tensor_e4m3", "tensor_e5m2"), ("", "block7_axis-2_e4m3_sfp32"), ("mxfp6_e3m2", ""),
])  # fmt: skip
def test_a_product_by_scale_is_that_of_the_values_within_fp32(
    left: str, right: str, lead: tuple[int, ...]
) -> None:
    a, b = operands(left, right, lead)
    want = values(a).double() @ values(b).double()
    start = torch.randn(9, 37, generator=torch.Generator().manual_seed(1))
    # Scales of rows and tensors multiply the whole sum, which then starts at zero.
    starts = {} if left.startswith(("nvfp4", "row", "tensor")) else {"initial": start}
    got = lp.matmul(a, b, "fp32_chunkscale", **starts)
    want = want + start if starts else want
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-4)


def test_scales_of_tensors_multiply_the_sum() -> None:
    a, b = operands("nvfp4", "block16_axis-2_e2m1_se4m3fn_t")
    y = lp.matmul(a, b, "fp32_chunkscale")
    unscaled = [lp.Scaled(x.values, x.scale, torch.ones(()), x.fmt) for x in (a, b)]
    t = np.float32(a.tensor_scale) * np.float32(b.tensor_scale)
    assert_bit_equal(y, lp.matmul(*unscaled, "fp32_chunkscale") * torch.tensor(t))


@pytest.mark.parametrize("right", ["trow", "t"])
def test_scales_of_lines_multiply_the_sum(right: str) -> None:
    a, b = operands("nvfp4_46_row", f"block16_axis-2_e2m1_se4m3fn_{right}")
    unscaled = [
        lp.Scaled(x.values, x.scale, torch.ones_like(x.tensor_scale), x.fmt) for x in (a, b)
    ]
    want = lp.matmul(*unscaled, "fp32_chunkscale") * (a.tensor_scale * b.tensor_scale)
    assert_bit_equal(lp.matmul(a, b, "fp32_chunkscale"), want)
    assert_bit_equal(lp.matmul(a, b, "e6m9"), lp.matmul(a.values * a.scale.repeat_interleave(
        16, -1)[..., : a.shape[-1]], b.values * b.scale.repeat_interleave(16, -2)[
            ..., : b.shape[-2], :], "e6m9") * (a.tensor_scale * b.tensor_scale))  # fmt: skip


def test_scales_of_rows_multiply_the_sum() -> None:
    a, b = operands("row_e4m3", "row_axis-2_int8")
    for text in ("fp32_chunkscale", "e6m9_chunkscale", "e6m9"):
        # One segment of all of k: a chunk of that length.
        plain = text.replace("_chunkscale", "_chunk130")
        sums = lp.matmul(a.values, b.values, plain).double()
        scale = (a.scale.double() * b.scale.double()).float().double()
        assert_bit_equal(lp.matmul(a, b, text), (sums * scale).float(), text)


def test_other_accumulators_take_codes_times_scales() -> None:
    a, b = operands("mxfp8", "block32_axis-2_e2m1")
    values = a.dequantize(), b.dequantize()
    assert_bit_equal(lp.matmul(a, b, "e6m9_chunk64"), lp.matmul(*values, "e6m9_chunk64"))
    assert_bit_equal(lp.matmul(a, b), torch.matmul(*values))
    a, b = operands("tensor_e4m3", "tensor_e4m3")
    y = lp.matmul(a, b, "fp32")
    assert_bit_equal(y, lp.matmul(a.values, b.values, "fp32") * (a.scale * b.scale))


def test_a_backend_without_products_by_scale_says_so() -> None:
    a, b = operands("mxfp8", "block32_axis-2_e4m3")
    with pytest.raises(NotImplementedError, match="draw no random bits"):
        lp.matmul(a, b, "e6m9_chunkscale:stochastic:block=4:aligned_bits=9", backend="cpu")
    assert "matmul_scaled" in backends.get("cuda").unsupported(
        "matmul_scaled", torch.device("cuda")
    )
