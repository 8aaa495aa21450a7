"""A scaled loss on two processes, as one of them sees it."""

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lpkernels.experiments.processes.replicas import local, sharded, whole
from lpkernels.experiments.processes.torchrun import Processes
from lpkernels.techniques.loss_scaling import LossScaler, diagnose

INF = float("inf")


def scaled(ddp: Processes, fsdp: Processes) -> dict[str, Any]:
    return {
        "alone": alone(ddp.rank),
        "unshared": alone(
            ddp.rank, [dist.new_group([rank]) for rank in range(ddp.count)][ddp.rank]
        ),
        "floor": at_floor(ddp.rank),
        "fsdp": in_shards(fsdp, fused=False),
        "fsdp-fused": in_shards(fsdp, fused=True),
        "diagnosed": diagnosed(nn.parallel.DistributedDataParallel(network()), ddp.rank),
        "diagnosed-fsdp": diagnosed(sharded(network(), fsdp, "cpu"), ddp.rank),
    }


def note(scaler: LossScaler, model: nn.Module) -> dict[str, Any]:
    """The outcome of a step."""
    last = scaler.last_step
    assert last is not None
    weights = [whole(p.detach()).clone() for p in model.parameters()]
    told = {"ran": last.ran, "parameter": last.parameter}
    return {**told, "scale": scaler.get_scale(), "weights": weights}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def batch(rank: int) -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(rank))


def alone(rank: int, group: Any = None) -> list[dict[str, Any]]:
    """Gradients that nobody exchanges, one of them infinite, in the second process and step."""
    model = network()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    scaler = LossScaler(init_scale=8.0, group=group)
    found = []
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(model(batch(0)).sum()).backward()
        if rank == step == 1:
            model[2].weight.grad[0, 0] = INF
        scaler.step(optimizer)
        scaler.update()
        found.append(note(scaler, model))
    return found


def at_floor(rank: int) -> list[Any]:
    """The scale and its counter at eleven updates of both processes, an infinity in the second
    one's gradients, and the warning at the end."""
    model = network()
    scaler = LossScaler(init_scale=2.0, floor=1.0, hysteresis=2)
    optimizer, found = torch.optim.SGD(model.named_parameters(), lr=0.1), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(11):
            optimizer.zero_grad()
            scaler.scale(model(batch(0)).sum()).backward()
            if rank == 1:
                model[2].weight.grad[0, 0] = INF
            scaler.step(optimizer)
            scaler.update()
            found.append((scaler.get_scale(), scaler.state_dict()["_hysteresis_left"]))
    (warning,) = (x for x in caught if "LossScaler" in str(x.message))
    return [*found, str(warning.message)]


def diagnosed(model: nn.Module, rank: int) -> list[Any]:
    """The counts of a rank, and of all ranks together."""
    with diagnose(model, "e5m2") as report:
        model(batch(rank)).sum().backward()
    return [report.state_dict()["rows"], report.reduce().state_dict()["rows"]]


def in_shards(processes: Processes, *, fused: bool) -> list[dict[str, Any]]:
    """Steps under FSDP2, where a shard of the second process is infinite in the second step."""
    model = sharded(network(), processes, "cpu")
    # With a large eps the first update grows with the gradient.
    optimizer = torch.optim.Adam(model.named_parameters(), lr=0.1, eps=10.0, fused=fused)
    scaler = LossScaler(init_scale=8.0)
    found = []
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(model(batch(processes.rank)).square().sum()).backward()
        if processes.rank == step == 1:
            local(model[2].weight.grad)[0, 0] = INF
        scaler.step(optimizer)
        found.append(note(scaler, model))
        scaler.update()
    return found
