"""A visitor that keeps copies of everything, and models to be seen by it."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lpkernels.nn.observing import Call, Visitor, observe
from lpkernels.nn.observing.visiting import all_tensors
from tests.support.autograd import Computes


class Calls(Visitor):
    """Keeps copies of everything."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.arguments: list[dict[str, Any]] = []
        self.results: list[Any] = []
        self.gradients: list[dict[str, Tensor]] = []

    def before(self, call: Call, arguments: Mapping[str, Any]) -> None:
        assert call.number == len(self.calls)
        self.calls.append(call)
        copies = {name: x.detach().clone() for name, x in all_tensors(arguments).items()}
        self.arguments.append({**arguments, **copies})
        self.gradients.append({})
        self.results.append(None)

    def after(self, call: Call, result: Any) -> None:
        self.results[call.number] = result

    def gradient(self, call: Call, of: str, gradient: Tensor) -> None:
        assert of not in self.gradients[call.number]
        self.gradients[call.number][of] = gradient.clone()

    @property
    def names(self) -> list[tuple[str, str]]:
        return [(call.module, call.part or call.operation) for call in self.calls]


def of_weight(function: Callable[[Tensor, Tensor], Any]) -> Computes:
    """A module that computes a function of its input and its one parameter."""
    return Computes(lambda m, x: function(x, m.w), w=nn.Parameter(torch.randn(4, 4)))


def mean_square(y: Any) -> Tensor:
    return (y[0] if isinstance(y, tuple) else y).square().mean()


def cnn() -> nn.Module:
    body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout())
    return nn.Sequential(body, nn.ConvTranspose2d(4, 2, 2), nn.Flatten(), nn.Linear(72, 5))


def watched(model: nn.Module, *inputs: Tensor, **options: Any) -> Calls:
    """One step of training under observation."""
    seen = Calls()
    with observe(model, seen, **options):
        mean_square(model(*inputs)).backward()
    return seen
