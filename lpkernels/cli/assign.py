"""`lpkernels assign`: which tensors of a network's training are in low precision."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lpkernels.cli._options import Seed, named_options, one_of, say, valid, with_settings
from lpkernels.experiments.workloads.config import NetworkConfig, WorkloadConfig
from lpkernels.techniques.assignment.rules import BASELINES


@with_settings({"workload": NetworkConfig.model_fields})
def assign(
    values: dict[str, Any],
    batch: Annotated[
        int, typer.Option(min=1, help="Examples of a batch, which the sizes of results count.")
    ] = 128,
    ratio: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Share of all elements in low precision; usual: 0.6."),
    ] = None,
    bits: Annotated[
        int | None, typer.Option(min=0, help="Instead of --ratio: the most bits of all tensors.")
    ] = None,
    order: Annotated[
        str,
        typer.Option(
            callback=valid(one_of("decreasing", "increasing", "random", *BASELINES)),
            help="decreasing (size, the paper's), increasing, random; or a rule that needs no "
            f"ratio: {', '.join(BASELINES)}.",
        ),
    ] = "decreasing",
    save: Annotated[Path | None, typer.Option(help="Write the assignment, as JSON.")] = None,
    seed: Seed = 0,
) -> None:
    """Assign low and high precision to every tensor of a network's training, for a budget.

    The formats are the paper's: 16 bits, or 8. The command traces one batch of the data.

    Example: `lpkernels assign --data digits32 --model resnet18 --width 16 --save a.json`
    """
    from lpkernels.techniques.assignment import demote, group

    for name, value in {"--ratio": ratio, "--bits": bits}.items():
        if order in BASELINES and value is not None:
            raise typer.BadParameter(
                f"{order} has no budget, got {value}; leave it out", param_hint=name
            )
    if ratio is not None and bits is not None:
        raise typer.BadParameter(f"got {bits} with --ratio {ratio}; give one", param_hint="--bits")
    ops = _operations(WorkloadConfig(**values), batch, seed)
    with named_options(option="--bits"):
        if order in BASELINES:
            assignment = BASELINES[order](ops)
        else:
            share = 0.6 if ratio is None and bits is None else ratio
            kind: Any = order
            drawn = seed if order == "random" else None
            assignment = demote(group(ops), share, bits=bits, order=kind, seed=drawn)
    say(f"{values['model'] or 'the usual network'} on {values['data']}, batches of {batch}")
    say(assignment)
    if save is not None:
        assignment.save(save)
        say(f"assignment in {save}")


def _operations(config: WorkloadConfig, batch: int, seed: int) -> Any:
    """The operations of the network and its loss."""
    from lpkernels.experiments.workloads.registry import find
    from lpkernels.experiments.workloads.streams import stream_seed
    from lpkernels.techniques.assignment import trace

    with named_options(NetworkConfig.model_fields):
        workload = find(config)
    if batch > len(workload.train):
        raise typer.BadParameter(
            f"expected at most the {len(workload.train)} training examples, got {batch}",
            param_hint="--batch",
        )
    first = workload.first_batch(seed, batch)
    with named_options(option="--model"):
        model = workload.network(stream_seed(seed, "init"))
        return trace(model, workload.mean_loss(first), (first[0], first))
