"""`lpkernels accumulate`: a plan of accumulators for a network."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from lpkernels import schemas
from lpkernels.experiments import records
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.settings import checked
from lpkernels.experiments.workloads.bundled import BUNDLED, Network, network
from lpkernels.experiments.workloads.config import NetworkConfig, WorkloadConfig
from lpkernels.experiments.workloads.registry import find, function_of
from lpkernels.formats import parse_format
from lpkernels.formats.elsewhere import nearest
from lpkernels.techniques.accumulation import AccumulatorPlan, plan
from lpkernels.techniques.accumulation.planning import MARGIN

KIND = "accumulate"


def _check_chunk(text: str) -> None:
    if text not in ("none", "best") and not text.isdigit():
        raise ValueError(f"expected none, best or a length, got {text!r}")


class AccumulateConfig(NetworkConfig):
    """One question about the accumulators of a network."""

    model: str = Field(
        "resnet32-cifar",
        description="A bundled network (resnet20-cifar, resnet32-cifar, resnet18-imagenet), a "
        "network for --data (resnet8, cnn3, ...), or module:function, which returns (model, "
        "sample, loss).",
    )
    operand: Annotated[str, checked(parse_format)] = Field(
        "e5m2", description="Format of all operands, as fp8_e4m3."
    )
    chunk: Annotated[str, checked(_check_chunk)] = Field(
        "none", description="Length of the inner sums, none (or 0), or best."
    )
    metric: Literal["nmse", "vrr"] = Field(
        "nmse",
        description="nmse: the error of a sum is bounded; vrr: the variance it loses (Sakr 2019), "
        "whose widths are too narrow for short sums.",
    )
    margin: int = Field(
        MARGIN, ge=0, le=23,
        description="Mantissa bits beyond the metric's; --metric vrr --margin 0 is Sakr's own "
        "rule.",
    )  # fmt: skip
    exp_bits: int = Field(
        0, ge=0, le=8,
        description="Exponent bits of the accumulators; 0: as measured, with headroom, or 8.",
    )  # fmt: skip
    batch: int = Field(8, ge=1, description="Examples of a step; module:function brings them.")
    sample: int = Field(
        0, ge=0,
        description="Examples that are computed to measure zeros and exponents; 0: none, the plan "
        "is made from shapes alone.",
    )  # fmt: skip
    loss_scale: float = Field(
        1024.0, gt=0,
        description="Gradients are measured at this multiple; a power of two is exact.",
    )  # fmt: skip
    seed: int = Field(0, ge=0, description="Seed of weights and of the order of examples.")


def find_network(config: AccumulateConfig) -> Network:
    """The network, its sample and its loss, on the meta device where nothing is to be computed.

    Raises: ValueError: the name means nothing, or its function returns something else.
    """
    device, examples = ("cpu", config.sample) if config.sample else ("meta", config.batch)
    if config.model in BUNDLED:
        return network(config.model, batch=examples, seed=config.seed, device=device)
    if ":" in config.model:
        return _imported(config)
    settings = {name: getattr(config, name) for name in NetworkConfig.model_fields}
    try:
        work = find(WorkloadConfig(**settings))
        model = work.network(config.seed)
    except ValueError as error:
        listed = nearest(config.model, BUNDLED)
        raise ValueError(
            f"{error}; or one of {listed}; or module:function, which returns (model, sample, loss)"
        ) from error
    if config.sample > len(work.train):
        raise ValueError(
            f"sample: expected at most the {len(work.train)} training examples of {config.data}, "
            f"got {config.sample}"
        )
    batch = work.first_batch(config.seed, config.sample or 1)
    if not config.sample:
        sizes = [(config.batch, *tensor.shape[1:]) for tensor in batch]
        batch = tuple(t.new_empty(s, device=device) for t, s in zip(batch, sizes, strict=True))
    loss = work.mean_loss(batch)
    return Network(model.to(device), batch[0], lambda y: loss(y, batch))


def _imported(config: AccumulateConfig) -> Network:
    name = config.model
    usual = AccumulateConfig()
    if (config.batch, config.sample) != (usual.batch, usual.sample):
        raise ValueError(
            f"batch and sample: the function {name!r} brings a sample as large as the batch; leave "
            "both out, and make what is too large to compute on torch's meta device"
        )
    parts = function_of("model", name)()
    if not (isinstance(parts, tuple) and len(parts) == 3):
        raise ValueError(
            f"model: {name!r} must return (model, sample, loss), got {type(parts).__name__}"
        )
    return Network(*parts)


def make_plan(config: AccumulateConfig, work: Network) -> AccumulatorPlan:
    """The plan of the configuration; errors as in `plan`."""
    chunk: Any = config.chunk
    if chunk != "best":
        chunk = int(chunk.replace("none", "0")) or None
    return plan(
        work.model,
        work.sample,
        loss=lambda y: work.loss(y) * config.loss_scale,
        operand=config.operand,
        chunk=chunk,
        exp_bits=config.exp_bits or None,
        batch=None if ":" in config.model else config.batch,
        metric=config.metric,
        margin=config.margin,
    )


def write_plan(path: Path, config: AccumulateConfig, network_plan: AccumulatorPlan) -> None:
    """Writes the header with the question and a record for each row of the plan, in place of what
    the file held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    question = {"config": config.to_dict(), "environment": environment("cpu")}
    rows = [{"type": "plan", **row.to_dict()} for row in network_plan.rows]
    records.write_records(path, [{**schemas.header(KIND), **question}, *rows])
