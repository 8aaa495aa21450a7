"""`lpkernels assign`: which tensors of a network's training are in low precision."""

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from lpkernels.cli._options import Seed, alone, console, one_of, show_table, valid
from lpkernels.report.sizes import bytes_text
from lpkernels.techniques.assignment.request import BASELINES, Request
from lpkernels.techniques.assignment.rules import Order


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
            callback=valid(one_of(*get_args(Order), *BASELINES)),
            help="decreasing (size, the paper's), increasing, random; or a rule that needs no "
            "ratio: uniform, operator_based, amp_like.",
        ),
    ] = "decreasing",
    save: Annotated[Path | None, typer.Option(help="Write the assignment, as JSON.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw it into this file (.png, .pdf, .svg).")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Assign low and high precision to every tensor of a network's training, for a budget.

    The formats are the paper's: 16 bits, or 8.

    Example: `lpkernels assign --model resnet18 --width 16 --batch 128 --ratio 0.6 --save a.json`
    """
    from lpkernels.report.assignments import assignment_table

    request = _request(order, ratio, bits, seed)
    workload = _workload(data, data_dir, model, width)
    made, kept = _made(request, workload, batch, seed)
    show_table(assignment_table(made, title=f"{model} on {data}, batches of {batch}"))
    console.print(
        f"tensors kept for backward, as codes: {bytes_text(kept)}",
        highlight=False,
        soft_wrap=True,
    )
    if save is not None:
        made.save(save)
        console.print(f"assignment in {save}", soft_wrap=True)
    if plot is not None:
        from lpkernels.report.assignments import plot_assignment

        try:
            picture = plot_assignment(made, plot, title=f"{model}: {request}")
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--plot") from error
        console.print(f"picture in {picture}", soft_wrap=True)


def _request(order: Any, ratio: float | None, bits: int | None, seed: int) -> Request:
    """The request that the options make."""
    if order in BASELINES:
        for name, value in {"--ratio": ratio, "--bits": bits}.items():
            if value is not None:
                raise typer.BadParameter(
                    f"{order} has no budget, got {value}; leave it out", param_hint=name
                )
        return Request(rule=order)
    if ratio is not None and bits is not None:
        raise typer.BadParameter(f"got {bits} with --ratio {ratio}; give one", param_hint="--bits")
    if bits is None and ratio is None:
        ratio = 0.6
    return Request(ratio=ratio, bits=bits, order=order, seed=seed if order == "random" else None)


def _workload(data: str, data_dir: str, model: str, width: int) -> Any:
    from lpkernels.cli._options import wrong_option
    from lpkernels.experiments.workloads.config import WorkloadConfig
    from lpkernels.experiments.workloads.registry import find

    try:
        config = WorkloadConfig(data=data, data_dir=data_dir, model=model, width=width)
        return find(config)
    except (ValueError, FileNotFoundError) as error:
        raise wrong_option(error, ("data", "data_dir", "model", "width")) from error


def _made(request: Request, workload: Any, batch: int, seed: int) -> tuple[Any, Any]:
    """The assignment of the network, and the bytes kept for backward."""
    import torch

    from lpkernels.experiments.workloads.streams import stream_seed
    from lpkernels.experiments.workloads.traced import mean_loss, output_loss
    from lpkernels.techniques.assignment import kept_memory, trace

    if batch > len(workload.train):
        raise typer.BadParameter(
            f"expected at most the {len(workload.train)} training examples, got {batch}",
            param_hint="--batch",
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "init"))
        try:
            network = workload.model()
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--model") from error
    first = workload.train.plan(seed, 0).batch(0, batch)
    pair = (first[0], first)
    try:
        loss = mean_loss(output_loss(workload, first))
        ops = trace(network, loss, pair)
        made = request.assignment(ops)
    except (ValueError, NotImplementedError) as error:
        hint = "--bits" if str(error).startswith("demote: bits") else "--model"
        raise typer.BadParameter(str(error), param_hint=hint) from error
    return made, kept_memory(ops, made)


app = alone(assign)
