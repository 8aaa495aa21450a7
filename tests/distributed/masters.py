"""Steps on masters with fixed gradients, by one process and by several, and runs of the trainer.

Several processes also go on from alone.pt, which one process wrote in the middle of its steps.
"""

import copy
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from lpkernels.experiments.processes.replicas import like, local, sharded, whole
from lpkernels.experiments.processes.torchrun import ALONE, Processes
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.techniques.loss_scaling import MasterWeights
from lpkernels.techniques.loss_scaling.masters.codec import Layout
from tests.distributed.runs import ALIGNED, data, start_and_stop
from tests.techniques.loss_scaling.optimizers import OPTIMIZERS, gradient

_NARROW: dict[str, Any] = {
    name: f"{fmt}:stochastic"
    for name, fmt in (("weight", "e4m3fn"), ("master", "e6m9"), ("state", "e5m7"), ("grad", "e5m2"))
}
# Shards are rows of matrices and elements of biases; they would cut blocks of 8.
_BLOCKS = {**_NARROW, "weight": "block4_axis0_e4m3", "state": "block4_e4m3:stochastic"}
_FUSED: dict[str, Any] = {
    "weight": "e4m3fn:stochastic:bits=8", "master": "e6m9:stochastic",
    "state": "fp8_e5m2:stochastic:bits=8", "grad": "e5m2:stochastic:bits=16",
    "fused": True,
}  # fmt: skip
# By name: the optimizer, the formats, and those of biases.
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "narrow": ("momentum", _NARROW, {}),
    "blocks": ("adam", _BLOCKS, {"state": "bf16"}),
    # A scale of the whole tensor or of a tile is that of the whole parameter.
    "scaled": (
        "momentum",
        {
            "weight": "tile4x2_e4m3_sfp32", "grad": "fp8_tensor:stochastic",
            "master": "block3_e5m10_sfp32:stochastic", "state": "fp8_tensor",
        },
        {"weight": "fp8_tensor"},
    ),
    # This run draws nothing, and no seed is sent.
    "fp32": ("adam", {"weight": "fp32", "generator": torch.tensor(3)}, {}),
    # This run steps in one pass; its shards begin anywhere in a word of draws.
    "fused": ("adamw", _FUSED, {"state": "bf16:stochastic"}),
    "fused-copies": (
        "momentum", {"weight": "bf16", "master": "fp16:stochastic", "fused": True}, {}
    ),
    "factored": (
        "adafactor", {"weight": "bf16", "master": "e8m12:stochastic", "state": "e8m9"}, {}
    ),
}  # fmt: skip
HALF, ALL = range(3), range(6)

# A run of the trainer with the same gradients on two processes as on one.
TRAINED = ALIGNED.replace(
    name="masters", weight_update="", master="e6m9:stochastic", working="fp8_e4m3",
    opt_state="momentum_buffer=e5m7:stochastic", opt_grad="e5m2",
)  # fmt: skip
# Its first scale overflows, and it doubles again before a rank dies.
KILLED = TRAINED.replace(
    name="killed", loss_scale=1.0, dynamic_scale=True, scale_start=2.0**20, scale_interval=2
)


def step_alone(folder: Path) -> None:
    """Makes the steps of all `RUNS` in one process, into alone.pt."""
    torch.save({name: run(name, ALONE) for name in RUNS}, folder / "alone.pt")


def train_alone(folder: Path) -> None:
    """Trains in one process the runs that two processes train in `train` and `die`."""
    Trainer(TRAINED, folder / "alone", workload=data(TRAINED)).fit()
    Trainer(KILLED, folder / "killed-alone", workload=data(KILLED)).fit()
    start_and_stop(TRAINED, folder / "stopped")


def die(folder: Path, processes: Processes) -> None:
    """Trains until the last process is killed after the first step of the second epoch."""
    trainer = Trainer(KILLED, folder / "killed", workload=data(KILLED), processes=processes)

    def kill(done: int, total: int) -> None:
        if processes.rank == processes.count - 1 and done == trainer.steps + 1:
            os.kill(os.getpid(), signal.SIGKILL)

    trainer.fit(on_progress=kill)


def stepped(folder: Path, ways: dict[str, Processes]) -> dict[str, Any]:
    """The steps as a process sees them, from the start and from alone.pt, and its refusals."""
    before = torch.load(folder / "alone.pt", weights_only=True)
    seen: dict[str, Any] = {"refused": refused(ways["fsdp"]), "columns": columns(ways["fsdp"])}
    for way, processes in ways.items():
        for name in RUNS:
            seen[f"{way}-{name}"] = run(name, processes)
            seen[f"{way}-{name}-resumed"] = run(name, processes, before[name]["half"])
    return seen


def train(folder: Path, way: str, processes: Processes) -> None:
    """Trains a run from the start, one that goes on where one process stopped, and one that goes on
    where a process died."""
    Trainer(TRAINED, folder / way, workload=data(TRAINED), processes=processes).fit()
    for config, before, name in ((TRAINED, "stopped", "resumed"), (KILLED, "killed", "killed")):
        own = folder / f"{way}-{name}"
        processes.on_first(lambda a=folder / before, b=own: shutil.copytree(a, b))
        Trainer.resume(own, workload=data(config), processes=processes).fit()


def network(processes: Processes) -> nn.Module:
    """Layers whose shards are uneven, one row, or empty."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 7), nn.Linear(7, 2), nn.Linear(2, 1))
    return sharded(model, processes, "cpu")


def run(name: str, processes: Processes, half: dict[str, Any] | None = None) -> dict[str, Any]:
    """Makes six steps, or the last three after `half`; the fourth is skipped and made again."""
    model = network(processes)
    kind, formats, of_biases = RUNS[name]
    weights, biases = ([p for p in model.parameters() if (p.dim() == 1) == one] for one in (0, 1))
    held = [*weights, *biases]
    # Left alone, every process would now draw a seed of its own.
    torch.manual_seed(processes.rank)
    inner = OPTIMIZERS[kind]([{"params": weights}, {"params": biases, **of_biases}])
    optimizer = MasterWeights(inner, **formats)
    if half is not None:
        optimizer.load_state_dict(half["state"])
        with torch.no_grad():
            for p, value in zip(held, half["weights"], strict=True):
                p.copy_(like(value, p))
    seen: dict[str, Any] = {}
    for step in ALL if half is None else range(len(HALF), len(ALL)):
        if step == len(HALF):
            seen["half"] = state(optimizer, held)
            take(optimizer, held, 99, skips=True)
        take(optimizer, held, step)
    seen["end"] = state(optimizer, held)
    seen["held"] = [local(p.detach()).numel() for p in held]
    layouts = [Layout(p) for p in held]
    seen["origins"] = [(layout.span() or (None, -1))[1] for layout in layouts]
    seen["places"] = [
        each.part(torch.arange(each.shape.numel()).view(each.shape)) for each in layouts
    ]
    with optimizer.masters():
        seen["masters"] = [whole(p.detach()).clone() for p in held]
    return seen


def take(
    optimizer: MasterWeights, held: list[nn.Parameter], step: int, skips: bool = False
) -> None:
    for number, p in enumerate(held):
        values = gradient(torch.empty(p.shape), number, step)
        p.grad = like(values / 0 if skips else values, p)
    optimizer.found_inf = torch.tensor(float(skips))
    optimizer.step()
    del optimizer.found_inf


def state(optimizer: MasterWeights, held: list[nn.Parameter]) -> dict[str, Any]:
    weights = [whole(p.detach()).clone() for p in held]
    return {"weights": weights, "state": copy.deepcopy(optimizer.state_dict())}


def refused(processes: Processes) -> str:
    """The message that refuses blocks which lie in two shards."""
    model = network(processes)
    inner = torch.optim.Adam(model.parameters())
    try:
        MasterWeights(inner, weight="fp32", state="block8_e4m3")
    except ValueError as error:
        return str(error)
    return ""


def columns(processes: Processes) -> list[Any]:
    """The refusal of the fused pass for a parameter with sharded columns, and the parameter's
    weights after a step of the general path."""
    mesh = init_device_mesh("cpu", (processes.count,))
    p = nn.Parameter(distribute_tensor(torch.ones(4, 8), mesh, [Shard(1)]))
    p.grad = distribute_tensor(torch.arange(32.0).view(4, 8), mesh, [Shard(1)])
    try:
        MasterWeights(torch.optim.SGD([p], lr=0.5), weight="fp32", fused=True)
    except ValueError as error:
        optimizer = MasterWeights(torch.optim.SGD([p], lr=0.5), weight="fp32")
        optimizer.step()
        return [str(error), whole(p.detach())]
    return []
