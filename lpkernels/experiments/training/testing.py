"""The test at the end of an epoch."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from lpkernels.experiments.processes.torchrun import Processes
from lpkernels.experiments.training.callback import Callback
from lpkernels.experiments.workloads.streams import stream_seed
from lpkernels.experiments.workloads.workload import Workload


@torch.no_grad()
def evaluate(
    model: nn.Module,
    workload: Workload,
    callbacks: Sequence[Callback],
    *,
    device: str,
    seed: int,
    epoch: int,
    processes: Processes,
    last: bool = False,
) -> dict[str, float]:
    """The figures of the workload's test, with the model in evaluation mode.

    They are a function of the weights, the seed and the epoch. Several processes share the test by
    batches: each batch draws from a stream of its own, so that testing more or less often, or with
    more processes, does not change the training. After the `last` epoch the callbacks' further
    tests have fields of their own, <field>_<name of the test>.
    """
    model.eval()

    def test(*around: AbstractContextManager[Any]) -> dict[str, float]:
        contexts = [callback.evaluating() for callback in callbacks]
        return _test(model, workload, [*contexts, *around], device, seed, epoch, processes)

    fields = test()
    further = [callback.further_tests() for callback in callbacks] if last else []
    for name, around in ((n, a) for tests in further for n, a in tests.items()):
        fields |= {f"{field}_{name}": value for field, value in test(around).items()}
    return fields


def _test(
    model: nn.Module,
    workload: Workload,
    contexts: Sequence[AbstractContextManager[Any]],
    device: str,
    seed: int,
    epoch: int,
    processes: Processes,
) -> dict[str, float]:
    """One test within all contexts, which leaves torch's generator as it was."""
    rows: dict[int, Tensor] = {}
    count = len(workload.test)
    with torch.random.fork_rng(devices=[]), ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        for first in range(0, count, processes.count):
            # Sharded processes gather weights together: one without a batch repeats the last.
            number = min(first + processes.rank, count - 1)
            torch.manual_seed(stream_seed(seed, "test", epoch, number))
            batch = tuple(tensor.to(device) for tensor in workload.test[number])
            measured = workload.measure(model, batch)
            sums = {name: value.double().cpu() for name, value in measured.items()}
            examples = torch.tensor([len(batch[0])], dtype=torch.float64)
            row = torch.cat([examples, *(value.flatten() for value in sums.values())])
            if first + processes.rank < count:
                rows[number] = row
    total = _added(rows, count, row, processes)
    values = total[1:].split([value.numel() for value in sums.values()])
    named = {n: v.view(old.shape) for (n, old), v in zip(sums.items(), values, strict=True)}
    return workload.score(named, int(total[0]))


def _added(rows: dict[int, Tensor], count: int, like: Tensor, processes: Processes) -> Tensor:
    """All: the sum of the batches' rows in the order of the batches, whoever computed them."""
    here = [rows.get(number, torch.zeros_like(like)) for number in range(count)]
    found = torch.tensor(processes.sums(torch.stack(here).flatten().tolist()), dtype=torch.float64)
    total = torch.zeros_like(like)
    for row in found.view(count, len(like)):
        total += row
    return total
