"""`lpkernels accumulate`: a plan for a network, simulated sums, training runs, in a folder."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from lpkernels import schemas
from lpkernels.arithmetic import accumulator
from lpkernels.experiments import records
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.sweeps.demo import FP8
from lpkernels.experiments.sweeps.sweep import train_all
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.interrupts import Interrupted, InterruptRequest
from lpkernels.experiments.workloads.bundled import BUNDLED, LISTED, Workload, workload
from lpkernels.experiments.workloads.images import load, plan_epoch
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

if TYPE_CHECKING:
    from rich.console import Console

KIND = "accumulate"
# There are 64 x 64 sums. Rows share their left operand, so errors are estimated from the spread of
# rows.
_SIDE = 64
#: How many mantissa bits fewer than planned the training runs have; one run has a bit more.
NARROWER = (-1, 0, 1, 2, 3, 4)


@dataclass(frozen=True)
class AccumulateConfig:
    """One question, as plain values.

    model: a bundled name, "resnet<depth>" or "cnn<depth>" on `data`, or "module:function", where
        the function returns (model, sample, loss), sample and loss as `plan` takes them.
    operand, criterion, metric, margin, rounding, headroom, exp_bits: as in `plan`; exp_bits 0:
        measured.
    chunk: its length, 0 none, -1 the best.
    batch: images or token sequences of a training step.  sample: of the batch that is computed; 0:
        none, the plan is made on the meta device.  module:function brings a sample and its batch.
    loss_scale: the loss is multiplied by it.
    longest: the sums that are simulated have at most that many products.
    data, data_dir, width, epochs, seeds, lr: of the runs that train.
    """

    model: str = "resnet32-cifar"
    operand: str = "e5m2"
    chunk: int = 0
    criterion: str = "level"
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
    epochs: int = 10
    seeds: int = 5
    lr: float = 0.1

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
        epoch = plan_epoch(data, config.seed, 0, augment=False)
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
        criterion=config.criterion,
        metric=config.metric,
        margin=config.margin,
        rounding=config.rounding,
    )


class Study:
    """The records of one question in a folder; a record that is there already is not made again.

    Args:
        folder: holds them, in accumulate.jsonl; made if absent.
        config: the question, which the header of the records holds too.
        resume: keep the records of this question; else they start again.
    Raises: ValueError: with resume, the folder holds the answer to another question, or other
        records.
    """

    def __init__(self, folder: str | Path, config: AccumulateConfig, *, resume: bool) -> None:
        self.folder, self.path = Path(folder), Path(folder) / f"{KIND}.jsonl"
        self.config, self.resume = config, resume
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (resume and self.path.is_file()):
            asked = {"config": config.to_dict(), "environment": environment("cpu")}
            records.write_records(self.path, [{**schemas.header(KIND), **asked}])
        self.records = read_study(self.path)
        if AccumulateConfig(**self.records[0]["config"]) != config:
            raise ValueError(
                f"{self.folder} holds the answer to another question; resume with the options it "
                "was asked with, or without --resume"
            )

    def add(self, record: records.Record) -> None:
        records.append_record(self.path, record)
        self.records.append(record)

    def of(self, kind: str) -> list[records.Record]:
        """The records of one type, in the order in which they came."""
        return [record for record in self.records if record["type"] == kind]


def read_study(path: str | Path) -> list[records.Record]:
    """The records of a study.

    Raises: ValueError: they are others, or of another schema.
    """
    found = records.read_records(Path(path))
    if not found or found[0].get("kind") != KIND:
        raise ValueError(f"{path}: expected the records of `lpkernels {KIND}`")
    return found


def plan_study(study: Study, work: Workload) -> AccumulatorPlan:
    """The plan, into the records too."""
    made = make_plan(study.config, work)
    if not study.of("plan"):
        for row in made.to_dicts():
            study.add({"type": "plan", **row})
    return made


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


def simulate_study(study: Study, wanted: Sequence[Point], console: "Console | None" = None) -> None:
    """Simulates the points that the records lack; ctrl-C leaves the records whole.

    Raises: Interrupted: ctrl-C.
    """
    done = {Point(r["length"], r["accumulator"], r["operand"]) for r in study.of("simulation")}
    left = [point for point in wanted if point not in done]
    with InterruptRequest() as stop:
        for point in _shown(left, console, "simulating"):
            if stop.requested:
                raise Interrupted(f"stopped; simulated sums are saved in {study.path}")
            study.add(simulate(point, seed=study.config.seed))


def _shown(items: Sequence[Any], console: "Console | None", title: str) -> Iterable[Any]:
    if console is None:
        return items
    from rich.progress import track

    return track(items, description=title, console=console)


def check_trainable(config: AccumulateConfig) -> None:
    """Raises ValueError unless the model is one that the trainer builds, for its data."""
    if config.model in BUNDLED or ":" in config.model:
        raise ValueError(
            f"--train has no data for {config.model!r}; train a network of small images: "
            "resnet<depth> or cnn<depth>, on digits, digits32, fashion-mnist, "
            "cifar10 or cifar100 (--data)"
        )


def training_configs(made: AccumulatorPlan, config: AccumulateConfig) -> list[RunConfig]:
    """fp32, FP8 operands with native sums, then the plan and its neighbours; all for each seed."""
    shared: dict[str, Any] = {
        "model": config.model, "width": config.width, "data": config.data,
        "data_dir": config.data_dir, "epochs": config.epochs, "batch": config.batch,
        "lr": config.lr, "threads": 1,
    }  # fmt: skip
    native = tuple((name, "native", "native", "native") for name in made.recipes)
    operands = FP8.replace(name="fp32 sums", layer_accs=native, **shared)
    runs = [RunConfig.of(name="fp32", **shared), operands]
    for fewer in NARROWER:
        runs.append(operands.replace(name=run_name(fewer), layer_accs=layer_accs(made, fewer)))
    seeds = range(config.seed, config.seed + config.seeds)
    return [run.replace(seed=seed) for seed in seeds for run in runs]


def run_name(fewer: int) -> str:
    """The name of a run with that many mantissa bits fewer than planned."""
    if fewer == 0:
        return "planned"
    return f"{fewer} fewer" if fewer > 0 else f"{-fewer} more"


def layer_accs(made: AccumulatorPlan, fewer: int) -> tuple[tuple[str, str, str, str], ...]:
    """The plan's accumulators with that many mantissa bits fewer, as a RunConfig holds them."""
    return tuple(
        (name, str(recipe.fprop), str(recipe.dgrad), str(recipe.wgrad))
        for name, recipe in made.narrowed(fewer).items()
    )


def train_study(
    study: Study, made: AccumulatorPlan, console: "Console | None" = None
) -> list[records.Run]:
    """Trains the runs that are not finished yet, each a cell of the sweep in the folder "train".

    Raises: Interrupted: ctrl-C; what was done so far is saved.
    """
    configs = training_configs(made, study.config)
    folder = study.folder / "train"
    return train_all(configs, folder, name=KIND, resume=study.resume, console=console)
