"""`lpkernels train`: one network, one recipe; under torchrun several processes."""

import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lpkernels.cli._options import (
    Out,
    console,
    named_options,
    say,
    show_picture,
    show_table,
    stopped,
    system_errors,
    with_settings,
)
from lpkernels.experiments.processes.folders import owned
from lpkernels.experiments.processes.torchrun import Processes, joined
from lpkernels.experiments.training.config import RunConfig, device_exists, sections
from lpkernels.experiments.training.interrupts import Interrupted, sigterm_as_ctrl_c

if TYPE_CHECKING:
    from lpkernels.experiments.training.trainer import Trainer


@with_settings(sections())
def train(
    context: typer.Context,
    values: dict[str, Any],
    out: Out = Path("results/train"),
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Resume the run in --out with its own options; other options are refused.",
        ),
    ] = False,
    fsdp: Annotated[
        bool,
        typer.Option(
            "--fsdp", help="Under torchrun: spread the weights over the processes (FSDP2)."
        ),
    ] = False,
) -> None:
    """Train one network and save its records and checkpoints.

    Under torchrun all processes train the same run, each on its part of every batch:
    `torchrun --standalone --nproc-per-node 2 -m lpkernels train --out results/a`

    Example: `lpkernels train --recipe fp8_wang2018 --loss-scale 1024 --epochs 5 --out results/a`
    """
    sources = {name: context.get_parameter_source(name) for name in values}
    options = {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}
    again = f"what was saved goes on with: lpkernels train --resume --out {shlex.quote(str(out))}"
    with system_errors(again), ExitStack() as stack:
        with named_options(values):
            processes = stack.enter_context(joined(sharded=fsdp))
            if processes.count == 1:
                # torchrun ends the survivors of a dead process so, who would wait for it.
                stack.enter_context(sigterm_as_ctrl_c())
            processes.on_first(lambda: stack.enter_context(owned(out)))
            trainer = _trainer(out, resume, values, options, processes)
        _fit(trainer, out)


def _trainer(
    out: Path, resume: bool, values: dict[str, Any], options: set[str], processes: Processes
) -> "Trainer":
    from lpkernels.experiments.training.checkpoints import read_config
    from lpkernels.experiments.training.trainer import Trainer

    if not resume:
        with named_options(option="--device"):
            device_exists(values["device"])
        return Trainer(RunConfig.of(**values), out, processes=processes)
    own = processes.on_first(lambda: read_config(out))
    if ":" in own.workload.data and "data" not in options:
        raise ValueError(
            f"data: this run trains {own.workload.data}, code that the folder alone must not "
            f"choose; give --data {own.workload.data} again"
        )
    _check_options(own, {name: values[name] for name in options})
    return Trainer.resume(out, processes=processes)


def _fit(trainer: "Trainer", out: Path) -> None:
    from lpkernels.report.runs import summary

    processes = trainer.processes
    for notice in trainer.notices:
        say(notice)
    try:
        run = trainer.fit(console=console)
    except Interrupted as stop:
        if not processes.first:
            raise typer.Exit(130) from stop
        command, fsdp = "lpkernels", " --fsdp" if processes.sharded else ""
        if processes.count > 1 or fsdp:
            command = f"torchrun --standalone --nproc-per-node {processes.count} -m lpkernels"
        stopped(stop, f"{command} train --resume --out {out}{fsdp}")
    if processes.first:
        show_table(summary([run]))
        _show_diagnosis(out)
        say(f"records in {out}")


def _show_diagnosis(out: Path) -> None:
    """The table and the picture of a run that was diagnosed."""
    from lpkernels.report.diagnosis import plot_exponents
    from lpkernels.techniques.loss_scaling import Report

    path = out / "diagnosis.jsonl"
    if not path.is_file():
        return
    report = Report.load(path)
    say(report)
    say(report.recommend())
    show_picture(lambda: plot_exponents(report), out / "diagnosis.png")


def _check_options(config: RunConfig, options: dict[str, Any]) -> None:
    """Raises ValueError if an option differs from the option of the run to be resumed."""
    own = config.flat()
    for name, value in options.items():
        if value != own[name]:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"{option}: the run was started with {own[name]!r}, got {value!r}; resume without "
                f"{option}, or start another run in another folder (option --out)"
            )
