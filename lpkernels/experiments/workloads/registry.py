"""Workloads by name: one of lpkernels' data sets, or a function of the user's."""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.workload import Workload
from lpkernels.formats.elsewhere import nearest

__all__ = ["DATASETS", "LABELLED", "dataset", "find", "function_of"]

Maker = Callable[[WorkloadConfig], Workload]

_PAGE = "docs/training.md lists all"
# These may be given for any data: a sweep over several data sets has one folder for all.
_ALWAYS = ("data", "data_dir", "model", "depth", "width")
#: The settings that any labelled data have.
LABELLED = ("norm", "label_noise", "train_size", "classes")


@dataclass(frozen=True)
class DataSet:
    """Data that a run can train on; the fields are those of `dataset`."""

    make: Maker
    model: str
    settings: tuple[str, ...]


#: The data sets by name.
DATASETS: dict[str, DataSet] = {}


def dataset(
    *names: str, model: str, settings: tuple[str, ...] = LABELLED
) -> Callable[[Maker], Maker]:
    """Makes data known by `names`, as a decorator of the function that makes their workload.

    Example, after which `--data ramps` trains an mlp1 on them:

        @dataset("ramps", model="mlp1")
        def _ramps(config: WorkloadConfig) -> Workload:
            x = torch.linspace(-1, 1, 400)[:, None] * torch.ones(8)
            y = (x[:, 0] > 0).long()
            return classification(
                "ramps", train=(x[::2], y[::2]), test=(x[1::2], y[1::2]), config=config
            )

    Args:
        names: of the data, for `--data`; the function gets a configuration with one of them.
        model: the one that the data are usually trained with; the configuration names it where the
            run names none.
        settings: the fields of WorkloadConfig that mean something, beside data, data_dir, model and
            width; others are refused.
    Raises: ValueError: other data have one of the names.
    """

    def register(make: Maker) -> Maker:
        for name in names:
            other = DATASETS.get(name)
            if other is not None and other.make.__qualname__ != make.__qualname__:
                raise ValueError(f"dataset: one called {name!r} exists already")
            DATASETS[name] = DataSet(make, model, settings)
        return make

    return register


def find(config: WorkloadConfig) -> Workload:
    """The workload of a configuration; equal configurations have equal workloads, at any time.

    `data` is one of DATASETS, or "module:function": the function is called with the configuration
    if it has a parameter, and then the other settings are its own business; else with nothing, and
    they must be defaults. It returns a Workload.

    Raises:
        ValueError: the name means nothing, its function cannot be called or returns something
            else, or a setting means nothing for the data or asks for more than there is.
        FileNotFoundError: the files of CIFAR or Fashion-MNIST are not in `data_dir`.
        ImportError: a package that the data come with is not installed.
    """
    if ":" in config.data:
        return _imported(config)
    for module in ("fashion", "images", "tables", "text"):
        importlib.import_module(f"lpkernels.experiments.workloads.{module}")
    data = DATASETS.get(config.data)
    if data is None:
        raise ValueError(
            f"data: expected one of {nearest(config.data, DATASETS, _PAGE)}, got {config.data!r}; "
            "or module:function, which returns a Workload"
        )
    others = set(_changed(config)) - {*_ALWAYS, *data.settings}
    if others:
        names = [name for name in data.settings if name not in _ALWAYS]
        raise ValueError(
            f"{', '.join(sorted(others))}: means nothing for {config.data}, which has "
            f"{nearest(min(others), ['model', 'width', *names], _PAGE)}; leave it out"
        )
    return data.make(config.replace(model=config.network(data.model), depth=0))


def _changed(config: WorkloadConfig) -> dict[str, Any]:
    """The settings that are not defaults."""
    defaults = WorkloadConfig().to_dict()
    return {name: value for name, value in config.to_dict().items() if value != defaults[name]}


def function_of(setting: str, name: str) -> Callable[..., Any]:
    """The function of the name "module:function".  Raises: ValueError: there is none."""
    module, _, function = name.partition(":")
    try:
        called = getattr(importlib.import_module(module), function)
        inspect.signature(called)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        lost = isinstance(error, ModuleNotFoundError)
        hint = "; put its folder on PYTHONPATH, as in PYTHONPATH=. lpkernels" * lost
        raise ValueError(f"{setting}: {name!r} cannot be called: {error}{hint}") from error
    return called


def _imported(config: WorkloadConfig) -> Workload:
    name = config.data
    called = function_of("data", name)
    takes = bool(inspect.signature(called).parameters)
    others = sorted(_changed(config).keys() - {"data"})
    if others and not takes:
        raise ValueError(
            f"{', '.join(others)}: the function {name!r} takes no WorkloadConfig, so these would "
            "do nothing; give it a parameter, or leave them out"
        )
    workload = called(config) if takes else called()
    if not isinstance(workload, Workload):
        raise ValueError(f"data: {name!r} must return a Workload, got {type(workload).__name__}")
    return workload
