"""set_precision and set_accumulator of layers and models, eager."""

from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from lpkernels.arithmetic import Precision
from tests.compare import assert_bit_equal
from tests.nn.layer_cases import assert_steps_alike, changed, converted, inputs, twins
from tests.support.autograd import Computes

AFFINE = lp.Recipe(
    input="affine8", weight="affine8_axis0", grad_output="affine8:stochastic", grad_input="affine8",
    fprop="e6m9",
)  # fmt: skip
TABLE = {4: "fp4_e2m1", 6: "fp6_e3m2", 8: "e4m3fn_sat"}
FLOATS = lp.Recipe(input="e4m3fn_sat", weight="e4m3fn_sat:stochastic", grad_output="e5m2")


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    )


def recipes(model: nn.Module) -> list[Any]:
    return [module.recipe for module in model.modules() if hasattr(module, "recipe")]


def test_precision_of_a_layer_is_what_was_set() -> None:
    layer = lp.nn.Linear(4, 3, recipe=FLOATS)
    assert layer.precision == Precision(8, 8) == (8, 8)
    layer.set_precision((6, 4), None, formats=TABLE)
    assert layer.precision == ((6, 4), 8)
    assert str(layer.recipe.weight) == "e2m1none_sat:stochastic"
    assert lp.nn.Linear(4, 3).precision == (None, None)
    with pytest.raises(AttributeError):
        layer.precision = (4, 4)  # type: ignore[misc]


def test_precision_travels_with_the_layer_and_belongs_to_the_copy() -> None:
    layer = converted("Linear", AFFINE)
    layer.set_precision(5, 6)
    copies, (x,) = twins(layer), inputs("Linear")
    layer.set_precision(3, 3)
    for copied in copies:
        assert (copied.precision, layer.precision) == ((5, 6), (3, 3))
        copied.set_precision(3, 3)
        assert_bit_equal(copied(x), layer(x))


def test_model_takes_a_precision_where_it_rounds() -> None:
    model = lp.convert(network(), {nn.Linear: "fp32", "*": AFFINE})
    assert lp.set_precision(model, 3, 6) is model
    assert (model[0].precision, model[4].precision) == ((3, 6), (None, None))
    assert model[4].recipe == lp.Recipe()


def test_model_whose_forward_multiplies_takes_it_too() -> None:
    recipe = lp.Recipe(input="affine8", weight="affine8")
    model = lp.convert(Computes(lambda m, x: x @ x.mT), recipe)
    lp.set_precision(model, 2, None)
    x = torch.randn(4, 5)
    rounded = lp.quantize(x, "affine2")
    assert_bit_equal(model(x), rounded @ rounded.mT)


@pytest.mark.parametrize("acc", ["e6m9", {"fprop": "e6m9", "wgrad": lp.Accumulator("e5m7")}])
def test_accumulators_are_set(acc: Any) -> None:
    layer = converted("Conv2d", changed(AFFINE, fprop=lp.NATIVE))
    sums = acc if isinstance(acc, dict) else dict.fromkeys(("fprop", "dgrad", "wgrad"), acc)
    want = converted("Conv2d", changed(layer.recipe, **sums))
    layer.set_accumulator(acc)
    assert layer.recipe == want.recipe
    assert_steps_alike(layer, layer, *inputs("Conv2d"), other=want)


class OwnPrecision(Computes):
    """Multiplies in its forward, and has a way of its own to set a precision."""

    def set_precision(self, forward_bits: int, backward_bits: int) -> None:
        self.asked = (forward_bits, backward_bits)


def test_a_users_own_way_to_set_a_precision_stays() -> None:
    module: Any = lp.convert(OwnPrecision(lambda m, x: x @ x.mT), AFFINE)
    module.set_precision(3, 6)
    assert isinstance(module.recipe, lp.Recipe) and module.asked == (3, 6)


def test_nothing_is_changed_where_one_layer_cannot() -> None:
    model = lp.convert(network(), {nn.Linear: FLOATS, "*": AFFINE})
    before = recipes(model)
    with pytest.raises(ValueError, match="Linear '4' cannot take 4 bits as input: e4m3fn_sat has"):
        lp.set_precision(model, 4, 4)
    assert recipes(model) == before
    layer = model[0]
    mixed = lp.nn.Linear(4, 3, recipe=changed(AFFINE, grad_output="fixed8_f4"))
    with pytest.raises(ValueError, match="cannot take 25 bits as grad_output"):
        mixed.set_precision(4, 25)
    assert mixed.precision == (8, 8)
    for sums in ({"fprop": "e6m9", "dgrad": "e6m99"}, {"forward": "e6m9"}):
        with pytest.raises(ValueError, match=r"set_accumulator: .*(e6m99|'forward' is no product)"):
            layer.set_accumulator(sums)
    assert layer.recipe == AFFINE
