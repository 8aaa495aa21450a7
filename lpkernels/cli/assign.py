"""`lpkernels assign`: which tensors of a network's training are in low precision."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lpkernels.cli._options import Seed, console, named_options, one_of, valid
from lpkernels.report.sizes import bytes_text

# The orders of demotion, and the rules that need no budget.
_ORDERS = ("decreasing", "increasing", "random")
_BASELINES = ("uniform", "operator_based", "amp_like")


def assign(
    model: Annotated[
        str, typer.Option(help="A network by name, as `lpkernels train` has it, that fits --data.")
    ] = "resnet18",
    width: Annotated[
        int,
        typer.Option(min=0, help="Channels of the first layer, of lee-... percent; 0: the usual."),
    ] = 0,
    data: Annotated[
        str, typer.Option(help="As for `lpkernels train`; a batch of it is what is traced.")
    ] = "digits32",
    data_dir: Annotated[str, typer.Option(help="Folder of CIFAR's or Fashion-MNIST's files.")] = "",
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
            callback=valid(one_of(*_ORDERS, *_BASELINES)),
            help="decreasing (size, the paper's), increasing, random; or a rule that needs no "
            "ratio: uniform, operator_based, amp_like.",
        ),
    ] = "decreasing",
    save: Annotated[Path | None, typer.Option(help="Write the assignment, as JSON.")] = None,
    seed: Seed = 0,
) -> None:
    """Assign low and high precision to every tensor of a network's training, for a budget.

    The formats are the paper's: 16 bits, or 8.

    Example: `lpkernels assign --model resnet18 --width 16 --batch 128 --ratio 0.6 --save a.json`
    """
    from lpkernels.techniques.assignment import kept_memory

    _check_budget(order, ratio, bits)
    if bits is None and ratio is None and order not in _BASELINES:
        ratio = 0.6
    ops = _operations(_workload(data, data_dir, model, width), batch, seed)
    with named_options(option="--bits"):
        assignment = _assignment(ops, order, ratio, bits, seed)
    console.print(f"{model} on {data}, batches of {batch}", soft_wrap=True)
    console.print(str(assignment), highlight=False, soft_wrap=True)
    kept = bytes_text(kept_memory(ops, assignment))
    console.print(f"tensors kept for backward, as codes: {kept}", highlight=False, soft_wrap=True)
    if save is not None:
        assignment.save(save)
        console.print(f"assignment in {save}", soft_wrap=True)


def _check_budget(order: str, ratio: float | None, bits: int | None) -> None:
    for name, value in {"--ratio": ratio, "--bits": bits}.items():
        if order in _BASELINES and value is not None:
            raise typer.BadParameter(
                f"{order} has no budget, got {value}; leave it out", param_hint=name
            )
    if ratio is not None and bits is not None:
        raise typer.BadParameter(f"got {bits} with --ratio {ratio}; give one", param_hint="--bits")


def _assignment(ops: Any, order: Any, ratio: float | None, bits: int | None, seed: int) -> Any:
    from lpkernels.techniques.assignment import demote, group
    from lpkernels.techniques.assignment.rules import BASELINES

    if order in BASELINES:
        return BASELINES[order](ops)
    drawn = seed if order == "random" else None
    return demote(group(ops), ratio, bits=bits, order=order, seed=drawn)


def _workload(data: str, data_dir: str, model: str, width: int) -> Any:
    from lpkernels.experiments.workloads.config import WorkloadConfig
    from lpkernels.experiments.workloads.registry import find

    with named_options(("data", "data_dir", "model", "width")):
        return find(WorkloadConfig(data=data, data_dir=data_dir, model=model, width=width))


def _operations(workload: Any, batch: int, seed: int) -> Any:
    """The operations of the network and its loss."""
    import torch

    from lpkernels.experiments.workloads.streams import stream_seed
    from lpkernels.experiments.workloads.traced import mean_loss, output_loss
    from lpkernels.techniques.assignment import trace

    if batch > len(workload.train):
        raise typer.BadParameter(
            f"expected at most the {len(workload.train)} training examples, got {batch}",
            param_hint="--batch",
        )
    first = workload.train.plan(seed, 0).batch(0, batch)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "init"))
        with named_options(option="--model"):
            loss = mean_loss(output_loss(workload, first))
            return trace(workload.model(), loss, (first[0], first))
