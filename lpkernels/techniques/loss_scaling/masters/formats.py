"""The formats around each parameter, as the keys of its group name them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lpkernels.arithmetic import Quantizer, as_quantizer
from lpkernels.formats import (
    FP32,
    AffineFormat,
    BlockFormat,
    FloatFormat,
    Format,
    Number,
    TableFormat,
)
from lpkernels.formats.grids import misfit
from lpkernels.formats.integers import InBlock, follows_from_values, has_every_float_code

FormatLike: TypeAlias = Format | Quantizer | str
StateLike: TypeAlias = FormatLike | Mapping[str, FormatLike]

FLOAT32 = Quantizer(FP32)
FLOAT32_NAME = "fp32"
# The arguments of `MasterWeights` that a param_group may have as keys of its own.
KEYS = ("weight", "master", "state", "grad", "compensation")


@dataclass(frozen=True)
class WeightFormats:
    """The formats around a parameter; `MasterWeights` says what each means.

    states: formats of the optimizer's states, by name; states of other names have `state`.
    names: the user's names of formats; other formats have their own names.
    """

    weight: Quantizer
    master: Quantizer = FLOAT32
    state: Quantizer = FLOAT32
    states: Mapping[str, Quantizer] = field(default_factory=dict)
    grad: Quantizer | None = None
    compensation: Quantizer | None = None
    names: Mapping[Format, str] = field(default_factory=dict, compare=False)

    @staticmethod
    def of(group: Mapping[str, Any]) -> WeightFormats:
        """The formats that a group has under `KEYS`.

        Raises: TypeError, ValueError: there is no such format, or it cannot be kept.
        """
        names: dict[Format, str] = {}
        given: dict[str, Any] = {"names": names}

        def read(label: str, value: Any) -> Quantizer:
            quantizer = _quantizer(f"MasterWeights: {label}", value)
            if isinstance(value, str):
                names.setdefault(quantizer.fmt, value.partition(":")[0])
            if label not in ("weight", "grad") and isinstance(quantizer.fmt, AffineFormat):
                raise ValueError(
                    f"MasterWeights: {label}: {quantizer.fmt} cannot be kept as codes, whose range "
                    "is in the tensor; use a FixedFormat or a BlockFormat"
                )
            return quantizer

        for name in KEYS:
            value = group.get(name)
            if name == "state" and isinstance(value, Mapping):
                given["states"] = {str(k): read(f"state {k}", v) for k, v in value.items()}
            elif value is not None or name not in ("grad", "compensation"):
                given[name] = read(name, value)
        return WeightFormats(**given)

    def name_of(self, fmt: Format) -> str:
        """The name by which the user gave the format first, else its own."""
        return {FP32: FLOAT32_NAME, **self.names}.get(fmt, str(fmt))

    def of_state(self, name: str) -> Quantizer:
        """The format of the optimizer's state of this name."""
        return self.states.get(name, FLOAT32 if self.states else self.state)

    @cached_property
    def working_is_master(self) -> bool:
        """Whether the working copy holds every bit of the master: both have one format, whose
        values never move when they are rounded to it again."""
        return self.weight.fmt == self.master.fmt and isinstance(self.weight.fmt, Number)

    def kept(self) -> dict[str, Quantizer]:
        """The formats that are kept between steps beside the working copy, by name."""
        kept = {"master": self.master, "state": self.state, **self.states}
        return kept if self.compensation is None else {**kept, "compensation": self.compensation}

    def all(self) -> Iterator[tuple[str, Quantizer]]:
        """All formats, by name."""
        yield from {"weight": self.weight, **self.kept()}.items()
        if self.grad is not None:
            yield "grad", self.grad

    @cached_property
    def draws(self) -> bool:
        """Whether anything is rounded stochastically."""
        return any(quantizer.is_stochastic for _, quantizer in self.all())


def plain(value: Any) -> Any:
    """A format as the plain value that a group holds, and a state_dict with it."""
    if isinstance(value, Mapping):
        return {str(name): plain(fmt) for name, fmt in value.items()}
    return str(value) if isinstance(value, Format | Quantizer) else value


def has_every_code(fmt: Format) -> bool:
    """Whether every value that rounding makes has a code, infinities and NaN too."""
    if isinstance(fmt, FloatFormat):
        return has_every_float_code(fmt.to_ints())
    if isinstance(fmt, TableFormat):
        return fmt.nan_code is not None
    return isinstance(fmt, BlockFormat)


def _quantizer(label: str, value: Any) -> Quantizer:
    try:
        quantizer = as_quantizer(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{label}: {error}") from error
    if isinstance(quantizer.fmt, BlockFormat) and quantizer.fmt.axis == "k":
        raise ValueError(
            f"{label}: {quantizer.fmt} has axis='k', which is of products; give one such as axis=-1"
        )
    return quantizer


# Exponent and mantissa bits of the dtypes that a parameter can have.
_DTYPES = {
    torch.float16: (5, 10),
    torch.bfloat16: (8, 7),
    torch.float32: (8, 23),
    torch.float64: (8, 23),
}


@dataclass(frozen=True)
class Rule:
    """A parameter's name, its number in the draws' keys, its formats and its dtype."""

    name: str
    number: int
    formats: WeightFormats
    dtype: torch.dtype


def rules_of(
    group: Mapping[str, Any], defaults: Mapping[str, Any], start: int
) -> dict[Tensor, Rule]:
    """The rules of a group's parameters, numbered from `start`; each parameter is checked.

    A name is the one that the optimizer was made with, else the parameter's number.
    """
    formats = WeightFormats.of({key: group.get(key, defaults[key]) for key in KEYS})
    names = group.get("param_names") or map(str, range(start, start + len(group["params"])))
    rules = {}
    for number, (name, parameter) in enumerate(zip(names, group["params"], strict=True), start):
        rules[parameter] = Rule(name, number, formats, parameter.dtype)
        check_parameter(parameter, rules[parameter])
    return rules


def check_parameter(parameter: Tensor, rule: Rule) -> None:
    """Checks that a parameter can have the formats of its rule.  Raises TypeError, ValueError."""
    label = f"MasterWeights: parameter {rule.name!r}"
    if parameter.dtype not in _DTYPES:
        raise TypeError(
            f"{label} must be float16, bfloat16, float32 or float64, got {parameter.dtype}; leave "
            "it out of the optimizer"
        )
    fmt, widths = rule.formats.weight.fmt, _DTYPES[parameter.dtype]
    fits = fmt.fits_in(*widths) if isinstance(fmt, FloatFormat | TableFormat) else widths == (8, 23)
    if not fits:
        raise ValueError(
            f"{label} is {parameter.dtype}, which does not hold every value of weight={fmt}; "
            "make it float32, or choose a narrower format"
        )
    for name, quantizer in rule.formats.all():
        wrong = misfit(quantizer.fmt.to_ints(), parameter.dim())
        if wrong is not None:
            key = "state" if name in rule.formats.states else name
            raise ValueError(
                f"{label} has shape {tuple(parameter.shape)}, but {name}={quantizer.fmt} "
                f"{wrong.reason}; put it into a param_group with another {key!r}"
            )
    _check_blocks(parameter, rule)


def _check_blocks(parameter: Tensor, rule: Rule) -> None:
    """Checks that no block that is kept lies in two shards. Raises ValueError."""
    placements = getattr(parameter, "placements", ())
    for name, quantizer in rule.formats.kept().items():
        fmt = quantizer.fmt
        ints = fmt.to_ints()
        if not isinstance(fmt, BlockFormat) or not follows_from_values(ints):
            continue
        block, axis = ints[InBlock.SIZE], ints[InBlock.AXIS]
        dims = max(parameter.dim(), 1)
        for along, placement in enumerate(placements):
            if getattr(placement, "dim", None) != axis % dims:
                continue
            size = parameter.shape[axis]
            shard = -(-size // parameter.device_mesh.size(along))  # type: ignore[attr-defined]
            if shard < size and shard % block:
                raise ValueError(
                    f"MasterWeights: parameter {rule.name!r} of shape {tuple(parameter.shape)} is "
                    f"sharded in pieces of {shard} along axis {axis % dims}, which cut the "
                    f"blocks of {name}={fmt}; give the blocks another axis or size, or put it into "
                    "a param_group with another format"
                )
