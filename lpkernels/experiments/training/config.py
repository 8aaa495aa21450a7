"""The configuration of one training run, as plain values: hashable, written to records and read
back.

A configuration is made of sections, each beside the code that it configures. Every field of every
section has a name of its own, which options, specifications of sweeps and `RunConfig.of` use.
"""

import shlex
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field, field_serializer, field_validator
from pydantic.fields import FieldInfo

import lpkernels
from lpkernels.experiments.settings import Settings, checked, option_of, unknown_field
from lpkernels.experiments.training.arithmetic import ArithmeticConfig
from lpkernels.experiments.training.callback import CallbackConfig
from lpkernels.experiments.training.callbacks import CALLBACKS
from lpkernels.experiments.training.optimizers import OptimizerConfig
from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.formats.elsewhere import nearest

__all__ = ["RunConfig"]


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"expected cpu, cuda or cuda:<number>, got {name!r}") from error


def device_exists(name: str) -> None:
    """Raises ValueError unless torch knows `name`, and has a GPU if it is one."""
    if _device(name).type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"got {name!r}, but torch finds no CUDA device; `lpkernels doctor` says why"
        )


class RunConfig(Settings):
    """One training run. Equal configurations on one machine type give the same figures.

    workload, arithmetic, optimizer: sections of settings, which `lpkernels train --help` lists.
    callbacks: the sections of the run's callbacks, in the order in which they are called; one whose
        settings are all defaults is no callback, and is left out.

    Raises: TypeError, ValueError: as `Settings`.

    >>> from lpkernels.experiments.training.config import RunConfig
    >>> config = RunConfig.of(epochs=2, model="mlp2")
    >>> config.epochs, config.workload.model
    (2, 'mlp2')
    """

    name: str = Field("run", description="Name of the run in tables and plots.")
    epochs: int = Field(10, ge=1, description="Passes over the training examples.")
    batch: int = Field(64, ge=1, description="Examples in a step of all processes.")
    clip: float | None = Field(
        None, gt=0, description="Gradient clipping: the largest total norm, after unscaling."
    )
    seed: int = Field(0, ge=0, description="Seed of weights, order and stochastic rounding.")
    device: Annotated[str, checked(_device)] = Field("cpu", description="cpu, cuda, cuda:1, ...")
    threads: int = Field(
        2, ge=0, le=1024,
        description="CPU threads of each process, 0 leaves torch's choice. torch's float32 sums "
        "depend on it.",
    )  # fmt: skip
    workload: WorkloadConfig = WorkloadConfig()
    arithmetic: ArithmeticConfig = ArithmeticConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    callbacks: tuple[CallbackConfig, ...] = ()

    @field_validator("callbacks", mode="before")
    @classmethod
    def _from_tables(cls, callbacks: Any) -> Any:
        """Callbacks from their tables by name, as `to_dict` writes them."""
        if not isinstance(callbacks, Mapping):
            return callbacks
        for name in callbacks.keys() - CALLBACKS.keys():
            raise ValueError(f"unknown callback {name!r}; import the module that registers it")
        return tuple(CALLBACKS[name](**values) for name, values in callbacks.items())

    @field_validator("callbacks")
    @classmethod
    def _in_order(cls, callbacks: tuple[CallbackConfig, ...]) -> tuple[CallbackConfig, ...]:
        names = [callback.NAME for callback in callbacks]
        if len(set(names)) < len(names):
            raise ValueError(f"expected each once, got {', '.join(names)}")
        order = list(CALLBACKS)
        present = (callback for callback in callbacks if callback != type(callback)())
        return tuple(sorted(present, key=lambda callback: order.index(callback.NAME)))

    @field_serializer("callbacks")
    def _tables(self, callbacks: tuple[CallbackConfig, ...]) -> dict[str, Any]:
        return {callback.NAME: callback.to_dict() for callback in callbacks}

    @staticmethod
    def of(**values: Any) -> "RunConfig":
        """The configuration with these fields, of any section, by their own names.

        Raises:
            TypeError: a value of another type.
            ValueError: a name that is no field, or a value that its field refuses.
        """
        owners, tables = flat_settings(), dict[str, dict[str, Any]]()
        for name, value in flatten(values).items():
            tables.setdefault(owners[name][0], {})[name] = value
        own, kinds = tables.pop("", {}), {**SECTIONS, **CALLBACKS}
        settings: dict[str, Any] = {name: kinds[name](**table) for name, table in tables.items()}
        callbacks = tuple(settings.pop(name) for name in CALLBACKS if name in settings)
        return RunConfig(**own, **settings, callbacks=callbacks)

    def replace(self, **values: Any) -> "RunConfig":
        """This configuration with other values of fields of any section; errors as in `of`."""
        return RunConfig.of(**{**self.flat(), **flatten(values)})

    def flat(self) -> dict[str, Any]:
        """Every field of every section by its own name; absent callbacks have their defaults."""
        tables = {
            "": self,
            **dict(self),
            **{callback.NAME: callback for callback in self.callbacks},
        }
        return {
            name: getattr(tables[section], name) if section in tables else field.default
            for name, (section, field) in flat_settings().items()
        }

    @staticmethod
    def from_dict(values: Mapping[str, Any], version: str = "") -> "RunConfig":
        """The inverse of `to_dict`.

        Args:
            values: the plain values that were written.
            version: the lpkernels that wrote it, for the error.
        Raises: ValueError: a field or a callback that this version does not know, or a value that
            it refuses.
        """
        try:
            return RunConfig(**values)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{error}; written by lpkernels {version or 'of another version'}, this is "
                f"{lpkernels.__version__}"
            ) from error


#: The sections that every run has; a callback's section has the callback's name.
SECTIONS: dict[str, type[Settings]] = {
    name: type(field.default)
    for name, field in RunConfig.model_fields.items()
    if isinstance(field.default, Settings)
}


def sections() -> dict[str, dict[str, FieldInfo]]:
    """The fields of all sections by their names; "" is the run itself, callbacks come last."""
    fields = RunConfig.model_fields
    own = {name: field for name, field in fields.items() if name not in (*SECTIONS, "callbacks")}
    kinds = {**SECTIONS, **CALLBACKS}
    return {"": own, **{name: section.model_fields for name, section in kinds.items()}}


def flat_settings() -> dict[str, tuple[str, FieldInfo]]:
    """Every field by its own name: the section it belongs to, and the field.

    Raises: ValueError: two sections have a field of one name.
    """
    flat: dict[str, tuple[str, FieldInfo]] = {}
    for section, fields in sections().items():
        for name in fields.keys() & flat.keys():
            raise ValueError(
                f"{section}.{name}: section {flat[name][0] or 'run'!r} has a field of that name, "
                "and every field of a run needs a name of its own"
            )
        flat |= {name: (section, field) for name, field in fields.items()}
    return flat


def recorded_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of a recorded configuration (`RunConfig.to_dict`) by its own name, also those
    of earlier versions; settings that it lacks have their defaults."""

    def own(table: Mapping[str, Any]) -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for name, value in table.items():
            flat |= own(value) if isinstance(value, Mapping) else {name: value}
        return flat

    return {**RunConfig().flat(), **own(values)}


def command_of(config: RunConfig, out: str = "") -> str:
    """The text of the command that trains a configuration into the folder `out`, "" for the
    command's own; a comment where this needs a setting that has no option."""
    values, defaults = config.flat(), RunConfig().flat()
    words = ["lpkernels train"]
    for name, (_, field) in flat_settings().items():
        value, option = values[name], option_of(name, field)
        if value == defaults[name]:
            continue
        if not option:
            return f"# {name} is no option of lpkernels train: run it from a sweep's specification"
        if isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        else:
            words.append(f"{option} {shlex.quote(str(value))}")
    return " ".join([*words, f"--out {shlex.quote(out)}"] if out else words)


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields given by name or in a table of their section, as in {"optimizer": {"lr": 0.1}}, as
    one mapping by name.

    Raises: ValueError: an unknown field or section, or a field given twice.
    """
    tables, all_fields, flat = sections(), [*flat_settings()], dict[str, Any]()
    for key, value in values.items():
        where, fields, table = "RunConfig", all_fields, {key: value}
        if isinstance(value, Mapping):
            if key not in tables:
                names = nearest(key, filter(None, tables), "`lpkernels train --help` lists all")
                raise ValueError(f"unknown section {key!r}; expected one of {names}")
            where, fields, table = f"section {key!r}", [*tables[key]], dict(value)
        for name, setting in table.items():
            if name not in fields:
                raise unknown_field(where, name, fields)
            if name in flat:
                raise ValueError(f"{name}: given twice")
            flat[name] = setting
    return flat
