"""`lpkernels bench --predict`: a network's training step on a GPU that is not there."""

import dataclasses
from pathlib import Path

import typer

from lpkernels.arithmetic import Recipe, as_accumulator
from lpkernels.cli._options import console, show_table
from lpkernels.recipes import recipe as named_recipe


def bench_predict(
    device: str, model: str, recipe: str, accumulator: str, batch: int, out: Path | None
) -> None:
    """A table for each GPU backend, and with `out` the records.

    accumulator: takes the place of the recipe's accumulators in all three products; "" keeps them.
    batch: 0 is the network's usual one.
    """
    import lpkernels
    from lpkernels.experiments.measuring.prediction import predict
    from lpkernels.experiments.measuring.tracing import trace
    from lpkernels.experiments.records import append_record
    from lpkernels.experiments.workloads.bundled import usual_batch, workload
    from lpkernels.report.predictions import prediction_table, total_table

    batch = batch or usual_batch(model)
    work = workload(model, batch=batch, device="meta")
    lpkernels.convert(work.model, _with_sums(named_recipe(recipe), accumulator))
    about = {"model": model, "recipe": recipe, "batch": batch}
    try:
        found = predict(trace(work.model, work.sample, work.loss), device, about=about)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--recipe") from error
    made = [each for each in found if not each.refused]
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        for record in (r for each in made for r in (*each.products, each.total)):
            append_record(out, record)
    for each in made:
        show_table(prediction_table(each))
    for each in found:
        if each.refused:
            console.print(
                f"no prediction: {each.refused}", highlight=False, markup=False, soft_wrap=True
            )
    if made:
        show_table(total_table(made))
    if out is not None:
        console.print(f"records in {out}")


def _with_sums(recipe: Recipe, accumulator: str) -> Recipe:
    """The recipe with these sums in all three products."""
    if not accumulator:
        return recipe
    acc = as_accumulator(accumulator)
    return dataclasses.replace(recipe, fprop=acc, dgrad=acc, wgrad=acc)


def known_device(name: str) -> None:
    """Raises ValueError for a device that nothing is predicted for."""
    import lpkernels

    lpkernels.backends.planning.device(name)


def known_model(name: str) -> None:
    """Raises ValueError for a network that is not bundled."""
    from lpkernels.experiments.workloads.bundled import BUNDLED

    if name not in BUNDLED:
        raise ValueError(f"expected one of {', '.join(BUNDLED)}, got {name!r}")
