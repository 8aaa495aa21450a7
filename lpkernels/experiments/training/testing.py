"""The test at the end of an epoch."""

from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from lpkernels.experiments.processes.torchrun import Processes
from lpkernels.experiments.training.parts import Part
from lpkernels.experiments.workloads.streams import stream_seed
from lpkernels.experiments.workloads.workload import Workload


@torch.no_grad()
def evaluate(
    model: nn.Module,
    workload: Workload,
    parts: Sequence[Part],
    *,
    device: str,
    seed: int,
    epoch: int,
    processes: Processes,
) -> dict[str, float]:
    """What the workload's test comes to, with the model in evaluation mode.

    A function of the weights, the seed and the epoch, which several processes share by batches:
    each batch draws from a stream of its own, so that testing more or less often, or with more
    processes, does not change the training.
    """
    model.eval()
    rows: list[Tensor | None] = [None] * len(workload.test)
    shapes: dict[str, torch.Size] = {}
    with torch.random.fork_rng(devices=[]), ExitStack() as stack:
        for part in parts:
            stack.enter_context(part.evaluating())
        for first in range(0, len(rows), processes.count):
            # Sharded processes gather weights together: one without a batch repeats the last.
            number = min(first + processes.rank, len(rows) - 1)
            torch.manual_seed(stream_seed(seed, "test", epoch, number))
            batch = tuple(tensor.to(device) for tensor in workload.test[number])
            sums = {
                name: value.double().cpu() for name, value in workload.measure(model, batch).items()
            }
            shapes = {name: value.shape for name, value in sums.items()}
            if first + processes.rank < len(rows):
                count = torch.tensor([len(batch[0])], dtype=torch.float64)
                rows[number] = torch.cat([count, *(value.flatten() for value in sums.values())])
    total = _added(rows, processes)
    values = total[1:].split([shape.numel() for shape in shapes.values()])
    named = {name: value.view(shapes[name]) for name, value in zip(shapes, values, strict=True)}
    return workload.score(named, int(total[0]))


def _added(rows: Sequence[Tensor | None], processes: Processes) -> Tensor:
    """All: the sum of the batches' rows in the order of the batches, whoever computed them."""
    width = next(len(row) for row in rows if row is not None)
    here = [torch.zeros(width, dtype=torch.float64) if row is None else row for row in rows]
    found = torch.tensor(processes.sums(torch.stack(here).flatten().tolist()), dtype=torch.float64)
    total = torch.zeros(width, dtype=torch.float64)
    for row in found.view(len(rows), width):
        total += row
    return total
