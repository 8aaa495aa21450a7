"""Several processes that make runs in a folder; each notes the things it sees in rank<n>.pt.

    python -m tests.distributed.worker FOLDER COUNT [dies]

FOLDER holds the runs that one process began; with "dies" a former group of processes leaves its
files there before. The processes are forks of one that has imported torch, which takes longest; one
group under torchrun trains in test_command.py.
"""

import importlib
import shutil
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import lpkernels as lp
from lpkernels.experiments.processes.replicas import local, share_buffers, whole
from lpkernels.experiments.processes.torchrun import Processes, joined
from lpkernels.experiments.training.checkpoints import read_config
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.trainer import Trainer
from tests.distributed import delayed, masters, runs
from tests.distributed.launch import forked
from tests.distributed.runs import (
    ALIGNED,
    CLIPPED,
    CONFIGS,
    SCHEDULED,
    SCHEDULES,
    STOCHASTIC,
    WAYS,
    data,
)
from tests.distributed.scaling import scaled
from tests.experiments.tiny import bits_of_steps
from tests.support.commands import call

DATA = ("--data", "tests.experiments.tiny:tiny_workload")


def main(folder: Path, *words: str) -> None:
    with joined() as ddp:
        ways = dict(zip(WAYS, (ddp, replace(ddp, sharded=True)), strict=True))
        if words == ("dies",):
            again = {way: run(STOCHASTIC, folder / "again" / way, ways[way]) for way in WAYS}
            torch.save(again, folder / f"again{ddp.rank}.pt")
            masters.die(folder / "masters", ddp)
        seen: dict[str, Any] = {"masters": masters.stepped(folder / "masters", ways)}
        if ddp.count == 2:
            seen |= {"refused": refused(folder, ddp), "buffers": buffers(ddp)}
            seen["scaling"] = scaled(*ways.values())
            seen["ranges"] = running_ranges(ddp)
            seen["delayed"] = {way: delayed.stepped(processes) for way, processes in ways.items()}
            seen["unshared"] = delayed.unshared(ddp)
            seen["scheduled"] = [run_scheduled(text, folder / text[:3], ddp) for text in SCHEDULES]
            for way, processes in ways.items():
                seen[way] = trained(folder, way, processes)
                masters.train(folder / "masters", way, processes)
        torch.save(seen, folder / f"rank{ddp.rank}.pt")


def trained(folder: Path, way: str, processes: Processes) -> dict[str, Any]:
    """Makes the runs of one way, and returns what this process sees of them."""
    seen = {each.name: run(each, folder / way, processes) for each in (*CONFIGS, CLIPPED)}
    runs.start_and_stop(STOCHASTIC, folder / f"{way}-stopped", processes)
    go_on(folder / f"{way}-stopped", processes)
    runs.start_and_stop(ALIGNED, folder / f"{way}-half", processes)
    from_single = folder / f"{way}-from-single"
    processes.on_first(lambda: shutil.copytree(folder / "single", from_single))
    go_on(from_single, processes)
    seen["command"] = commanded(folder / f"{way}-command", processes)
    return seen | {name: users_loop(processes, name == "packed") for name in ("packed", "kept")}


def run(config: RunConfig, folder: Path, processes: Processes) -> dict[str, Any]:
    """Makes a run; returns its losses, draws of a step, and the end that this process sees."""
    trainer, losses = runs.noted(config, folder / config.name, processes)
    with trainer._draws():
        draws = lp.quantize(torch.full((64,), 1.1), "e5m2", "stochastic")
    parameters = dict(trainer.model.named_parameters())
    weights = {name: whole(p.detach()) for name, p in parameters.items()}
    return {
        "losses": losses,
        "draws": draws,
        "weights": {**weights, **dict(trainer.model.named_buffers())},
        "held": {name: local(p.detach()).numel() for name, p in parameters.items()},
    }


def commanded(folder: Path, processes: Processes) -> list[tuple[int, str]]:
    """The end and the output of `lpkernels train` in this process: for a run that ctrl-C in the
    last process stops, and for the same run when it goes on."""
    evaluate = Trainer.evaluate

    def stop(trainer: Trainer) -> dict[str, float]:
        if processes.rank == processes.count - 1:
            signal.raise_signal(signal.SIGINT)
        return evaluate(trainer)

    def among(*, sharded: bool) -> AbstractContextManager[Processes]:
        assert sharded == processes.sharded
        return nullcontext(processes)

    command = ("train", "--out", folder, *["--fsdp"] * processes.sharded, *DATA)
    with patch.object(importlib.import_module("lpkernels.cli.train"), "joined", among):
        with patch.object(Trainer, "evaluate", stop):
            stopped = call(*command, "--model", "cnn1", "--batch", 10, "--epochs", 2)
        ended = call(*command, "--resume")
    return [(result.exit_code, result.output) for result in (stopped, ended)]


def run_scheduled(schedule: str, folder: Path, processes: Processes) -> dict[str, Any]:
    """The bits that this process saw in a run, and in the rest of one that stopped after five
    steps; of PFQ also the mean losses of each run."""
    config = SCHEDULED.replace(schedule=schedule)
    whole, stopped = (
        Trainer(config, folder / name, workload=data(config), processes=processes)
        for name in ("whole", "stopped")
    )
    runs.fit_until(stopped, 5)
    rest = Trainer.resume(stopped.folder, workload=data(config), processes=processes)
    bits = {"whole": bits_of_steps(whole), "rest": bits_of_steps(rest)}
    states = [trainer.callbacks[0].state_dict()["scheduler"] for trainer in (whole, rest)]
    return {**bits, "losses": [state.get("first_losses") for state in states]}


def go_on(folder: Path, processes: Processes) -> None:
    config = processes.on_first(lambda: read_config(folder))
    Trainer.resume(folder, workload=data(config), processes=processes).fit()


def refused(folder: Path, processes: Processes) -> list[str]:
    """The errors of wrong input, in every process and not in the first alone."""
    messages = []
    odd = RunConfig.of(batch=9)
    for wrong in (
        lambda: Trainer(odd, folder / "odd", workload=data(odd), processes=processes),
        lambda: Trainer.resume(folder / "nothing", workload=data(odd), processes=processes),
    ):
        try:
            wrong()
        except (ValueError, FileNotFoundError) as error:
            messages.append(f"{type(error).__name__}: {error}")
    return messages


def buffers(processes: Processes) -> dict[str, Tensor]:
    """Buffers that held the number of the process, after the processes shared them."""
    model = nn.BatchNorm1d(3)
    for buffer in model.buffers():
        buffer.fill_(processes.rank)
    share_buffers(model, processes)
    return dict(model.named_buffers())


def users_loop(processes: Processes, packs: bool) -> dict[str, Any]:
    """A converted model in a plain loop: loss, gradients, and how many tensors it kept packed."""
    model, x, labels = users_model(), *users_batch(processes.rank)
    network = runs.spread(model, processes)
    kept: list[torch.dtype] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.dtype)
        return tensor

    with (
        lp.functional.packed_activations(packs),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        loss = nn.functional.cross_entropy(network(x), labels)
    loss.backward()
    gradients = [whole(p.grad) for p in model.parameters() if p.grad is not None]
    return {"loss": loss.detach(), "gradients": gradients, "packed": kept.count(torch.uint8)}


def users_model() -> nn.Module:
    torch.manual_seed(0)
    convolution, linear = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4 * 36, 3)
    model = nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), linear)
    return lp.convert(model, lp.recipe("fp8_wang2018"))


def users_batch(rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(6, 1, 6, 6, generator=generator), torch.arange(6) % 3


def running_ranges(processes: Processes) -> dict[str, Tensor]:
    """The outputs and the buffers of a running range after two steps in training under DDP."""
    model = ranged_model()
    network = runs.spread(model, processes)
    outputs = [network(ranged_batch(processes.rank, step)).detach() for step in (0, 1)]
    return {**dict(model.named_buffers()), "outputs": torch.stack(outputs)}


def ranged_model() -> nn.Module:
    torch.manual_seed(0)
    return lp.convert(nn.Linear(4, 3), lp.Recipe(input="affine3", input_range="running:0.5"))


def ranged_batch(rank: int, step: int) -> Tensor:
    """A batch; one process has no finite value in its batch of the last step."""
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(10 * step + rank))
    return torch.full_like(x, float("nan")) if (rank, step) == (1, 1) else x * (1 + rank)


if __name__ == "__main__":
    place, number, first = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if first:
        ended = forked(partial(main, place, *first), number)
        assert -signal.SIGKILL in ended and 0 not in ended, ended
    ended = forked(partial(main, place), number)
    assert ended == [0] * number, ended
