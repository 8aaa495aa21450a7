"""Quantizers with a Hadamard transform: texts, integers, pickles, and who refuses them."""

import pytest
import torch

import lpkernels as lp
from lpkernels import ops
from lpkernels.arithmetic import as_quantizer, quantizer_from_ints
from tests.loops import each

TRANSFORMED = {
    "e2m1:rht16": lp.Quantizer("e2m1", hadamard=16),
    "e2m1:stochastic:bits=8:rht16=0": lp.Quantizer(
        "e2m1", "stochastic", random_bits=8, hadamard=16, signs=0
    ),
    "block16_e2m1_se4m3fn_t:stochastic:philox:rht128=4294967295": lp.Quantizer(
        "nvfp4", "stochastic", rng="philox", hadamard=128, signs=2**32 - 1
    ),
    "e8m23:rht32=7": lp.Quantizer("fp32", hadamard=32, signs=7),
}


@each("text, quantizer", TRANSFORMED.items())
def test_texts_and_integers_read_back(text: str, quantizer: lp.Quantizer) -> None:
    ints = quantizer.to_ints()
    again = lp.Quantizer.parse(text)
    assert str(quantizer) == text and again == quantizer and again.fuses is False
    assert quantizer_from_ints(ints).to_ints() == again.to_ints() == ints
    plain = lp.Quantizer(
        quantizer.fmt, quantizer.rounding, random_bits=quantizer.random_bits, rng=quantizer.rng
    )
    assert plain != quantizer and plain.to_ints() == (*ints[:-1], 0)


def test_fourth_integer() -> None:
    """The size, and 256 (seed + 1); 0 as ever where nothing is transformed."""
    assert lp.Quantizer("e5m2").to_ints()[-1] == 0
    assert TRANSFORMED["e2m1:rht16"].to_ints()[-1] == 16
    assert TRANSFORMED["e8m23:rht32=7"].to_ints()[-1] == 32 + 256 * 8


@each("wrong, error, match", [
    ({"hadamard": 24}, ValueError, "must be one of"),
    ({"hadamard": 256, "signs": 1}, ValueError, "hadamard must be one of"),
    ({"hadamard": "16"}, TypeError, "hadamard"),
    ({"hadamard": 32}, ValueError, "give a seed: signs=<int>"),
    ({"hadamard": 16, "signs": "et"}, ValueError, "'te' or a seed"),
    ({"hadamard": 16, "signs": -1}, ValueError, "signs"),
    ({"hadamard": 16, "signs": 1.5}, TypeError, "signs"),
    ({"signs": 7}, ValueError, "no hadamard"),
])  # fmt: skip
def test_wrong_fields(wrong: dict, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        lp.Quantizer("e2m1", **wrong)


@each("text, match", [
    ("e2m1:rht", "expected 'rht16'"),
    ("e2m1:rht16=", "expected 'rht16'"),
    ("e2m1:rht16=te", "expected 'rht16'"),
    ("e2m1:rht16:rht16", "rht twice"),
    ("e2m1:rht20", "must be one of"),
    ("e2m1:rht64", "give a seed"),
])  # fmt: skip
def test_wrong_texts(text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        lp.Quantizer.parse(text)


def test_refused_outside_of_products() -> None:
    x, text = torch.zeros(4, 16), "e2m1:rht16"
    transformed = TRANSFORMED[text]
    for call in (
        lambda: as_quantizer(transformed),
        lambda: lp.quantize(x, text),
        lambda: lp.quantize(x, transformed),
        lambda: lp.quantize(x, text, out=x),
        lambda: lp.matmul(x, x.t(), "fp32", output=transformed),
    ):
        with pytest.raises(ValueError, match="in recipes' products only"):
            call()
    with pytest.raises(ValueError, match=r"fprop reads input=None, weight=.*give it to both"):
        lp.Recipe(weight=transformed)
    with pytest.raises(ValueError, match="transform"):
        torch.ops.lpkernels._quantize(x, transformed.to_ints(), None, 0, 4, "cpu")
    with pytest.raises(ValueError, match="without a Hadamard transform"):
        ops._checks.fused("matmul", transformed.to_ints())
