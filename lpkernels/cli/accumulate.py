"""`lpkernels accumulate`: how narrow the accumulators of a network may be."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import track

from lpkernels.arithmetic import as_accumulator
from lpkernels.cli._options import (
    alone,
    check_one_process,
    console,
    show_table,
    with_settings,
    wrong_option,
)
from lpkernels.experiments.measuring import accumulate as work
from lpkernels.experiments.records import append_record
from lpkernels.techniques.accumulation import AccumulatorPlan

_RECORDS = "accumulate.jsonl"


@with_settings({"": work.AccumulateConfig.model_fields})
def accumulate(
    values: dict[str, Any],
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Simulate sums of the planned lengths as well.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for records and pictures.")] = Path(
        "results/accumulate"
    ),
) -> None:
    """The accumulator each product of a network needs, forward and backward; proof by simulation.

    The lengths come from the shapes, for a network and a batch of any size.

    Example: `lpkernels accumulate --model resnet18-imagenet --batch 256 --chunk 64 --simulate`

    The rule of Sakr et al. 2019: `lpkernels accumulate --metric vrr --margin 0`

    A function `make` of yours in mine.py: `PYTHONPATH=. lpkernels accumulate --model mine:make`
    """
    check_one_process("accumulate")
    try:
        config = work.AccumulateConfig(**values)
        made = work.make_plan(config, work.find_workload(config))
    except (ValueError, FileNotFoundError, NotImplementedError, TypeError) as error:
        raise wrong_option(error, values) from error
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
