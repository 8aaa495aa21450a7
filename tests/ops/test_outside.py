"""The warning about operands with values that the formats of their accumulator lack."""

import warnings

import pytest
import torch

import lpkernels as lp
from lpkernels.ops import _products

E4M3 = "e8m13:toward_zero:block=4:aligned_bits=6:operands=e4m3fn"
MIXED = "e8m13:toward_zero:block=4:aligned_bits=6:operands=e5m2,e4m3fn"
# SMALL is in e5m2 and not in e4m3fn; FINE is in e4m3fn and not in e5m2.
SMALL, FINE = 2.0**-16, 1.125


@pytest.fixture(autouse=True)
def nothing_seen(monkeypatch):
    monkeypatch.setattr(_products, "_searched", set())
    monkeypatch.setattr(_products, "_warned", set())


def said(call) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in caught]


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


def test_the_first_value_that_is_lacking_is_named() -> None:
    a = ones(2, 4)
    a[0, 1], a[1, 1] = SMALL, 0.1
    with pytest.warns(UserWarning, match=r"matmul: the left operand holds 1.52587890625e-05, whi"):
        lp.matmul(a, ones(4, 3), E4M3)


@pytest.mark.parametrize(
    "a, b, expected",
    [
        (SMALL, FINE, []), (FINE, SMALL, ["left", "right"]), (float("nan"), float("nan"), []),
        (float("inf"), float("inf"), ["right"]), (-0.0, 448.0, []), (1.0, -480.0, ["right"]),
    ],
)  # fmt: skip
def test_each_side_has_its_own_format(a: float, b: float, expected: list[str]) -> None:
    messages = said(lambda: lp.matmul(ones(1, 4) * a, ones(4, 1) * b, MIXED))
    assert [m.split()[2] for m in messages] == expected


def test_it_is_said_once_for_a_format() -> None:
    wrong = ones(2, 4) * 0.1
    assert len(said(lambda: lp.matmul(wrong, ones(4, 3), E4M3))) == 1
    assert said(lambda: lp.matmul(wrong, ones(4, 3), E4M3)) == []
    assert said(lambda: lp.matmul(wrong, ones(4, 5), E4M3)) == []
    assert said(lambda: lp.matmul(ones(3, 4), wrong.T, E4M3)) == []
    assert len(said(lambda: lp.matmul(wrong, ones(4, 3), E4M3.replace("e4m3fn", "e5m2")))) == 1


def test_products_of_shapes_seen_before_are_not_looked_at(monkeypatch) -> None:
    lp.matmul(ones(2, 4), ones(4, 3), E4M3)
    monkeypatch.setattr(_products, "quantize_directly", None)
    lp.matmul(ones(2, 4) * 0.1, ones(4, 3), E4M3)
    lp.matmul(ones(2, 4) * 0.1, ones(4, 3), "e6m9")
    monkeypatch.setattr(_products, "MOST_SEARCHES", 1)
    lp.matmul(ones(7, 4) * 0.1, ones(4, 3), E4M3)


def test_what_a_layer_rounds_is_looked_at_rounded() -> None:
    x = torch.randn(3, 4)
    recipe = {"input": "e4m3fn", "weight": "e4m3fn", "fprop": E4M3}
    assert said(lambda: lp.nn.Linear(4, 2, recipe=lp.Recipe(**recipe))(x)) == []
    layer = lp.nn.Linear(4, 3, recipe=lp.Recipe(**recipe | {"weight": "e5m2"}))
    torch.nn.init.constant_(layer.weight, SMALL)
    messages = said(lambda: layer(x))
    assert [m.split()[2] for m in messages] == ["right"] and "1.52587890625e-05" in messages[0]


@pytest.mark.parametrize("kind", ["Linear", "Conv1d", "ConvTranspose1d"])
def test_the_gradient_is_the_left_factor_in_backward(kind: str) -> None:
    recipe = lp.Recipe(dgrad=MIXED, wgrad=MIXED)
    sizes = (4, 4) if kind == "Linear" else (4, 4, 1)
    layer = getattr(lp.nn, kind)(*sizes, recipe=recipe)
    torch.nn.init.constant_(layer.weight, FINE)
    shape = (2, 4) if kind == "Linear" else (2, 4, 3)
    x = torch.full(shape, FINE).requires_grad_()
    y = layer(x)
    assert said(lambda: y.backward(torch.full(shape, SMALL), retain_graph=True)) == []
    _products._searched.clear()
    messages = said(lambda: y.backward(torch.full(shape, FINE)))
    assert [m.split()[2] for m in messages] == ["left"]


@pytest.mark.parametrize("name", ["h100_fp8", "hopper_fp8", "h100_bf16", "v100_fp16"])
def test_recipes_of_units_round_what_their_units_take(name: str) -> None:
    layer = lp.nn.Linear(4, 3, recipe=name)
    x = torch.randn(5, 4).requires_grad_()
    assert said(lambda: layer(x).square().sum().backward()) == []
