"""The formats around each parameter: the keys of its group, read and checked."""

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
from lpkernels.formats.integers import InBlock, follows_from_values

FormatLike: TypeAlias = Format | Quantizer | str
StateLike: TypeAlias = FormatLike | Mapping[str, FormatLike]

FLOAT32 = Quantizer(FP32)
#: The arguments of `MasterWeights` that a param_group may have as keys of its own.
KEYS = ("weight", "master", "state", "grad", "compensation")
# Without a value these two round and keep nothing.
_OPTIONAL = ("grad", "compensation")
# Exponent and mantissa bits of the dtypes that a parameter can have.
_DTYPES = {
    torch.float16: (5, 10),
    torch.bfloat16: (8, 7),
    torch.float32: (8, 23),
    torch.float64: (8, 23),
}


@dataclass(frozen=True)
class WeightFormats:
    """The formats around a parameter; `MasterWeights` says what each means.

    states: formats of the optimizer's states, by name; states of other names have `state`, which is
        float32 where some are named.
    """

    weight: Quantizer
    master: Quantizer = FLOAT32
    state: Quantizer = FLOAT32
    states: Mapping[str, Quantizer] = field(default_factory=dict)
    grad: Quantizer | None = None
    compensation: Quantizer | None = None

    @staticmethod
    def of(group: Mapping[str, Any]) -> WeightFormats:
        """The formats that a group has under `KEYS`.

        Raises: TypeError, ValueError: there is no such format, or it cannot be kept.
        """
        formats: dict[str, Any] = {}
        for key in KEYS:
            value = group.get(key)
            if key == "state" and isinstance(value, Mapping):
                formats["states"] = {str(k): _quantizer(f"state {k}", x) for k, x in value.items()}
            elif value is not None or key not in _OPTIONAL:
                formats[key] = _quantizer(key, value)
        return WeightFormats(**formats)

    def of_state(self, name: str) -> Quantizer:
        """The format of the optimizer's state of this name."""
        return self.states.get(name, self.state)

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


def _quantizer(key: str, value: Any) -> Quantizer:
    try:
        quantizer = as_quantizer(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"MasterWeights: {key}: {error}") from error
    fmt = quantizer.fmt
    if isinstance(fmt, BlockFormat) and fmt.axis == "k":
        raise ValueError(
            f"MasterWeights: {key}: {fmt} has axis='k', which is of products; give one such as "
            "axis=-1"
        )
    if key not in ("weight", "grad") and isinstance(fmt, AffineFormat):
        raise ValueError(
            f"MasterWeights: {key}: {fmt} cannot be kept as codes, whose range is in the tensor; "
            "use a FixedFormat or a BlockFormat"
        )
    return quantizer


def plain(value: Any) -> Any:
    """A format as the plain value that a group holds, and a state_dict with it."""
    if isinstance(value, Mapping):
        return {str(name): plain(fmt) for name, fmt in value.items()}
    return str(value) if isinstance(value, Format | Quantizer) else value


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
        _check_parameter(parameter, formats, f"MasterWeights: parameter {name!r}")
    return rules


def _check_parameter(parameter: Tensor, formats: WeightFormats, label: str) -> None:
    """Raises: TypeError, ValueError: the parameter cannot have the formats."""
    if parameter.dtype not in _DTYPES:
        raise TypeError(
            f"{label} must be float16, bfloat16, float32 or float64, got {parameter.dtype}; leave "
            "it out of the optimizer"
        )
    fmt, widths = formats.weight.fmt, _DTYPES[parameter.dtype]
    fits = fmt.fits_in(*widths) if isinstance(fmt, FloatFormat | TableFormat) else widths == (8, 23)
    if not fits:
        raise ValueError(
            f"{label} is {parameter.dtype}, which does not hold every value of weight={fmt}; "
            "make it float32, or choose a narrower format"
        )
    for name, quantizer in formats.all():
        wrong = misfit(quantizer.fmt.to_ints(), parameter.dim())
        if wrong is not None:
            key = "state" if name in formats.states else name
            raise ValueError(
                f"{label} has shape {tuple(parameter.shape)}, but {name}={quantizer.fmt} "
                f"{wrong.reason}; put it into a param_group with another {key!r}"
            )
    for name, quantizer in formats.kept().items():
        _check_shards(parameter, name, quantizer.fmt, label)


def _check_shards(parameter: Tensor, name: str, fmt: Format, label: str) -> None:
    """Raises: ValueError: a block that is kept lies in two shards."""
    ints = fmt.to_ints()
    if not isinstance(fmt, BlockFormat) or not follows_from_values(ints):
        return
    block, axis = ints[InBlock.SIZE], ints[InBlock.AXIS] % max(parameter.dim(), 1)
    for along, placement in enumerate(getattr(parameter, "placements", ())):
        if getattr(placement, "dim", None) != axis:
            continue
        size = parameter.shape[axis]
        shard = -(-size // parameter.device_mesh.size(along))  # type: ignore[attr-defined]
        if shard < size and shard % block:
            raise ValueError(
                f"{label} of shape {tuple(parameter.shape)} is sharded in pieces of {shard} along "
                f"axis {axis}, which cut the blocks of {name}={fmt}; give the blocks another axis "
                "or size, or put it into a param_group with another format"
            )
