"""Data sets by name: the fields of a data set, and how it becomes known."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.workload import Workload

Maker = Callable[[WorkloadConfig], Workload]

#: The settings that any labelled data have.
LABELLED = ("norm", "label_noise", "train_size", "classes")


@dataclass(frozen=True)
class DataSet:
    """Data that a run can train on.

    make: makes the workload; the configuration it gets names a model.
    model: the one that the data are usually trained with.
    settings: the fields of WorkloadConfig that mean something, beside data, data_dir, model and
        width; find refuses others.
    """

    make: Maker
    model: str
    settings: tuple[str, ...]


#: By name, in the order of the names.
DATASETS: dict[str, DataSet] = {}


def dataset(name: str, *, model: str, settings: tuple[str, ...] = ()) -> Callable[[Maker], Maker]:
    """Makes data known by `name`, as a decorator of the function that makes their workload.

    Example, a file of its own in this folder:

        @dataset("ramps", model="mlp1", settings=LABELLED)
        def _ramps(config: WorkloadConfig) -> Workload:
            x = torch.linspace(-1, 1, 400)[:, None] * torch.ones(8)
            y = (x[:, 0] > 0).long()
            return classification(
                "ramps", train=(x[::2], y[::2]), test=(x[1::2], y[1::2]), config=config
            )

    after which `--data ramps` trains an mlp1 on them.

    Args: as the fields of DataSet.
    Raises: ValueError: other data have that name, or it has other signs than small letters, digits,
        - and _.
    """
    if not re.fullmatch("[a-z][a-z0-9_-]*", name):
        raise ValueError(f"dataset: expected a name of small letters and digits, got {name!r}")

    def register(make: Maker) -> Maker:
        other = DATASETS.get(name)
        if other is not None and other.make.__qualname__ != make.__qualname__:
            raise ValueError(f"dataset: one called {name!r} exists already")
        DATASETS[name] = DataSet(make, model, settings)
        for known in sorted(DATASETS):
            DATASETS[known] = DATASETS.pop(known)
        return make

    return register
