"""Workloads by name: one of lpkernels' data sets, or a function of the user's."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from lpkernels.experiments.workloads.config import NetworkConfig, WorkloadConfig
from lpkernels.experiments.workloads.workload import Workload
from lpkernels.formats.elsewhere import nearest

__all__ = ["DATASETS", "find", "function_of"]

_PAGE = "docs/experiments.md lists all"
# These may be given for any data: a sweep over several data sets has one folder for all.
_ALWAYS = tuple(NetworkConfig.model_fields)
# The settings that any labelled data have.
_LABELLED = ("norm", "label_noise", "train_size", "classes")


class DataSet(NamedTuple):
    """Data that a run can train on.

    function: the module of this folder and its function that makes the workload.
    model: the one that the data are usually trained with.
    settings: the fields of WorkloadConfig that mean something; others but _ALWAYS are refused.
    """

    function: str
    model: str
    settings: tuple[str, ...] = _LABELLED


_IMAGES = DataSet("images:workload", "resnet8", ("augment", *_LABELLED))
_TABLE = DataSet("tables:table", "mlp2")
#: The data sets by name.
DATASETS = {
    **dict.fromkeys(("digits", "digits32", "fashion-mnist", "cifar10", "cifar100"), _IMAGES),
    **dict.fromkeys(("iris", "wine", "breast_cancer"), _TABLE),
    "mnist1d": DataSet("tables:mnist1d", "cnn3"),
    "fashion-denoise": DataSet("denoising:workload", "unet", ("train_size",)),
    "text": DataSet("text:workload", "lstm1", ("norm", "train_size")),
}


def find(config: WorkloadConfig) -> Workload:
    """The workload of a configuration; equal configurations have equal workloads, at any time.

    `data` is one of DATASETS, or "module:function": the function is called with the configuration
    if it has a parameter, and then the other settings are its own business; else with nothing, and
    they must be defaults. It returns a Workload.

    Raises:
        ValueError: the name means nothing, its function cannot be called or returns something
            else, or a setting means nothing for the data or asks for more than there is.
        FileNotFoundError: the files of CIFAR or Fashion-MNIST are not in `data_dir`.
        ModuleNotFoundError: a package that the data come with is not installed.
    """
    changed = config.model_dump(exclude_defaults=True).keys() - {"data"}
    if ":" in config.data:
        return _imported(config, changed)
    data = DATASETS.get(config.data)
    if data is None:
        raise ValueError(
            f"data: expected one of {nearest(config.data, DATASETS, _PAGE)}, got {config.data!r}; "
            "or module:function, which returns a Workload"
        )
    others = changed - {*_ALWAYS, *data.settings}
    if others:
        names = ["model", "width", *data.settings]
        raise ValueError(
            f"{', '.join(sorted(others))}: means nothing for {config.data}, which has "
            f"{nearest(min(others), names, _PAGE)}; leave it out"
        )
    make = function_of("data", f"lpkernels.experiments.workloads.{data.function}")
    try:
        workload: Workload = make(config.replace(model=config.model or data.model))
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"data: {config.data} comes with the package {error.name}, which is not installed: "
            'pip install "lpkernels[lab]"', name=error.name,
        ) from error  # fmt: skip
    return workload


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


def _imported(config: WorkloadConfig, changed: set[str]) -> Workload:
    called = function_of("data", config.data)
    takes = bool(inspect.signature(called).parameters)
    if changed and not takes:
        raise ValueError(
            f"{', '.join(sorted(changed))}: the function {config.data!r} takes no WorkloadConfig, "
            "so these would do nothing; give it a parameter, or leave them out"
        )
    workload = called(config) if takes else called()
    if not isinstance(workload, Workload):
        raise ValueError(
            f"data: {config.data!r} must return a Workload, got {type(workload).__name__}"
        )
    return workload
