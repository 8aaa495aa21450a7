"""The predicted costs of a training step's products on a GPU that is not there, as records.

docs/predictions.md has the model: counted instructions, sizes from
a step on the meta device. Nothing here is measured.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bench.predict.costs import costs
from bench.predict.devices import device as device_named
from bench.predict.tracing import Traced
from lpkernels import schemas
from lpkernels.arithmetic import accumulator_from_ints
from lpkernels.experiments.measuring.machine import environment

Record = dict[str, Any]
BACKENDS = ("cuda", "triton")


class Prediction(NamedTuple):
    """The prediction for one backend. products: a record for each product; products of equal layer,
    pass and sizes have one record, which says how many `times` they are made. total: their sums.
    refused: why there is no prediction."""

    backend: str
    products: list[Record]
    total: Record
    refused: str = ""


def predict(
    traced: Sequence[Traced], device: str, *, about: Record | None = None
) -> list[Prediction]:
    """The products of a traced step on each GPU backend of a device.

    Args:
        traced: of `trace`. device: a name of `DEVICES`.
        about: fields for every record, such as model, recipe and batch.
    Returns: one for each of `BACKENDS`; it is refused where a product takes a kernel whose
        instructions were not counted.
    Raises: ValueError: an unknown device, or no product that is emulated.
    """
    device_named(device)
    if not traced:
        raise ValueError(
            "predict: no product of this step is emulated, all are torch's own; take a recipe or "
            "an accumulator that rounds sums"
        )
    return [_prediction(traced, device, backend, about or {}) for backend in BACKENDS]


def _prediction(traced: Sequence[Traced], device: str, backend: str, about: Record) -> Prediction:
    about = {"device": device, **about, "backend": backend}
    try:
        found = [
            {**schemas.line("prediction"), **about, **row}
            for one, times in Counter(traced).items()
            for row in _rows(one, times, device, backend)
        ]
    except NotImplementedError as error:
        return Prediction(backend, [], {}, str(error))
    whole = sum(row["microseconds"] for row in found)
    for row in found:
        row["share"] = row["microseconds"] / whole
    return Prediction(backend, found, _total(found, about))


def _rows(one: Traced, times: int, device: str, backend: str) -> Iterator[Record]:
    """A record for each product of a call; microseconds and launches are of all `times`."""
    gpu = device_named(device)
    found = costs(one.call, backend, gpu)
    for index, cost in enumerate(found.products):
        plan, shape = cost.plan, cost.shape
        first = index == 0
        packing = found.packing_launches if first else 0
        outputs = shape.matrices * shape.m * shape.n
        yield {
            "layer": one.layer, "gemm": one.gemm, "times": times,
            "accumulator": str(accumulator_from_ints(one.call.acc)),
            "sizes": [shape.matrices, shape.m, shape.n, shape.k],
            "kernel": plan.kernel, "tile": list(plan.tile), "tiles": plan.tiles,
            "filled": outputs / (plan.tiles * plan.tile[0] * plan.tile[1]),
            "splits": plan.splits, "waves": plan.waves, "launches": plan.launches * times,
            "instructions": cost.instructions, "scratch": plan.scratch,
            "microseconds": cost.microseconds * times,
            "launch_microseconds": plan.launches * times * gpu.launch,
            "packing_launches": packing * times,
            "packing_microseconds": (found.packing if first else 0.0) * times,
            "macs": shape.macs * times,
            "fp32_microseconds": cost.fp32 * times,
        }  # fmt: skip


_SUMMED = (
    "times", "launches", "microseconds", "launch_microseconds", "packing_launches",
    "packing_microseconds", "macs", "fp32_microseconds",
)  # fmt: skip


def _total(rows: list[Record], about: Record) -> Record:
    sums = {name: sum(row[name] for row in rows) for name in _SUMMED}
    return {
        **schemas.line("prediction_total"), **about, "products": sums.pop("times"),
        **sums,
        "scratch": max(row["scratch"] for row in rows),
        "ratio": sums["microseconds"] / sums["fp32_microseconds"],
        "environment": environment("cpu"),
    }  # fmt: skip
