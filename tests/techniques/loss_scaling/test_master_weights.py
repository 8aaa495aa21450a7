"""Masters of weights: the bits of the optimizer alone, rounding, names, groups, closures."""

import pytest
import torch
from torch import nn

import lpkernels as lp
from lpkernels.techniques.loss_scaling import MasterWeights
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.techniques.loss_scaling import optimizers

# The fused pass is off: it rounds where torch multiplies and adds at once.
FP32 = {"weight": "fp32", "master": "fp32", "state": "fp32", "fused": False}
STEPS = range(1, 5)


def with_channels_last() -> list[nn.Parameter]:
    held = optimizers.parameters(shapes=[*optimizers.SHAPES, (5, 3, 3, 3)])
    held[-1].data = held[-1].data.to(memory_format=torch.channels_last)
    return held


@each("name", optimizers.OPTIMIZERS)
def test_float32_gives_the_bits_of_the_optimizer_alone(name: str) -> None:
    bare, held = with_channels_last(), with_channels_last()
    alone, optimizer = optimizers.OPTIMIZERS[name](bare), optimizers.wrapped(name, held, **FP32)
    optimizers.train(alone, bare, STEPS)
    optimizers.train(optimizer, held, STEPS)
    for p, q in zip(held, bare, strict=True):
        assert_bit_equal(p.detach(), q.detach())
        own = {k: v for k, v in optimizer.state.get(p, {}).items() if k != "counts"}
        optimizers.assert_same(own, dict(alone.state.get(q, {})))


@each("name, dtype", optimizers.OPTIMIZERS, [torch.float32, torch.bfloat16])
def test_float32_masters_beside_working_copies_are_the_optimizer_alone(name, dtype):
    """The masters do not see working copies in bf16, as emulated values or in the dtype."""
    bare = [nn.Parameter(p.detach().bfloat16().float()) for p in optimizers.parameters()]
    held = [nn.Parameter(p.detach().bfloat16().to(dtype)) for p in optimizers.parameters()]
    alone, optimizer = (
        optimizers.OPTIMIZERS[name](bare),
        optimizers.wrapped(name, held, weight="bf16", fused=False),
    )
    for step in STEPS:
        for number, (p, q) in enumerate(zip(held, bare, strict=True)):
            p.grad = optimizers.gradient(p, number, step).bfloat16().to(dtype)
            # Some optimizers change gradients.
            q.grad = p.grad.float().clone()
        alone.step()
        optimizer.step()
    mine = optimizer.rules()
    for master, p, q in zip(optimizers.masters(optimizer, held), held, bare, strict=True):
        if p not in mine:
            continue
        assert p.dtype == dtype
        assert_bit_equal(master, q.detach())
        assert_bit_equal(p.detach().float(), lp.quantize(q.detach(), "bf16"))


# The step works elementwise, in the order of the class's docstring.
def test_a_step_rounds_gradient_master_states_and_working_copy() -> None:
    (p,) = optimizers.parameters(shapes=[(33,)])
    formats = {"weight": "e4m3fn", "master": "e6m9", "state": "e5m7", "grad": "e5m2"}
    master = lp.quantize(p.detach(), "e6m9")
    optimizer = MasterWeights(torch.optim.SGD([p], lr=0.1, momentum=0.9), **formats)
    assert_bit_equal(p.detach(), lp.quantize(master, "e4m3fn"))
    momentum = None
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
    held = optimizers.parameters()
    state = {"exp_avg": "e4m3fn", "max_exp_avg_sq": "block32_e4m3"}
    optimizer = optimizers.wrapped("adam", held[:2], weight="fp32", state=state)
    optimizers.train(optimizer, held[:2], STEPS)
    kept = optimizer.state[held[0]]
    assert (len(kept["exp_avg"]), len(kept["max_exp_avg_sq"])) == (63, 63 + 7)
    # A state that is not named is fp32, and a count of steps is a number.
    assert (kept["exp_avg_sq"].dtype, kept["step"]) == (torch.float32, 4.0)
    assert lp.unpack(kept["exp_avg"], "e4m3fn", (7, 9)).any()
    # States of other shapes are rounded.
    (p,) = optimizers.parameters(shapes=[(7, 9)])
    optimizer = MasterWeights(torch.optim.Adafactor([p]), weight="fp32", state="e8m3")
    optimizers.train(optimizer, [p], STEPS)
    for name in ("row_var", "col_var"):
        kept = optimizer.state[p][name]
        assert_bit_equal(kept, lp.quantize(kept, "e8m3"), name)


def test_states_that_the_optimizer_had_are_taken_over() -> None:
    bare, held = optimizers.parameters(), optimizers.parameters()
    alone, inner = optimizers.OPTIMIZERS["adam"](bare), optimizers.OPTIMIZERS["adam"](held)
    optimizers.train(alone, bare, STEPS)
    optimizers.train(inner, held, [1, 2])
    optimizers.train(MasterWeights(inner, **FP32), held, [3, 4])
    optimizers.assert_same([p.detach() for p in held], [p.detach() for p in bare])


def test_a_group_gives_the_bits_of_a_wrapper_with_its_formats() -> None:
    """Draws are keyed by a parameter's number, whatever its group."""
    seed, ends = torch.tensor(5), []
    for groups in (1, 3):
        held = optimizers.parameters()
        formats = optimizers.NARROW if groups == 1 else {"weight": "fp32"}
        own = [held] if groups == 1 else [[p] for p in held]
        inner = torch.optim.Adam(
            [{"params": each, **(optimizers.NARROW if groups == 3 else {})} for each in own]
        )
        optimizer = MasterWeights(inner, **formats, generator=seed)
        optimizers.train(optimizer, held, STEPS)
        ends.append(([p.detach() for p in held], optimizer.state_dict()["state"]))
    optimizers.assert_same(*ends)


def test_names_are_positions_or_those_the_optimizer_was_made_with() -> None:
    held = optimizers.parameters()
    optimizer = optimizers.wrapped("sgd", held, weight="e5m2")
    assert list(optimizer.stagnation()) == ["0", "1", "2"]
    model = nn.Linear(2, 2)
    try:
        inner = torch.optim.SGD(model.named_parameters(), lr=0.1)
    except TypeError:
        pytest.skip("this torch's optimizers take no names")
    assert list(MasterWeights(inner, weight="fp16").stagnation()) == ["weight", "bias"]


def test_a_schedule_changes_the_learning_rate_and_groups_are_added() -> None:
    bare, held = optimizers.parameters(), optimizers.parameters()
    alone = torch.optim.SGD(bare[:1], lr=0.1, momentum=0.9)
    optimizer = MasterWeights(torch.optim.SGD(held[:1], lr=0.1, momentum=0.9), **FP32)
    for own, parameters in ((alone, bare), (optimizer, held)):
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(own, 5)
        optimizers.train(own, parameters[:1], [1])
        schedule.step()
        own.add_param_group({"params": parameters[1:2], "lr": 0.01})
        # A parameter without a gradient stays.
        own.add_param_group({"params": parameters[2:]})
        optimizers.train(own, parameters[:2], [2, 3])
    optimizers.assert_same([p.detach() for p in held], [p.detach() for p in bare])
    assert list(optimizer.stagnation()) == ["0", "1", "2"]
    rates = [group["lr"] for group in optimizer.param_groups]
    assert rates == [group["lr"] for group in alone.param_groups] and rates[0] < 0.1
    assert optimizer.optimizer.param_groups[1] is optimizer.param_groups[1]


def test_a_closure_and_hooks_are_called_once_for_a_step() -> None:
    (p,) = optimizers.parameters(shapes=[(3,)])
    inner = torch.optim.SGD([p], lr=1.0)
    calls: list[str] = []
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


def test_masters_and_states_in_scaled_formats_are_rounded_and_kept_as_values() -> None:
    rate, momentum = 0.1, 0.9
    for master, state in (("nvfp4", "fp8_tensor"), ("int8_row", "mxfp8_up")):
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
            kept = optimizer.state[held[0]]
            assert_bit_equal(kept["momentum_buffer"], buffer, f"{state}, step {step}")
            assert_bit_equal(held[0].detach(), weight, f"{master}, step {step}")
