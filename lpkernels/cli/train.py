"""`lpkernels train`: one network, one recipe; under torchrun several processes."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpkernels.arithmetic import Accumulator, as_quantizer
from lpkernels.cli._options import Out, Seed, console, rounding_name, stopped, valid
from lpkernels.experiments.processes.torchrun import Processes, joined
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.interrupts import Interrupted
from lpkernels.experiments.workloads.images import DATASETS
from lpkernels.experiments.workloads.models import build_model
from lpkernels.formats import parse_format
from lpkernels.recipes import recipe as named_recipe

if TYPE_CHECKING:
    from lpkernels.experiments.training.trainer import Trainer


def _device(name: str) -> None:
    import torch

    try:
        kind = torch.device(name).type
    except RuntimeError as error:
        raise ValueError(f"expected cpu, cuda or cuda:<number>, got {name!r}") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"got {name!r}, but torch finds no CUDA device; `lpkernels doctor` says why"
        )


def _data(name: str) -> None:
    if name not in DATASETS:
        raise ValueError(f"expected one of {', '.join(DATASETS)}, got {name!r}")


def train(
    context: typer.Context,
    out: Out = Path("results/train"),
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run in --out, by its own options; others given here are refused.",
        ),
    ] = False,
    name: Annotated[str, typer.Option(help="Name of the run in tables and plots.")] = "run",
    model: Annotated[
        str,
        typer.Option(
            callback=valid(lambda m: build_model(m, 1, 2, width=1)),
            help="resnet8, resnet20, cnn3, ...",
        ),
    ] = "resnet8",
    width: Annotated[int, typer.Option(min=1, help="Channels of the first layer.")] = 16,
    data: Annotated[str, typer.Option(callback=valid(_data), help=", ".join(DATASETS))] = "digits",
    data_dir: Annotated[str, typer.Option(help="Folder of CIFAR's extracted binary files.")] = "",
    recipe: Annotated[
        str, typer.Option(callback=valid(named_recipe), help="Arithmetic of all layers.")
    ] = "fp32",
    edge: Annotated[
        str,
        typer.Option(
            callback=valid(parse_format),
            help="Format of the first input and the last layer's operands.",
        ),
    ] = "",
    acc: Annotated[
        str,
        typer.Option(
            callback=valid(Accumulator), help="Format replacing the recipe's accumulators."
        ),
    ] = "",
    chunk: Annotated[
        int, typer.Option(min=0, help="With --acc: length of the inner sums, 0 for none.")
    ] = 0,
    acc_rounding: Annotated[
        str, typer.Option(callback=valid(rounding_name), help="With --acc: rounding of its sums.")
    ] = "nearest_even",
    weight_update: Annotated[
        str,
        typer.Option(
            callback=valid(as_quantizer), help="Rounding of updated weights, e.g. e6m9:stochastic."
        ),
    ] = "",
    loss_scale: Annotated[
        float, typer.Option(help="Static loss scale; a power of two is exact.")
    ] = 1.0,
    epochs: Annotated[int, typer.Option(min=1, help="Times over the training images.")] = 10,
    batch: Annotated[int, typer.Option(min=1, help="Images in a step of all processes.")] = 64,
    lr: Annotated[float, typer.Option(help="Peak learning rate, cosine decay.")] = 0.1,
    momentum: Annotated[float, typer.Option(help="Of SGD.")] = 0.9,
    weight_decay: Annotated[float, typer.Option(help="Of SGD, on all parameters.")] = 1e-4,
    augment: Annotated[
        bool, typer.Option(help="Shift (CIFAR: and flip) the training images.")
    ] = False,
    seed: Seed = 0,
    device: Annotated[
        str, typer.Option(callback=valid(_device), help="cpu, cuda, cuda:1, ...")
    ] = "cpu",
    threads: Annotated[
        int, typer.Option(min=0, help="CPU threads of each process, 0 leaves torch's choice.")
    ] = 2,
    fsdp: Annotated[
        bool,
        typer.Option(
            "--fsdp", help="Under torchrun: spread the weights over the processes (FSDP2)."
        ),
    ] = False,
) -> None:
    """Train one network and keep its records and checkpoints.

    Under torchrun all processes train the same run, each on its part of every batch:
    `torchrun --standalone --nproc-per-node 2 -m lpkernels train --out results/a`

    Example: `lpkernels train --recipe fp8_wang2018 --loss-scale 1024 --epochs 5 --out results/a`
    """
    # What the accumulators of single layers are is no option of this command.
    fields = RunConfig().to_dict().keys() - {"layer_accs"}
    values = {field: context.params[field] for field in fields}
    given = {name for name in fields if _is_given(context, name)}
    with ExitStack() as stack:
        with _wrong_options():
            processes = stack.enter_context(joined(sharded=fsdp))
            trainer = _trainer(out, resume, values, given, processes)
        _fit(trainer, out)


@contextmanager
def _wrong_options() -> Iterator[None]:
    try:
        yield
    except (FileExistsError, FileNotFoundError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _trainer(
    out: Path, resume: bool, values: dict[str, Any], given: set[str], processes: Processes
) -> "Trainer":
    from lpkernels.experiments.training.checkpoints import read_config
    from lpkernels.experiments.training.trainer import Trainer

    if not resume:
        return Trainer(RunConfig(**values), out, processes=processes)
    own = processes.on_first(lambda: read_config(out))
    _check_options(own, {name: values[name] for name in given})
    return Trainer.resume(out, processes=processes)


def _fit(trainer: "Trainer", out: Path) -> None:
    from lpkernels.report.tables import summary

    processes = trainer.processes
    try:
        run = trainer.fit(console=console)
    except Interrupted as stop:
        if not processes.first:
            raise typer.Exit(130) from stop
        fsdp = " --fsdp" if processes.sharded else ""
        stopped(stop, f"{_command(processes)} train --resume --out {out}{fsdp}")
    if processes.first:
        console.print(summary([run]))
        console.print(f"records in {out}")


def _check_options(config: RunConfig, given: dict[str, Any]) -> None:
    """Raises ValueError where an option differs from that of the run to be resumed."""
    own = config.to_dict()
    for name, value in given.items():
        if value != own[name]:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"{option}: the run was started with {own[name]!r}, got {value!r}; resume without "
                f"{option}, or start another run in another folder (option --out)"
            )


def _command(processes: Processes) -> str:
    if processes.count == 1 and not processes.sharded:
        return "lpkernels"
    return f"torchrun --standalone --nproc-per-node {processes.count} -m lpkernels"
