"""`lpkernels accumulate`: how narrow the accumulators of a network may be."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import track

from lpkernels.arithmetic import as_accumulator
from lpkernels.cli._options import (
    Seed,
    alone,
    check_one_process,
    console,
    one_of,
    positive,
    show_table,
    valid,
)
from lpkernels.experiments.measuring import accumulate as work
from lpkernels.experiments.records import append_record
from lpkernels.formats import parse_format
from lpkernels.techniques.accumulation import AccumulatorPlan
from lpkernels.techniques.accumulation.planning import HEADROOM, MARGIN
from lpkernels.techniques.accumulation.theory import METRICS, NMSE_CONSTANTS

_RECORDS = "accumulate.jsonl"


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
    out: Annotated[Path, typer.Option(help="Folder for records and pictures.")] = Path(
        "results/accumulate"
    ),
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
        made = work.make_plan(config, work.find_workload(config))
    except (ValueError, FileNotFoundError, NotImplementedError, TypeError) as error:
        raise typer.BadParameter(str(error)) from error
    work.start_records(out / _RECORDS, config, made)
    _show_plan(config, made, out)
    if simulate:
        _show_simulations(config, _simulated(config, made, out), out)
    console.print(f"records and pictures in {out}")


def _simulated(
    config: work.AccumulateConfig, made: AccumulatorPlan, out: Path
) -> list[dict[str, Any]]:
    """The simulated sums, each written as soon as it is there."""
    found = []
    for point in track(work.points(made, config), description="simulating", console=console):
        found.append(work.simulate(point, seed=config.seed))
        append_record(out / _RECORDS, found[-1])
    return found


def _show_plan(config: work.AccumulateConfig, made: AccumulatorPlan, out: Path) -> None:
    from lpkernels.report.accumulators import plan_table, plot_bits
    from lpkernels.techniques.accumulation.tables import plan_notes

    blocks = [row.to_dict() for row in made.blocks]
    show_table(plan_table(blocks, title=f"{config.model}, {config.operand} operands"))
    for note in [*plan_notes(blocks), *filter(None, [made.uncovered])]:
        console.print(note, highlight=False, markup=False)
    plot_bits(made.to_dicts(), out / "bits.png", title=config.model)


def _show_simulations(
    config: work.AccumulateConfig, found: list[dict[str, Any]], out: Path
) -> None:
    from lpkernels.report.accumulators import plot_simulations, simulation_table

    show_table(
        simulation_table(found, title="Simulated sums, 64 x 64 each; NMSE: error^2 / variance")
    )
    name, title = {"vrr": ("retention", "Variance kept"), "nmse": ("errors", "Errors of sums")}[
        config.metric
    ]
    plot_simulations(found, out / f"{name}.png", metric=config.metric, title=title)


def bench_accumulate(
    operands: str, name: str, longest: int, repeats: int, out: Path | None
) -> None:
    """`lpkernels bench accumulate`: a table, and with `out` the records."""
    from lpkernels.experiments.measuring.accumulator_speed import SHORTEST, speed_over_length
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
