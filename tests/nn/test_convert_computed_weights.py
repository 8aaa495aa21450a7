"""convert and revert of layers whose weight is computed: parametrizations and older norms."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.parametrizations import weight_norm

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC
from tests.loops import each
from tests.nn.policy_models import Tagged

X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))


def test_convert_keeps_parametrizations() -> None:
    model = nn.Sequential(weight_norm(nn.Linear(5, 3)), nn.Linear(3, 2))
    keys = list(model.state_dict())
    lp.convert(model, DETERMINISTIC)
    layer = model[0]
    assert isinstance(layer, lp.nn.Linear) and parametrize.is_parametrized(layer)
    assert list(model.state_dict()) == keys
    want = lp.functional.linear(X, layer.weight, layer.bias, recipe=DETERMINISTIC)
    assert_bit_equal(layer(X), want)
    assert_bit_equal(copy.deepcopy(layer)(X), want)
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is lp.nn.Linear
    assert type(lp.revert(layer)) is nn.Linear


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
@each("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_convert_keeps_norms_that_are_hooks(norm: Any) -> None:
    torch.manual_seed(0)
    layer = norm(nn.Conv2d(2, 3, 2)).eval()
    keys, x = list(layer.state_dict()), torch.randn(1, 2, 4, 4)
    plain = layer(x)
    weight = layer.weight.detach().clone()
    lp.convert(nn.Sequential(layer), DETERMINISTIC)
    want = lp.functional.conv2d(x, weight, layer.bias, recipe=DETERMINISTIC)
    assert_bit_equal(layer(x), want)
    assert list(layer.state_dict()) == keys
    assert_bit_equal(lp.revert(layer)(x), plain)


def test_convert_keeps_spectral_normalisation() -> None:
    layer = parametrizations.spectral_norm(nn.Linear(5, 3)).eval()
    want = lp.functional.linear(X, layer.weight, layer.bias, recipe=DETERMINISTIC)
    assert_bit_equal(lp.convert(layer, DETERMINISTIC)(X), want)


def test_revert_keeps_parametrizations() -> None:
    layer = lp.revert(lp.convert(weight_norm(Tagged(5, 3)), DETERMINISTIC))
    assert isinstance(layer, Tagged) and not isinstance(layer, lp.nn.Linear)
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is Tagged


def test_parametrized_layers_refuse_to_pickle_as_torchs_do() -> None:
    with pytest.raises(RuntimeError, match="only supported through state_dict"):
        pickle.dumps(lp.convert(weight_norm(Tagged(5, 3)), DETERMINISTIC))
