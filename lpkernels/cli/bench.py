"""`lpkernels bench`: the speed of one product."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lpkernels.arithmetic import as_accumulator
from lpkernels.cli._options import alone, console, show_table, valid
from lpkernels.formats import parse_format


def _benched(name: str) -> None:
    if name not in ("product", "accumulate"):
        raise ValueError(f"expected product or accumulate, got {name!r}")


def bench(
    what: Annotated[
        str,
        typer.Argument(
            callback=valid(_benched), help="product, or accumulate: speed and error over lengths."
        ),
    ] = "product",
    shape: Annotated[
        str,
        typer.Option(
            callback=valid("experiments.measuring.speed:shape_from"),
            help="M, K and N of the product.",
        ),
    ] = "960x960x960",
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
    longest: Annotated[
        int, typer.Option(min=6, max=24, help="accumulate: log2 of the longest sum's products.")
    ] = 20,
    out: Annotated[
        Path | None,
        typer.Option(help="accumulate: add the records to this JSON lines file."),
    ] = None,
) -> None:
    """Time one emulated matrix product beside torch's in float32, and say which kernels ran.

    With `accumulate` it measures speed and error over lengths 2^6, 2^8, ... on each backend.

    Example: `lpkernels bench --operands e4m3 --accumulator e5m10 --explain`
    """
    import torch

    from lpkernels import backends
    from lpkernels.experiments.measuring.speed import measure, shape_from
    from lpkernels.report.named import order_table, speed_table, tier_table

    if threads:
        torch.set_num_threads(threads)
    if what == "accumulate":
        return _lengths(operands, accumulator, longest, repeats, out)
    backends.take_tiers()
    speed = measure(shape_from(shape), operands, as_accumulator(accumulator), repeats=repeats)
    tiers = backends.take_tiers()
    show_table(speed_table(speed, shape, operands, accumulator, torch.get_num_threads()))
    if explain:
        show_table(tier_table(tiers))
        show_table(order_table())


def _lengths(operands: str, name: str, longest: int, repeats: int, out: Path | None) -> None:
    """`lpkernels bench accumulate`: a table, and with `out` the records."""
    from rich.progress import track

    from lpkernels.experiments.measuring.speed import SHORTEST, speed_over_length
    from lpkernels.experiments.records import append_record
    from lpkernels.report.accumulators import speed_length_table

    records: list[dict[str, Any]] = []
    acc = as_accumulator(name)
    measured = speed_over_length(operands, acc, longest=longest, repeats=repeats)
    steps = (longest - SHORTEST) // 2 + 1
    stopped_early = False
    try:
        for record in track(measured, description="lengths", console=console, total=2 * steps):
            records.append(record)
            if out is not None:
                out.parent.mkdir(parents=True, exist_ok=True)
                append_record(out, record)
    except KeyboardInterrupt:
        stopped_early = True
        console.print("stopped; what was measured:")
    show_table(speed_length_table(records, title=f"{name}, {operands} operands"))
    if stopped_early:
        # 128 + SIGINT, as shells report it
        raise typer.Exit(130)


app = alone(bench)
