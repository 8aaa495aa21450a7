"""The formats around each parameter: the keys of its group, read and checked."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
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
from lpkernels.functional.quantize import quantize
from lpkernels.techniques.loss_scaling.masters.codec import is_codes, is_values

FormatLike: TypeAlias = Format | Quantizer | str
StateLike: TypeAlias = FormatLike | Mapping[str, FormatLike]

FLOAT32 = Quantizer(FP32)
#: The arguments of `MasterWeights` that a param_group may have as keys of its own.
KEYS = ("weight", "master", "state", "grad", "compensation")
# Without a value these two round and keep nothing.
_OPTIONAL = ("grad", "compensation")
#: The tensors that are kept beside the optimizer's own states, by name.
MASTER, COMPENSATION, COUNTS = "master", "compensation", "counts"
OWN = (MASTER, COMPENSATION, COUNTS)
# Exponent and mantissa bits of the dtypes that a parameter can have.
_DTYPES = {
    torch.float16: (5, 10),
    torch.bfloat16: (8, 7),
    torch.float32: (8, 23),
    torch.float64: (8, 23),
}
# How much of a squared gradient a step adds to these states, by the options of the group; NaN
# where the options are not of an optimizer with such a state.
_SQUARES: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "exp_avg_sq": lambda group: 1 - float(group["betas"][1]) if "betas" in group else math.nan,
    "square_avg": lambda group: 1 - float(group.get("alpha", group.get("rho", math.nan))),
    "sum": lambda group: 1.0 if "initial_accumulator_value" in group else math.nan,
}
# The states of torch's optimizers that are never negative.
_NEVER_NEGATIVE = (*_SQUARES, "max_exp_avg_sq", "acc_delta", "exp_inf")
# Smaller gradients do not matter here: it is the smallest value of fp16.
_SMALLEST_GRADIENT = 2.0**-24


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

        Raises: TypeError, ValueError: there is no such format, it cannot be kept, or it has no zero
            and is for values that may be negative.
        """
        formats: dict[str, Any] = {}
        for key in KEYS:
            value = group.get(key)
            if key == "state" and isinstance(value, Mapping):
                formats["states"] = {
                    str(name): _quantizer(f"state {name}", x, name in _NEVER_NEGATIVE)
                    for name, x in value.items()
                }
            elif value is not None or key not in _OPTIONAL:
                formats[key] = _quantizer(key, value)
        return WeightFormats(**formats)

    def of_state(self, name: str) -> Quantizer:
        """The format of the optimizer's state of this name."""
        return self.states.get(name, self.state)

    def format_of(self, name: str, value: Any) -> Format | None:
        """The format of the tensor that is kept under a name; None for counts and other plain
        values."""
        own = {MASTER: self.master, COMPENSATION: self.compensation, COUNTS: None}
        quantizer = own[name] if name in own else self.of_state(name)
        if quantizer is None or not (is_values(name, value) or is_codes(value, quantizer.fmt)):
            return None
        return quantizer.fmt

    @cached_property
    def named(self) -> dict[str, Quantizer]:
        """All formats, by name."""
        named = {"weight": self.weight, "master": self.master, "state": self.state, **self.states}
        optional = {key: getattr(self, key) for key in _OPTIONAL}
        return {**named, **{key: x for key, x in optional.items() if x is not None}}

    @cached_property
    def working_is_master(self) -> bool:
        """Whether the working copy holds every bit of the master: both have one format, whose
        values never move when they are rounded to it again."""
        return self.weight.fmt == self.master.fmt and isinstance(self.weight.fmt, Number)

    @cached_property
    def draws(self) -> bool:
        """Whether anything is rounded stochastically."""
        return any(quantizer.is_stochastic for quantizer in self.named.values())

    def check_parameter(self, parameter: Tensor, label: str) -> None:
        """Raises: TypeError, ValueError: the parameter cannot have the formats."""
        if parameter.dtype not in _DTYPES:
            raise TypeError(
                f"{label} must be float16, bfloat16, float32 or float64, got {parameter.dtype}; "
                "leave it out of the optimizer"
            )
        fmt, widths = self.weight.fmt, _DTYPES[parameter.dtype]
        is_narrow = isinstance(fmt, FloatFormat | TableFormat)
        if not (fmt.fits_in(*widths) if is_narrow else widths == (8, 23)):
            raise ValueError(
                f"{label} is {parameter.dtype}, which does not hold every value of weight={fmt}; "
                "make it float32, or choose a narrower format"
            )
        for name, quantizer in self.named.items():
            wrong = misfit(quantizer.fmt.to_ints(), parameter.dim())
            if wrong is not None:
                key = "state" if name in self.states else name
                raise ValueError(
                    f"{label} has shape {tuple(parameter.shape)}, but {name}={quantizer.fmt} "
                    f"{wrong.reason}; put it into a param_group with another {key!r}"
                )
            if name not in ("weight", "grad"):
                _check_shards(parameter, name, quantizer.fmt, label)

    def warn(self, group: Mapping[str, Any]) -> None:
        """Warns where a second moment stays 0, because a step's addition to 0 rounds to 0.

        With beta = 0.999 in fp16 this is so for |g| < 5.5e-3, where (1 - beta) g^2 < 2^-25.
        """
        for name, share_of in _SQUARES.items():
            share = share_of(group)
            if not share > 0 or (self.states and name not in self.states):
                continue
            gradient = math.sqrt(_rounds_to_zero_below(self.of_state(name)) / share)
            if gradient > _SMALLEST_GRADIENT:
                warnings.warn(
                    f"MasterWeights: {name} in {self.of_state(name)} stays 0 where every "
                    f"|gradient| is below {gradient:.2g}: what a step adds to it rounds to 0, and "
                    "the optimizer divides by its root; bf16, a block format, stochastic rounding "
                    "or fp32 keep it",
                    UserWarning,
                    stacklevel=4,
                )


def _quantizer(key: str, value: Any, is_positive: bool = False) -> Quantizer:
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
    if isinstance(fmt, BlockFormat) and fmt.without_zero and not is_positive:
        raise ValueError(
            f"MasterWeights: {key}: {fmt} has no zero and no negative values; it is for states "
            f"that are never negative ({', '.join(_NEVER_NEGATIVE)}), each given by name, as in "
            f"state={{'exp_avg_sq': '{fmt}'}}"
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


def _rounds_to_zero_below(quantizer: Quantizer) -> float:
    """The largest value that becomes 0; 0.0 where it depends on other values or on draws."""
    if quantizer.is_stochastic or not isinstance(quantizer.fmt, Number):
        return 0.0
    powers = torch.exp2(torch.arange(-149, 128, dtype=torch.float32, device="cpu"))
    # The limit of a rounding is a power of two, which is itself rounded to 0 or not.
    values = torch.cat([powers, torch.nextafter(powers, torch.zeros_like(powers))])
    zeros = values[quantize(values, quantizer) == 0]
    return float(zeros.max()) if zeros.numel() else 0.0
