"""`lpkernels accumulate`: a plan for a network, and simulated sums of the planned lengths."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from lpkernels import schemas
from lpkernels.arithmetic import accumulator
from lpkernels.experiments import records
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.workloads.bundled import BUNDLED, LISTED, Workload, workload
from lpkernels.experiments.workloads.images import load
from lpkernels.experiments.workloads.models import Task, build_model
from lpkernels.experiments.workloads.registry import function_of
from lpkernels.formats import FloatFormat
from lpkernels.formats.elsewhere import nearest
from lpkernels.functional import quantize
from lpkernels.techniques.accumulation import (
    AccumulatorPlan,
    accumulator_of,
    measure,
    nmse,
    plan,
    vrr,
)
from lpkernels.techniques.accumulation.planning import HEADROOM, MARGIN
from lpkernels.techniques.accumulation.theory import NMSE_CONSTANTS

KIND = "accumulate"
# There are 64 x 64 sums. Rows share their left operand, so errors are estimated from the spread of
# rows.
_SIDE = 64


@dataclass(frozen=True)
class AccumulateConfig:
    """One question, as plain values.

    model: a bundled name, "resnet<depth>" or "cnn<depth>" on `data`, or "module:function", where
        the function returns (model, sample, loss), sample and loss as `plan` takes them.
    operand, metric, margin, rounding, headroom, exp_bits: as in `plan`; exp_bits 0:
        measured.
    chunk: its length, 0 none, -1 the best.
    batch: images or token sequences of a training step.  sample: of the batch that is computed; 0:
        none, the plan is made on the meta device.  module:function brings a sample and its batch.
    loss_scale: the loss is multiplied by it.
    longest: the sums that are simulated have at most that many products.
    data, data_dir, width: of a resnet<depth> or cnn<depth>.
    """

    model: str = "resnet32-cifar"
    operand: str = "e5m2"
    chunk: int = 0
    metric: str = "nmse"
    margin: int = MARGIN
    rounding: str = "nearest_even"
    headroom: int = HEADROOM
    exp_bits: int = 0
    batch: int = 8
    sample: int = 0
    loss_scale: float = 1024.0
    longest: int = 1 << 16
    seed: int = 0
    data: str = "digits"
    data_dir: str = ""
    width: int = 16

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def find_workload(config: AccumulateConfig) -> Workload:
    """The network, its sample and its loss, on the meta device where nothing is to be computed.

    Raises: ValueError: the name means nothing, or its function returns something else.
    """
    device, examples = ("cpu", config.sample) if config.sample else ("meta", config.batch)
    if config.model in BUNDLED:
        return workload(config.model, batch=examples, seed=config.seed, device=device)
    if ":" in config.model:
        return _imported(config)
    data = load(config.data, config.data_dir)
    if config.sample > len(data.train_labels):
        raise ValueError(
            f"sample: expected at most the {len(data.train_labels)} training images of "
            f"{config.data}, got {config.sample}"
        )
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(config.seed)
        try:
            task = Task("images", data.shape, data.classes)
            model = build_model(config.model, task, width=config.width)
        except ValueError as error:
            listed = nearest(config.model, BUNDLED, LISTED)
            raise ValueError(
                f"{error}; or one of {listed}; or module:function, which returns (model, sample, "
                "loss)"
            ) from error
    if not config.sample:
        images = torch.empty(config.batch, *data.shape, device=device)
        labels = torch.empty(config.batch, dtype=torch.int64, device=device)
    else:
        epoch = data.training_set().plan(config.seed, 0)
        images, labels = epoch.batch(0, config.sample)
    return Workload(model, images, lambda y: cross_entropy(y, labels))


def _imported(config: AccumulateConfig) -> Workload:
    name = config.model
    if (config.batch, config.sample) != (AccumulateConfig.batch, AccumulateConfig.sample):
        raise ValueError(
            f"batch and sample: the function {name!r} brings a sample as large as the batch; leave "
            "both out, and make what is too large to compute on torch's meta device"
        )
    made = function_of("model", name)()
    if not (isinstance(made, tuple) and len(made) == 3):
        raise ValueError(
            f"model: {name!r} must return (model, sample, loss), got {type(made).__name__}"
        )
    return Workload(*made)


def make_plan(config: AccumulateConfig, work: Workload) -> AccumulatorPlan:
    """The plan of the configuration; errors as in `plan`."""
    return plan(
        work.model,
        work.sample,
        loss=lambda y: work.loss(y) * config.loss_scale,
        operand=config.operand,
        chunk="best" if config.chunk < 0 else config.chunk or None,
        headroom=config.headroom,
        exp_bits=config.exp_bits or None,
        batch=None if ":" in config.model else config.batch,
        metric=config.metric,
        margin=config.margin,
        rounding=config.rounding,
    )


def start_records(path: Path, config: AccumulateConfig, made: AccumulatorPlan) -> None:
    """Writes the header with the question and a record for each row of the plan, in place of what
    the file held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    asked = {"config": config.to_dict(), "environment": environment("cpu")}
    rows = [{"type": "plan", **row} for row in made.to_dicts()]
    records.write_records(path, [{**schemas.header(KIND), **asked}, *rows])


@dataclass(frozen=True)
class Point:
    """One simulated sum: `length` products of operands in `operand`."""

    length: int
    accumulator: str
    operand: str


def points(made: AccumulatorPlan, config: AccumulateConfig) -> list[Point]:
    """The sums to simulate: every planned accumulator at its own length, and with one bit fewer;
    and for the picture some widths at all lengths. The exponent has 8 bits, as in the theory.
    """

    def name(bits: int, chunk: int | None) -> str:
        return str(accumulator_of(FloatFormat(8, bits), config.rounding, chunk=chunk))

    found = []
    for row in made.rows:
        length = min(max(2, round(row.length * (row.nzr or 1.0))), config.longest)
        # Two digits of the length are enough, and leave fewer sums to simulate.
        scale = 10 ** max(0, len(str(length)) - 2)
        length = min(max(2, round(length / scale) * scale), config.longest)
        for bits in {row.format.man_bits, max(1, row.format.man_bits - 1)}:
            found.append(Point(length, name(bits, row.accumulator.chunk_length), config.operand))
    widths = sorted({row.format.man_bits for row in made.rows if row.format.man_bits > 2})
    shown = sorted({widths[i * (len(widths) - 1) // 3] for i in range(4)}) if widths else []
    for bits in shown:
        for log_n in range(6, int(math.log2(config.longest)) + 1):
            found.append(Point(2**log_n, name(bits, None), config.operand))
    return list(dict.fromkeys(found))


def simulate(point: Point, *, seed: int = 0, side: int = _SIDE) -> records.Record:
    """Makes side x side sums of products of rounded standard normal values; returns the figures
    of the sums, the variance kept that the theory predicts (of one sum) and the error that the
    error law predicts (of the roundings that it knows).
    """
    generator = torch.Generator().manual_seed(seed)
    a, b = (
        quantize(torch.randn(size, generator=generator), point.operand).float()
        for size in ((side, point.length), (point.length, side))
    )
    acc = accumulator(point.accumulator)
    got = measure(a, b, acc, counted=0, generator=generator).to_dict()
    record = {"type": "simulation", **asdict(point), **got}
    if acc.chunk is None and isinstance(acc.fmt, FloatFormat):
        record["theory"] = vrr(acc.fmt.man_bits, got["product_bits"], point.length)[0]
    rounding = "aligned_truncation" if acc.block == 1 else acc.rounding
    if rounding in NMSE_CONSTANTS and isinstance(acc.fmt, FloatFormat):
        bits, chunk = acc.fmt.man_bits, acc.chunk
        record["law"] = nmse(bits, point.length, chunk=chunk, rounding=rounding)
    return record
