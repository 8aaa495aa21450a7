"""`lpkernels schedule`: the bits and the cost of a schedule of precisions, without training."""

from pathlib import Path
from typing import Annotated

import typer

from lpkernels.cli._options import console, named_options, show_picture, valid


def schedule(
    text: Annotated[
        str,
        typer.Argument(
            callback=valid("techniques.cpt:parse_schedule"),
            help="A schedule: cpt:3-8/8,cycles=32, static:4/8, rise:3-8/8, fall:8-3/8, "
            "shuffled:3-8/8, or CR, LT, RTV, ... for those of later work.",
        ),
    ],
    steps: Annotated[int, typer.Option(min=1, help="Steps of the training.")] = 64000,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw it into this file (.png, .pdf, .svg).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of --plot's shuffled bits.")] = 0,
) -> None:
    """Show how many steps of a schedule have which bits, their mean and their cost.

    The cost counts multiplied bits; no speed-up of a GPU follows from it.

    Example: `lpkernels schedule cpt:3-8/8,cycles=8 --steps 2000 --plot schedule.png`
    """
    from lpkernels.report.schedules import plot_schedules, schedule_view
    from lpkernels.techniques.cpt import PFQ, parse_schedule

    with named_options(option="--steps"):
        scheduler = parse_schedule(text)(None, steps, seed=seed)
    if isinstance(scheduler, PFQ):
        raise typer.BadParameter(
            f"{text!r} looks at the loss as it trains, so that there is nothing to draw before; "
            "`lpkernels train --schedule` records its bits",
            param_hint="text",
        )
    console.print(schedule_view(scheduler, text), highlight=False)
    if plot is not None:
        show_picture(lambda: plot_schedules({text: scheduler}), plot, option="--plot")
