"""`lpkernels accumulate`: how narrow the accumulators of a network may be."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lpkernels.cli._options import check_one_process, named_options, say, with_settings
from lpkernels.experiments.measuring import accumulate as work
from lpkernels.techniques.accumulation.planning import COLUMNS

_RECORDS = "accumulate.jsonl"


@with_settings({"": work.AccumulateConfig.model_fields})
def accumulate(
    values: dict[str, Any],
    out: Annotated[Path, typer.Option(help="Folder for records.")] = Path("results/accumulate"),
) -> None:
    """The accumulator each product of a network needs, forward and backward.

    The lengths come from the shapes, for a network and a batch of any size.

    Example: `lpkernels accumulate --model resnet18-imagenet --batch 256 --chunk 64`

    The rule of Sakr et al. 2019: `lpkernels accumulate --metric vrr --margin 0`

    A function `make` of yours in mine.py: `PYTHONPATH=. lpkernels accumulate --model mine:make`
    """
    check_one_process("accumulate")
    with named_options(values):
        config = work.AccumulateConfig(**values)
        plan = work.make_plan(config, work.find_network(config))
    work.write_plan(out / _RECORDS, config, plan)
    say(f"{config.model}, {config.operand} operands\n{plan}\n{COLUMNS}")
    say(f"records in {out}")
