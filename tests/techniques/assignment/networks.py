"""Small networks as data and as models: the chain, the residual block and the fire module."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lpkernels.techniques.assignment import Assignment, Op, demote, group, trace
from tests.support.autograd import Computes


def chain(loss_numel: int = 1) -> list[Op]:
    """A CNN on (4, 1, 8, 8), ten classes: two convolutions with norms, a pool, a linear layer.

    The loss is a scalar of one element. The paper's released code traces one sample and multiplies
    every result by the batch, so it counts the loss as 4.
    """
    return [
        Op("in", False, (), {}, 256),
        Op("conv1", True, ("in",), {"weight": 36}, 1024),
        Op("bn1", False, ("conv1",), {"weight": 4, "bias": 4}, 1024),
        Op("relu1", False, ("bn1",), {}, 1024, "relu"),
        Op("conv2", True, ("relu1",), {"weight": 288}, 512),
        Op("bn2", False, ("conv2",), {"weight": 8, "bias": 8}, 512),
        Op("relu2", False, ("bn2",), {}, 512, "relu"),
        Op("pool", False, ("relu2",), {}, 32, "avg_pool2d"),
        Op("fc", True, ("pool",), {"weight": 80, "bias": 10}, 40),
        Op("log_softmax", False, ("fc",), {}, 40, "log_softmax"),
        Op("nll", False, ("log_softmax",), {}, loss_numel, "nll_loss"),
    ]


def chain_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AvgPool2d(4), nn.Flatten(), nn.Linear(8, 10),
    )  # fmt: skip


def chain_batch(examples: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(examples, 1, 8, 8), torch.arange(examples) % 10


def seeded_chain(examples: int = 4) -> tuple[nn.Sequential, tuple[Tensor, Tensor]]:
    """`chain_model` and a batch for it, from one seed."""
    torch.manual_seed(1)
    return chain_model(), chain_batch(examples)


def demoted(
    model: nn.Module,
    batch: tuple[Any, Any],
    ratio: float = 1.0,
    loss: Callable[[Any, Any], Tensor] = cross_entropy,
    **options: Any,
) -> Assignment:
    """The prefix of the model's largest groups that reaches the ratio."""
    return demote(group(trace(model, loss, batch)), ratio, **options)


def ops_from(text: str, numel: int = 10) -> list[Op]:
    """Operations of one size from text such as "in, conv* in w, relu conv".

    After its name, which * follows if it is a product, come the operations that it reads, and w if
    it has a parameter, of one element.
    """
    ops = []
    for name, *inputs in map(str.split, text.split(",")):
        params = {"w": 1} if "w" in inputs else {}
        read = tuple(source for source in inputs if source != "w")
        ops.append(Op(name.removesuffix("*"), name.endswith("*"), read, params, numel))
    return ops


def homes(groups: Any) -> dict[str, int]:
    """The group of every tensor by key."""
    return {tensor.key: tensor.group for home in groups for tensor in home.tensors}


def ops_of(function: Callable[..., Any], *inputs: Tensor, **modules: nn.Module) -> list[Op]:
    """The operations of the function, without those of the loss, which is a sum."""
    model = Computes(function, **modules)
    ops = trace(model, lambda y, target: y.sum(), (inputs, None))
    assert ops[-1].name == "loss.sum"
    return list(ops[:-1])


def edges(ops: list[Op]) -> dict[str, tuple[str, ...]]:
    return {op.name: op.inputs for op in ops}
