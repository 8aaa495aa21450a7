"""lp.matmul by Blackwell's step as MMA-Sim models it: its outputs, backends, refusals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lpkernels as lp
from tests.compare import assert_bit_equal

DATA = Path(__file__).parents[1] / "data" / "scaled_formats" / "mmasim.npz"
#: The formats of both operands.
FORMATS = (
    ("model_b200_mxf8", "mxfp8", "block32_axis-2_e4m3"),
    ("model_b200_mxf8", "mxfp8_up", "tile32x32_e4m3_up"),
    ("model_b200_mxf4", "mxfp4", "block32_axis-2_e2m1"),
    ("model_b200_mxf4", "block16_e2m1", "block16_axis-2_e2m1"),
    ("model_b200_nvf4", "nvfp4", "block16_axis-2_e2m1_se4m3fn_t"),
    ("model_b200_nvf4", "nvfp4_one", "nvfp4_2d"),
)


def operands(left: str, right: str, lead: tuple[int, ...] = ()) -> tuple[lp.Scaled, lp.Scaled]:
    generator = torch.Generator().manual_seed(7)
    a = torch.randn(*lead, 9, 150, generator=generator)
    b = torch.randn(*lead[1:], 150, 37, generator=generator)
    a[..., 2, :40] = 0
    a[..., 3, 100] = torch.inf
    return tuple(lp.scaled(x, f, backend="reference") for x, f in ((a, left), (b, right)))


def from_bytes(codes: np.ndarray, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(codes).view(dtype).float()


def test_mma_sims_outputs(backend: str) -> None:
    equal = 0
    with np.load(DATA) as file:
        nvf4 = ("model_b200_nvf4", "nvfp4_one", "block16_axis-2_e2m1_se4m3fn")
        for name, left, right in (FORMATS[0], FORMATS[2], nvf4):
            a, b, sa, sb, c, d = (
                file[f"{name[-4:]}/{x}"] for x in ("a", "b", "sa", "sb", "c", "d")
            )
            scale = torch.float8_e4m3fn if name.endswith("nvf4") else torch.float8_e8m0fnu
            codes = [
                from_bytes(x, torch.float8_e4m3fn)
                if x.dtype == np.uint8
                else torch.from_numpy(x) / 2
                for x in (a, b)
            ]
            grids = [from_bytes(x.reshape(len(d), -1), scale) for x in (sa, sb)]
            one = torch.ones(())
            qa = lp.Scaled(codes[0][:, None], grids[0][:, None], one, lp.parse_format(left))
            qb = lp.Scaled(codes[1][..., None], grids[1][..., None], one, lp.parse_format(right))
            start = torch.from_numpy(c)[:, None, None]
            y = lp.matmul(qa, qb, name, initial=start, backend=backend)
            assert_bit_equal(y.flatten(), torch.from_numpy(d), name)
            equal += len(d)
    assert equal == 450


@pytest.mark.parametrize("name, left, right", FORMATS)
def test_backends_agree(name: str, left: str, right: str) -> None:
    for lead in ((), (2,), (3, 2)):
        a, b = operands(left, right, lead)
        want = lp.matmul(a, b, name, backend="reference")
        assert want[..., 3, :].isnan().all() and want.isnan().sum() * 9 == want.numel()
        assert want[..., 2, :].any()
        assert_bit_equal(lp.matmul(a, b, name), want, f"{lead}")
        dense = a.dequantize() @ b.dequantize()
        torch.testing.assert_close(want, dense, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_starts_outputs_and_scales_of_tensors() -> None:
    a, b = operands("mxfp4", "block32_axis-2_e2m1")
    start = torch.full((37,), 5.0)
    y = lp.matmul(a, b, "model_b200_mxf4", initial=start, output="e5m2")
    want = lp.matmul(a, b, "model_b200_mxf4", initial=start, backend="reference")
    assert_bit_equal(y, lp.quantize(want, "e5m2"))
    a, b = operands("nvfp4", "block16_axis-2_e2m1_se4m3fn_t")
    plain = [lp.Scaled(x.values, x.scale, torch.ones(()), x.fmt) for x in (a, b)]
    t = np.float32(a.tensor_scale) * np.float32(b.tensor_scale)
    y = lp.matmul(*plain, "model_b200_nvf4") * torch.tensor(t)
    assert_bit_equal(lp.matmul(a, b, "model_b200_nvf4"), y)


def test_signs_of_scales_are_ignored() -> None:
    a, b = operands("nvfp4_one", "block16_axis-2_e2m1_se4m3fn")
    turned = lp.Scaled(a.values, -a.scale, a.tensor_scale, a.fmt)
    want = lp.matmul(a, b, "model_b200_nvf4")
    assert_bit_equal(lp.matmul(turned, b, "model_b200_nvf4"), want)


def test_codes_of_other_elements() -> None:
    a, b = operands("mxfp8_e5m2", "block32_axis-2_e3m2")
    acc = replace(lp.accumulator("model_b200_mxf8"), operands=("e5m2", "fp6_e3m2"))
    assert_bit_equal(lp.matmul(a, b, acc), lp.matmul(a, b, acc, backend="reference"))
    assert acc.exchanged().operands == acc.operands[::-1]


A, B = torch.zeros(2, 64), torch.zeros(64, 3)


def scaled(x: Tensor, fmt: str) -> lp.Scaled:
    return lp.scaled(x, fmt, backend="reference")


MX, NV = scaled(A, "mxfp8"), scaled(A, "nvfp4")
REFUSED: tuple[tuple[Any, Any, str, str], ...] = (
    (A, B, "mxf8", "neither operand has scales; pass lp.scaled"),
    (MX, B, "mxf8", "got b in float32; use blocks of 32 with e8m0 scales of e4m3fn"),
    (A, scaled(B, "block16_axis-2_e2m1"), "mxf4", "got a in float32.* of e2m1none_sat"),
    (MX, scaled(B, "block16_axis-2_e4m3"), "mxf8", "got b in block16.* use blocks of 32"),
    (MX, scaled(B, "mxfp8"), "mxf8", r"blocks along axis -1.*axis=-2"),
    (MX, scaled(B, "block32_axis-2_e2m1"), "mxf4", "codes of e2m1none_sat .* got a in"),
)


@pytest.mark.parametrize("a, b, unit, message", REFUSED)
def test_operands_that_a_unit_lacks_are_refused(a: Any, b: Any, unit: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lp.matmul(a, b, f"model_b200_{unit}")


def test_a_tensor_scale_leaves_no_start() -> None:
    b = scaled(B, "block16_axis-2_e2m1_se4m3fn_t")
    with pytest.raises(ValueError, match="initial= starts the sum before the scales"):
        lp.matmul(NV, b, "model_b200_nvf4", initial=torch.zeros(1))


def test_layers_sum_by_the_unit() -> None:
    torch.manual_seed(2)
    x, w, b, g = torch.randn(40, 70), torch.randn(48, 70), torch.randn(48), torch.randn(40, 48)
    plain = lp.Accumulator("fp32", "toward_zero")
    for unit, k in (("mxf8", "block32_k_e4m3_up"), ("nvf4", "block16_k_e2m1_se4m3fn_t_te")):
        name = f"model_b200_{unit}"
        formats, sums = (dict.fromkeys(of, v) for of, v in ((FIELDS, k), (PRODUCTS, name)))
        recipe = lp.Recipe(**formats, **sums)
        leaves = [t.clone().requires_grad_() for t in (x, w, b)]
        y = lp.functional.linear(*leaves, recipe=recipe)
        found = torch.autograd.grad(y, leaves, g)

        def made(left: Tensor, right: Tensor, k: str = k, name: str = name) -> Tensor:
            fmt = lp.parse_format(k)
            sides = (lp.scaled(t, replace(fmt, axis=i)) for t, i in ((left, -1), (right, -2)))
            return lp.matmul(*sides, name)

        sum_ = made(x, w.t()).double() + b.double()
        assert_bit_equal(y.detach(), lp.quantize(sum_, "fp32:toward_zero").float(), name)
        assert_bit_equal(found[0], made(g, w), name)
        assert_bit_equal(found[1], made(g.t(), x), name)
        # The bias' gradient has no scales: it is a sum in the unit's format and rounding.
        assert_bit_equal(found[2], lp.matmul(torch.ones(1, 40), g, plain)[0], name)
        assert lp.Recipe.parse(str(recipe)) == recipe


FIELDS, PRODUCTS = ("input", "weight", "grad_output"), ("fprop", "dgrad", "wgrad")
MXF8 = dict.fromkeys(FIELDS, "block32_k_e4m3")
REFUSED_RECIPES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"fprop": "model_b200_mxf8"}, "Recipe: fprop: group=1 .* input in float32; use blocks of 32"),
    (
        MXF8 | {"dgrad": "model_b200_mxf8", "grad_output": "block32_k_e5m2"},
        "dgrad: .* grad_output in",
    ),
    (MXF8 | {"wgrad": "model_b200_nvf4"}, "wgrad: .* grad_output in block32_k_e4m3"),
    (MXF8 | {"fprop": "model_b200_mxf8", "weight": "tile16x32_k_e4m3_sfp32"}, "weight in .*sfp32"),
)


@pytest.mark.parametrize("given, message", REFUSED_RECIPES)
def test_recipes_with_operands_that_the_unit_lacks(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lp.Recipe(**given)


def test_recipes_with_operands_that_the_unit_takes() -> None:
    tiles = MXF8 | {"weight": "tile32x32_k_e4m3", "fprop": "model_b200_mxf8"}
    assert lp.Recipe(**tiles).fprop.group == 1
    backward = replace(lp.accumulator("model_b200_mxf8"), operands=("e5m2", "e4m3fn"))
    hybrid = MXF8 | {"grad_output": "block32_k_e5m2", "dgrad": backward, "wgrad": backward}
    assert lp.Recipe(**hybrid).dgrad == backward
    blocks = dict.fromkeys(FIELDS, "block32_axis1_e4m3")
    with pytest.warns(lp.FixedAxisWarning):
        recipe = lp.Recipe(**blocks, fprop="model_b200_mxf8")
    with pytest.raises(ValueError, match="do not run along it in an image"):
        x, kernel = torch.zeros(1, 32, 4, 4), torch.zeros(3, 32, 1, 1)
        lp.functional.conv2d(x, kernel, recipe=recipe)
