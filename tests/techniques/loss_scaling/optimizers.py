"""Parameters and fixed gradients for optimizers, the same in every process; scaled iterations."""

import copy
import io
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lpkernels.techniques.loss_scaling import MasterWeights
from tests.compare import assert_bit_equal

INF = float("inf")
#: Odd sizes, a matrix that Adafactor factors, a vector and a scalar.
SHAPES = ((7, 9), (13,), ())
Make = Callable[[list[nn.Parameter]], Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, 0.9, dampening=0.1, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01, amsgrad=True),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, maximize=True),
    "adamax": lambda p: torch.optim.Adamax(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "radam": lambda p: torch.optim.RAdam(p),
    "adagrad": lambda p: torch.optim.Adagrad(p, initial_accumulator_value=0.125, lr_decay=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adafactor": lambda p: torch.optim.Adafactor(p),
    "asgd": lambda p: torch.optim.ASGD(p),
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p),
}
if hasattr(torch.optim, "Muon"):
    OPTIMIZERS["muon"] = lambda p: torch.optim.Muon([q for q in p if q.dim() == 2])

NARROW = {
    "weight": "e4m3fn:stochastic",
    "master": "e6m9:stochastic",
    "state": "block8_e4m3:stochastic",
    "grad": "e5m2:stochastic",
}
RECIPES: dict[str, dict[str, Any]] = {
    # These formats take one pass, with the optimizers that have one.
    "fused": {"weight": "bf16", "master": "e6m9:stochastic", "state": "bf16:stochastic"},
    # The fixed format has no code for the values that a broken gradient makes.
    "fixed": {"weight": "fp32", "master": "fixed18_f12"},
    "fp32": {"weight": "fp32"},
    "narrow": NARROW,
    "four_bits": {"weight": "bf16:stochastic", "state": "fp4_e2m1"},
}
KINDS = ("momentum", "adam", "adamw", "adafactor")
#: Every optimizer keeps every kind of narrow number, and optimizers of each kind see every recipe.
PAIRS = [
    *itertools.product(OPTIMIZERS, ("fused", "narrow")),
    *itertools.product(KINDS, ("fixed", "fp32", "four_bits")),
]


def parameters(
    dtype: torch.dtype = torch.float32, shapes: Iterable[tuple[int, ...]] = SHAPES
) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in shapes]


def gradient(parameter: Tensor, number: int, step: int) -> Tensor:
    """The gradient of parameter `number` in a step: a few of its elements are 0."""
    generator = torch.Generator().manual_seed(1000 * step + number)
    values = torch.randn(parameter.shape, generator=generator) * 10.0 ** -(step % 3)
    return values.masked_fill(values.abs() < 1e-2, 0).to(parameter.dtype)


def train(optimizer: Optimizer, held: list[nn.Parameter], steps: Iterable[int]) -> None:
    """Take steps with the gradients of these numbers."""
    for step in steps:
        set_gradients(held, step)
        optimizer.step()


def masters(optimizer: MasterWeights, held: list[nn.Parameter]) -> list[Tensor]:
    """The masters, in the order of `held`."""
    with optimizer.masters():
        return [p.detach().clone() for p in held]


def wrapped(name: str, held: list[nn.Parameter], **formats: Any) -> MasterWeights:
    return MasterWeights(OPTIMIZERS[name](held), **formats)


def assert_same(one: Any, two: Any, name: str = "state") -> None:
    """Check that nested states have the same keys, plain values and bits."""
    if isinstance(one, Tensor):
        assert_bit_equal(one, two, name)
    elif isinstance(one, dict):
        assert one.keys() == two.keys(), name
        for key in one:
            assert_same(one[key], two[key], f"{name}[{key!r}]")
    elif isinstance(one, list | tuple):
        assert len(one) == len(two), name
        for i, (a, b) in enumerate(zip(one, two, strict=True)):
            assert_same(a, b, f"{name}[{i}]")
    else:
        assert one == two, name


def set_gradients(held: list[nn.Parameter], number: int, broken: bool = False) -> None:
    """The gradients of this step; a broken one has an infinity and a NaN in it."""
    for index, parameter in enumerate(held):
        parameter.grad = gradient(parameter, index, number)
    if broken:
        held[0].grad.view(-1)[3:5] = torch.tensor([torch.inf, torch.nan])


def flagged_step(optimizer: MasterWeights, found: float, scale: Tensor | None = None) -> None:
    """A step as GradScaler makes it."""
    optimizer.grad_scale, optimizer.found_inf = scale, torch.tensor([found])
    optimizer.step()
    del optimizer.grad_scale, optimizer.found_inf


def snapshot(optimizer: MasterWeights, held: list[nn.Parameter]) -> dict[str, Any]:
    """All that a step may change, copied."""
    weights = [p.detach().clone() for p in held]
    return {"weights": weights, "state": copy.deepcopy(optimizer.state_dict())}


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values or (1.0,)))


def held_by(optimizer: Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def backward(scaler: Any, held: Iterable[nn.Parameter], gradient: float = 1.0) -> None:
    """Leaves `gradient` times the scale in every parameter, as a loss would."""
    held = list(held)
    for each in held:
        each.grad = None
    scaler.scale(torch.stack([(p * gradient).sum() for p in held]).sum()).backward()


def take(scaler: Any, optimizer: Optimizer, gradient: float = 1.0) -> None:
    """One iteration: backward, step and update."""
    backward(scaler, held_by(optimizer), gradient)
    scaler.step(optimizer)
    scaler.update()


def state_of(optimizer: Optimizer) -> list[Any]:
    """Weights and state, copied, in order."""
    return copy.deepcopy([(p.detach(), optimizer.state[p]) for p in held_by(optimizer)])


def from_file(value: Any, **options: Any) -> Any:
    """The value after torch.save and torch.load."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)
