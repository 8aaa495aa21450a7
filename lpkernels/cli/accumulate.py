"""`lpkernels accumulate`: how narrow the accumulators of a network may be."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from lpkernels.arithmetic import as_accumulator
from lpkernels.cli._options import (
    Seed,
    alone,
    check_one_process,
    console,
    show_table,
    stopped,
    valid,
)
from lpkernels.experiments.settings import one_of, positive
from lpkernels.experiments.sweeps import accumulate as work
from lpkernels.experiments.training.interrupts import Interrupted
from lpkernels.formats import parse_format
from lpkernels.techniques.accumulation import AccumulatorPlan
from lpkernels.techniques.accumulation.planning import HEADROOM, MARGIN
from lpkernels.techniques.accumulation.theory import CRITERIA, METRICS, NMSE_CONSTANTS


def _chunk(text: str) -> None:
    if text not in ("none", "best") and not text.isdigit():
        raise ValueError(f"expected none, best or a length, got {text!r}")


def accumulate(
    model: Annotated[
        str,
        typer.Option(
            help="A bundled network (resnet32-cifar, resnet18-imagenet, alexnet-imagenet, "
            "mobilenetv2, tiny-gpt), resnetD or cnnD (of D layers: resnet8, cnn3) on --data, or "
            "module:function returning (model, sample, loss)."
        ),
    ] = "resnet32-cifar",
    operand: Annotated[
        str, typer.Option(callback=valid(parse_format), help="Of all operands, as fp8_e4m3.")
    ] = "e5m2",
    chunk: Annotated[
        str,
        typer.Option(
            callback=valid(_chunk), help="Length of the inner sums, none (or 0), or best."
        ),
    ] = "none",
    criterion: Annotated[
        str,
        typer.Option(
            callback=valid(one_of(*CRITERIA)),
            help="With --metric vrr and chunks: level, or total (stricter).",
        ),
    ] = "level",
    metric: Annotated[
        str,
        typer.Option(
            callback=valid(one_of(*METRICS)),
            help="nmse: the error of a sum is bounded; vrr: the variance it loses (Sakr 2019), "
            "whose widths are too narrow for short sums.",
        ),
    ] = "nmse",
    margin: Annotated[
        int,
        typer.Option(
            min=0,
            max=23,
            help="Mantissa bits beyond the metric's; --metric vrr --margin 0 is Sakr's own rule.",
        ),
    ] = MARGIN,
    rounding: Annotated[
        str,
        typer.Option(
            callback=valid(one_of(*NMSE_CONSTANTS)),
            help="nearest_even; with nmse also stochastic, or aligned_truncation (tensor cores).",
        ),
    ] = "nearest_even",
    headroom: Annotated[
        int,
        typer.Option(
            min=0, help="Exponent bits beyond those that the sample needs, for training to go on."
        ),
    ] = HEADROOM,
    exp_bits: Annotated[
        int,
        typer.Option(
            min=0,
            max=8,
            help="Exponent bits of the accumulators; 0: as measured, with headroom, or 8.",
        ),
    ] = 0,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Simulate sums of the planned lengths as well.")
    ] = False,
    train: Annotated[
        bool,
        typer.Option(
            "--train",
            help="Train on --data with the plan, 1 bit more, 1 to 4 fewer, and in fp32.",
        ),
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for records and pictures.")] = Path(
        "results/accumulate"
    ),
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep what --out holds of this question already.")
    ] = False,
    batch: Annotated[
        int, typer.Option(min=1, help="Images or texts of a step; module:function brings them.")
    ] = 8,
    sample: Annotated[
        int,
        typer.Option(
            min=0,
            help="Images or texts that are computed to measure zeros and exponents; 0: none, the "
            "plan is made from shapes alone.",
        ),
    ] = 0,
    loss_scale: Annotated[
        float,
        typer.Option(
            callback=valid(positive),
            help="Gradients are measured at this multiple; a power of two is exact.",
        ),
    ] = 1024.0,
    longest: Annotated[int, typer.Option(min=64, help="Products of the longest simulated sum.")] = 1
    << 16,
    data: Annotated[
        str, typer.Option(help="digits, digits32, fashion-mnist, cifar10 or cifar100.")
    ] = "digits",
    data_dir: Annotated[str, typer.Option(help="Folder of CIFAR's or Fashion-MNIST's files.")] = "",
    width: Annotated[int, typer.Option(min=1, help="Channels of the first layer.")] = 16,
    epochs: Annotated[int, typer.Option(min=1, help="Of each training run.")] = 10,
    seeds: Annotated[int, typer.Option(min=1, help="Training runs of each kind.")] = 5,
    lr: Annotated[float, typer.Option(help="Peak learning rate of the training runs.")] = 0.1,
    seed: Seed = 0,
) -> None:
    """The accumulator each product of a network needs, forward and backward; proof by simulation.

    The lengths come from the shapes, for a network and a batch of any size.

    Example: `lpkernels accumulate --model resnet18-imagenet --batch 256 --chunk 64 --simulate`

    The rule of Sakr et al. 2019: `lpkernels accumulate --metric vrr --margin 0`

    A function `make` of yours in mine.py: `PYTHONPATH=. lpkernels accumulate --model mine:make`
    """
    lengths = {"none": 0, "best": -1}
    given = dict(locals())
    check_one_process("accumulate")
    given["chunk"] = lengths[chunk] if chunk in lengths else int(chunk)
    fields = work.AccumulateConfig().to_dict()
    config = work.AccumulateConfig(**{name: given[name] for name in fields})
    try:
        network = work.find_workload(config)
        if train:
            work.check_trainable(config)
        study = work.Study(out, config, resume=resume)
        made = work.plan_study(study, network)
    except (ValueError, FileNotFoundError, NotImplementedError, TypeError) as error:
        raise typer.BadParameter(str(error)) from error
    _show_plan(study, made)
    try:
        if simulate:
            work.simulate_study(study, work.points(made, config), console)
            _show_simulations(study)
        if train:
            _show_training(study, work.train_study(study, made, console))
    except Interrupted as stop:
        stopped(stop, _command(given))
    console.print(f"records and pictures in {out}")


def _command(given: dict[str, Any]) -> str:
    """The command that goes on with this question."""
    asked = work.AccumulateConfig().to_dict()
    chunk = {0: "none", -1: "best"}.get(given["chunk"], given["chunk"])
    values = {**given, "chunk": chunk}
    defaults = {**asked, "chunk": "none"}
    parts = [
        f"--{name.replace('_', '-')} {shlex.quote(str(values[name]))}"
        for name in asked
        if values[name] != defaults[name]
    ]
    flags = [f"--{name}" for name in ("simulate", "train") if given[name]]
    return " ".join(
        ["lpkernels accumulate --resume", f"--out {shlex.quote(str(given['out']))}", *parts, *flags]
    )


def _show_plan(study: work.Study, made: AccumulatorPlan) -> None:
    from lpkernels.report.accumulators import plan_table, plot_bits
    from lpkernels.techniques.accumulation.tables import plan_notes

    blocks, config = [row.to_dict() for row in made.blocks], study.config
    show_table(plan_table(blocks, title=f"{config.model}, {config.operand} operands"))
    for note in [*plan_notes(blocks), *filter(None, [made.uncovered])]:
        console.print(note, highlight=False, markup=False)
    plot_bits(study.of("plan"), study.folder / "bits.png", title=config.model)


def _show_simulations(study: work.Study) -> None:
    from lpkernels.report.accumulators import plot_simulations, simulation_table

    found, metric = study.of("simulation"), study.config.metric
    show_table(
        simulation_table(found, title="Simulated sums, 64 x 64 each; NMSE: error^2 / variance")
    )
    name, title = {"vrr": ("retention", "Variance kept"), "nmse": ("errors", "Errors of sums")}[
        metric
    ]
    plot_simulations(found, study.folder / f"{name}.png", metric=metric, title=title)


def _show_training(study: work.Study, runs: list[Any]) -> None:
    from lpkernels.report.accumulators import plot_accuracy, training_table

    config = study.config
    title = f"{config.model} on {config.data}, {config.operand} operands"
    show_table(training_table(runs, title=title))
    plot_accuracy(runs, study.folder / "accuracy.png", title=title)


def bench_accumulate(
    operands: str, name: str, longest: int, repeats: int, out: Path | None
) -> None:
    """`lpkernels bench accumulate`: a table, and with `out` the records."""
    from rich.progress import track

    from lpkernels.experiments.measuring.accumulator_speed import SHORTEST, speed_over_length
    from lpkernels.experiments.records import append_record
    from lpkernels.report.accumulators import speed_length_table

    found: list[dict[str, Any]] = []
    acc = as_accumulator(name)
    measured = speed_over_length(operands, acc, longest=longest, repeats=repeats)
    steps = (longest - SHORTEST) // 2 + 1
    stopped_early = False
    try:
        for record in track(measured, description="lengths", console=console, total=2 * steps):
            found.append(record)
            if out is not None:
                out.parent.mkdir(parents=True, exist_ok=True)
                append_record(out, record)
    except KeyboardInterrupt:
        stopped_early = True
        console.print("stopped; what was measured:")
    show_table(speed_length_table(found, title=f"{name}, {operands} operands"))
    if stopped_early:
        # 128 + SIGINT, as shells report it
        raise typer.Exit(130)


app = alone(accumulate)
