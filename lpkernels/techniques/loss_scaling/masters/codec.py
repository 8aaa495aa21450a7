"""How weights, masters and states are rounded and kept: the formats of a param_group; the codec,
which keeps values as codes of their format's size or in a dtype, whole or in parts (FSDP2)."""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lpkernels.arithmetic import Quantizer, as_quantizer
from lpkernels.formats import (
    BF16,
    FP16,
    FP32,
    AffineFormat,
    BlockFormat,
    FloatFormat,
    Format,
    Number,
)
from lpkernels.formats.grids import misfit
from lpkernels.formats.integers import InBlock, follows_from_values, has_every_float_code
from lpkernels.functional.packing import pack, unpack
from lpkernels.functional.quantize import quantize
from lpkernels.functional.seeds import derived_seed

FormatLike: TypeAlias = Format | Quantizer | str
StateLike: TypeAlias = FormatLike | Mapping[str, FormatLike]

#: The arguments of `MasterWeights` that a param_group may have as keys of its own.
KEYS = ("weight", "master", "state", "grad")
#: The tensors that are kept beside the optimizer's own states, by name.
MASTER, COUNTS = "master", "counts"
#: The names that an optimizer's states cannot have.
OWN = (*KEYS, COUNTS)
# A state's key is above these: `draw_key`.
_DRAW_KEYS = {"grad": 1, MASTER: 2, "weight": 3}
# Exponent and mantissa bits of the dtypes that a parameter can have.
_WIDTHS = {
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
# States of torch's optimizers that count or schedule, one number for a whole tensor.
_NUMBERS = {"step", "eta", "mu", "mu_product"}
# Formats that torch has a dtype for and keeps at their size.
_DTYPES: dict[Format, torch.dtype] = {
    FP32: torch.float32,
    FP16: torch.float16,
    BF16: torch.bfloat16,
}


@dataclass(frozen=True)
class WeightFormats:
    """The formats around a parameter; `MasterWeights` says what each means.

    named: by `KEYS` and by names of the optimizer's states; "state" is for all other states.
    """

    named: Mapping[str, Quantizer]

    @staticmethod
    def of(group: Mapping[str, Any]) -> WeightFormats:
        """The formats that a group has under `KEYS`.

        Raises: TypeError, ValueError: there is no such format, it cannot be kept, or it has no zero
            and is for values that may be negative.
        """
        values, states = {key: group.get(key) for key in KEYS}, group.get("state")
        if values["grad"] is None:
            values["grad"] = FP32
        if isinstance(states, Mapping):
            values = {**{str(name): fmt for name, fmt in states.items()}, **values, "state": FP32}
        return WeightFormats({name: _quantizer(name, value) for name, value in values.items()})

    @property
    def states(self) -> set[str]:
        """The names of the optimizer's states that have formats of their own."""
        return set(self.named).difference(KEYS)

    def __getitem__(self, name: str) -> Quantizer:
        """The quantizer of a key or of a state."""
        return self.named.get(name, self.named["state"])

    def format_of(self, name: str, value: Any) -> Format | None:
        """The format of the tensor that is kept under a name; None for counts and other plain
        values."""
        fmt = self[name].fmt
        has_format = name != COUNTS and (is_values(name, value) or is_codes(value, fmt))
        return fmt if has_format else None

    def rounded(self, name: str, values: Tensor, seed: Tensor | None) -> Tensor:
        """Float32 values in the format of a name; `values` itself where that is float32.

        A draw is a function of (seed, name, row-major index in `values`): pass whole tensors.
        """
        quantizer = self[name]
        if quantizer.fmt == FP32 and values.dtype == torch.float32:
            return values
        own = None
        if seed is not None and quantizer.is_stochastic:
            own = derived_seed(seed, draw_key(name))
        return quantize(values, quantizer, generator=own).float()

    @cached_property
    def working_is_master(self) -> bool:
        """Whether the working copy holds every bit of the master: both have one format, whose
        values never move when they are rounded to it again."""
        fmt = self["weight"].fmt
        return fmt == self[MASTER].fmt and isinstance(fmt, Number)

    @cached_property
    def draws(self) -> bool:
        """Whether anything is rounded stochastically."""
        return any(quantizer.is_stochastic for quantizer in self.named.values())

    @cached_property
    def keeps_every_value(self) -> bool:
        """Whether masters and states have codes for all values, for infinities and NaN too."""
        kept = [self.named[name].fmt for name in self.named if name not in ("weight", "grad")]
        return all(isinstance(fmt, BlockFormat) or has_every_code(fmt) for fmt in kept)

    def check_parameter(self, parameter: Tensor, label: str) -> None:
        """Raises: TypeError, ValueError: the parameter cannot have the formats."""
        if parameter.dtype not in _WIDTHS:
            raise TypeError(
                f"{label} must be float16, bfloat16, float32 or float64, got {parameter.dtype}; "
                "leave it out of the optimizer"
            )
        fmt = self["weight"].fmt
        if not fmt.fits_in(*_WIDTHS[parameter.dtype]):
            raise ValueError(
                f"{label} is {parameter.dtype}, which does not hold every value of weight={fmt}; "
                "make it float32, or choose a narrower format"
            )
        for name, quantizer in self.named.items():
            reason = _misfit(quantizer.fmt, parameter, name not in ("weight", "grad"))
            if reason:
                key = name if name in KEYS else "state"
                raise ValueError(
                    f"{label} has shape {tuple(parameter.shape)}, but {name}={quantizer.fmt} "
                    f"{reason}; put it into a param_group with another {key!r}"
                )

    def warn(self, group: Mapping[str, Any]) -> None:
        """Warns where a second moment stays 0, because a step's addition to 0 rounds to 0.

        With beta = 0.999 in fp16 this is so for |g| < 5.5e-3, where (1 - beta) g^2 < 2^-25.
        """
        for name, share_of in _SQUARES.items():
            share = share_of(group)
            gradient = math.sqrt(_rounds_to_zero_below(self[name]) / share) if share > 0 else 0.0
            # Smaller gradients do not matter here: it is the smallest value of fp16.
            if gradient > 2.0**-24:
                warnings.warn(
                    f"MasterWeights: {name} in {self[name]} stays 0 where every "
                    f"|gradient| is below {gradient:.2g}: what a step adds to it rounds to 0, and "
                    "the optimizer divides by its root; bf16, a block format, stochastic rounding "
                    "or fp32 keep it",
                    UserWarning,
                    stacklevel=4,
                )


def _quantizer(key: str, value: Any) -> Quantizer:
    """The quantizer of a key of the group, or of a state's name."""
    label = key if key in KEYS else f"state {key}"
    try:
        quantizer = as_quantizer(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"MasterWeights: {label}: {error}") from error
    fmt = quantizer.fmt
    if isinstance(fmt, BlockFormat) and fmt.without_zero and key not in _NEVER_NEGATIVE:
        raise ValueError(
            f"MasterWeights: {label}: {fmt} has no zero and no negative values; it is for states "
            f"that are never negative ({', '.join(_NEVER_NEGATIVE)}), each given by name, as in "
            f"state={{'exp_avg_sq': '{fmt}'}}"
        )
    if key not in ("weight", "grad") and isinstance(fmt, AffineFormat):
        raise ValueError(
            f"MasterWeights: {label}: {fmt} cannot be kept as codes, whose range is in the tensor; "
            "use a FixedFormat or a BlockFormat"
        )
    return quantizer


def plain(value: Any) -> Any:
    """A format as the plain value that a group holds, and a state_dict with it."""
    if isinstance(value, Mapping):
        return {str(name): plain(fmt) for name, fmt in value.items()}
    return str(value) if isinstance(value, Format | Quantizer) else value


def _misfit(fmt: Format, parameter: Tensor, is_kept: bool) -> str:
    """Why a parameter cannot have a format, or "": the axis is missing, or a block of a master or
    state lies in two shards."""
    ints = fmt.to_ints()
    wrong = misfit(ints, parameter.dim())
    if wrong is not None:
        return wrong.reason
    if is_kept and isinstance(fmt, BlockFormat) and follows_from_values(ints):
        block, axis = ints[InBlock.SIZE], ints[InBlock.AXIS] % max(parameter.dim(), 1)
        for along, placement in enumerate(getattr(parameter, "placements", ())):
            if getattr(placement, "dim", None) == axis:
                size = parameter.shape[axis]
                shard = -(-size // parameter.device_mesh.size(along))  # type: ignore[attr-defined]
                if shard < size and shard % block:
                    return f"has blocks that are cut by shards of {shard} along axis {axis}"
    return ""


def _rounds_to_zero_below(quantizer: Quantizer) -> float:
    """All smaller values become 0; 0.0 where that depends on other values or on draws."""
    if quantizer.is_stochastic or not isinstance(quantizer.fmt, Number):
        return 0.0
    # The limit of a rounding is a power of two.
    powers = torch.exp2(torch.arange(-149, 128, dtype=torch.float32, device="cpu"))
    below = torch.nextafter(powers, torch.zeros_like(powers))
    return max(powers[quantize(below, quantizer) == 0].tolist(), default=0.0)


def has_every_code(fmt: Format) -> bool:
    """Whether a format is of floats that all have codes, infinities and NaN too."""
    return isinstance(fmt, FloatFormat) and has_every_float_code(fmt.to_ints())


def draw_key(name: str) -> int:
    """The key of the draws of a tensor; that of a state is the same whatever other states there
    are, and above all others."""
    return _DRAW_KEYS.get(name, (1 << 32) + zlib.crc32(name.encode()))


def _dtype(fmt: Format) -> torch.dtype | None:
    """The dtype in which values are kept as they are; None where they are kept as codes.

    Values of scaled formats whose scales do not follow from them are kept in float32.
    """
    if isinstance(fmt, BlockFormat):
        return None if follows_from_values(fmt.to_ints()) else torch.float32
    return _DTYPES.get(fmt)


def is_codes(value: Any, fmt: Format | None) -> bool:
    """Whether a value is 1-D codes of this format."""
    is_bytes = isinstance(value, Tensor) and value.dtype == torch.uint8
    return is_bytes and fmt is not None and _dtype(fmt) is None


def is_values(name: str, value: Any) -> bool:
    """Whether a state has a format: it holds float values of elements and counts no steps."""
    return isinstance(value, Tensor) and value.is_floating_point() and name not in _NUMBERS


class Layout:
    """Where the parts of a parameter's tensors are; without a mesh all of it is here.

    shape, part_shape: of the whole and of this process's part.
    """

    def __init__(self, parameter: Tensor) -> None:
        self.shape = self.part_shape = parameter.shape
        self.mesh: Any = getattr(parameter, "device_mesh", None)
        self.placements: tuple[Any, ...] = ()
        if self.mesh is not None:
            self.part_shape, self.placements = here(parameter).shape, tuple(parameter.placements)  # type: ignore[attr-defined]

    def encoded(self, values: Tensor, fmt: Format) -> Tensor:
        """Whole float32 values of `fmt` as this process keeps them: 1-D codes, or values in a dtype
        that lie as the parameter does.

        Raises: ValueError: a value without a code: an infinity or NaN in a format that has none.
        """
        return self.encoded_part(self.part(values), fmt)

    def encoded_part(self, part: Tensor, fmt: Format) -> Tensor:
        """`encoded` of this process's part alone."""
        dtype = _dtype(fmt)
        return pack(part, fmt) if dtype is None else self._placed(part.to(dtype))  # type: ignore[arg-type]

    def decoded(self, kept: Tensor, fmt: Format) -> Tensor:
        """The whole float32 values, perhaps the memory that is kept itself; all processes must call
        this."""
        if is_codes(kept, fmt):
            return self.whole(unpack(kept, fmt, self.part_shape))  # type: ignore[arg-type]
        return whole(kept).float()

    def saved(self, value: Any, fmt: Format | None) -> Any:
        """What this process keeps, whole, for a state_dict; all processes must call this."""
        if self.mesh is None or not isinstance(value, Tensor):
            return value
        if fmt is not None and is_codes(value, fmt):
            return pack(self.decoded(value, fmt), fmt)  # type: ignore[arg-type]
        return whole(value)

    def loaded(self, value: Tensor, fmt: Format | None) -> Tensor:
        """What this process keeps of a tensor that `saved` returned."""
        if self.mesh is None or fmt is None:
            return value
        if is_codes(value, fmt):
            value = unpack(value, fmt, self.shape)  # type: ignore[arg-type]
        return self.encoded(value, fmt) if value.shape == self.shape else value

    def whole(self, part: Tensor) -> Tensor:
        """The whole, to which each process brings its part; all processes must call this."""
        return whole(self._placed(part))

    def _placed(self, part: Tensor) -> Tensor:
        """A part in the form of the tensor that it belongs to."""
        if self.mesh is None:
            return part
        from torch.distributed.tensor import DTensor

        stride = torch.empty(self.shape, dtype=part.dtype, device="meta").stride()
        return DTensor.from_local(
            part, self.mesh, self.placements, run_check=False, shape=self.shape, stride=stride
        )

    def part(self, everything: Tensor) -> Tensor:
        """This process's part of a tensor that all of them have whole; nothing is sent."""
        if self.mesh is None:
            return everything
        from torch.distributed.tensor import DTensor, Replicate

        everywhere = [Replicate()] * len(self.placements)
        same = DTensor.from_local(everything, self.mesh, everywhere, run_check=False)
        return same.redistribute(placements=self.placements).to_local().contiguous()

    def span(self) -> tuple[Any, int] | None:
        """The processes whose parts are neighbours in row-major order, None where each has the
        whole, and the index of the first element here; None where the parts are not whole rows."""
        divided = [along for along, p in enumerate(self.placements) if not p.is_replicate()]
        if not divided:
            return None, 0
        from torch.distributed.tensor import Shard

        (along, *others), placement = divided, self.placements[divided[0]]
        # A strided shard may be a Shard too, by inheritance.
        if others or type(placement) is not Shard or placement.dim:
            return None
        rows = -(-self.shape[0] // self.mesh.size(along))
        first = min(rows * self.mesh.get_local_rank(along), self.shape[0])
        return self.mesh.get_group(along), first * self.shape[1:].numel()


def is_placed(tensor: Tensor) -> bool:
    """Whether a tensor is of a type (DTensor) of which a process may hold a part."""
    return hasattr(tensor, "device_mesh")


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor of which each process may hold a part; all processes must call this."""
    return tensor.full_tensor() if is_placed(tensor) else tensor  # type: ignore[attr-defined]


def here(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds. Changing it changes the tensor."""
    local = tensor.to_local() if is_placed(tensor) else tensor  # type: ignore[attr-defined]
    return local.detach()
