"""Masters of weights: the bits of the optimizer alone, what narrow masters lose, what is kept."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from lpkernels.rng import derive_seed
from lpkernels.techniques.loss_scaling import MasterWeights, Stagnation
from tests.compare import assert_bit_equal, assert_unbiased
from tests.techniques.loss_scaling.loops import (
    OPTIMIZERS,
    assert_same,
    gradient,
    parameters,
    train,
    wrapped,
)

FP32 = {"weight": "fp32", "master": "fp32", "state": "fp32"}
STEPS = range(1, 6)


def masters(optimizer: MasterWeights, held: list[nn.Parameter]) -> list[torch.Tensor]:
    with optimizer.masters():
        return [p.detach().clone() for p in held]


# --- the general path ---


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_float32_gives_the_bits_of_the_optimizer_alone(name: str) -> None:
    bare, held = parameters(), parameters()
    alone, optimizer = OPTIMIZERS[name](bare), wrapped(name, held, **FP32)
    train(alone, bare, STEPS)
    train(optimizer, held, STEPS)
    for p, q in zip(held, bare, strict=True):
        assert_bit_equal(p.detach(), q.detach())
        own = {k: v for k, v in optimizer.state.get(p, {}).items() if k != "counts"}
        assert_same(own, dict(alone.state.get(q, {})))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_float32_masters_beside_working_copies_are_the_optimizer_alone(
    name: str, dtype: torch.dtype
) -> None:
    """Working copies in bf16, as emulated values or in the dtype: the masters do not see it."""
    bare = [nn.Parameter(p.detach().bfloat16().float()) for p in parameters()]
    held = [nn.Parameter(p.detach().bfloat16().to(dtype)) for p in parameters()]
    alone, optimizer = OPTIMIZERS[name](bare), wrapped(name, held, weight="bf16")
    for step in STEPS:
        for number, (p, q) in enumerate(zip(held, bare, strict=True)):
            p.grad = gradient(p, number, step).bfloat16().to(dtype)
            # some optimizers change gradients
            q.grad = p.grad.float().clone()
        alone.step()
        optimizer.step()
    mine = optimizer.rules()
    for master, p, q in zip(masters(optimizer, held), held, bare, strict=True):
        if p not in mine:
            continue
        assert p.dtype == dtype
        assert_bit_equal(master, q.detach())
        assert_bit_equal(p.detach().float(), lp.quantize(q.detach(), "bf16"))


def test_channels_last_gives_the_bits_of_the_optimizer_alone() -> None:
    def one() -> list[nn.Parameter]:
        (p,) = parameters(shapes=[(5, 3, 3, 3)])
        return [nn.Parameter(p.detach().to(memory_format=torch.channels_last))]

    bare, held = one(), one()
    train(OPTIMIZERS["adam"](bare), bare, STEPS)
    train(wrapped("adam", held, **FP32), held, STEPS)
    assert_bit_equal(held[0].detach(), bare[0].detach())


# Elementwise, in the order of the class's docstring.
def test_a_step_rounds_gradient_master_states_and_working_copy() -> None:
    (p,) = parameters(shapes=[(33,)])
    formats = {"weight": "e4m3fn", "master": "e6m9", "state": "e5m7", "grad": "e5m2"}
    master = lp.quantize(p.detach(), "e6m9")
    optimizer = MasterWeights(torch.optim.SGD([p], lr=0.1, momentum=0.9), **formats)
    assert_bit_equal(p.detach(), lp.quantize(master, "e4m3fn"))
    momentum = None
    for step in STEPS:
        p.grad = gradient(p, 0, step)
        g = lp.quantize(p.grad, "e5m2")
        momentum = g.clone() if momentum is None else momentum.mul_(0.9).add_(g)
        master = lp.quantize(master.add(momentum, alpha=-0.1), "e6m9")
        momentum = lp.quantize(momentum, "e5m7")
        optimizer.step()
        assert_bit_equal(p.detach(), lp.quantize(master, "e4m3fn"))
    assert_bit_equal(optimizer.state[p]["master"], lp.pack(master, "e6m9"))
    assert_bit_equal(optimizer.state[p]["momentum_buffer"], lp.pack(momentum, "e5m7"))


def test_states_have_formats_of_their_own() -> None:
    held = parameters()
    state = {"exp_avg": "e4m3fn", "exp_avg_sq": "block32_e4m3"}
    optimizer = wrapped("adamw", held[:2], weight="fp32", state=state)
    train(optimizer, held[:2], STEPS)
    kept = optimizer.state[held[0]]
    assert kept["exp_avg"].dtype == kept["exp_avg_sq"].dtype == torch.uint8
    assert (len(kept["exp_avg"]), len(kept["exp_avg_sq"])) == (63, 63 + 7)
    assert kept["step"] == 5.0
    values = lp.unpack(kept["exp_avg"], "e4m3fn", (7, 9))
    assert values.abs().max() > 0


def test_a_state_that_is_not_named_is_fp32() -> None:
    held = parameters()
    optimizer = wrapped("adamw", held, weight="fp32", state={"exp_avg": "bf16"})
    train(optimizer, held, [1])
    kept = optimizer.state[held[0]]
    assert (kept["exp_avg"].dtype, kept["exp_avg_sq"].dtype) == (torch.bfloat16, torch.float32)


def test_states_of_other_shapes_are_rounded() -> None:
    (p,) = parameters(shapes=[(7, 9)])
    optimizer = MasterWeights(torch.optim.Adafactor([p]), weight="fp32", state="e8m3")
    train(optimizer, [p], STEPS)
    for name in ("row_var", "col_var"):
        kept = optimizer.state[p][name]
        assert_bit_equal(kept, lp.quantize(kept, "e8m3"), name)


def test_states_that_the_optimizer_had_are_taken_over() -> None:
    bare, held = parameters(), parameters()
    alone, inner = OPTIMIZERS["adam"](bare), OPTIMIZERS["adam"](held)
    train(alone, bare, STEPS)
    train(inner, held, [1, 2])
    train(MasterWeights(inner, **FP32), held, [3, 4, 5])
    assert_same([p.detach() for p in held], [p.detach() for p in bare])


# --- what narrow masters lose, and what recovers it: w = 1, 4096 updates of -rn16(2e-4) ---


def fallen(**formats: Any) -> tuple[float, MasterWeights, nn.Parameter]:
    p = nn.Parameter(torch.ones(16))
    update = float(lp.quantize(torch.tensor(2e-4), "fp16"))
    optimizer = MasterWeights(torch.optim.SGD([p], lr=1.0), **formats)
    for _ in range(4096):
        p.grad = torch.full((16,), update)
        optimizer.step()
    return float(p.detach()[0]), optimizer, p


def test_fp16_weights_stay_where_they_are() -> None:
    value, optimizer, _ = fallen(weight="fp16", master="fp16")
    assert value == 1.0
    assert optimizer.stagnation() == {"0": Stagnation(16 * 4096, 16 * 4096)}
    assert optimizer.stagnation()["0"].share == 1.0
    optimizer.reset_stagnation()
    assert optimizer.stagnation() == {"0": Stagnation(0, 0)}
    assert optimizer.stagnation()["0"].share == 0.0


@pytest.mark.parametrize(
    "formats",
    [
        {"weight": "fp16", "master": "fp32"},
        {"weight": "fp16", "master": "fp16", "compensation": "fp16"},
        {"weight": "fp32", "split": False},
    ],
    ids=["master", "kahan", "fp32"],
)
def test_masters_and_compensation_follow_every_update(formats: dict[str, Any]) -> None:
    value, optimizer, _ = fallen(**formats)
    # specs of mixed precision: 0.18066406 after rounding to fp16
    assert float(lp.quantize(torch.tensor(value), "fp16")) == 0.1806640625
    assert optimizer.stagnation()["0"].unchanged == 0


def test_a_stochastic_16_bit_master_follows_in_the_mean() -> None:
    """Wang et al. 2018: e6m9 masters, rounded stochastically. From 1 down to 0.18 each step of the
    grid is crossed by chance: 64 elements end near where float32 does."""
    p = nn.Parameter(torch.ones(64))
    optimizer = MasterWeights(
        torch.optim.SGD([p], lr=1.0), weight="fp8_e5m2", master="e6m9:stochastic"
    )
    for _ in range(4096):
        p.grad = torch.full((64,), 2e-4)
        optimizer.step()
    (ended,) = masters(optimizer, [p])
    # one update moves by 2^-10 with chance 0.2 or so: a variance of 2e-4 * 2^-10 * 4096 at most
    sigma = (2e-4 * 2.0**-10 * 4096) ** 0.5
    assert abs(float(ended.mean()) - (1 - 4096 * 2e-4)) < 3 * sigma / 8
    assert_bit_equal(ended, lp.quantize(ended, "e6m9"))
    assert_bit_equal(p.detach(), lp.quantize(ended, "fp8_e5m2"))


def test_stochastic_updates_move_as_often_as_they_should() -> None:
    p = nn.Parameter(torch.ones(20000))
    optimizer = MasterWeights(torch.optim.SGD([p], lr=1.0), weight="fp16", master="fp16:stochastic")
    p.grad = torch.full_like(p, -(2.0**-12))
    optimizer.step()
    assert_unbiased(int((p > 1).sum()), p.numel(), 0.25)
    assert optimizer.stagnation()["0"] == (20000, int((p == 1).sum()))


def test_compensation_is_kahans_sum() -> None:
    (p,) = parameters(shapes=[(50,)])
    w = lp.quantize(p.detach(), "bf16")
    optimizer = MasterWeights(
        torch.optim.SGD([p], lr=0.01), weight="bf16", master="bf16", compensation="bf16"
    )
    c = torch.zeros_like(w)
    for step in STEPS:
        p.grad = gradient(p, 0, step)
        y = (w.add(p.grad, alpha=-0.01) - w) + c
        new = lp.quantize(w + y, "bf16")
        c, w = lp.quantize(y - (new - w), "bf16"), new
        optimizer.step()
        assert_bit_equal(p.detach(), w)
        assert_bit_equal(optimizer.state[p]["compensation"], c.bfloat16())
    assert c.abs().max() > 0


# --- a split master ---

ROUNDINGS = (
    "nearest_even",
    "nearest_away",
    "toward_zero",
    "toward_positive",
    "to_odd",
    "stochastic",
)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("fmt", ["bf16", "tf32", "e8m1", "e8m22"])
def test_a_split_master_is_reassembled_exactly(fmt: str, rounding: str) -> None:
    """Ties, subnormals, overflow, zeros and infinities, whatever the working copy is rounded by."""
    codes = torch.randint(-(2**31), 2**31 - 1, (500,), dtype=torch.int64).to(torch.int32)
    ties = torch.randint(-(2**15), 2**15, (100,)).to(torch.int32) * 65536 + 32768
    special = torch.tensor(
        [0.0, -0.0, 1e-45, -1e-45, 3.4028235e38, -3.4028235e38, torch.inf, -torch.inf]
    )
    values = torch.cat([codes.view(torch.float32), ties.view(torch.float32), special])
    values = torch.where(values.isnan(), torch.ones(()), values)
    p = nn.Parameter(values.clone())
    optimizer = MasterWeights(torch.optim.SGD([p], lr=1.0), weight=f"{fmt}:{rounding}", split=True)
    assert set(optimizer.state[p]) == {"remainder", "counts"}
    assert_bit_equal(p.detach(), lp.quantize(p.detach(), fmt))
    (master,) = masters(optimizer, [p])
    assert_bit_equal(master, values)


def test_a_split_master_keeps_16_bits_beside_bf16() -> None:
    held = parameters(torch.bfloat16)
    optimizer = wrapped("momentum", held, weight="bf16:nearest_away", split=True)
    beside = parameters(torch.bfloat16)
    other = wrapped("momentum", beside, weight="bf16:nearest_away")
    train(optimizer, held, STEPS)
    train(other, beside, STEPS)
    assert len(optimizer.state[held[0]]["remainder"]) == 2 * 63
    assert_same([p.detach() for p in held], [p.detach() for p in beside])
    assert_same(masters(optimizer, held), masters(other, beside))


def test_a_nan_master_stays_nan_in_a_split_one() -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer = MasterWeights(torch.optim.SGD([p], lr=1.0), weight="bf16", split=True)
    p.grad = torch.tensor([torch.nan, 0.0])
    optimizer.step()
    assert masters(optimizer, [p])[0].tolist()[1] == 1.0
    assert bool(p[0].isnan())


# --- draws ---


def test_draws_are_keyed_by_seed_step_parameter_purpose_and_index() -> None:
    held = parameters(shapes=[(40,), (3, 5)])
    seed = 12345
    optimizer = MasterWeights(
        torch.optim.SGD(held, lr=1.0),
        weight="e4m3fn:stochastic",
        master="e5m7:stochastic",
        generator=torch.tensor(seed),
    )
    (_, before) = masters(optimizer, held)
    train(optimizer, held, [1])
    own = derive_seed(derive_seed(seed, 2), 2)

    def drawn(x: torch.Tensor, fmt: str, purpose: int) -> torch.Tensor:
        key = derive_seed(own, purpose)
        key -= (key >> 63) << 64
        return lp.quantize(x, fmt, "stochastic", generator=torch.tensor(key))

    master = drawn(before - gradient(held[1], 1, 1), "e5m7", 2)
    assert_bit_equal(masters(optimizer, held)[1], master)
    assert_bit_equal(held[1].detach(), drawn(master, "e4m3fn", 3))


def test_one_seed_is_drawn_and_follows_manual_seed() -> None:
    ends = []
    for start in (1, 1, 2):
        torch.manual_seed(start)
        before = torch.get_rng_state()
        held = parameters()
        optimizer = wrapped("sgd", held, weight="e5m2:stochastic")
        after = torch.get_rng_state()
        train(optimizer, held, STEPS)
        assert not torch.equal(before, after)
        assert torch.equal(after, torch.get_rng_state())
        ends.append(held[0].detach())
    assert torch.equal(ends[0], ends[1]) and not torch.equal(ends[0], ends[2])


def test_a_parameter_draws_the_same_whatever_others_do() -> None:
    """Its number counts, not how many gradients came before it."""
    torch.manual_seed(3)
    held = parameters()
    optimizer = wrapped("sgd", held, weight="e5m2:stochastic")
    held[1].grad = gradient(held[1], 1, 1)
    optimizer.step()
    torch.manual_seed(3)
    all_of_them = parameters()
    train(wrapped("sgd", all_of_them, weight="e5m2:stochastic"), all_of_them, [1])
    assert_bit_equal(held[1].detach(), all_of_them[1].detach())


# --- exceptions and names ---


def test_exceptions_by_name() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    optimizer = MasterWeights(
        torch.optim.Adam(model.parameters()),
        weight="e4m3fn",
        state="e8m3",
        named_parameters=model.named_parameters(),
        exceptions={"1.*": {"weight": "fp32", "state": "fp32"}, "*bias": {"grad": "e5m2"}},
    )
    formats = {rule.name: rule.formats for rule in optimizer.rules().values()}
    assert [str(formats[name].weight) for name in ("0.weight", "0.bias", "1.bias")] == [
        "e4m3fn",
        "e4m3fn",
        "e8m23",
    ]
    # the first glob that matches holds
    assert str(formats["0.bias"].grad) == "e5m2" and formats["1.bias"].grad is None
    assert str(formats["0.weight"].state) == "e8m3" and str(formats["1.weight"].state) == "e8m23"
    assert list(optimizer.stagnation()) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_names_are_positions_without_names() -> None:
    held = parameters()
    optimizer = wrapped("sgd", held, weight="e5m2", exceptions={"1": {"weight": "fp32"}})
    values = held[1].detach().clone()
    assert_bit_equal(values, parameters()[1].detach())
    assert list(optimizer.stagnation()) == ["0", "1", "2"]


def test_names_are_those_the_optimizer_was_made_with() -> None:
    model = nn.Linear(2, 2)
    try:
        inner = torch.optim.SGD(model.named_parameters(), lr=0.1)
    except TypeError:
        pytest.skip("this torch's optimizers take no names")
    optimizer = MasterWeights(inner, weight="fp16", exceptions={"bias": {"weight": "fp32"}})
    assert list(optimizer.stagnation()) == ["weight", "bias"]


# --- in a loop ---


def test_schedulers_change_the_learning_rate() -> None:
    bare, held = parameters(), parameters()
    alone, optimizer = OPTIMIZERS["momentum"](bare), wrapped("momentum", held, **FP32)
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 5) for o in (alone, optimizer)]
    for step in STEPS:
        train(alone, bare, [step])
        train(optimizer, held, [step])
        for schedule in schedules:
            schedule.step()
    assert optimizer.param_groups[0]["lr"] == alone.param_groups[0]["lr"] < 0.01
    assert optimizer.param_groups[0]["params"][0] is held[0]
    assert_same([p.detach() for p in held], [p.detach() for p in bare])


def test_a_schedule_of_the_wrapped_optimizer_counts_too() -> None:
    held = parameters()
    inner = OPTIMIZERS["sgd"](held)
    optimizer = MasterWeights(inner, weight="fp16")
    inner.param_groups[0]["lr"] = 0.5
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_groups_are_added() -> None:
    bare, held = parameters(), parameters()
    alone = torch.optim.SGD(bare[:1], lr=0.1, momentum=0.9)
    optimizer = MasterWeights(torch.optim.SGD(held[:1], lr=0.1, momentum=0.9), **FP32)
    train(alone, bare[:1], [1])
    train(optimizer, held[:1], [1])
    alone.add_param_group({"params": bare[1:], "lr": 0.01})
    optimizer.add_param_group({"params": held[1:], "lr": 0.01})
    train(alone, bare, [2, 3])
    train(optimizer, held, [2, 3])
    assert_same([p.detach() for p in held], [p.detach() for p in bare])
    assert list(optimizer.stagnation()) == ["0", "1", "2"]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.01]
    assert optimizer.optimizer.param_groups[1] is optimizer.param_groups[1]


def test_gradients_accumulate_and_are_clipped() -> None:
    def run(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> list[torch.Tensor]:
        held = parameters()
        optimizer = make(held)
        for step in STEPS:
            optimizer.zero_grad()
            for part in (0, 1):
                loss = sum((p * gradient(p, n, 2 * step + part)).sum() for n, p in enumerate(held))
                loss.backward()
            nn.utils.clip_grad_norm_(held, 0.5)
            optimizer.step()
        return [p.detach() for p in held]

    assert_same(run(lambda p: wrapped("adam", p, **FP32)), run(OPTIMIZERS["adam"]))


def test_a_closure_is_called_once() -> None:
    (p,) = parameters(shapes=[(3,)])
    optimizer = MasterWeights(torch.optim.SGD([p], lr=1.0), weight="fp32")
    calls = []

    def closure() -> float:
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        calls.append(1)
        return float(loss.detach())

    assert optimizer.step(closure) > 0 and len(calls) == 1


def test_hooks_are_called_once_for_a_step() -> None:
    held = parameters()
    inner = OPTIMIZERS["sgd"](held)
    calls: list[str] = []
    inner.register_step_pre_hook(lambda *_: calls.append("inner"))
    optimizer = MasterWeights(inner, weight="fp16")
    optimizer.register_step_pre_hook(lambda *_: calls.append("outer"))
    train(optimizer, held, [1])
    assert calls == ["outer"]


def test_parameters_without_gradients_stay() -> None:
    held = parameters()
    optimizer = wrapped("adam", held, weight="fp16")
    before = held[1].detach().clone()
    held[0].grad = gradient(held[0], 0, 1)
    optimizer.step()
    assert_bit_equal(held[1].detach(), before)
    assert "exp_avg" in optimizer.state[held[0]] and "exp_avg" not in optimizer.state[held[1]]


def test_weights_that_were_loaded_become_masters() -> None:
    model = nn.Linear(3, 2)
    optimizer = MasterWeights(torch.optim.SGD(model.parameters(), lr=0.1), weight="fp16")
    other = nn.Linear(3, 2).state_dict()
    model.load_state_dict(other)
    optimizer.take_weights()
    assert_bit_equal(masters(optimizer, [model.weight])[0], other["weight"])
    assert_bit_equal(model.weight.detach(), lp.quantize(other["weight"], "fp16"))


# --- stagnation ---


@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
def test_stagnation_is_what_a_count_finds(rounding: str) -> None:
    (p,) = parameters(shapes=[(31, 17)])
    master = f"e5m3:{rounding}"
    optimizer = MasterWeights(
        torch.optim.SGD([p], lr=0.05, momentum=0.9), weight="fp32", master=master
    )
    asked = unchanged = 0
    buffer = torch.zeros_like(p)
    for step in STEPS:
        (before,) = masters(optimizer, [p])
        train(optimizer, [p], [step])
        (after,) = masters(optimizer, [p])
        buffer = p.grad.clone() if step == 1 else buffer * 0.9 + p.grad
        wants = (p.grad != 0) | (before.add(buffer, alpha=-0.05) != before)
        asked += int(wants.sum())
        unchanged += int((wants & (before == after)).sum())
    assert 0 < unchanged < asked < 5 * p.numel()
    assert optimizer.stagnation() == {"0": (asked, unchanged)}


def test_updates_lost_in_float32_count() -> None:
    p = nn.Parameter(torch.tensor([1.0, 0.0, 1.0]))
    optimizer = MasterWeights(torch.optim.SGD([p], lr=1.0), weight="fp16")
    p.grad = torch.tensor([1e-9, 1e-9, 0.0])
    optimizer.step()
    assert optimizer.stagnation() == {"0": (2, 1)}
