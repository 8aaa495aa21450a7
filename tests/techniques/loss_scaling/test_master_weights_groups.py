"""Optimizers that keep values in their groups have the same bits under MasterWeights, or are
refused."""

from typing import Any

import pytest
import torch
from torch import nn

from lpkernels.techniques.loss_scaling import LossScaler, MasterWeights
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.techniques.loss_scaling import optimizers

STEPS = range(1, 6)


class Own(torch.optim.Optimizer):
    """Gradient descent with lr / step, whose count its subclasses keep in different places."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    def count(self, group: dict[str, Any]) -> Any:
        raise NotImplementedError

    def see(self, group: dict[str, Any], parameter: torch.Tensor) -> None:
        """Looks at a parameter of a group."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            count = self.count(group)
            for p in group["params"]:
                if p.grad is not None:
                    self.see(group, p)
                    p -= p.grad * group["lr"] / count


class Number(Own):
    def count(self, group: dict[str, Any]) -> Any:
        group["step"] = group.get("step", 0) + 1
        return group["step"]


class InPlace(Own):
    def count(self, group: dict[str, Any]) -> Any:
        group.setdefault("step", torch.zeros(()))
        group["step"] += 1
        return group["step"]


class InList(Own):
    def count(self, group: dict[str, Any]) -> Any:
        group.setdefault("counts", [0])[0] += 1
        return group["counts"][0]


class LearningRate(Own):
    def count(self, group: dict[str, Any]) -> Any:
        group["lr"] *= 0.75
        return 1


class Every(Own):
    """A count that each parameter raises."""

    def count(self, group: dict[str, Any]) -> Any:
        group.setdefault("seen", 0)
        return 1

    def see(self, group: dict[str, Any], parameter: torch.Tensor) -> None:
        group["seen"] += 1


class Largest(Own):
    """A value that depends on the gradients."""

    def count(self, group: dict[str, Any]) -> Any:
        group.setdefault("largest", 0.0)
        return 1

    def see(self, group: dict[str, Any], parameter: torch.Tensor) -> None:
        group["largest"] = max(group["largest"], float(parameter.grad.abs().max()))


class Attribute(Own):
    steps = 0

    def count(self, group: dict[str, Any]) -> Any:
        self.steps += 1
        return self.steps


class OfNoParameter(Own):
    def count(self, group: dict[str, Any]) -> Any:
        self.state["all"] = self.state.get("all", 0) + 1
        return self.state["all"]


def grouped(kind: type[Own]) -> tuple[list[nn.Parameter], Own]:
    """Two groups, of two parameters and of one."""
    weights = optimizers.parameters()
    return weights, kind([{"params": weights[:2]}, {"params": weights[2:], "lr": 0.5}])


@each("kind", [Number, InPlace, InList, LearningRate])
def test_what_a_group_holds_is_what_it_holds_alone(kind: type[Own]) -> None:
    (bare, alone), (weights, own) = grouped(kind), grouped(kind)
    masters = MasterWeights(own, weight="fp32")
    optimizers.train(alone, bare, STEPS)
    optimizers.train(masters, weights, STEPS)
    resumed, other = grouped(kind)
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
            assert {key: group[key] for key in want if key != "params"} == {
                key: value for key, value in want.items() if key != "params"
            }
    for p, q, r in zip(bare, weights, resumed, strict=True):
        assert_bit_equal(q.detach(), p.detach())
        assert_bit_equal(r.detach(), p.detach())


def test_a_skipped_step_counts_in_no_group() -> None:
    weights, own = grouped(Number)
    masters, scaler = MasterWeights(own, weight="fp32"), LossScaler(init_scale=4.0)
    for bad in (False, True, False):
        scaler.scale(torch.ones(()))
        for p in weights:
            p.grad = torch.full_like(p, float("inf") if bad else 1.0)
        scaler.step(masters)
        scaler.update()
    assert [group["step"] for group in masters.param_groups] == [2, 2]


REFUSED = {"seen": Every, "largest": Largest, "steps": Attribute, "all": OfNoParameter}


@each("name", REFUSED)
def test_what_parameters_share_in_another_way_is_refused(name: str) -> None:
    weights, own = grouped(REFUSED[name])
    masters = MasterWeights(own, weight="fp32")
    before = [p.detach().clone() for p in weights]
    for number, p in enumerate(weights):
        p.grad = torch.full_like(p, number + 1.0)
    with pytest.raises(NotImplementedError, match=f"step of .* changes .*{name}|keeps {name} for"):
        masters.step()
    # The gradients of two parameters tell what depends on them: the first is updated then.
    for p, want in list(zip(weights, before, strict=True))[name == "largest" :]:
        assert_bit_equal(p.detach(), want)


def test_states_of_no_parameter_are_refused_before_anything_is_wrapped() -> None:
    weights, own = grouped(OfNoParameter)
    for p in weights:
        p.grad = torch.ones_like(p)
    own.step()
    with pytest.raises(NotImplementedError, match=r"states of no parameter .all."):
        MasterWeights(own, weight="fp32")
