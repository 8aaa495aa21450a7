"""A step that a loss scaler skips changes nothing, and is not waited for."""

import pytest
import torch
from torch import nn

from lpkernels.techniques.loss_scaling import MasterWeights
from tests.loops import each
from tests.support.reads import Reads
from tests.techniques.loss_scaling.optimizers import (
    NARROW,
    OPTIMIZERS,
    PAIRS,
    RECIPES,
    assert_same,
    flagged_step,
    parameters,
    set_gradients,
    snapshot,
    train,
    wrapped,
)


@each("name, recipe", PAIRS)
@pytest.mark.filterwarnings("ignore:MasterWeights:UserWarning")
def test_skipped_steps_change_nothing_and_leave_no_trace(name: str, recipe: str) -> None:
    """This holds for a skipped first step too, before the optimizer has states."""
    ends = []
    for skips in (False, True):
        torch.manual_seed(0)
        held = parameters(shapes=[(7, 9)] if name == "muon" else [(7, 9), (13,)])
        optimizer = wrapped(name, held, **RECIPES[recipe])
        for number in range(2):
            if skips:
                before = snapshot(optimizer, held)
                set_gradients(held, 99, broken=True)
                flagged_step(optimizer, 1.0)
                assert_same(snapshot(optimizer, held), before)
            set_gradients(held, number)
            flagged_step(optimizer, 0.0)
            assert optimizer.state_dict()["master_weights"]["step"] == number + 1
        ends.append(snapshot(optimizer, held))
    assert_same(*ends)


@each("name", OPTIMIZERS)
def test_a_step_with_the_flag_down_is_a_plain_step(name: str) -> None:
    one, two = parameters(shapes=[(7, 9)]), parameters(shapes=[(7, 9)])
    seed = torch.tensor(1)
    plain, flagged = (wrapped(name, p, weight="bf16", generator=seed) for p in (one, two))
    for number in range(2):
        train(plain, one, [number])
        set_gradients(two, number)
        flagged_step(flagged, 0.0)
    assert_same(snapshot(flagged, two), snapshot(plain, one))


def test_gradients_are_unscaled_in_float32() -> None:
    """A gradient of 1e-8 in fp16, times 1024 and back, is 1.0011718e-8."""
    p = nn.Parameter(torch.zeros(1, dtype=torch.float16))
    optimizer = MasterWeights(torch.optim.SGD([p], lr=1.0), weight="fp16")
    p.grad = torch.tensor([1e-8 * 1024], dtype=torch.float16)
    flagged_step(optimizer, 0.0, torch.tensor(1024.0))
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
            scaler.scale(p.sum() * (torch.inf if broken else 1.0)).backward()
            if unscales:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_([p], 0.5)
            scaler.step(optimizer)
            scaler.update()
            trace.append((scaler.get_scale(), p.detach().tolist()))
        ends.append(trace)
    assert ends[0] == ends[1]
    assert [scale for scale, _ in ends[0]] == [16, 16, 32, 16, 16, 16, 8, 4, 4, 4, 8, 8]


def test_the_flag_is_read_once_after_states_began() -> None:
    held = parameters()
    optimizer = wrapped("momentum", held, **NARROW)
    seen = []
    for number in range(4):
        set_gradients(held, number)
        with Reads() as reads:
            flagged_step(optimizer, float(number == 2))
        seen.append(reads.count)
    assert seen == [0, 1, 0, 0]
