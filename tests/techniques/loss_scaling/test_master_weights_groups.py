"""Optimizers that keep values in their groups have the same bits under MasterWeights, or are
refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lpkernels.techniques.loss_scaling import LossScaler, MasterWeights
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.techniques.loss_scaling import optimizers

STEPS = range(1, 6)
Group = dict[str, Any]


class Descent(torch.optim.Optimizer):
    """Gradient descent with lr / count(optimizer, group); each parameter may be noted in the
    group."""

    def __init__(self, parameters: Any, count: Callable[[Any, Group], Any], note: Any = None):
        super().__init__(parameters, {"lr": 0.1})
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


def tensor(optimizer: Any, group: Group) -> Any:
    return group.setdefault("step", torch.zeros(())).add_(1)


def in_list(optimizer: Any, group: Group) -> int:
    group.setdefault("counts", [0])[0] += 1
    return group["counts"][0]


def learning_rate(optimizer: Any, group: Group) -> int:
    group["lr"] *= 0.75
    return 1


def attribute(optimizer: Any, group: Group) -> int:
    optimizer.steps = getattr(optimizer, "steps", 0) + 1
    return optimizer.steps


def of_no_parameter(optimizer: Any, group: Group) -> int:
    optimizer.state["all"] = optimizer.state.get("all", 0) + 1
    return optimizer.state["all"]


def seen(group: Group, gradient: Any) -> None:
    """A count that each parameter raises."""
    group["seen"] = group.get("seen", 0) + 1


def largest(group: Group, gradient: Any) -> None:
    """A value that depends on the gradients."""
    group["largest"] = max(group.get("largest", 0.0), float(gradient.abs().max()))


def grouped(*kind: Any) -> tuple[list[nn.Parameter], Descent]:
    """Two groups, of two parameters and of one."""
    weights = optimizers.parameters()
    return weights, Descent([{"params": weights[:2]}, {"params": weights[2:], "lr": 0.5}], *kind)


@each("kind", [number, tensor, in_list, learning_rate])
def test_what_a_group_holds_is_what_it_holds_alone(kind: Any) -> None:
    (bare, alone), (weights, own), (resumed, other) = (grouped(kind) for _ in range(3))
    masters = MasterWeights(own, weight="fp32")
    optimizers.train(alone, bare, STEPS)
    optimizers.train(masters, weights, STEPS)
    again = MasterWeights(other, weight="fp32")
    for p, q in zip(resumed, weights, strict=True):
        p.data.copy_(q.detach())
    again.load_state_dict(optimizers.from_file(masters.state_dict(), weights_only=True))
    for optimizer, parameters in ((alone, bare), (masters, weights), (again, resumed)):
        # One group has no gradient in the first of these steps, and its count goes on.
        for p in parameters:
            p.grad = torch.ones_like(p) if p.dim() else None
        optimizer.step()
        optimizers.train(optimizer, parameters, [7])
    for groups in (masters.param_groups, again.param_groups):
        for group, want in zip(groups, alone.param_groups, strict=True):
            assert all(group[key] == want[key] for key in want if key != "params")
    for p, *others in zip(bare, weights, resumed, strict=True):
        for q in others:
            assert_bit_equal(q.detach(), p.detach())


def test_a_skipped_step_counts_in_no_group() -> None:
    _, own = grouped(number)
    masters, scaler = MasterWeights(own, weight="fp32"), LossScaler(init_scale=4.0)
    for bad in (False, True, False):
        optimizers.take(scaler, masters, float("inf") if bad else 1.0)
    assert [group["step"] for group in masters.param_groups] == [2, 2]


def one(optimizer: Any, group: Group) -> int:
    return 1


REFUSED = {"seen": (one, seen), "largest": (one, largest), "steps": (attribute,)}
REFUSED["all"] = (of_no_parameter,)


@each("name", REFUSED)
def test_what_parameters_share_in_another_way_is_refused(name: str) -> None:
    weights, own = grouped(*REFUSED[name])
    masters = MasterWeights(own, weight="fp32")
    before = [p.detach().clone() for p in weights]
    for position, p in enumerate(weights):
        p.grad = torch.full_like(p, position + 1.0)
    with pytest.raises(NotImplementedError, match=f"step of .* changes .*{name}|keeps {name} for"):
        masters.step()
    # The gradients of two parameters tell what depends on them: the first is updated then.
    for p, want in list(zip(weights, before, strict=True))[name == "largest" :]:
        assert_bit_equal(p.detach(), want)


def test_states_of_no_parameter_are_refused_before_anything_is_wrapped() -> None:
    _, own = grouped(of_no_parameter)
    own.step()
    with pytest.raises(NotImplementedError, match=r"states of no parameter .all."):
        MasterWeights(own, weight="fp32")
