"""LossScaler: torch's GradScaler at its defaults; bounds, hysteresis, records, reads, refusals."""

import copy
import random
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from lpkernels.techniques.loss_scaling import LossScaler
from lpkernels.techniques.loss_scaling.scaler import StepRecord
from tests.compare import assert_bit_equal
from tests.support.autograd import Reads
from tests.techniques.loss_scaling import optimizers
from tests.techniques.loss_scaling.optimizers import INF, assert_same, backward, parameter, take

SGD, NAN = torch.optim.SGD, float("nan")


def run(scaler: LossScaler, bad: str) -> list[float]:
    """The scale after each step; a 1 is a step that overflowed."""
    optimizer, found = SGD([parameter()], lr=0.1), []
    for flag in bad:
        take(scaler, optimizer, INF if flag == "1" else 1.0)
        found.append(scaler.get_scale())
    return found


@pytest.mark.parametrize(
    "options, bad, scales",
    [
        ({"static": 8.0}, "0110", [8, 8, 8, 8]),
        ({"init_scale": 8.0, "floor": 4.0}, "01111", [16, 8, 4, 4, 4]),
        ({"init_scale": 2.0}, "1111", [1, 0.5, 0.25, 0.125]),
        # The count of bad steps is full again when the scale grows.
        (
            {"init_scale": 8.0, "hysteresis": 2, "growth_interval": 2},
            "1101001",
            [8, 4, 4, 2, 2, 4, 4],
        ),
    ],
    ids=["static", "floor", "without a floor it falls below one", "hysteresis"],
)
def test_scale_after_each_step(options: Any, bad: str, scales: list[float]) -> None:
    assert run(LossScaler(**{"growth_interval": 1, **options}), bad) == scales


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("options", [{"static": 8.0}, {"init_scale": 8.0, "floor": 4.0}])
def test_ten_skipped_updates_in_a_row_warn_once(options: Any, fused: bool) -> None:
    p = parameter()
    optimizer = SGD([("w", p)], lr=0.1, fused=fused)
    scaler = LossScaler(**options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for bad in "1" * 9 + "0" + "1" * 9:
            take(scaler, optimizer, INF if bad == "1" else 1.0)
    with pytest.warns(UserWarning, match="10 updates in a row .* of parameter 'w' is not finite"):
        take(scaler, optimizer, INF)
    again = copy.deepcopy(scaler)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for same in (scaler, again):
            for _ in range(20):
                take(same, optimizer, INF)
        # A scale that falls warns of nothing.
        run(LossScaler(init_scale=2.0**20, hysteresis=15), "1" * 60)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("scale", [2.0**-20, 2.0**100, 3.0])
def test_static_scale_multiplies_the_loss_and_divides_the_gradients(scale: float, fused: bool):
    weights = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    ours, plain = nn.Parameter(weights.clone()), nn.Parameter(weights.clone())
    scaler, optimizer = LossScaler(static=scale), SGD([ours], lr=0.1, fused=fused)
    scaled, loss = scaler.scale((ours**3).sum()), (plain**3).sum() * scale
    assert_bit_equal(scaled.detach(), loss.detach())
    scaled.backward()
    loss.backward()
    torch._foreach_div_([plain.grad], scale)
    scaler.step(optimizer)
    assert_bit_equal(ours.grad, plain.grad)


FUSED: dict[str, optimizers.Make] = {
    "sgd_fused": lambda p: SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, amsgrad=True, fused=True),
}
EVERY = optimizers.OPTIMIZERS | FUSED


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
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
    for bad in (INF, NAN, -INF):
        take(scaler, optimizer, bad)
        assert not scaler.ran and scaler.last_step == StepRecord(False, 0)
        optimizers.assert_same(optimizers.state_of(optimizer), before)
    take(scaler, optimizer)
    assert scaler.ran and not torch.equal(ours[0], before[0][0])


def test_two_optimizers_skip_each_on_its_own_flag() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    first, second = (SGD(layer.named_parameters(), lr=0.1) for layer in model)
    scaler = LossScaler(static=1.0)
    backward(scaler, model.parameters())
    model[1].bias.grad[0] = NAN
    scaler.unscale_(second)
    scaler.step(second)
    assert scaler.last_step == StepRecord(ran=False, parameter="bias")
    scaler.step(first)
    assert scaler.last_step == StepRecord(ran=True)


def test_a_warning_has_no_name_where_the_gradient_is_gone() -> None:
    scaler, optimizer = LossScaler(static=1.0), SGD([parameter()], lr=0.1, fused=True)
    with pytest.warns(UserWarning, match="a gradient elsewhere is not finite"):
        for _ in range(10):
            backward(scaler, optimizers.held_by(optimizer), INF)
            scaler.step(optimizer)
            optimizer.zero_grad()
            scaler.update()


@pytest.mark.parametrize("fused", [False, True])
def test_last_step_names_the_first_bad_parameter_and_keeps_no_gradient(fused: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for parameters, want in ((model.named_parameters(), "1.weight"), (model.parameters(), 2)):
        optimizer = SGD(parameters, lr=0.1, fused=fused)
        scaler = LossScaler()
        assert scaler.last_step is None and scaler.ran is None
        backward(scaler, model.parameters())
        for late in (model[1].weight, model[1].bias):
            late.grad[-1] = NAN
        scaler.step(optimizer)
        scaler.update()
        assert [scaler.last_step, scaler.last_step] == [StepRecord(ran=False, parameter=want)] * 2
    take(scaler, optimizer, INF)
    alive = weakref.ref(model[0].weight.grad)
    optimizer.zero_grad()
    assert alive() is None
    assert scaler.last_step == StepRecord(ran=False, parameter=None if fused else 0)
    # A broken gradient that is zeroed in place is not taken for a finite one.
    take(scaler, optimizer, INF)
    optimizer.zero_grad(set_to_none=False)
    assert scaler.last_step == StepRecord(ran=False, parameter=None if fused else 0)


KINDS = [(kind, True) for kind in (SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)]


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("kind, fused", [*KINDS, (SGD, False)])
def test_fused_steps_read_nothing_and_others_read_the_flag(
    kind: Any, fused: bool, bad: bool
) -> None:
    weights = [parameter(1.0, 2.0), parameter(3.0)]
    optimizer = kind(weights, lr=0.1, fused=fused)
    scaler = LossScaler(floor=1.0, hysteresis=2)
    for unscales in (False, True):
        backward(scaler, weights, INF if bad else 1.0)
        with Reads() as reads:
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            assert scaler.ran is not None
            scaler.update()
            scaler.scale([torch.ones(()), torch.ones(2)])
        # torch reads the flag of a step that runs once more.
        assert reads.count == (0 if fused else 2 - bad)


CALLS = [
    (lambda s: s.update(0.0), ValueError, "update: new_scale: expected a positive finite"),
    (lambda s: s.update("2"), TypeError, "update: new_scale: expected a number, got str"),
    (lambda s: s.step(SGD([parameter()]), torch.ones), RuntimeError, "no closure, got one"),
    (lambda s: LossScaler(static=8.0, floor=1.0), ValueError, "a static scale has no floor"),
    (lambda s: LossScaler(static=8.0).update(4.0), ValueError, "stays 8.0, got new_scale=4.0"),
]


@pytest.mark.parametrize("call, error, says", CALLS)
def test_wrong_calls_are_refused_and_change_nothing(call, error, says):
    fresh, used = (LossScaler(init_scale=32.0, growth_interval=5) for _ in range(2))
    used.scale(torch.ones(()))
    for scaler in (fresh, used):
        before = scaler.state_dict()
        with pytest.raises(error, match=says):
            call(scaler)
        assert scaler.state_dict() == before


def torch_scaler(**arguments: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", **arguments)


def trace(scaler: Any, bad: list[bool], lr: float = 0.1) -> list[tuple[dict[str, Any], float]]:
    """torch's state and the weight after each step of SGD with the gradient 1 or infinity."""
    weight = parameter(1.0)
    optimizer = SGD([weight], lr=lr)
    found = []
    for broken in bad:
        take(scaler, optimizer, INF if broken else 1.0)
        state = scaler.state_dict()
        found.append(({name: state[name] for name in torch_scaler().state_dict()}, weight.item()))
    return found


FACTORS = [{}, {"growth_factor": 1.7, "backoff_factor": 0.3}, {"init_scale": 2.0**127}]


@pytest.mark.parametrize("factors", FACTORS)
def test_random_trace_is_that_of_torch(factors: dict[str, float]) -> None:
    """The last of these does not grow beyond float32."""
    draw = random.Random(0)
    bad = [draw.random() < 0.09 for _ in range(300)]
    arguments: dict[str, Any] = {"growth_interval": 7, **factors}
    mine = trace(LossScaler(**arguments), bad, lr=1e-5)
    assert mine == trace(torch_scaler(**arguments), bad, lr=1e-5)
    assert len({state["scale"] for state, _ in mine}) > 4


@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("scale", [2.0**16, 1000.0, 3.0])
@pytest.mark.parametrize("fused", [False, True])
def test_weights_are_those_of_torch(fused: bool, scale: float, unscales: bool) -> None:
    ends = []
    for scaler in (LossScaler(init_scale=scale), torch_scaler(init_scale=scale)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
        for step in range(6):
            optimizer.zero_grad()
            x = torch.randn(4, 5) * (INF if step == 3 else 1)
            scaler.scale(model(x).square().mean()).backward()
            if unscales:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        ends.append(dict(model.state_dict()))
    assert_same(*ends)


def test_states_go_both_ways() -> None:
    mine, theirs = LossScaler(init_scale=16.0, growth_interval=3), torch_scaler(init_scale=16.0)
    trace(mine, [False, False, True, False])
    theirs.load_state_dict(mine.state_dict())
    bad = [False, False, False, True, False]
    assert trace(theirs, bad) == trace(mine, bad)
    fresh = LossScaler(hysteresis=3)
    fresh.load_state_dict(theirs.state_dict())
    # A state of torch's scaler has no counter: this one's is full.
    assert fresh.state_dict()["_hysteresis_left"] == 3
    # The state of a scaler in use is replaced.
    fresh.load_state_dict(theirs.state_dict() | {"hysteresis": 1})
    assert trace(fresh, bad) == trace(theirs, bad)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_gradients_of_other_dtypes_are_unscaled(dtype: torch.dtype) -> None:
    weight = nn.Parameter(torch.ones(2, dtype=dtype))
    scaler = LossScaler(init_scale=8.0)
    scaler.scale((weight * 0.5).sum()).backward()
    scaler.unscale_(SGD([weight], lr=1.0))
    assert torch.equal(weight.grad, torch.full((2,), 0.5, dtype=dtype))


@pytest.mark.parametrize("bad", [False, True])
def test_sparse_gradients_are_checked(bad: bool) -> None:
    table = nn.Embedding(4, 2, sparse=True)
    before = table.weight.detach().clone()
    scaler = LossScaler(init_scale=8.0)
    loss = table(torch.tensor([1, 1, 3])).sum() * (INF if bad else 1.0)
    scaler.scale(loss).backward()
    scaler.step(torch.optim.SparseAdam(table.parameters()))
    assert torch.equal(before, table.weight) == bad
    assert scaler.last_step.ran != bad


def test_disabled_does_nothing() -> None:
    weight = parameter()
    optimizer = SGD([weight], lr=1.0)
    scaler = LossScaler(enabled=False)
    backward(scaler, [weight], 0.5)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert weight.item() == 0.5 and scaler.last_step is None
    assert scaler.step(optimizer, lambda: torch.tensor(3.0)) == 3.0
    scaler.update()
    scaler.load_state_dict({"nothing": 1})
    assert (scaler.get_scale(), scaler.state_dict()) == (1.0, {})
    assert not copy.deepcopy(scaler).is_enabled()


def test_a_scale_is_set() -> None:
    scaler = LossScaler()
    assert scaler.scale(torch.ones(2).half()).dtype == torch.float16
    for new in (8.0, torch.tensor(4.0), 1):
        scaler.update(new)
        assert scaler.scale([torch.ones(())])[0].item() == scaler.get_scale() == float(new)
