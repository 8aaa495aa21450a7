"""Delayed scales on two processes, as one of them sees them, and on one."""

from typing import Any

import torch
from torch import Tensor, nn

import lpkernels as lp
from lpkernels.experiments.processes.replicas import share_buffers
from lpkernels.experiments.processes.torchrun import Processes
from tests.distributed.runs import spread

STEPS = 4
#: Each row has its own sums, whoever computes the other rows.
RECIPE = lp.Recipe(
    input="tensor_e4m3_te", weight="tensor_e4m3_te", grad_output="tensor_e5m2_te",
    fprop="fp32", dgrad="fp32", wgrad="fp32", scaling=lp.DelayedScaling(3),
)  # fmt: skip
LOCAL = lp.Recipe(input="tensor_e4m3", scaling="delayed:history=2:max:local")


def network(its: lp.Recipe = RECIPE) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    return lp.convert(model, its)


def batch(rank: int, step: int) -> Tensor:
    """Rows of a process; one value of one process and step is NaN."""
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * step + rank))
    if (rank, step) == (0, 2):
        x[1, 1] = float("nan")
    return x * 2.0 ** (step + rank)


def stepped(processes: Processes) -> dict[str, Any]:
    """The outputs of steps that change no weight, and the scales after them."""
    model = network()
    call = spread(model, processes)
    outputs = []
    lp.nn.calibrate(model, [batch(processes.rank, 9)], forward=lambda _, x: call(x))
    for step in range(STEPS):
        y = call(batch(processes.rank, step))
        y.sum().backward()
        lp.nn.update_scales(model)
        share_buffers(model, processes)
        outputs.append(y.detach())
    return {"outputs": outputs, "scales": dict(model.named_buffers())}


def unshared(processes: Processes) -> Tensor:
    """The scale that a process finds alone."""
    model = network(LOCAL)
    model(batch(processes.rank, 0)).sum().backward()
    lp.nn.update_scales(model)
    return model[0].scaling.input_scale
