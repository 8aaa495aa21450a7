"""`lpkernels accumulate`: how narrow the accumulators of a network may be."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import track

from lpkernels.cli._options import (
    check_one_process,
    console,
    named_options,
    say,
    show_table,
    with_settings,
)
from lpkernels.experiments.measuring import accumulate as work
from lpkernels.experiments.records import append_record
from lpkernels.techniques.accumulation import AccumulatorPlan
from lpkernels.techniques.accumulation.planning import COLUMNS

_RECORDS = "accumulate.jsonl"


@with_settings({"": work.AccumulateConfig.model_fields})
def accumulate(
    values: dict[str, Any],
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Simulate sums of the planned lengths as well.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for records.")] = Path("results/accumulate"),
) -> None:
    """The accumulator each product of a network needs, forward and backward; proof by simulation.

    The lengths come from the shapes, for a network and a batch of any size.

    Example: `lpkernels accumulate --model resnet18-imagenet --batch 256 --chunk 64 --simulate`

    The rule of Sakr et al. 2019: `lpkernels accumulate --metric vrr --margin 0`

    A function `make` of yours in mine.py: `PYTHONPATH=. lpkernels accumulate --model mine:make`
    """
    check_one_process("accumulate")
    with named_options(values):
        config = work.AccumulateConfig(**values)
        plan = work.make_plan(config, work.find_network(config))
    work.start_records(out / _RECORDS, config, plan)
    say(f"{config.model}, {config.operand} operands\n{plan}\n{COLUMNS}")
    if simulate:
        from lpkernels.report.named import simulation_table

        title = "Simulated sums, 64 x 64 each; NMSE: error^2 / variance"
        show_table(simulation_table(_simulated(config, plan, out), title=title))
    say(f"records in {out}")


def _simulated(
    config: work.AccumulateConfig, plan: AccumulatorPlan, out: Path
) -> list[dict[str, Any]]:
    """The simulated sums, each written as soon as it is there."""
    sums = []
    for point in track(work.points(plan, config), description="simulating", console=console):
        sums.append(work.simulate(point, seed=config.seed))
        append_record(out / _RECORDS, sums[-1])
    return sums
