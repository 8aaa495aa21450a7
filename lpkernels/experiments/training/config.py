"""The configuration of one training run, as plain values: hashable, written to records and read
back.

A configuration is made of sections, each a dataclass beside the code that it configures. Every
field of every section has a name of its own, which options, specifications of sweeps and
`RunConfig.of` use.
"""

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from lpkernels.experiments.settings import (
    Section,
    at_most,
    claim,
    is_option,
    name_of,
    positive,
    section_from,
    setting,
    settings,
    unknown,
)
from lpkernels.experiments.training.arithmetic import ArithmeticConfig
from lpkernels.experiments.training.callback import CallbackConfig
from lpkernels.experiments.training.callbacks import CALLBACKS
from lpkernels.experiments.training.optimizers import OptimizerConfig
from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.formats.elsewhere import nearest

__all__ = ["RunConfig"]

#: The sections that every run has; a callback's section has the callback's name.
SECTIONS: dict[str, type[Section]] = {
    "workload": WorkloadConfig,
    "arithmetic": ArithmeticConfig,
    "optimizer": OptimizerConfig,
}


def device_exists(name: str) -> None:
    """Raises ValueError unless torch knows `name`, and has a GPU if it is one."""
    try:
        kind = torch.device(name).type
    except RuntimeError as error:
        raise ValueError(f"expected cpu, cuda or cuda:<number>, got {name!r}") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"got {name!r}, but torch finds no CUDA device; `lpkernels doctor` says why"
        )


def _device_name(name: str) -> None:
    try:
        torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"expected cpu, cuda or cuda:<number>, got {name!r}") from error


@dataclass(frozen=True)
class RunConfig(Section):
    """One training run. Equal configurations on one machine type give the same figures.

    name: the run's, in tables and plots.
    epochs, batch: times over the training examples, and examples in a step of all processes.
    accumulate: pieces of a batch, whose gradients are added before the update.
    clip: the largest norm of all gradients together, after unscaling; None: any.
    seed: of weights, order and stochastic rounding.
    device, threads: "cpu", "cuda:1", ..., and CPU threads of each process; 0 leaves torch's choice.
    workload, arithmetic, optimizer: sections of settings, which `lpkernels train --help` lists.
    callbacks: the sections of the run's callbacks, in the order in which they are called; one whose
        settings are all defaults is no callback, and is left out.

    Raises: TypeError, ValueError: a value of another type, or one that its field refuses.

    >>> from lpkernels.experiments.training.config import RunConfig
    >>> config = RunConfig.of(epochs=2, model="mlp2")
    >>> config.epochs, config.workload.model
    (2, 'mlp2')
    """

    TITLE: ClassVar[str] = "Run"

    name: str = setting("run", "Name of the run in tables and plots.")
    epochs: int = setting(10, "Times over the training examples.", least=1)
    batch: int = setting(64, "Examples in a step of all processes.", least=1)
    accumulate: int = setting(
        1, "Pieces of a batch, whose gradients are added before the update.", least=1
    )
    clip: float | None = setting(
        None, "Largest norm of all gradients together, after unscaling.", check=positive
    )
    seed: int = setting(0, "Seed of weights, order and stochastic rounding.", least=0)
    device: str = setting("cpu", "cpu, cuda, cuda:1, ...", check=_device_name)
    threads: int = setting(
        2,
        "CPU threads of each process, 0 leaves torch's choice. torch's float32 sums depend on it.",
        least=0,
        check=at_most(1024),
    )
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    arithmetic: ArithmeticConfig = field(default_factory=ArithmeticConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    callbacks: tuple[CallbackConfig, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [type(callback).NAME for callback in self.callbacks]
        if len(set(names)) < len(names):
            raise ValueError(f"RunConfig: callbacks: expected each once, got {', '.join(names)}")
        order = list(CALLBACKS)
        present = (callback for callback in self.callbacks if callback != type(callback)())
        ordered = sorted(present, key=lambda callback: order.index(type(callback).NAME))
        object.__setattr__(self, "callbacks", tuple(ordered))

    @staticmethod
    def of(**values: Any) -> "RunConfig":
        """The configuration with these fields, of any section, by their own names.

        Raises:
            TypeError: a value of another type.
            ValueError: a name that is no field, or a value that its field refuses.
        """
        return RunConfig().replace(**values)

    def replace(self, **values: Any) -> "RunConfig":
        """This configuration with other values of some fields, of any section; errors as in `of`.

        A whole section may be given by its name too.
        """
        known = flat_settings()
        whole = {k: v for k, v in values.items() if k in SECTIONS and isinstance(v, Section)}
        whole |= {k: v for k, v in values.items() if k == "callbacks"}
        others = sorted(set(values) - set(known) - set(whole))
        if others:
            raise unknown("RunConfig", others, list(known))
        changed: dict[str, dict[str, Any]] = {}
        for name in values.keys() - whole.keys():
            changed.setdefault(known[name][0], {})[name] = values[name]
        fields: dict[str, Any] = {**changed.pop("", {}), **whole}
        for name in SECTIONS:
            if name in changed:
                base = fields.get(name, getattr(self, name))
                fields[name] = dataclasses.replace(base, **changed.pop(name))
        callbacks = {
            type(callback).NAME: callback for callback in fields.get("callbacks", self.callbacks)
        }
        for name, new in changed.items():
            callbacks[name] = dataclasses.replace(callbacks.get(name, CALLBACKS[name]()), **new)
        return dataclasses.replace(self, **{**fields, "callbacks": tuple(callbacks.values())})

    def flat(self) -> dict[str, Any]:
        """Every field of every section by its own name; absent callbacks have their defaults."""
        callbacks = {name: CALLBACKS[name]() for name in CALLBACKS}
        callbacks |= {type(callback).NAME: callback for callback in self.callbacks}
        owners: dict[str, Section] = {"": self, **callbacks}
        owners |= {name: getattr(self, name) for name in SECTIONS}
        return {name: getattr(owners[owner], name) for name, (owner, _) in flat_settings().items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain values by section, as JSON and checkpoints hold them."""
        sections = {name: getattr(self, name).to_dict() for name in SECTIONS}
        callbacks = {type(callback).NAME: callback.to_dict() for callback in self.callbacks}
        return {**super().to_dict(), **sections, "callbacks": callbacks}

    @staticmethod
    def from_dict(values: Mapping[str, Any], version: str = "") -> "RunConfig":
        """The inverse of `to_dict`.

        Args:
            values: the plain values that were written.
            version: the lpkernels that wrote it, for the error.
        Raises: ValueError: a field or a callback that this version does not know.
        """
        own = {each.name for each in settings(RunConfig)}
        others = sorted(set(values) - own - set(SECTIONS) - {"callbacks", "parts"})
        if others:
            raise unknown("RunConfig", others, [], version or "another version")
        # Records and checkpoints of earlier versions call them parts.
        callbacks = values.get("callbacks", values.get("parts", {}))
        for name in callbacks:
            if name not in CALLBACKS:
                raise ValueError(
                    f"RunConfig: unknown callback {name!r}; import the module that registers it "
                    f"or read this with the lpkernels that wrote it: {version or 'another version'}"
                )
        return RunConfig(
            **{name: values[name] for name in own & set(values)},
            **{
                name: section_from(section, values.get(name, {}), version)
                for name, section in SECTIONS.items()
            },
            callbacks=tuple(
                section_from(CALLBACKS[name], callbacks[name], version) for name in callbacks
            ),
        )


def sections() -> dict[str, type[Section]]:
    """All sections by name: "" is the section of the run's own fields, callbacks come last."""
    return {"": RunConfig, **SECTIONS, **CALLBACKS}


for _name, _section in sections().items():
    claim(_name, _section)


def flat_settings() -> dict[str, tuple[str, "dataclasses.Field[Any]"]]:
    """Every field by its own name: the section it belongs to, and the field."""
    return {
        each.name: (name, each)
        for name, section in sections().items()
        for each in settings(section)
    }


def command_of(config: RunConfig, out: str = "") -> str:
    """The text of the command that trains a configuration into the folder `out`, "" for the
    command's own; a comment where this needs a setting that has no option."""
    values, defaults = config.flat(), RunConfig().flat()
    words = ["lpkernels train"]
    for name, (_, definition) in flat_settings().items():
        value = values[name]
        if value == defaults[name]:
            continue
        if not is_option(definition):
            return f"# {name} is no option of lpkernels train: run it from a sweep's specification"
        option = name_of(definition) or f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option if value else option.replace("--", "--no-", 1))
        else:
            words.append(f"{option} {shlex.quote(str(value))}")
    return " ".join([*words, f"--out {shlex.quote(out)}"] if out else words)


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields given by name or in a table of their section, as in {"optimizer": {"lr": 0.1}}, as
    one mapping by name.

    Raises: ValueError: an unknown field or section, a field given twice, or in a section that it
        does not belong to.
    """
    known, places = flat_settings(), sections()
    found: dict[str, Any] = {}
    for name, value in values.items():
        inner = value if isinstance(value, Mapping) else {name: value}
        if isinstance(value, Mapping) and name not in places:
            listed = nearest(name, filter(None, places), "`lpkernels train --help` lists all")
            raise ValueError(f"unknown section {name!r}; expected one of {listed}")
        others = sorted(set(inner) - set(known))
        if others:
            where = "RunConfig" if inner is not value else f"section {name!r}"
            raise unknown(where, others, list(known))
        for entry, given in inner.items():
            owner = known[entry][0]
            if inner is value and owner != name:
                right = f"belongs to section {owner!r}" if owner else "is a field of the run itself"
                raise ValueError(f"{name}.{entry}: it {right}")
            if entry in found:
                raise ValueError(f"{entry}: given twice")
            found[entry] = given
    return found
