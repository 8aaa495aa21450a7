"""Resumed and copied optimizers go on to the same bits; steps are skipped, masters are lent."""

import pytest
import torch
from torch import nn

from lpkernels.techniques.loss_scaling import MasterWeights
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.autograd import Reads
from tests.techniques.loss_scaling import optimizers

pytestmark = pytest.mark.filterwarnings("ignore:MasterWeights:UserWarning")


@each("name, recipe", optimizers.PAIRS)
def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(name: str, recipe: str) -> None:
    held = optimizers.parameters(shapes=[(7, 9)])
    optimizer = optimizers.wrapped(name, held, **optimizers.RECIPES[recipe])
    optimizers.train(optimizer, held, [1, 2])
    saved = {"optimizer": optimizer.state_dict(), "weights": [p.detach() for p in held]}
    loaded = optimizers.from_file(saved, weights_only=True)
    optimizers.train(optimizer, held, [3, 4])

    # The other optimizer is made from other weights and another seed.
    torch.manual_seed(77)
    resumed = [nn.Parameter(torch.randn(7, 9))]
    other = optimizers.wrapped(name, resumed, **optimizers.RECIPES[recipe])
    other.load_state_dict(loaded["optimizer"])
    with torch.no_grad():
        resumed[0].copy_(loaded["weights"][0])
    optimizers.assert_same(other.state_dict(), loaded["optimizer"])
    optimizers.train(other, resumed, [3, 4])
    optimizers.assert_same(
        optimizers.snapshot(other, resumed), optimizers.snapshot(optimizer, held)
    )


@each("name, recipe", optimizers.PAIRS)
def test_skipped_steps_change_nothing_and_leave_no_trace(name: str, recipe: str) -> None:
    """Even a first step, whose states are not saved. With the flag down a step is a plain one."""
    ends, plain = [], [(None, False)] if recipe == "fused" else []
    for flag, skips in [*plain, (0.0, False), (0.0, True)]:
        torch.manual_seed(0)
        held = optimizers.parameters(shapes=[(7, 9)] if name == "muon" else [(7, 9), (13,)])
        optimizer = optimizers.wrapped(name, held, **optimizers.RECIPES[recipe])
        for number in range(2):
            if skips:
                before = optimizers.snapshot(optimizer, held)
                optimizers.set_gradients(held, 99, broken=True)
                optimizers.flagged_step(optimizer, 1.0)
                optimizers.assert_same(optimizers.snapshot(optimizer, held), before)
            optimizers.set_gradients(held, number)
            if flag is None:
                optimizer.step()
            else:
                optimizers.flagged_step(optimizer, flag)
            assert optimizer.state_dict()["master_weights"]["step"] == number + 1
        ends.append(optimizers.snapshot(optimizer, held))
    for flagged in ends[1:]:
        optimizers.assert_same(flagged, ends[0])


def test_gradients_are_unscaled_in_float32() -> None:
    """A gradient of 1e-8 in fp16, times 1024 and back, is 1.0011718e-8."""
    p = nn.Parameter(torch.zeros(1, dtype=torch.float16))
    optimizer = MasterWeights(torch.optim.SGD([p], lr=1.0), weight="fp16")
    p.grad = torch.tensor([1e-8 * 1024], dtype=torch.float16)
    optimizers.flagged_step(optimizer, 0.0, torch.tensor(1024.0))
    with optimizer.masters():
        assert p.item() == -torch.tensor(1.0011718e-8).item()


@each("unscales", [False, True])
def test_grad_scaler_drives_it_as_it_drives_the_bare_optimizer(unscales: bool) -> None:
    """The trace of scales and weights is the one that torch's scaler makes with plain SGD."""
    ends = []
    for wraps in (False, True):
        p = nn.Parameter(torch.ones(3))
        optimizer: torch.optim.Optimizer = torch.optim.SGD([p], lr=0.1, momentum=0.9)
        if wraps:
            optimizer = MasterWeights(optimizer, weight="fp32", fused=False)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=3)
        trace = []
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
            trace.append((scaler.get_scale(), p.detach().tolist()))
        ends.append(trace)
    assert ends[0] == ends[1]
    assert [scale for scale, _ in ends[0]] == [16, 16, 32, 16, 16, 16, 8, 4, 4, 4, 8, 8]


def test_the_general_path_reads_the_flag_once_a_step() -> None:
    held = optimizers.parameters()
    optimizer = optimizers.wrapped("momentum", held, **optimizers.RECIPES["narrow"])
    seen = []
    for number in range(4):
        optimizers.set_gradients(held, number)
        with Reads() as reads:
            optimizers.flagged_step(optimizer, float(number == 2))
        seen.append(reads.count)
    assert seen == [1, 1, 1, 1]


@each("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_masters_are_lent_and_given_back_even_after_an_error(dtype: torch.dtype) -> None:
    held = optimizers.parameters(dtype)
    optimizer = optimizers.wrapped("momentum", held, weight="bf16")
    optimizers.train(optimizer, held, [1, 2])
    before = optimizers.snapshot(optimizer, held)
    with optimizer.masters():
        for p in held:
            assert p.dtype == torch.float32 and p.requires_grad
            assert_bit_equal(p.detach(), optimizer.state[p]["master"])
            # Whatever is done inside has no effect after it.
            p.data.fill_(7.0)
        calls = optimizer.step, optimizer.take_weights, optimizer.masters().__enter__
        for call in (*calls, lambda: optimizer.load_state_dict(before["state"])):
            with pytest.raises(RuntimeError, match="leave the block first"):
                call()
    optimizers.assert_same(optimizers.snapshot(optimizer, held), before)
    with pytest.raises(KeyError), optimizer.masters():
        raise KeyError
    optimizers.assert_same(optimizers.snapshot(optimizer, held), before)
    optimizers.train(optimizer, held, [3])
