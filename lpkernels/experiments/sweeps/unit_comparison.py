"""One network, one seed, two GPUs' arithmetic: which outputs differ, and how training goes in each.

The folder of a comparison holds its records, and the runs of both sides in folders "a" and "b".
"""

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lpkernels import schemas
from lpkernels.experiments import records
from lpkernels.experiments.measuring.machine import environment
from lpkernels.experiments.training.arithmetic import layer_recipes
from lpkernels.experiments.training.checkpoints import has_checkpoint
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.interrupts import Interrupted
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.experiments.workloads.registry import find
from lpkernels.experiments.workloads.streams import stream_seed
from lpkernels.experiments.workloads.workload import Workload
from lpkernels.nn import convert, summary
from lpkernels.recipes import recipe

if TYPE_CHECKING:
    from rich.console import Console

#: The file of a comparison's records: a header, then a record for each `Difference`.
RECORDS = "comparison.jsonl"
_KIND = "units"


@dataclass(frozen=True)
class Comparison:
    """The two sides of a comparison, recipes or tensor cores by name, and the run that both sides
    share.

    Raises: ValueError: both are the same arithmetic, or an unknown name.
    """

    a: str
    b: str
    run: RunConfig

    def __post_init__(self) -> None:
        if recipe(self.a) == recipe(self.b):
            raise ValueError(
                f"b: {self.b} is the same arithmetic as {self.a}, to the bit; compare it with "
                "another one (`lpkernels units` lists the tensor cores)"
            )

    def blocks(self) -> dict[str, int]:
        """The products in a block of forward sums, by the name of each side that has blocks."""
        blocks = {name: recipe(name).fprop.block for name in (self.a, self.b)}
        return {name: block for name, block in blocks.items() if block is not None}

    def sides(self) -> dict[str, RunConfig]:
        """The run of each side, called as its arithmetic is."""
        names = {"a": self.a, "b": self.b}
        return {side: self.run.replace(name=name, recipe=name) for side, name in names.items()}


@dataclass(frozen=True)
class Difference:
    """The difference of both sides for the same weights and examples.

    weights: "untrained", or the name of the arithmetic in which they were trained.
    outputs, differ: how many numbers the network returned, and how many of them differ in a bit
        (NaN equals NaN).  largest_difference: among those finite in both.  largest_output: in a.
    predictions, predicted_otherwise: how many largest outputs along the last dimension there are,
        and how many of them are at another place in b.
    """

    weights: str
    outputs: int
    differ: int
    largest_difference: float
    largest_output: float
    predictions: int
    predicted_otherwise: int

    def to_dict(self) -> dict[str, Any]:
        return {"type": "outputs", **asdict(self)}


def begin(comparison: Comparison, folder: Path) -> None:
    """Writes down the comparison, in a folder that holds none.

    Raises:
        FileExistsError: it holds one.
        ValueError: the data are unknown, or the comparison is not made for them.
    """
    if (folder / RECORDS).exists():
        raise FileExistsError(
            f"out: {folder} holds a comparison already; go on with it (--resume alone) or choose "
            "another folder"
        )
    if len(find(comparison.run.workload).turns) > 1:
        raise ValueError(
            f"data: {comparison.run.workload.data} trains several networks in turns, whose outputs "
            "are not compared; use data with labels, or text"
        )
    folder.mkdir(parents=True, exist_ok=True)
    records.write_records(folder / RECORDS, [_header(comparison)])


def _header(comparison: Comparison) -> records.Record:
    return {
        **schemas.header(_KIND),
        "a": comparison.a,
        "b": comparison.b,
        "run": comparison.run.to_dict(),
        "environment": environment(comparison.run.device),
    }


def read_comparison(folder: Path) -> Comparison:
    """The comparison in a folder.

    Raises:
        FileNotFoundError: nothing.
        ValueError: it is something else, or a later version of this package began it.
    """
    path = folder / RECORDS
    if not path.is_file():
        raise FileNotFoundError(
            f"out: expected a comparison in {folder}, got none; begin one without --resume"
        )
    header, *_ = records.read_records(path)
    if header.get("kind") != _KIND:
        raise ValueError(f"out: {path}: expected a comparison, got {header.get('kind')!r}")
    return Comparison(header["a"], header["b"], RunConfig.from_dict(header["run"]))


def compare(
    comparison: Comparison, folder: Path, console: "Console | None" = None
) -> tuple[list[Difference], list[records.Run]]:
    """Trains both sides, each from its last checkpoint if it has one, and compares outputs.

    Outputs are for the first batch of the test set, in evaluation mode: with the weights before
    training, and with each side's weights after it. Both begin with the same weights and see the
    same batches.

    Raises: Interrupted: ctrl-C; what was trained is saved.
    """
    workload = find(comparison.run.workload)
    sides = comparison.sides()
    try:
        networks = [_network(workload, config) for config in sides.values()]
        found = [_difference("untrained", networks, workload, comparison.run)]
        runs = []
        for side, config in sides.items():
            trainer = _trainer(config, folder / side, workload)
            runs.append(trainer.fit(console=console))
            state = copy.deepcopy(trainer.model.state_dict())
            for network in networks:
                # A running range, which one of the two may have, is no weight.
                network.load_state_dict(state, strict=False)
            found.append(_difference(config.name, networks, workload, comparison.run))
    except Interrupted:
        raise
    except KeyboardInterrupt as stop:
        raise Interrupted(f"stopped; what was trained is in {folder}") from stop
    lines = [_header(comparison), *(each.to_dict() for each in found)]
    records.write_records(folder / RECORDS, lines)
    return found, runs


def _trainer(config: RunConfig, folder: Path, workload: Workload) -> Trainer:
    if has_checkpoint(folder):
        return Trainer.resume(folder, workload=workload)
    return Trainer(config, folder, workload=workload)


def _network(workload: Workload, config: RunConfig) -> nn.Module:
    """The network as the trainer begins with it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(config.seed, "init"))
        model = workload.model()
    return convert(model, layer_recipes(config.arithmetic, model)).to(config.device)


def longest_sum(comparison: Comparison) -> int | None:
    """The products in the longest sum of the network's forward pass; None where one operator is
    several products, whose sums are not known."""
    workload = find(comparison.run.workload)
    network = _network(workload, comparison.sides()["b"])
    inputs: list[Any] = []
    handle = network.register_forward_pre_hook(lambda module, args: inputs.extend(args))
    _outputs(network, workload, comparison.run)
    handle.remove()
    lengths = [row.lengths for row in summary(network, *inputs).rows]
    return max((each[0] for each in lengths if each), default=None) if all(lengths) else None


def _difference(
    weights: str, networks: Sequence[nn.Module], workload: Workload, run: RunConfig
) -> Difference:
    a, b = (_outputs(network, workload, run) for network in networks)
    same = (a.view(torch.int32) == b.view(torch.int32)) | (a.isnan() & b.isnan())
    finite = a.isfinite() & b.isfinite()
    apart = (a[finite].double() - b[finite].double()).abs()
    otherwise = a.argmax(-1) != b.argmax(-1)
    return Difference(
        weights=weights,
        outputs=a.numel(),
        differ=int((~same).sum()),
        largest_difference=float(apart.max()) if len(apart) else 0.0,
        largest_output=float(a[finite].abs().max()) if len(apart) else 0.0,
        predictions=otherwise.numel(),
        predicted_otherwise=int(otherwise.sum()),
    )


@torch.no_grad()
def _outputs(network: nn.Module, workload: Workload, run: RunConfig) -> Tensor:
    """The network's outputs for the first batch of the test set, by the workload's own call."""
    found: list[Tensor] = []
    handle = network.register_forward_hook(lambda module, args, output: found.append(output))
    batch = tuple(tensor.to(run.device) for tensor in workload.test[0])
    network.eval()
    try:
        with torch.random.fork_rng(devices=[]):
            # Both sides draw alike where they round stochastically.
            torch.manual_seed(stream_seed(run.seed, "test", 0, 0))
            workload.measure(network, batch)
    finally:
        handle.remove()
    return torch.cat([output.float().cpu() for output in found])
