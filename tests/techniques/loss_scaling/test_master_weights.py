"""Masters of weights: bits of the optimizer alone, formats, groups, resume, skips, lending."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from lpkernels.techniques.loss_scaling import LossScaler, MasterWeights
from lpkernels.techniques.loss_scaling.masters.master import Master
from tests.compare import assert_bit_equal
from tests.techniques.loss_scaling import optimizers
from tests.techniques.loss_scaling.optimizers import assert_same, parameters, snapshot, train

# The fused pass is off: it rounds where torch multiplies and adds at once.
FP32 = {"weight": "fp32", "master": "fp32", "state": "fp32", "fused": False}
STEPS = range(1, 5)
pytestmark = pytest.mark.filterwarnings("ignore:MasterWeights:UserWarning")


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
@pytest.mark.parametrize(
    "weight, dtype",
    [("fp32", torch.float32), ("bf16", torch.float32), ("bf16", torch.bfloat16)],
    ids=["without copies", "emulated copies", "copies in bf16"],
)
def test_float32_masters_and_states_are_those_of_the_optimizer_alone(
    name: str, weight: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each parameter is a step of its own.
    monkeypatch.setattr(f"{Master.__module__}._FEW", 0)
    values = parameters(torch.bfloat16, [*optimizers.SHAPES, (5, 3, 3, 3)])
    values[-1].data = values[-1].data.to(memory_format=torch.channels_last)
    bare, held = ([nn.Parameter(p.detach().to(t)) for p in values] for t in (torch.float32, dtype))
    alone = optimizers.OPTIMIZERS[name](bare)
    optimizer = optimizers.wrapped(name, held, weight=weight, fused=False)
    for step in STEPS:
        for number, (p, q) in enumerate(zip(held, bare, strict=True)):
            p.grad = optimizers.gradient(p, number, step).bfloat16().to(dtype)
            # Some optimizers change gradients.
            q.grad = p.grad.float().clone()
        alone.step()
        optimizer.step()
    masters = optimizers.masters(optimizer, held)
    for p, q, master in zip(held, bare, masters, strict=True):
        if p in optimizer.state:
            assert_bit_equal(master, q.detach())
            assert_bit_equal(p.detach().float(), lp.quantize(q.detach(), weight))
            own = {k: v for k, v in optimizer.state[p].items() if k not in ("counts", "master")}
            assert_same(own, dict(alone.state.get(q, {})))


def test_a_step_rounds_gradient_master_states_and_working_copy() -> None:
    (p,) = parameters(shapes=[(33,)])
    formats = {"weight": "e4m3fn", "master": "e6m9", "state": "e5m7", "grad": "e5m2"}
    master, momentum = lp.quantize(p.detach(), "e6m9"), None
    optimizer = MasterWeights(torch.optim.SGD([p], lr=0.1, momentum=0.9), **formats)
    assert_bit_equal(p.detach(), lp.quantize(master, "e4m3fn"))
    for step in STEPS:
        p.grad = optimizers.gradient(p, 0, step)
        g = lp.quantize(p.grad, "e5m2")
        momentum = g.clone() if momentum is None else momentum.mul_(0.9).add_(g)
        master = lp.quantize(master.add(momentum, alpha=-0.1), "e6m9")
        momentum = lp.quantize(momentum, "e5m7")
        optimizer.step()
        assert_bit_equal(p.detach(), lp.quantize(master, "e4m3fn"))
    assert_bit_equal(optimizer.state[p]["master"], lp.pack(master, "e6m9"))
    assert_bit_equal(optimizer.state[p]["momentum_buffer"], lp.pack(momentum, "e5m7"))


def test_states_have_formats_of_their_own() -> None:
    held = parameters()[:2]
    state = {"exp_avg": "e4m3fn", "max_exp_avg_sq": "block32_e4m3"}
    optimizer = optimizers.wrapped("adam", held, weight="fp32", state=state)
    train(optimizer, held, STEPS)
    kept = optimizer.state[held[0]]
    assert (len(kept["exp_avg"]), len(kept["max_exp_avg_sq"])) == (63, 63 + 7)
    # A state that is not named is fp32, and a count of steps is a number.
    assert (kept["exp_avg_sq"].dtype, kept["step"]) == (torch.float32, 4.0)
    assert lp.unpack(kept["exp_avg"], "e4m3fn", (7, 9)).any()


def test_states_of_other_shapes_are_rounded_and_not_packed() -> None:
    (p,) = parameters(shapes=[(7, 9)])
    optimizer = MasterWeights(torch.optim.Adafactor([p]), weight="fp32", state="e8m3")
    train(optimizer, [p], STEPS)
    for name in ("row_var", "col_var"):
        kept = optimizer.state[p][name]
        assert_bit_equal(kept, lp.quantize(kept, "e8m3"), name)


def test_states_that_the_optimizer_had_are_taken_over() -> None:
    bare, held = parameters(), parameters()
    alone, inner = optimizers.OPTIMIZERS["adam"](bare), optimizers.OPTIMIZERS["adam"](held)
    train(alone, bare, STEPS)
    train(inner, held, [1, 2])
    train(MasterWeights(inner, **FP32), held, [3, 4])
    assert_same([p.detach() for p in held], [p.detach() for p in bare])


def test_a_group_gives_the_bits_of_a_wrapper_with_its_formats() -> None:
    """Draws are keyed by a parameter's number, whatever its group."""
    one, many = parameters(), parameters()
    inner = torch.optim.Adam([{"params": [p], **optimizers.NARROW} for p in many])
    seed, ends = torch.tensor(5), []
    for held, optimizer in (
        (one, MasterWeights(torch.optim.Adam(one), **optimizers.NARROW, generator=seed)),
        (many, MasterWeights(inner, weight="fp32", generator=seed)),
    ):
        train(optimizer, held, STEPS)
        ends.append(([p.detach() for p in held], optimizer.state_dict()["state"]))
    assert_same(*ends)


def test_names_are_positions_or_those_the_optimizer_was_made_with() -> None:
    optimizer = optimizers.wrapped("sgd", parameters(), weight="e5m2")
    assert list(optimizer.stagnation()) == ["0", "1", "2"]
    model = nn.Linear(2, 2)
    inner = torch.optim.SGD(model.named_parameters(), lr=0.1)
    assert list(MasterWeights(inner, weight="fp16").stagnation()) == ["weight", "bias"]


def test_a_schedule_changes_the_learning_rate_and_groups_are_added() -> None:
    bare, held = parameters(), parameters()
    alone = torch.optim.SGD(bare[:1], lr=0.1, momentum=0.9)
    optimizer = MasterWeights(torch.optim.SGD(held[:1], lr=0.1, momentum=0.9), **FP32)
    for own, of_own in ((alone, bare), (optimizer, held)):
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(own, 5)
        train(own, of_own[:1], [1])
        schedule.step()
        own.add_param_group({"params": of_own[1:2], "lr": 0.01})
        # A parameter without a gradient stays.
        own.add_param_group({"params": of_own[2:]})
        train(own, of_own[:2], [2, 3])
    assert_same([p.detach() for p in held], [p.detach() for p in bare])
    assert list(optimizer.stagnation()) == ["0", "1", "2"]
    rates = [group["lr"] for group in optimizer.param_groups]
    assert rates == [group["lr"] for group in alone.param_groups] and rates[0] < 0.1
    assert optimizer.optimizer.param_groups[1] is optimizer.param_groups[1]


def test_a_closure_and_hooks_are_called_once_for_a_step() -> None:
    (p,) = parameters(shapes=[(3,)])
    inner, calls = torch.optim.SGD([p], lr=1.0), list[str]()
    inner.register_step_pre_hook(lambda *_: calls.append("inner"))
    optimizer = MasterWeights(inner, weight="fp16")
    optimizer.register_step_pre_hook(lambda *_: calls.append("outer"))

    def closure() -> float:
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        calls.append("closure")
        return float(loss.detach())

    assert optimizer.step(closure) > 0 and calls == ["outer", "closure"]


def test_weights_that_were_loaded_become_masters() -> None:
    model = nn.Linear(3, 2)
    optimizer = MasterWeights(torch.optim.SGD(model.parameters(), lr=0.1), weight="fp16")
    other = nn.Linear(3, 2).state_dict()
    model.load_state_dict(other)
    optimizer.take_weights()
    assert_bit_equal(optimizers.masters(optimizer, [model.weight])[0], other["weight"])
    assert_bit_equal(model.weight.detach(), lp.quantize(other["weight"], "fp16"))


@pytest.mark.parametrize("master, state", [("nvfp4", "fp8_tensor"), ("int8_row", "mxfp8_up")])
def test_scaled_formats_whose_scales_are_not_told_by_values_are_kept_as_values(
    master: str, state: str
) -> None:
    rate, momentum = 0.1, 0.9
    held = [nn.Parameter(torch.randn(6, 40, generator=torch.Generator().manual_seed(1)))]
    inner = torch.optim.SGD(held, lr=rate, momentum=momentum)
    optimizer = MasterWeights(inner, weight="fp32", master=master, state=state, fused=False)
    weight, buffer = lp.quantize(held[0].detach(), master), None
    for step in STEPS:
        held[0].grad = optimizers.gradient(held[0], 0, step)
        moved = held[0].grad if buffer is None else buffer * momentum + held[0].grad
        buffer = lp.quantize(moved, state)
        weight = lp.quantize(torch.add(weight, moved, alpha=-rate), master)
        optimizer.step()
        assert_bit_equal(optimizer.state[held[0]]["momentum_buffer"], buffer, f"step {step}")
        assert_bit_equal(held[0].detach(), weight, f"step {step}")


@pytest.mark.parametrize("name, recipe", optimizers.PAIRS)
def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(name: str, recipe: str) -> None:
    held = parameters(shapes=[(7, 9)])
    optimizer = optimizers.wrapped(name, held, **optimizers.RECIPES[recipe])
    train(optimizer, held, [1, 2])
    saved = {"optimizer": optimizer.state_dict(), "weights": [p.detach() for p in held]}
    loaded = optimizers.from_file(saved, weights_only=True)
    train(optimizer, held, [3, 4])

    # The other optimizer is made from other weights and another seed.
    torch.manual_seed(77)
    resumed = [nn.Parameter(torch.randn(7, 9))]
    other = optimizers.wrapped(name, resumed, **optimizers.RECIPES[recipe])
    other.load_state_dict(loaded["optimizer"])
    resumed[0].data.copy_(loaded["weights"][0])
    assert_same(other.state_dict(), loaded["optimizer"])
    train(other, resumed, [3, 4])
    assert_same(snapshot(other, resumed), snapshot(optimizer, held))


@pytest.mark.parametrize("name, recipe", optimizers.PAIRS)
def test_skipped_steps_change_nothing_and_leave_no_trace(name: str, recipe: str) -> None:
    """Even a first step, whose states are not saved. With the flag down a step is a plain one."""
    ends, plain = [], [(None, False)] if recipe == "fused" else []
    for flag, skips in [*plain, (0.0, False), (0.0, True)]:
        torch.manual_seed(0)
        held = parameters(shapes=[(7, 9)] if name == "muon" else [(7, 9), (13,)])
        optimizer = optimizers.wrapped(name, held, **optimizers.RECIPES[recipe])
        for number in range(2):
            if skips:
                before = snapshot(optimizer, held)
                optimizers.set_gradients(held, 99, broken=True)
                optimizers.flagged_step(optimizer, 1.0)
                assert_same(snapshot(optimizer, held), before)
            optimizers.set_gradients(held, number)
            if flag is None:
                optimizer.step()
            else:
                optimizers.flagged_step(optimizer, flag)
            assert optimizer.state_dict()["master_weights"]["step"] == number + 1
        ends.append(snapshot(optimizer, held))
    for flagged in ends[1:]:
        assert_same(flagged, ends[0])


def test_gradients_are_unscaled_in_float32() -> None:
    """A gradient of 1e-8 in fp16, times 1024 and back, is 1.0011718e-8."""
    p = nn.Parameter(torch.zeros(1, dtype=torch.float16))
    optimizer = MasterWeights(torch.optim.SGD([p], lr=1.0), weight="fp16")
    p.grad = torch.tensor([1e-8 * 1024], dtype=torch.float16)
    optimizers.flagged_step(optimizer, 0.0, torch.tensor(1024.0))
    assert optimizers.masters(optimizer, [p])[0].item() == -torch.tensor(1.0011718e-8).item()


@pytest.mark.parametrize("unscales", [False, True])
def test_grad_scaler_drives_masters_as_it_drives_the_bare_optimizer(unscales: bool) -> None:
    """The trace of scales and weights is the one that torch's scaler makes with plain SGD."""
    traces: list[list[Any]] = []
    for wraps in (False, True):
        p = nn.Parameter(torch.ones(3))
        optimizer: torch.optim.Optimizer = torch.optim.SGD([p], lr=0.1, momentum=0.9)
        if wraps:
            optimizer = MasterWeights(optimizer, weight="fp32", fused=False)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=3)
        traces.append([])
        for broken in (0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 0, 0):
            optimizer.zero_grad()
            # Gradients accumulate.
            for part in (0.25, 0.75):
                scaler.scale(p.sum() * (torch.inf if broken else part)).backward()
            if unscales:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_([p], 0.5)
            scaler.step(optimizer)
            scaler.update()
            traces[-1].append((scaler.get_scale(), p.detach().tolist()))
    assert traces[0] == traces[1]
    assert [scale for scale, _ in traces[0]] == [16, 16, 32, 16, 16, 16, 8, 4, 4, 4, 8, 8]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_masters_are_lent_and_given_back_even_after_an_error(dtype: torch.dtype) -> None:
    held = parameters(dtype)
    optimizer = optimizers.wrapped("momentum", held, weight="bf16")
    train(optimizer, held, [1, 2])
    before = snapshot(optimizer, held)
    with pytest.raises(KeyError), optimizer.masters():
        for p in held:
            assert p.dtype == torch.float32 and p.requires_grad
            assert_bit_equal(p.detach(), optimizer.state[p]["master"])
            # Whatever is done inside has no effect after it.
            p.data.fill_(7.0)
        raise KeyError
    assert_same(snapshot(optimizer, held), before)
    train(optimizer, held, [3])


@pytest.mark.parametrize(
    "call",
    [
        lambda optimizer: optimizer.step(),
        lambda optimizer: optimizer.take_weights(),
        lambda optimizer: optimizer.masters().__enter__(),
        lambda optimizer: optimizer.load_state_dict(optimizer.state_dict()),
    ],
    ids=["step", "take_weights", "masters", "load_state_dict"],
)
def test_nothing_changes_masters_while_they_are_lent(call: Callable[[Any], Any]) -> None:
    optimizer = optimizers.wrapped("momentum", parameters(), weight="bf16")
    with optimizer.masters(), pytest.raises(RuntimeError, match="leave the block first"):
        call(optimizer)


Group = dict[str, Any]


class Descent(torch.optim.Optimizer):
    """Gradient descent with lr / count(optimizer, group); each parameter may be noted in the
    group."""

    def __init__(self, held: Any, count: Callable[[Any, Group], Any], note: Any = None):
        super().__init__(held, {"lr": 0.1})
        self.count, self.note = count, note

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            count = self.count(self, group)
            for p in group["params"]:
                if p.grad is not None:
                    if self.note:
                        self.note(group, p.grad)
                    p -= p.grad * group["lr"] / count


def number(optimizer: Any, group: Group) -> int:
    group["step"] = group.get("step", 0) + 1
    return group["step"]


def in_list(optimizer: Any, group: Group) -> int:
    group.setdefault("counts", [0])[0] += 1
    return group["counts"][0]


def learning_rate(optimizer: Any, group: Group) -> int:
    group["lr"] *= 0.75
    return 1


def of_no_parameter(optimizer: Any, group: Group) -> int:
    optimizer.state["all"] = optimizer.state.get("all", 0) + 1
    return optimizer.state["all"]


def grouped(*kind: Any) -> tuple[list[nn.Parameter], Descent]:
    """Two groups, of two parameters and of one."""
    held = parameters()
    return held, Descent([{"params": held[:2]}, {"params": held[2:], "lr": 0.5}], *kind)


COUNTS: dict[str, tuple[Any, ...]] = {
    "number": (number,),
    "list": (in_list,),
    "learning rate": (learning_rate,),
    "parameters": (lambda *_: 1, lambda group, _: group.update(seen=group.get("seen", 0) + 1)),
}


@pytest.mark.parametrize("kind", COUNTS.values(), ids=COUNTS)
def test_counts_of_a_group_are_those_of_the_optimizer_alone_also_after_a_resume(kind: Any) -> None:
    (bare, alone), (held, own), (resumed, other) = (grouped(*kind) for _ in range(3))
    optimizer = MasterWeights(own, weight="fp32")
    train(alone, bare, range(1, 6))
    train(optimizer, held, range(1, 6))
    again = MasterWeights(other, weight="fp32")
    for p, q in zip(resumed, held, strict=True):
        p.data.copy_(q.detach())
    again.load_state_dict(optimizers.from_file(optimizer.state_dict(), weights_only=True))
    for of_all, of_own in ((alone, bare), (optimizer, held), (again, resumed)):
        # One group has no gradient in the first of these steps, and its count goes on.
        for p in of_own:
            p.grad = torch.ones_like(p) if p.dim() else None
        of_all.step()
        train(of_all, of_own, [7])
    for wrapper, of_own in ((optimizer, held), (again, resumed)):
        for group, want in zip(wrapper.param_groups, alone.param_groups, strict=True):
            assert all(group[key] == want[key] for key in want if key != "params")
        assert_same([p.detach() for p in of_own], [p.detach() for p in bare])


def test_a_skipped_step_counts_in_no_group() -> None:
    _, own = grouped(number)
    optimizer, scaler = MasterWeights(own, weight="fp32"), LossScaler(init_scale=4.0)
    for gradient in (1.0, torch.inf, 1.0):
        optimizers.take(scaler, optimizer, gradient)
    assert [group["step"] for group in optimizer.param_groups] == [2, 2]


def test_states_of_no_parameter_are_refused_and_nothing_changes() -> None:
    held, own = grouped(of_no_parameter)
    optimizer = MasterWeights(own, weight="fp32")
    optimizers.set_gradients(held, 1)
    before = snapshot(optimizer, held)
    with pytest.raises(NotImplementedError, match="step of Descent: it keeps states of no param"):
        optimizer.step()
    assert_same(snapshot(optimizer, held), before)
    _, own = grouped(of_no_parameter)
    own.step()
    with pytest.raises(NotImplementedError, match="Descent cannot be wrapped: it keeps states of"):
        MasterWeights(own, weight="fp32")
