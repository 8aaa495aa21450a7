"""`lpkernels bench`: the speed of one product."""

from typing import Annotated

import typer

from lpkernels.arithmetic import as_accumulator
from lpkernels.cli._options import show_table, valid
from lpkernels.formats import parse_format


def bench(
    shape: Annotated[
        tuple[int, int, int], typer.Option(min=1, help="M, K and N of the product: 64 960 32.")
    ] = (960, 960, 960),
    operands: Annotated[
        str, typer.Option(callback=valid(parse_format), help="Format of both operands.")
    ] = "e5m2",
    accumulator: Annotated[
        str, typer.Option(callback=valid(as_accumulator), help="Accumulator, by name.")
    ] = "e6m9_chunk64",
    repeats: Annotated[int, typer.Option(min=1, help="Calls; the best one counts.")] = 5,
    threads: Annotated[int, typer.Option(min=0, help="Threads; 0: torch's choice.")] = 0,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say which kernels did the work, and why.")
    ] = False,
) -> None:
    """Time one emulated matrix product beside torch's in float32, and say which kernels ran.

    Example: `lpkernels bench --operands e4m3 --accumulator e5m10 --explain`
    """
    import torch

    from lpkernels import backends
    from lpkernels.experiments.measuring.speed import measure
    from lpkernels.report.named import speed_table, tier_table

    if threads:
        torch.set_num_threads(threads)
    backends.take_tiers()
    speed = measure(shape, operands, as_accumulator(accumulator), repeats=repeats)
    tiers = backends.take_tiers()
    show_table(speed_table(speed, shape, operands, accumulator, torch.get_num_threads()))
    if explain:
        show_table(tier_table(tiers))
