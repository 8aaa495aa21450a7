"""LossScaler's hysteresis and its error at the floor, beside a plain model of DeepSpeed's rule."""

import copy
import pickle
import random
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from lpkernels.techniques.loss_scaling import LossScaler
from tests.loops import each
from tests.support.operators import Reads
from tests.support.refusals import refuses
from tests.techniques.loss_scaling.optimizers import INF, backward, parameter, take

SGD = torch.optim.SGD


@dataclass
class Delayed:
    """The rule of DeepSpeed's DynamicLossScaler in plain numbers, written from its description."""

    scale: float
    window: int
    least: float
    delay: int
    consecutive: bool
    left: int = 0
    good: int = 0

    def update(self, bad: bool) -> bool:
        """Makes the next scale; true if it would have fallen below the least one."""
        self.left = self.left or self.delay
        if bad:
            self.good = 0
            if self.left > 1:
                self.left -= 1
                return False
            below = self.scale == self.least
            self.scale = max(self.scale / 2, self.least)
            return below
        self.good += 1
        grows = self.good % self.window == 0
        if grows:
            self.scale *= 2
        if grows or self.consecutive:
            self.left = self.delay
        return False


def test_a_trace_by_hand() -> None:
    """The counter falls from 3 to 1, then the scale falls; five good steps in a row refill it."""
    scaler = LossScaler(init_scale=64.0, growth_interval=5, hysteresis=3)
    optimizer, found = SGD([parameter()], lr=0.1), []
    for bad in (1, 0, 1, 1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1):
        take(scaler, optimizer, INF if bad else 1.0)
        found.append((scaler.get_scale(), scaler.state_dict()["_hysteresis_left"]))
    assert found == [
        (64, 2), (64, 2), (64, 1), (32, 1), (32, 1), (16, 1), (16, 1), (16, 1), (16, 1), (16, 1),
        (32, 3), (32, 2), (32, 1), (16, 1),
    ]  # fmt: skip


CASES = [(n, c, w) for n in (1, 2, 5) for c in (False, True) for w in (1, 3) if n > 1 or not c]


@each("hysteresis, consecutive, window", CASES)
def test_random_traces_are_those_of_the_rule(hysteresis: int, consecutive: bool, window: int):
    """The raising scaler raises at the step where the rule says so, and changes nothing there."""
    draw = random.Random(hysteresis)
    given = {"growth_interval": window, "floor": 0.5, "init_scale": 8.0}
    given |= {"hysteresis": hysteresis, "consecutive": consecutive}
    model = Delayed(8.0, window, 0.5, hysteresis, consecutive)
    stays, raises = LossScaler(**given), LossScaler(**given, at_floor="raise")
    # A device skips this one's steps by itself.
    optimizer = SGD([parameter()], lr=0.1, fused=True)
    ended = False
    for step in range(120):
        bad = draw.random() < (0.95, 0.3)[step // 20 % 2]
        below = model.update(bad)
        take(stays, optimizer, INF if bad else 1.0)
        state = stays.state_dict()
        assert (state["scale"], state["_hysteresis_left"]) == (model.scale, model.left), step
        if ended:
            continue
        before = raises.state_dict()
        if below:
            ended = True
            with pytest.raises(FloatingPointError, match=r"of parameter 0 .* at its floor 0\.5"):
                take(raises, optimizer, INF)
            assert raises.get_scale() == before["scale"]
        else:
            take(raises, optimizer, INF if bad else 1.0)
            assert raises.state_dict() == state
    assert ended


def test_one_is_the_scaler_of_torch() -> None:
    """Nothing more is read or made, and torch loads the state."""
    mine, theirs = LossScaler(growth_interval=2), torch.amp.GradScaler("cpu", growth_interval=2)
    for bad in (0, 0, 1, 0, 1, 1, 0, 0, 0):
        for scaler in (mine, theirs):
            take(scaler, SGD([parameter()], lr=0.1), INF if bad else 1.0)
        state = mine.state_dict()
        assert {name: state[name] for name in theirs.state_dict()} == theirs.state_dict()
    theirs.load_state_dict(LossScaler(hysteresis=3).state_dict())


@each("at_floor, reads", [("stay", 0), ("raise", 1)])
def test_only_the_error_at_the_floor_waits(at_floor: str, reads: int) -> None:
    weight = parameter()
    scaler = LossScaler(floor=1.0, hysteresis=2, at_floor=at_floor)
    optimizer = SGD([weight], lr=0.1, fused=True)
    backward(scaler, [weight], INF)
    with Reads() as counted:
        scaler.step(optimizer)
        scaler.update()
    assert counted.count == reads


def test_the_state_goes_on_in_a_new_scaler_and_in_copies() -> None:
    scaler = LossScaler(init_scale=64.0, hysteresis=4, consecutive=True, growth_interval=3)
    optimizer = SGD([parameter()], lr=0.1)
    for _ in range(2):
        take(scaler, optimizer, INF)
    state = scaler.state_dict()
    assert all(type(value) in (float, int, bool) for value in state.values())
    used, plain = LossScaler(hysteresis=2), LossScaler()
    take(used, optimizer)
    others = [used, plain, copy.deepcopy(scaler), pickle.loads(pickle.dumps(scaler))]
    for other in others[:2]:
        other.load_state_dict(state)
    for bad in (1, 1, 0, 1, 0, 0, 0, 1):
        for each_one in (scaler, *others):
            take(each_one, optimizer, INF if bad else 1.0)
        assert [other.state_dict() for other in others] == [scaler.state_dict()] * 4
    # A state of torch's scaler has no counter: this one's is full.
    scaler.load_state_dict(torch.amp.GradScaler("cpu").state_dict() | {"scale": 8.0})
    assert scaler.state_dict()["_hysteresis_left"] == 4


def test_the_error_names_the_parameter_of_any_optimizer() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizers = [SGD(layer.parameters(), lr=0.1) for layer in model]
    names = model.named_parameters()
    scaler = LossScaler(init_scale=1.0, floor=1.0, at_floor="raise", named_parameters=names)
    backward(scaler, model.parameters())
    model[0].bias.grad[1] = float("nan")
    for optimizer in optimizers:
        scaler.step(optimizer)
    with pytest.raises(FloatingPointError, match=r"gradient of parameter '0\.bias' is not finite"):
        scaler.update()
    # Nothing was changed: a lower scale goes on.
    scaler.update(0.5)
    assert scaler.get_scale() == 0.5
    # A scale that was set below the floor cannot fall either.
    backward(scaler, model.parameters(), INF)
    scaler.step(optimizers[0])
    with pytest.raises(FloatingPointError, match=r"'0\.weight' .* at its floor 0\.5"):
        scaler.update()
    # Where the gradient is gone, so is its name.
    scaler = LossScaler(init_scale=1.0, floor=1.0, at_floor="raise")
    fused = SGD(model.parameters(), lr=0.1, fused=True)
    backward(scaler, model.parameters(), INF)
    scaler.step(fused)
    fused.zero_grad()
    with pytest.raises(FloatingPointError, match="of another process, or one that is gone"):
        scaler.update()


STATE = LossScaler(hysteresis=3).state_dict()
test_wrong_arguments_are_refused = refuses(
    LossScaler,
    [
        ((), {"hysteresis": 0}, ValueError, "hysteresis: expected 1 to 2147483647, got 0"),
        ((), {"hysteresis": 2.0}, TypeError, "hysteresis: expected an int, got float 2.0"),
        ((), {"consecutive": 1}, TypeError, "consecutive: expected True or False, got 1"),
        ((), {"consecutive": True}, ValueError, "consecutive: .*got hysteresis=1; give hyst"),
        ((), {"at_floor": "fall"}, ValueError, "at_floor: expected one of stay, raise, got 'fall'"),
        ((), {"at_floor": "raise"}, ValueError, "at_floor: 'raise' needs a floor, got floor=None"),
        *(((), {"static": 8.0, **given}, ValueError, "a static scale has no floor and no ceiling")
          for given in ({"hysteresis": 2}, {"at_floor": "raise"}, {"consecutive": True})),
    ],
)  # fmt: skip


@each(
    "wrong, message",
    [
        ({"hysteresis": 0}, "hysteresis: expected 1 to"),
        ({"_hysteresis_left": 4}, "_hysteresis_left: expected 1 to 3, got 4"),
        ({"_hysteresis_left": 0}, "_hysteresis_left: expected 1 to 3, got 0"),
        ({"hysteresis": 1, "consecutive": True}, "consecutive: it says when"),
    ],
)
def test_wrong_states_are_refused_and_change_nothing(wrong: dict, message: str) -> None:
    scaler = LossScaler(init_scale=32.0, hysteresis=2)
    before = scaler.state_dict()
    with pytest.raises(ValueError, match=message):
        scaler.load_state_dict({**STATE, **wrong})
    assert scaler.state_dict() == before
