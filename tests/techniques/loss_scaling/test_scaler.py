"""What LossScaler has beyond torch's: constant scales, bounds, records, reads, several losses."""

import itertools
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from lpkernels.techniques.loss_scaling import LossScaler, StepRecord
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.reads import Reads
from tests.techniques.loss_scaling.loops import INF, backward, parameter, same, state_of, take

SGD = torch.optim.SGD


def run(scaler: LossScaler, bad: str) -> list[float]:
    """The scale after each step; a 1 is a step that overflowed."""
    optimizer, found = SGD([parameter()], lr=0.1), []
    for flag in bad:
        take(scaler, optimizer, INF if flag == "1" else 1.0)
        found.append(scaler.get_scale())
    return found


def test_static_scale_stays() -> None:
    scaler = LossScaler(static=8.0, growth_interval=1)
    assert run(scaler, "0110") == [8.0] * 4
    assert scaler.state_dict()["_growth_tracker"] == 0
    again = LossScaler(static=8.0)
    again.load_state_dict(scaler.state_dict())
    assert again.get_scale() == 8.0


SCALES = [2.0**-20, 0.5, 1024.0, 2.0**100, 1000.0, 3.0]


@each("scale, fused", itertools.product(SCALES, [False, True]))
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


def test_floor_rises_by_a_schedule() -> None:
    schedule = {0: 2.0, 3: 8.0, 5: 32.0}
    assert run(LossScaler(init_scale=4.0, floor=schedule), "1110101") == [2, 2, 2, 8, 8, 32, 32]
    scaler = LossScaler(init_scale=4.0, floor=lambda update: 2.0**update)
    assert run(scaler, "10011") == [2, 2, 4, 8, 16]
    # It goes on in a loaded scaler.
    schedule = {2: 8.0}
    first, second = LossScaler(init_scale=4.0, floor=schedule), LossScaler(floor=schedule)
    run(first, "11")
    second.load_state_dict(first.state_dict())
    assert run(second, "1") == [8.0]


def test_two_optimizers_skip_each_on_its_own_flag() -> None:
    one, two = parameter(), parameter()
    first, second = SGD([one], lr=0.5), SGD([two], lr=0.5)
    scaler = LossScaler(init_scale=4.0)
    scaler.scale(one.sum() + two.sum() * INF).backward()
    scaler.step(first)
    assert scaler.last_step == StepRecord(ran=True)
    scaler.step(second)
    assert scaler.last_step == StepRecord(ran=False, parameter=0)
    scaler.update()
    assert (one.item(), two.item(), scaler.get_scale()) == (0.5, 1.0, 2.0)


def test_unscale_comes_before_clipping() -> None:
    weight = parameter(0.0, 0.0)
    optimizer, scaler = SGD([weight], lr=1.0), LossScaler()
    backward(scaler, [weight], 3.0)
    scaler.unscale_(optimizer)
    assert weight.grad.tolist() == [3.0, 3.0]
    nn.utils.clip_grad_value_([weight], 0.25)
    scaler.step(optimizer)
    assert weight.tolist() == [-0.25, -0.25]


SKIPPING = [
    (SGD, {"momentum": 0.9}),
    (torch.optim.Adam, {}),
    (torch.optim.AdamW, {"amsgrad": True}),
]


@each("kind, fused", itertools.product(SKIPPING, [False, True]))
def test_skipped_step_changes_no_bit(kind: Any, fused: bool) -> None:
    make, arguments = kind
    optimizer = make(nn.Linear(3, 2).parameters(), lr=0.1, fused=fused, **arguments)
    scaler = LossScaler(init_scale=8.0)
    for gradient in (1.0, 2.0):
        take(scaler, optimizer, gradient)
    before = state_of(optimizer)
    for bad in (INF, float("nan"), -INF):
        take(scaler, optimizer, bad)
        assert not scaler.ran and scaler.last_step == StepRecord(False, 0)
        assert same(state_of(optimizer), before)
    take(scaler, optimizer)
    assert scaler.ran and not same(state_of(optimizer), before)


@each("fused", [False, True])
def test_last_step_names_the_first_bad_parameter(fused: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for names, want in ((model.named_parameters(), "1.weight"), (None, 2)):
        optimizer = SGD(model.parameters(), lr=0.1, fused=fused)
        scaler = LossScaler(named_parameters=names)
        assert scaler.last_step is None and scaler.ran is None
        backward(scaler, model.parameters())
        for late in (model[1].weight, model[1].bias):
            late.grad[-1] = float("nan")
        scaler.step(optimizer)
        scaler.update()
        assert scaler.last_step == StepRecord(ran=False, parameter=want)
        assert scaler.last_step == StepRecord(ran=False, parameter=want)


def test_last_step_keeps_no_gradient() -> None:
    weight = parameter()
    for fused, want in ((False, 0), (True, None)):
        optimizer, scaler = SGD([weight], lr=0.1, fused=fused), LossScaler()
        take(scaler, optimizer, INF)
        alive = weakref.ref(weight.grad)
        optimizer.zero_grad()
        assert alive() is None
        assert scaler.last_step == StepRecord(ran=False, parameter=want)
    # A broken gradient that is zeroed in place is not taken for a finite one.
    optimizer, scaler = SGD([weight], lr=0.1, fused=True), LossScaler()
    backward(scaler, [weight], INF)
    scaler.step(optimizer)
    optimizer.zero_grad(set_to_none=False)
    assert scaler.last_step == StepRecord(ran=False)


FUSED = [SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad]


@each("kind, bad", itertools.product(FUSED, [False, True]))
def test_fused_steps_read_nothing(kind: Any, bad: bool) -> None:
    weights = [parameter(1.0, 2.0), parameter(3.0)]
    optimizer = kind(weights, lr=0.1, fused=True)
    scaler = LossScaler(floor={0: 1.0}, ceiling=2.0**20)
    for unscales in (False, True):
        backward(scaler, weights, INF if bad else 1.0)
        with Reads() as reads:
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            assert scaler.ran is not None
            scaler.update()
            scaler.scale([torch.ones(()), torch.ones(2)])
        assert reads.count == 0


@each("bad", [False, True])
def test_other_steps_read_once(bad: bool) -> None:
    weights = [parameter(1.0, 2.0), parameter(3.0)]
    optimizer = SGD(weights, lr=0.1)
    scaler = LossScaler()
    backward(scaler, weights, INF if bad else 1.0)
    with Reads() as reads:
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        assert scaler.ran is not None
        scaler.update()
    assert reads.count == 1


def test_losses_with_scales_of_their_own_add_up() -> None:
    weight = parameter(1.0, 2.0)
    optimizer = SGD([weight], lr=1.0)
    one, two = LossScaler(init_scale=2.0**20), LossScaler(init_scale=8.0)
    weight.grad = torch.tensor([1.0, 0.0])
    with one.separately(optimizer):
        one.scale((weight * 3.0).sum()).backward()
    with two.separately(optimizer):
        two.scale((weight * 5.0).sum()).backward()
    assert weight.grad.tolist() == [9.0, 8.0]
    two.step(optimizer)
    one.update()
    two.update()
    assert weight.tolist() == [-8.0, -6.0]


# The last sum is infinite though its terms are not, so nobody's scale shrinks.
OWN = [((INF, 1.0), (0.5, 1.0)), ((1.0, INF), (1.0, 0.5)), ((2e38, 2e38), (1.0, 1.0))]


@each("gradients, scales", OWN)
def test_each_scale_answers_for_its_own_loss(gradients: Any, scales: Any) -> None:
    weight = parameter(1.0)
    optimizer = SGD([weight], lr=1.0)
    one, two = LossScaler(init_scale=1.0), LossScaler(init_scale=1.0)
    for scaler, gradient in zip((one, two), gradients, strict=True):
        with scaler.separately(optimizer):
            scaler.scale((weight * gradient).sum()).backward()
    one.step(optimizer)
    assert one.last_step == StepRecord(ran=False, parameter=0)
    one.update()
    two.update()
    assert (one.get_scale(), two.get_scale(), weight.item()) == (*scales, 1.0)


def test_separately_puts_gradients_back_after_an_error() -> None:
    weight, other = parameter(1.0), parameter(1.0)
    optimizer, scaler = SGD([weight, other], lr=1.0), LossScaler()
    weight.grad = torch.tensor([3.0])
    with pytest.raises(KeyError), scaler.separately(optimizer):
        scaler.scale(weight.sum() + other.sum()).backward()
        raise KeyError
    assert weight.grad.tolist() == [3.0] and other.grad is None
    backward(scaler, [weight])
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"separately\(\) is being called after unscale_"):
        scaler.separately(optimizer).__enter__()


OPTIMIZERS = [
    kind
    for kind in vars(torch.optim).values()
    if isinstance(kind, type)
    and issubclass(kind, torch.optim.Optimizer)
    and kind not in (torch.optim.Optimizer, torch.optim.SparseAdam, torch.optim.LBFGS)
]


@each("kind", OPTIMIZERS)
def test_every_optimizer_of_torch_steps_and_skips(kind: Any) -> None:
    """A step is as without scaling, to the bit; none is taken where a gradient is not finite."""
    torch.manual_seed(0)
    start, gradients = torch.randn(4, 3), torch.randn(3, 4, 3)
    ours, plain = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizer, other = kind([ours]), kind([plain])
    scaler = LossScaler()
    for gradient in gradients:
        optimizer.zero_grad()
        scaler.scale((ours * gradient).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        plain.grad = gradient.clone()
        other.step()
        assert_bit_equal(ours.detach(), plain.detach())
    assert not torch.equal(ours, start)
    before = state_of(optimizer)
    take(scaler, optimizer, INF)
    assert same(state_of(optimizer), before)
