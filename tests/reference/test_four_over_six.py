"""NVFP4 with two candidates a block and with a scale a row, against the arrays that other programs
made (tests/data/scaled_formats/four_over_six.npz), and against numbers chosen by hand."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lpkernels.arithmetic import Quantizer, as_accumulator
from lpkernels.formats import E4M3FN, FP4_E2M1
from lpkernels.reference import twin
from lpkernels.reference.packing import encode
from lpkernels.reference.values import widen
from tests.compare import assert_bit_equal

VECTORS = Path(__file__).parents[1] / "data" / "scaled_formats" / "four_over_six.npz"
ROW_OF = {"1x16": ("block16", "t"), "16x16": ("tile16x16", "t"), "row": ("block16", "trow")}
NEGATIVE_ZERO = 8


@lru_cache
def arrays() -> dict[str, NDArray]:
    with np.load(VECTORS) as file:
        return dict(file)


def cases(source: str) -> list[tuple[str, str]]:
    """The input and the case of every array of codes, such as ("x", "1x16_MAE_256")."""
    with np.load(VECTORS) as file:
        keys = [name.split("/") for name in file.files]
    return [(key[1], key[2]) for key in keys if key[0] == source and key[-1] == "code"]


def name_of(case: str, axis: int = -1) -> str:
    """The name of the format of a case, with blocks along an axis."""
    geometry, *words = case.split("_")
    size, scales = ROW_OF[geometry]
    along = "" if axis == -1 else f"_axis{axis}"
    target = f"_to4or6{words[0].lower()}" if words else ""
    bound = "256" if "256" in words else ""
    return f"{size}{along}_e2m1_se4m3fn_{scales}{bound}{target}_te"


def codes(q: twin.Scaled) -> NDArray[np.uint8]:
    """One code a byte, the sign on top, but for -0."""
    elements = encode(widen(q.values), FP4_E2M1)[0].astype(np.uint8)
    return np.where(elements == NEGATIVE_ZERO, 0, elements)


def assert_recorded(q: twin.Scaled, key: str, suffix: str = "") -> None:
    """Scales and codes are the recorded ones, and t follows from the recorded magnitudes."""
    recorded = arrays()
    scale, code = recorded[f"{key}/scale{suffix}"], recorded[f"{key}/code{suffix}"]
    assert_bit_equal(encode(widen(q.scale), E4M3FN)[0].astype(np.uint8), scale, key)
    assert_bit_equal(codes(q), np.where(code == NEGATIVE_ZERO, 0, code), key)
    if f"{key}/amax{suffix}" in recorded:
        largest = np.float32(6 * (256 if "256" in key else 448))
        t = recorded[f"{key}/amax{suffix}"] / largest
        assert_bit_equal(q.tensor_scale.reshape(-1), t.reshape(-1), key)


@pytest.mark.parametrize("input, case", cases("te"))
def test_transformer_engine_has_these_codes(input: str, case: str) -> None:
    key, x = f"te/{input}/{case}", arrays()[input]
    assert_recorded(twin.scaled(x, Quantizer(name_of(case))), key)
    if f"{key}/code_t" not in arrays():
        return
    assert_recorded(twin.scaled(np.ascontiguousarray(x.T), Quantizer(name_of(case))), key, "_t")
    if not case.startswith("16x16"):
        along = twin.scaled(x, Quantizer(name_of(case, axis=0)))
        turned = twin.Scaled(*(np.ascontiguousarray(part.T) for part in along))
        assert_recorded(turned, key, "_t")


@pytest.mark.parametrize("input, case", cases("ao"))
def test_torchao_has_these_codes_and_values_within_three_roundings(input: str, case: str) -> None:
    fmt, key = Quantizer(name_of(case)), f"ao/{input}/{case}"
    q = twin.scaled(arrays()[input], fmt)
    assert_recorded(q, key)
    ours, theirs = twin.dequantize(q, fmt.fmt), arrays()[f"{key}/value"]
    # Its product of code, scale and largest magnitude overflows in a row near float32's end.
    fine = np.isfinite(theirs)
    assert fine.sum() >= theirs.size - theirs.shape[-1]
    np.testing.assert_allclose(ours[fine], theirs[fine], rtol=3 * 2.0**-24, atol=3 * 2.0**-149)


@pytest.mark.parametrize("metric", ["mae", "mse"])
@pytest.mark.parametrize(
    "block, amax, scale, values",
    [
        # Both are exact with t = 1: a tie, which takes 6.
        ([6, 3, 1.5, 0], 2688, 1, [6, 3, 1.5, 0]),
        ([8, 4, 6, 2], 2688, 2, [4, 2, 3, 1]),
        # Both round the scale to the largest.
        ([6.0] * 4, 1, 448, [6.0] * 4),
        # The scale of 6 is 0, and the one of 4 not; and both are.
        ([-3 * 2.0**-9, 0, 0, 0], 2688, 2.0**-9, [-3, 0, 0, 0]),
        ([-(2.0**-10), 0, 0, 0], 2688, 0, [-0.0, 0, 0, 0]),
    ],
)
def test_the_nearer_codes_stay(
    block: list[float], amax: float, scale: float, values: list[float], metric: str
) -> None:
    fmt = Quantizer(f"block4_e2m1_se4m3fn_t_to4or6{metric}")
    q = twin.scaled(np.array([block], np.float32), fmt, amax=amax)
    assert (q.scale.item(), q.values[0].tolist()) == (scale, values)


@pytest.mark.parametrize("name", ["nvfp4_46", "nvfp4_46_te", "nvfp4_46_2d_te", "nvfp4_46_row_te"])
def test_a_block_that_is_not_finite_is_nan_and_no_other(name: str) -> None:
    x = np.ones((32, 64), np.float32)
    x[3, 5], x[20, 40] = np.inf, np.nan
    q = twin.scaled(x, Quantizer(name))
    assert np.count_nonzero(np.isnan(q.scale)) == 2
    assert np.isfinite(q.tensor_scale).all()


@pytest.mark.parametrize("name", ["nvfp4_row", "nvfp4_row_te", "nvfp4_46_row_te"])
def test_each_row_is_a_tensor_of_its_own(name: str, rng: np.random.Generator) -> None:
    x = np.ldexp(rng.standard_normal((5, 40)), rng.integers(-99, 99, (5, 1))).astype(np.float32)
    whole, alone = twin.scaled(x, Quantizer(name)), Quantizer(name.replace("_row", ""))
    for i in range(5):
        row = twin.scaled(x[i : i + 1], alone)
        for part, of_row in zip(whole, row, strict=True):
            assert_bit_equal(part[i].reshape(-1), of_row.reshape(-1))


@pytest.mark.parametrize(
    "case, left, right",
    [
        ("row", "nvfp4_row_te", "nvfp4_te"),
        ("46", "nvfp4_46_te", "nvfp4_46_te"),
        ("row46", "nvfp4_46_row_te", "nvfp4_46_te"),
        ("mixed", "nvfp4_46_te", "nvfp4_te"),
    ],
)
def test_products_are_transformer_engines_up_to_its_own_t(case: str, left: str, right: str) -> None:
    """Its factor is the rounded quotient of both magnitudes by both bounds."""
    a, b = (twin.scaled(arrays()[f"gemm/{name}"], Quantizer(fmt))
            for name, fmt in (("a", left), ("b", right)))  # fmt: skip
    scales = twin.Scales(a.scale, b.scale, 16, 16, False)
    outer = twin.matmul_scaled(a.values, b.values.T, scales, as_accumulator("fp32_chunkscale"))
    bound = [np.float32(6 * (256 if "46" in name else 448)) for name in (left, right)]
    magnitudes = [np.abs(arrays()[f"gemm/{name}"]) for name in "ab"]
    largest = magnitudes[0].max(1, keepdims=True) if "row" in left else magnitudes[0].max()
    factor = largest * magnitudes[1].max() / (bound[0] * bound[1])
    assert_bit_equal(outer * factor, arrays()[f"gemm/{case}/y"])
    ours = outer * (a.tensor_scale * b.tensor_scale)
    np.testing.assert_allclose(ours, arrays()[f"gemm/{case}/y"], rtol=3 * 2.0**-23)
