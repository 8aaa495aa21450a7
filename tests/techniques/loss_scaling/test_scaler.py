"""LossScaler beyond torch's scaler: constant scales, bounds, records, reads; its refusals."""

import copy
import warnings
import weakref
from operator import methodcaller
from typing import Any

import pytest
import torch
from torch import nn

from lpkernels.techniques.loss_scaling import LossScaler, StepRecord
from tests.compare import assert_bit_equal
from tests.loops import each, rows
from tests.support.operators import Reads
from tests.support.refusals import refuses
from tests.techniques.loss_scaling import optimizers

SGD, STATE, NAN = torch.optim.SGD, LossScaler().state_dict(), float("nan")


def run(scaler: LossScaler, bad: str) -> list[float]:
    """The scale after each step; a 1 is a step that overflowed."""
    optimizer, found = SGD([optimizers.parameter()], lr=0.1), []
    for flag in bad:
        optimizers.take(scaler, optimizer, optimizers.INF if flag == "1" else 1.0)
        found.append(scaler.get_scale())
    return found


def test_static_scale_stays() -> None:
    scaler = LossScaler(static=8.0, growth_interval=1)
    assert run(scaler, "0110") == [8.0] * 4
    assert scaler.state_dict()["_growth_tracker"] == 0
    again = LossScaler(static=8.0)
    again.load_state_dict(scaler.state_dict())
    assert again.get_scale() == 8.0


BOUNDED = {"static": 8.0}, {"init_scale": 8.0, "floor": 4.0}


@each("options, fused", BOUNDED, [False, True])
def test_ten_skipped_updates_in_a_row_warn_once(options: Any, fused: bool) -> None:
    p = optimizers.parameter()
    optimizer = SGD([p], lr=0.1, fused=fused)
    scaler = LossScaler(named_parameters=[("w", p)], **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for bad in "1" * 9 + "0" + "1" * 9:
            optimizers.take(scaler, optimizer, optimizers.INF if bad == "1" else 1.0)
    with pytest.warns(UserWarning, match="10 updates in a row .* of parameter 'w' is not finite"):
        optimizers.take(scaler, optimizer, optimizers.INF)
    again = copy.deepcopy(scaler)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for same in (scaler, again):
            for _ in range(20):
                optimizers.take(same, optimizer, optimizers.INF)


def test_a_scale_that_falls_warns_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(LossScaler(init_scale=2.0**20, hysteresis=15), "1" * 60)


SCALES = [2.0**-20, 0.5, 1024.0, 2.0**100, 1000.0, 3.0]


@each("scale, fused", SCALES, [False, True])
def test_static_scale_multiplies_the_loss_and_divides_the_gradients(scale: float, fused: bool):
    weights = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    ours, plain = nn.Parameter(weights.clone()), nn.Parameter(weights.clone())
    scaler, optimizer = LossScaler(static=scale), SGD([ours], lr=0.1, fused=fused)
    scaled, loss = scaler.scale((ours**3).sum()), (plain**3).sum() * scale
    assert_bit_equal(scaled.detach(), loss.detach())
    scaled.backward()
    loss.backward()
    if not fused:
        scaler.unscale_(optimizer)
    torch._foreach_div_([plain.grad], scale)
    scaler.step(optimizer)
    assert_bit_equal(ours.grad, plain.grad)


def test_floor_and_ceiling_hold() -> None:
    scaler = LossScaler(init_scale=8.0, growth_interval=1, floor=4.0, ceiling=16.0)
    assert run(scaler, "0001111") == [16, 16, 16, 8, 4, 4, 4]

    # Without a floor the scale may fall below one.
    assert run(LossScaler(init_scale=2.0), "1111") == [1, 0.5, 0.25, 0.125]


def test_two_optimizers_skip_each_on_its_own_flag() -> None:
    one, two = optimizers.parameter(), optimizers.parameter()
    first, second = SGD([one], lr=0.5), SGD([two], lr=0.5)
    scaler = LossScaler(init_scale=4.0)
    scaler.scale(one.sum() + two.sum() * optimizers.INF).backward()
    scaler.step(first)
    assert scaler.last_step == StepRecord(ran=True)
    scaler.step(second)
    assert scaler.last_step == StepRecord(ran=False, parameter=0)
    scaler.update()
    assert (one.item(), two.item(), scaler.get_scale()) == (0.5, 1.0, 2.0)


FUSED: list[optimizers.Make] = [
    lambda p: SGD(p, lr=0.1, momentum=0.9, fused=True),
    lambda p: torch.optim.AdamW(p, amsgrad=True, fused=True),
]


@each("make", [*optimizers.OPTIMIZERS.values(), *FUSED])
def test_every_optimizer_of_torch_steps_and_skips(make: optimizers.Make) -> None:
    """A step is as without scaling, to the bit; a gradient that is not finite changes no bit."""
    ours, plain = (optimizers.parameters(shapes=[(7, 9), (4, 3)]) for _ in range(2))
    optimizer, other, scaler = make(ours), make(plain), LossScaler()
    start = optimizers.state_of(optimizer)
    for step in range(3):
        optimizer.zero_grad()
        for number, p in enumerate(plain):
            p.grad = optimizers.gradient(p, number, step)
        scaler.scale(sum((p * q.grad).sum() for p, q in zip(ours, plain, strict=True))).backward()
        scaler.step(optimizer)
        scaler.update()
        other.step()
        optimizers.assert_same(optimizers.state_of(optimizer), optimizers.state_of(other))
    before = optimizers.state_of(optimizer)
    assert all(not torch.equal(p, q) for (p, _), (q, _) in zip(before, start, strict=True))
    for bad in (optimizers.INF, NAN, -optimizers.INF):
        optimizers.take(scaler, optimizer, bad)
        assert not scaler.ran and scaler.last_step == StepRecord(False, 0)
        optimizers.assert_same(optimizers.state_of(optimizer), before)
    optimizers.take(scaler, optimizer)
    assert scaler.ran and not torch.equal(ours[0], before[0][0])


@each("fused", [False, True])
def test_last_step_names_the_first_bad_parameter(fused: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for names, want in ((model.named_parameters(), "1.weight"), (None, 2)):
        optimizer = SGD(model.parameters(), lr=0.1, fused=fused)
        scaler = LossScaler(named_parameters=names)
        assert scaler.last_step is None and scaler.ran is None
        optimizers.backward(scaler, model.parameters())
        for late in (model[1].weight, model[1].bias):
            late.grad[-1] = float("nan")
        scaler.step(optimizer)
        scaler.update()
        assert scaler.last_step == StepRecord(ran=False, parameter=want)
        assert scaler.last_step == StepRecord(ran=False, parameter=want)


def test_last_step_keeps_no_gradient() -> None:
    weight = optimizers.parameter()
    for fused, want in ((False, 0), (True, None)):
        optimizer, scaler = SGD([weight], lr=0.1, fused=fused), LossScaler()
        optimizers.take(scaler, optimizer, optimizers.INF)
        alive = weakref.ref(weight.grad)
        optimizer.zero_grad()
        assert alive() is None
        assert scaler.last_step == StepRecord(ran=False, parameter=want)
    # A broken gradient that is zeroed in place is not taken for a finite one.
    optimizer, scaler = SGD([weight], lr=0.1, fused=True), LossScaler()
    optimizers.backward(scaler, [weight], optimizers.INF)
    scaler.step(optimizer)
    optimizer.zero_grad(set_to_none=False)
    assert scaler.last_step == StepRecord(ran=False)


KINDS = [(kind, True) for kind in (SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)]


@each("steps, bad", [*KINDS, (SGD, False)], [False, True])
def test_fused_steps_read_nothing_and_others_read_once(steps: Any, bad: bool) -> None:
    kind, fused = steps
    weights = [optimizers.parameter(1.0, 2.0), optimizers.parameter(3.0)]
    optimizer = kind(weights, lr=0.1, fused=fused)
    scaler = LossScaler(floor=1.0, ceiling=2.0**20)
    for unscales in (False, True):
        optimizers.backward(scaler, weights, optimizers.INF if bad else 1.0)
        with Reads() as reads:
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            assert scaler.ran is not None
            scaler.update()
            scaler.scale([torch.ones(()), torch.ones(2)])
        assert reads.count == (not fused)


ARGUMENTS = [
    *(({"init_scale": wrong}, ValueError, f"init_scale: expected a positive finite.*got {wrong}")
      for wrong in (0.0, -1, optimizers.INF, NAN)),
    ({"init_scale": 2.0**128}, ValueError, "init_scale: expected .* float32's largest"),
    ({"init_scale": 2.0**-127}, ValueError, r"init_scale: expected .* from 2\*\*-126"),
    ({"init_scale": "8"}, TypeError, "init_scale: expected a number, got str '8'"),
    ({"init_scale": True}, TypeError, "init_scale: expected a number, got bool True"),
    ({"static": 0.0}, ValueError, "static: expected a positive finite scale"),
    ({"static": 8.0, "floor": 1.0}, ValueError, "a static scale has no floor and no ceiling"),
    *(({"growth_factor": wrong}, ValueError, "growth_factor: expected a finite number above 1")
      for wrong in (1.0, optimizers.INF)),
    ({"growth_factor": None}, TypeError, "growth_factor: expected a number, got NoneType"),
    *(({"backoff_factor": wrong}, ValueError, "backoff_factor: expected a finite number above")
      for wrong in (1.0, 0)),
    ({"growth_interval": 0}, ValueError, "growth_interval: expected at least 1, got 0"),
    ({"growth_interval": 2.0}, TypeError, "growth_interval: expected an int, got float 2.0"),
    ({"floor": 0.0}, ValueError, "floor: expected a positive finite scale"),
    ({"floor": {0: 1.0}}, TypeError, "floor: expected a number, got dict"),
    ({"floor": 8.0, "ceiling": 4.0}, ValueError, "floor: expected at most the ceiling 4.0"),
    ({"floor": "8"}, TypeError, "floor: expected a number, got str"),
    ({"ceiling": 4.0}, ValueError, "init_scale: expected a scale between .* ceiling 4.0"),
    ({"init_scale": 1.0, "floor": 2.0}, ValueError, "between the floor 2.0 and the ceiling"),
    *(({"named_parameters": wrong}, TypeError, r"named_parameters: expected pairs \(name, param")
      for wrong in ([1], ["ab"], [("weight", 1)], {"weight": optimizers.parameter()})),
]  # fmt: skip
UNNAMED = [
    (("cpu",), r"by name, got 'cpu'; write LossScaler\(\)\. No device is needed"),
    ((torch.device("cpu"),), r"by name, got device; write LossScaler\(\)\. No device is needed"),
    ((1024,), r"got 1024; write LossScaler\(init_scale=1024\), or LossScaler\(static=1024\) for a "
     r"scale that stays$"),
    (("cuda", 8.0), r"write LossScaler\(init_scale=8\.0\), or .*\(static=8\.0\).* No device"),
    (("cuda", 8.0, 2.0, 0.5, 100, True), r"write LossScaler\(init_scale=8\.0, growth_factor=2\.0, "
     r"backoff_factor=0\.5, growth_interval=100, enabled=True\)\. No device"),
    ((SGD([optimizers.parameter()]),), r"by name, got SGD; write LossScaler\(\)$"),
]  # fmt: skip
test_wrong_arguments_are_refused = refuses(
    LossScaler,
    [*(((), *row) for row in ARGUMENTS), *((args, {}, TypeError, says) for args, says in UNNAMED)],
)
STATES = [
    ({}, RuntimeError, "The source state dict is empty"),
    ([1], TypeError, "load_state_dict: expected a dict, got list"),
    ({"state": {}, "param_groups": []}, ValueError, "without scale, .* its keys are state"),
    ({**STATE, "scale": -1.0}, ValueError, "load_state_dict: scale: expected a positive"),
    ({**STATE, "scale": None}, TypeError, "load_state_dict: scale: expected a number"),
    ({**STATE, "growth_factor": 0.5}, ValueError, "growth_factor: expected"),
    ({**STATE, "backoff_factor": 2.0}, ValueError, "backoff_factor: expected"),
    ({**STATE, "growth_interval": 0}, ValueError, "growth_interval: expected at least 1"),
    ({**STATE, "_growth_tracker": -1}, ValueError, "_growth_tracker: expected 0 to"),
    ({**STATE, "_growth_tracker": 2**31}, ValueError, "expected 0 to 2147483647, got 2147483648"),
    ({**STATE, "_growth_tracker": 1.5}, TypeError, "_growth_tracker: expected an int, got float"),
    ({**STATE, "static": True}, ValueError, "a dynamic scale, got that of a static one"),
]


@rows(
    "call, error, says",
    *((methodcaller("load_state_dict", state), *row) for state, *row in STATES),
    (lambda s: s.update(0.0), ValueError, "update: new_scale: expected a positive finite"),
    (lambda s: s.update("2"), TypeError, "update: new_scale: expected a number, got str"),
    (lambda s: s.update(torch.ones(2)), ValueError, r"a tensor of 1 element.*shape \(2,\)"),
    (lambda s: s.update(optimizers.parameter()), ValueError, "requires_grad=True"),
    (lambda s: s.set_growth_factor(1), ValueError, "growth_factor: expected"),
    (lambda s: s.set_backoff_factor(1), ValueError, "backoff_factor: expected"),
    (lambda s: s.set_growth_interval(0), ValueError, "growth_interval: expected"),
)
def test_wrong_states_and_changes_are_refused_and_change_nothing(call, error, says):
    fresh, used = (LossScaler(init_scale=32.0, growth_interval=5) for _ in range(2))
    used.scale(torch.ones(()))
    for scaler in (fresh, used):
        before = scaler.state_dict()
        with pytest.raises(error, match=says):
            call(scaler)
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
