"""The formats around each parameter: settings as a user gives them, and exceptions by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lpkernels.arithmetic import Quantizer, as_quantizer
from lpkernels.formats import (
    FP32,
    AffineFormat,
    BlockFormat,
    FixedFormat,
    FloatFormat,
    Format,
    Number,
    TableFormat,
)
from lpkernels.formats.checks import checked_bool
from lpkernels.formats.elsewhere import nearest
from lpkernels.formats.grids import misfit
from lpkernels.formats.integers import InBlock, follows_from_values, has_every_float_code
from lpkernels.techniques import checks

FormatLike: TypeAlias = Format | Quantizer | str
StateLike: TypeAlias = FormatLike | Mapping[str, FormatLike]

FLOAT32 = Quantizer(FP32)
FLOAT32_NAME = "fp32"


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
    split: bool = False
    names: Mapping[Format, str] = field(default_factory=dict, compare=False)

    @staticmethod
    def of(
        values: Mapping[str, Any], base: WeightFormats | None = None, where: str = ""
    ) -> WeightFormats:
        """`base` with settings as the user gives them.

        Raises: TypeError, ValueError: there is no such setting or format, or formats do not go
            together.
        """
        known = [
            each.name for each in fields(WeightFormats) if each.name not in ("states", "names")
        ]
        strange = sorted(set(values) - set(known))
        if strange:
            raise ValueError(
                f"MasterWeights: {where or 'expected'} {nearest(strange[0], known)}, got "
                f"{', '.join(strange)}"
            )
        given: dict[str, Any] = {}
        names = {} if base is None else dict(base.names)

        def read(label: str, value: Any) -> Quantizer:
            quantizer = _quantizer(label, value)
            if isinstance(value, str):
                names.setdefault(quantizer.fmt, value.partition(":")[0])
            return quantizer

        for name, value in values.items():
            label = f"MasterWeights: {where + ' ' if where else ''}{name}"
            if name == "split":
                given[name] = checked_bool("MasterWeights", f"{where} {name}".lstrip(), value)
            elif name == "state" and isinstance(value, Mapping):
                states = {str(k): read(f"{label} {k}", v) for k, v in value.items()}
                given |= {"state": FLOAT32, "states": states}
            elif name in ("grad", "compensation") and value is None:
                given[name] = None
            else:
                given[name] = read(label, value)
                if name == "state":
                    given["states"] = {}
        given["names"] = names
        formats = WeightFormats(**given) if base is None else replace(base, **given)
        formats._check(where)
        return formats

    def _check(self, where: str) -> None:
        kept = {"master": self.master, "state": self.state, **self.states}
        if self.compensation is not None:
            kept["compensation"] = self.compensation
        at = f"MasterWeights: {where + ' ' if where else ''}"
        for name, fmt in ((name, quantizer.fmt) for name, quantizer in kept.items()):
            if isinstance(fmt, AffineFormat):
                raise ValueError(
                    f"{at}{name}: {fmt} cannot be kept as codes, whose range is in the tensor; use "
                    "a FixedFormat or a BlockFormat"
                )
        if self.split:
            self._check_split(at)

    def _check_split(self, at: str) -> None:
        if self.master != FLOAT32 or self.compensation is not None:
            raise ValueError(
                f"{at}split: the master is the working copy and the bits that are missing to fp32; "
                f"expected master='fp32' and no compensation, got master={str(self.master)!r}, "
                f"compensation={str(self.compensation)!r}"
            )
        if remainder_format(self.weight) is None:
            raise ValueError(
                f"{at}split: fp32 is the working copy and a few bits only if that is fp32 without "
                "its last bits: weight must be an e8m<1..22> such as bf16, of overflow infinity "
                f"and with subnormals; got {self.weight}"
            )

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
        same = self.weight.fmt == self.master.fmt and not self.split
        return same and isinstance(self.weight.fmt, Number)

    @cached_property
    def draws(self) -> bool:
        """Whether anything is rounded stochastically."""
        return any(quantizer.is_stochastic for quantizer in self._quantizers())

    def _quantizers(self) -> Iterator[Quantizer]:
        yield from (self.weight, self.master, self.state, *self.states.values())
        yield from (q for q in (self.grad, self.compensation) if q is not None)

    @property
    def take_anything(self) -> bool:
        """Whether every value that is kept has a code, infinities and NaN too."""
        kept = [self.master, self.state, *self.states.values()]
        kept += [] if self.compensation is None else [self.compensation]
        return all(has_every_code(quantizer.fmt) for quantizer in kept)

    def texts(self) -> dict[str, Any]:
        """Plain values, as state_dict holds them."""
        return {
            "weight": str(self.weight),
            "master": str(self.master),
            "state": str(self.state),
            "states": {name: str(quantizer) for name, quantizer in self.states.items()},
            "grad": None if self.grad is None else str(self.grad),
            "compensation": None if self.compensation is None else str(self.compensation),
            "split": self.split,
        }


def remainder_format(weight: Quantizer) -> FixedFormat | None:
    """The format of the differences between the codes of a float32 value and of the same value
    rounded to `weight`; None where these integers take more than the few bits that `weight` lacks.

    Where r bits are dropped, rounding toward zero leaves 0 .. 2^r - 1 and nearest_away leaves
    -2^(r-1) .. 2^(r-1) - 1: r bits. One bit more is needed by nearest_even, which takes ties from
    both sides, and by all other modes, which take values from twice as far.
    """
    fmt = weight.fmt
    if not isinstance(fmt, FloatFormat) or not 0 < fmt.man_bits < 23:
        return None
    if fmt != FloatFormat(8, fmt.man_bits):
        return None
    dropped = 23 - fmt.man_bits
    if weight.rounding == "toward_zero":
        return FixedFormat(dropped, 0, signed=False)
    return FixedFormat(dropped if weight.rounding == "nearest_away" else dropped + 1, 0)


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


Names: TypeAlias = Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]

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


class Rules:
    """The rule of any parameter, by its name.

    Args:
        formats: the formats of all parameters.
        exceptions: {glob: settings that differ}; the first glob that a name matches holds.
        names: {parameter: name}; None: a parameter's name is its position, "0", "1", ...
        keep_fp32_below: parameters with fewer elements have masters and states in fp32.
    """

    def __init__(
        self,
        formats: WeightFormats,
        exceptions: Mapping[str, Mapping[str, Any]] | None,
        names: Mapping[Tensor, str] | None,
        keep_fp32_below: int = 0,
    ) -> None:
        self.names = names
        self._formats = formats
        self._of_small = replace(
            formats, master=FLOAT32, state=FLOAT32, states={}, compensation=None
        )
        self._large = checks.whole("MasterWeights: keep_fp32_below", keep_fp32_below, 0)
        self._exceptions = {
            glob: WeightFormats.of(_settings(glob, values), formats, f"exceptions[{glob!r}]")
            for glob, values in (exceptions or {}).items()
        }

    @property
    def draw(self) -> bool:
        """Whether any parameter may be rounded stochastically."""
        return any(formats.draws for formats in self.formats())

    def formats(self) -> list[WeightFormats]:
        """All formats that occur."""
        return [self._formats, *self._exceptions.values()]

    def of(self, parameters: Iterable[Tensor], start: int = 0) -> dict[Tensor, Rule]:
        """The rules of parameters, numbered from `start`; each parameter is checked."""
        found = {}
        for number, parameter in enumerate(parameters, start):
            name = self._name(parameter, number)
            held = [f for glob, f in self._exceptions.items() if fnmatchcase(name, glob)]
            by_size = self._formats if parameter.numel() >= self._large else self._of_small
            rule = Rule(name, number, held[0] if held else by_size, parameter.dtype)
            check_parameter(parameter, rule)
            found[parameter] = rule
        return found

    def check_globs(self, rules: Iterable[Rule]) -> None:
        """Checks that every glob matches a name.  Raises ValueError."""
        names = [rule.name for rule in rules]
        for glob in self._exceptions:
            if any(fnmatchcase(name, glob) for name in names):
                continue
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            advice = (
                ""
                if self.names
                else (
                    "; the parameters have no names, pass named_parameters=model.named_parameters()"
                )
            )
            raise ValueError(
                f"MasterWeights: exceptions[{glob!r}] matches no parameter of the optimizer: "
                f"{shown}{advice}"
            )

    def _name(self, parameter: Tensor, number: int) -> str:
        if not self.names:
            return str(number)
        name = self.names.get(parameter)
        if name is None:
            raise ValueError(
                f"MasterWeights: named_parameters has no name for parameter {number} of the "
                f"optimizer, of shape {tuple(parameter.shape)}; pass those of the whole model, "
                "model.named_parameters()"
            )
        return name


def names_of(
    optimizer: torch.optim.Optimizer, named_parameters: Names | None
) -> dict[Tensor, str] | None:
    """{parameter: name} from what the user gives, else from the optimizer's own groups."""
    if named_parameters is None:
        return group_names(optimizer.param_groups) or None
    pairs = list(
        named_parameters.items() if isinstance(named_parameters, Mapping) else named_parameters
    )
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise TypeError(
                "MasterWeights: named_parameters must be pairs (name, parameter), as "
                f"model.named_parameters() gives them, got {type(pair).__name__}"
            )
    return {parameter: name for name, parameter in pairs}


def group_names(groups: Iterable[Mapping[str, Any]]) -> dict[Tensor, str]:
    """The names that the groups give themselves, where they are groups of named parameters."""
    return {
        parameter: name
        for group in groups
        for parameter, name in zip(group["params"], group.get("param_names", ()), strict=False)
    }


def check_parameter(parameter: Tensor, rule: Rule) -> None:
    """Checks that a parameter can have the formats of its rule.  Raises TypeError, ValueError."""
    label = f"MasterWeights: parameter {rule.name!r}"
    if parameter.dtype not in _DTYPES:
        raise TypeError(
            f"{label} must be float16, bfloat16, float32 or float64, got {parameter.dtype}; leave "
            "it out of the optimizer"
        )
    formats = rule.formats
    fmt, widths = formats.weight.fmt, _DTYPES[parameter.dtype]
    fits = fmt.fits_in(*widths) if isinstance(fmt, FloatFormat | TableFormat) else widths == (8, 23)
    if not fits:
        raise ValueError(
            f"{label} is {parameter.dtype}, which does not hold every value of weight={fmt}; "
            "make it float32, or choose a narrower format"
        )
    kept = {"master": formats.master, "state": formats.state, **formats.states}
    passing = {"weight": formats.weight, "grad": formats.grad, "compensation": formats.compensation}
    for name, quantizer in {**kept, **passing}.items():
        its = None if quantizer is None else quantizer.fmt
        wrong = None if its is None else misfit(its.to_ints(), parameter.dim())
        if wrong is not None:
            raise ValueError(
                f"{label} has shape {tuple(parameter.shape)}, but {name}={its} {wrong.reason}; "
                f"except it, exceptions={{{rule.name!r}: {{{name!r}: ...}}}}"
            )
    check_blocks(parameter, rule, kept)


def check_blocks(parameter: Tensor, rule: Rule, kept: Mapping[str, Quantizer]) -> None:
    """Checks that no block of a master or state lies in two shards. Raises ValueError."""
    placements = getattr(parameter, "placements", ())
    for name, quantizer in kept.items():
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
                    f"blocks of {name}={fmt}; give the blocks another axis or size, or except it"
                )


def _settings(glob: str, values: Any) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        raise TypeError(
            f"MasterWeights: exceptions[{glob!r}] must be a mapping of settings such as "
            f"{{'weight': 'fp32'}}, got {values!r}"
        )
    return values
