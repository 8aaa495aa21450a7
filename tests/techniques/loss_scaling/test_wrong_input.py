"""Every refusal of LossScaler, and that it leaves the scaler as it was."""

from typing import Any

import pytest
import torch

from lpkernels.techniques.loss_scaling import LossScaler
from tests.loops import each
from tests.techniques.loss_scaling.loops import INF, parameter, take

STATE, NAN = LossScaler().state_dict(), float("nan")

ARGUMENTS = [
    ({"init_scale": 0.0}, ValueError, "init_scale: expected a positive finite scale.*got 0.0"),
    ({"init_scale": -1}, ValueError, "init_scale: expected a positive finite scale.*got -1"),
    ({"init_scale": INF}, ValueError, "init_scale: expected a positive finite scale.*got inf"),
    ({"init_scale": NAN}, ValueError, "init_scale: expected a positive finite scale.*got nan"),
    ({"init_scale": 2.0**128}, ValueError, "init_scale: expected .* float32's largest"),
    ({"init_scale": 2.0**-127}, ValueError, r"init_scale: expected .* from 2\*\*-126"),
    ({"init_scale": "8"}, TypeError, "init_scale: expected a number, got str '8'"),
    ({"init_scale": True}, TypeError, "init_scale: expected a number, got bool True"),
    ({"static": 0.0}, ValueError, "static: expected a positive finite scale"),
    ({"static": 8.0, "floor": 1.0}, ValueError, "a static scale has no floor and no ceiling"),
    ({"growth_factor": 1.0}, ValueError, "growth_factor: expected a finite factor above 1"),
    ({"growth_factor": INF}, ValueError, "growth_factor: expected a finite factor above 1"),
    ({"growth_factor": None}, TypeError, "growth_factor: expected a number, got NoneType"),
    ({"backoff_factor": 1.0}, ValueError, "backoff_factor: expected a factor between 0 and 1"),
    ({"backoff_factor": 0}, ValueError, "backoff_factor: expected a factor between 0 and 1"),
    ({"growth_interval": 0}, ValueError, "growth_interval: expected at least 1, got 0"),
    ({"growth_interval": 2.0}, TypeError, "growth_interval: expected an int, got float 2.0"),
    ({"floor": 0.0}, ValueError, "floor: expected a positive finite scale"),
    ({"floor": {}}, ValueError, r"floor: expected \{update: scale\}, got an empty mapping"),
    ({"floor": {-1: 2.0}}, ValueError, "floor: a key: expected at least 0, got -1"),
    ({"floor": {0: 1, 9: 8}, "ceiling": 4}, ValueError, "floor: expected at most the ceiling"),
    ({"floor": 8.0, "ceiling": 4.0}, ValueError, "floor: expected at most the ceiling 4.0"),
    ({"floor": "8"}, TypeError, "floor: expected a number, got str"),
    ({"ceiling": 4.0}, ValueError, "init_scale: expected a scale between .* ceiling 4.0"),
    ({"init_scale": 1.0, "floor": 2.0}, ValueError, "between the floor 2.0 and the ceiling"),
]


@each("arguments, error, says", ARGUMENTS)
def test_wrong_arguments_are_refused(arguments, error, says):
    with pytest.raises(error, match=says):
        LossScaler(**arguments)


UNNAMED = [
    (("cpu",), r"by name, got 'cpu'; write LossScaler\(\)\. No device is needed"),
    ((torch.device("cpu"),), r"by name, got device; write LossScaler\(\)\. No device is needed"),
    ((1024,), r"got 1024; write LossScaler\(init_scale=1024\), or LossScaler\(static=1024\) for a "
     r"scale that stays$"),
    (("cuda", 8.0), r"write LossScaler\(init_scale=8\.0\), or .*\(static=8\.0\).* No device"),
    (("cuda", 8.0, 2.0, 0.5, 100, True), r"write LossScaler\(init_scale=8\.0, growth_factor=2\.0, "
     r"backoff_factor=0\.5, growth_interval=100, enabled=True\)\. No device"),
    ((torch.optim.SGD([parameter()]),), r"by name, got SGD; write LossScaler\(\)$"),
]  # fmt: skip


@each("arguments, says", UNNAMED)
def test_arguments_of_gradscaler_without_names_are_told_their_names(arguments, says):
    with pytest.raises(TypeError, match=says):
        LossScaler(*arguments)


STATES = [
    ({}, RuntimeError, "The source state dict is empty"),
    ([1], TypeError, "load_state_dict: expected a dict, got list"),
    ({"state": {}, "param_groups": []}, ValueError, "without scale, .* its keys are state"),
    ({**STATE, "scale": -1.0}, ValueError, "load_state_dict: scale: expected a positive"),
    ({**STATE, "scale": None}, TypeError, "load_state_dict: scale: expected a number"),
    ({**STATE, "growth_factor": 0.5}, ValueError, "growth_factor: expected"),
    ({**STATE, "backoff_factor": 2.0}, ValueError, "backoff_factor: expected"),
    ({**STATE, "growth_interval": 0}, ValueError, "growth_interval: expected at least 1"),
    ({**STATE, "_growth_tracker": -1}, ValueError, "_growth_tracker: expected at least 0"),
    ({**STATE, "updates": 1.5}, TypeError, "updates: expected an int, got float"),
    ({**STATE, "static": True}, ValueError, "a dynamic scale, got that of a static one"),
]


@each("state, error, says", STATES)
def test_wrong_states_are_refused_and_change_nothing(state, error, says):
    fresh, used = (LossScaler(init_scale=32.0, growth_interval=5) for _ in range(2))
    used.scale(torch.ones(()))
    for scaler in (fresh, used):
        before = scaler.state_dict()
        with pytest.raises(error, match=says):
            scaler.load_state_dict(state)
        assert scaler.state_dict() == before


def test_static_scale_takes_no_other() -> None:
    scaler = LossScaler(static=8.0)
    with pytest.raises(ValueError, match=r"the state of a static scale, got that of a dynamic"):
        scaler.load_state_dict(STATE)
    with pytest.raises(ValueError, match=r"a static scale stays 8\.0, got a state of 4\.0"):
        scaler.load_state_dict(LossScaler(static=4.0).state_dict())
    with pytest.raises(ValueError, match=r"a static scale stays 8\.0, got new_scale=4\.0"):
        scaler.update(4.0)
    assert scaler.get_scale() == 8.0


CHANGES = [
    (lambda s: s.update(0.0), ValueError, "update: new_scale: expected a positive finite"),
    (lambda s: s.update("2"), TypeError, "update: new_scale: expected a number, got str"),
    (lambda s: s.update(torch.ones(2)), ValueError, r"a tensor of 1 element.*shape \(2,\)"),
    (lambda s: s.update(parameter()), ValueError, "requires_grad=True"),
    (lambda s: s.set_growth_factor(1), ValueError, "growth_factor: expected"),
    (lambda s: s.set_backoff_factor(1), ValueError, "backoff_factor: expected"),
    (lambda s: s.set_growth_interval(0), ValueError, "growth_interval: expected"),
]


@each("call, error, says", CHANGES)
def test_wrong_changes_are_refused(call, error, says):
    scaler = LossScaler()
    scaler.scale(torch.ones(()))
    before = scaler.state_dict()
    with pytest.raises(error, match=says):
        call(scaler)
    assert scaler.state_dict() == before


def test_wrong_floor_of_a_callable_is_refused_at_its_update() -> None:
    scaler = LossScaler(init_scale=1.0, floor=lambda update: 1.0 - update)
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    take(scaler, optimizer)
    with pytest.raises(ValueError, match="floor: of update 1: expected a positive finite scale"):
        take(scaler, optimizer)


@each("wrong", [[1], ["ab"], [("weight", 1)], {"weight": parameter()}])
def test_names_must_be_pairs(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"named_parameters: expected pairs \(name, parameter\)"):
        LossScaler(named_parameters=wrong)
