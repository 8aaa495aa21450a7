"""``python -m bench.predict``: a network's training step on a GPU that is not there."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

import lpkernels
from bench.predict import devices, records, tables
from bench.predict.tracing import trace
from lpkernels.arithmetic import Recipe, as_accumulator
from lpkernels.cli._options import console, show_table, valid
from lpkernels.experiments.records import append_record
from lpkernels.experiments.workloads.bundled import BUNDLED, LISTED, usual_batch, workload
from lpkernels.formats.elsewhere import nearest
from lpkernels.recipes import recipe as named_recipe

app = typer.Typer(
    add_completion=False, pretty_exceptions_show_locals=False, rich_markup_mode="markdown"
)


def _known_model(name: str) -> None:
    if name not in BUNDLED:
        raise ValueError(f"expected one of {nearest(name, BUNDLED, LISTED)}, got {name!r}")


def _with_sums(recipe: Recipe, accumulator: str) -> Recipe:
    """The recipe with these sums in all three products."""
    if not accumulator:
        return recipe
    acc = as_accumulator(accumulator)
    return dataclasses.replace(recipe, fprop=acc, dgrad=acc, wgrad=acc)


@app.command()
def predict(
    gpu: Annotated[
        str, typer.Argument(callback=valid(devices.device), help="The GPU: h100.")
    ] = "h100",
    model: Annotated[
        str, typer.Option(callback=valid(_known_model), help="A bundled network.")
    ] = "resnet18-imagenet",
    recipe: Annotated[
        str,
        typer.Option(callback=valid(named_recipe), help="A recipe's name, for every layer alike."),
    ] = "fp8_wang2018",
    accumulator: Annotated[
        str,
        typer.Option(
            callback=valid(as_accumulator), help="Takes the place of the recipe's three sums."
        ),
    ] = "",
    batch: Annotated[
        int, typer.Option(min=0, help="Examples of the step; 0: the network's usual number.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Add the records to this JSON lines file.")
    ] = None,
) -> None:
    """Predict the time of each product of a training step from counted instructions; nothing runs.

    Example: `python -m bench.predict h100 --model resnet18-imagenet --recipe fp8_wang2018`
    """
    batch = batch or usual_batch(model)
    work = workload(model, batch=batch, device="meta")
    lpkernels.convert(work.model, _with_sums(named_recipe(recipe), accumulator))
    about = {"model": model, "recipe": recipe, "batch": batch}
    try:
        found = records.predict(trace(work.model, work.sample, work.loss), gpu, about=about)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--recipe") from error
    made = [each for each in found if not each.refused]
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        for record in (r for each in made for r in (*each.products, each.total)):
            append_record(out, record)
    for each in made:
        show_table(tables.prediction_table(each))
    for each in found:
        if each.refused:
            console.print(
                f"no prediction: {each.refused}", highlight=False, markup=False, soft_wrap=True
            )
    if made:
        show_table(tables.total_table(made))
    if out is not None:
        console.print(f"records in {out}")


if __name__ == "__main__":
    sys.exit(app(prog_name="python -m bench.predict"))
