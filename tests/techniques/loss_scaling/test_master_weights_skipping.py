"""A step that a loss scaler skips changes nothing, and is not waited for."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lpkernels.techniques.loss_scaling import MasterWeights
from tests.techniques.loss_scaling.optimizers import (
    OPTIMIZERS,
    assert_same,
    gradient,
    parameters,
    snapshot,
    train,
    wrapped,
)

NARROW = {
    "weight": "e4m3fn:stochastic",
    "master": "e6m9:stochastic",
    "state": "block8_e4m3:stochastic",
    "grad": "e5m2:stochastic",
    "compensation": "e5m2:stochastic",
}
SPLIT = {"weight": "bf16:stochastic", "split": True, "state": "fp4_e2m1"}
# The fixed formats have no code for what a broken gradient makes.
FIXED = {"weight": "fp32", "master": "fixed18_f12"}
KAHAN = {**FIXED, "compensation": "fixed16_f14"}
# These formats take one pass, with the optimizers that have one.
FUSED = {"weight": "bf16", "master": "e6m9:stochastic", "state": "bf16:stochastic"}
RECIPES = {
    "fused": FUSED,
    "fixed": FIXED,
    "fixed_kahan": KAHAN,
    "fp32": {"weight": "fp32"},
    "narrow": NARROW,
    "split": SPLIT,
}

recipes = pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))


def step(optimizer: MasterWeights, found: float, scale: Tensor | None = None) -> None:
    """A step as GradScaler makes it."""
    optimizer.grad_scale, optimizer.found_inf = scale, torch.tensor([found])
    try:
        optimizer.step()
    finally:
        del optimizer.grad_scale, optimizer.found_inf


def set_gradients(held: list[nn.Parameter], number: int, broken: bool = False) -> None:
    for index, parameter in enumerate(held):
        parameter.grad = gradient(parameter, index, number)
    if broken:
        held[0].grad.view(-1)[3:5] = torch.tensor([torch.inf, torch.nan])


@recipes
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.filterwarnings("ignore:MasterWeights:UserWarning")
def test_a_skipped_step_changes_nothing(name: str, recipe: dict[str, Any]) -> None:
    held = parameters(shapes=[(7, 9), (13,)])
    optimizer = wrapped(name, held, **recipe)
    if name == "muon":
        held = held[:1]
    for number in range(4):
        before = snapshot(optimizer, held)
        set_gradients(held, number, broken=True)
        step(optimizer, 1.0)
        assert_same(snapshot(optimizer, held), before)
        set_gradients(held, number)
        step(optimizer, 0.0)
        assert optimizer.state_dict()["master_weights"]["step"] == number + 1


@recipes
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.filterwarnings("ignore:MasterWeights:UserWarning")
def test_skipped_steps_leave_no_trace_in_what_follows(name: str, recipe: dict[str, Any]) -> None:
    """This holds for a skipped first step too, before the optimizer has states."""
    ends = []
    for skips in (False, True):
        torch.manual_seed(0)
        held = parameters(shapes=[(7, 9)])
        optimizer = wrapped(name, held, **recipe)
        for number in range(3):
            if skips:
                set_gradients(held, 99, broken=True)
                step(optimizer, 1.0)
            set_gradients(held, number)
            step(optimizer, 0.0)
        ends.append(snapshot(optimizer, held))
    assert_same(*ends)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_with_the_flag_down_is_a_plain_step(name: str) -> None:
    one, two = parameters(shapes=[(7, 9)]), parameters(shapes=[(7, 9)])
    seed = torch.tensor(1)
    plain, flagged = (wrapped(name, p, weight="bf16", generator=seed) for p in (one, two))
    for number in range(3):
        train(plain, one, [number])
        set_gradients(two, number)
        step(flagged, 0.0)
    assert_same(snapshot(flagged, two), snapshot(plain, one))


def test_gradients_are_unscaled_in_float32() -> None:
    """A gradient of 1e-8 in fp16, times 1024 and back, is 1.0011718e-8."""
    p = nn.Parameter(torch.zeros(1, dtype=torch.float16))
    optimizer = MasterWeights(torch.optim.SGD([p], lr=1.0), weight="fp16")
    p.grad = torch.tensor([1e-8 * 1024], dtype=torch.float16)
    step(optimizer, 0.0, torch.tensor(1024.0))
    with optimizer.masters():
        assert p.item() == -torch.tensor(1.0011718e-8).item()


@pytest.mark.parametrize("unscales", [False, True])
def test_grad_scaler_drives_it_as_it_drives_the_bare_optimizer(unscales: bool) -> None:
    """The trace of scales and weights is the one that torch's scaler makes with plain SGD."""
    infinite = [0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 0, 0]
    ends = []
    for wraps in (False, True):
        p = nn.Parameter(torch.ones(3))
        optimizer: torch.optim.Optimizer = torch.optim.SGD([p], lr=0.1, momentum=0.9)
        if wraps:
            optimizer = MasterWeights(optimizer, weight="fp32", fused=False)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=3)
        trace = []
        for broken in infinite:
            optimizer.zero_grad()
            factor = torch.inf if broken else 1.0
            scaler.scale(p.sum() * factor).backward()
            if unscales:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_([p], 0.5)
            scaler.step(optimizer)
            scaler.update()
            trace.append((scaler.get_scale(), p.detach().tolist()))
        ends.append(trace)
    assert ends[0] == ends[1]
    assert [scale for scale, _ in ends[0]] == [16, 16, 32, 16, 16, 16, 8, 4, 4, 4, 8, 8]


class Unread(torch.utils._python_dispatch.TorchDispatchMode):
    """A mode that counts reads of tensors into Python, and calls that may wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        reads = ("_local_scalar_dense", "is_nonzero", "nonzero", "equal")
        self.reads += func.overloadpacket.__name__ in reads
        return func(*args, **(kwargs or {}))


def test_the_flag_is_read_once_after_states_began() -> None:
    held = parameters()
    optimizer = wrapped("momentum", held, **NARROW)
    seen = []
    for number in range(4):
        set_gradients(held, number)
        with Unread() as mode:
            step(optimizer, float(number == 2))
        seen.append(mode.reads)
    assert seen == [0, 1, 0, 0]
