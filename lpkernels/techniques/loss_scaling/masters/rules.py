"""Which formats each parameter has: exceptions by name, and the formats that it can have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lpkernels.arithmetic import Quantizer
from lpkernels.formats import AffineFormat, BlockFormat, FloatFormat
from lpkernels.formats.integers import KIND, counted_rank
from lpkernels.techniques.loss_scaling.masters.formats import Formats

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
    formats: Formats
    dtype: torch.dtype


class Rules:
    """The rule of any parameter, by its name.

    Args:
        formats: those of all parameters.
        exceptions: {glob: settings that differ}; the first glob that a name matches holds.
        names: {parameter: name}; None: a parameter's name is its position, "0", "1", ...
    """

    def __init__(
        self,
        formats: Formats,
        exceptions: Mapping[str, Mapping[str, Any]] | None,
        names: Mapping[Tensor, str] | None,
    ) -> None:
        self.names = names
        self._formats = formats
        self._exceptions = {
            glob: Formats.of(_settings(glob, values), formats, f"exceptions[{glob!r}]")
            for glob, values in (exceptions or {}).items()
        }

    @property
    def draw(self) -> bool:
        """Whether any parameter may be rounded stochastically."""
        return any(formats.draws for formats in self.formats())

    def formats(self) -> list[Formats]:
        """All formats that occur."""
        return [self._formats, *self._exceptions.values()]

    def of(self, parameters: Iterable[Tensor], start: int = 0) -> dict[Tensor, Rule]:
        """The rules of parameters, numbered from `start`; each parameter is checked."""
        found = {}
        for number, parameter in enumerate(parameters, start):
            name = self._name(parameter, number)
            held = [f for glob, f in self._exceptions.items() if fnmatchcase(name, glob)]
            rule = Rule(name, number, held[0] if held else self._formats, parameter.dtype)
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
    fits = fmt.fits_in(*widths) if isinstance(fmt, FloatFormat) else widths == (8, 23)
    if not fits:
        raise ValueError(
            f"{label} is {parameter.dtype}, which does not hold every value of weight={fmt}; "
            "make it float32, or choose a narrower format"
        )
    kept = {"master": formats.master, "state": formats.state, **formats.states}
    passing = {"weight": formats.weight, "grad": formats.grad, "compensation": formats.compensation}
    for name, quantizer in {**kept, **passing}.items():
        its = None if quantizer is None else quantizer.fmt
        if not isinstance(its, AffineFormat | BlockFormat) or its.axis is None:
            continue
        rank = counted_rank(its.to_ints()[KIND], parameter.dim())
        if not -rank <= its.axis < rank:
            raise ValueError(
                f"{label} has shape {tuple(parameter.shape)}, but {name}={its} runs along axis "
                f"{its.axis}; except it, exceptions={{{rule.name!r}: {{{name!r}: ...}}}}"
            )
    check_blocks(parameter, rule, kept)


def check_blocks(parameter: Tensor, rule: Rule, kept: Mapping[str, Quantizer]) -> None:
    """Checks that no block of what is kept lies in two shards.  Raises ValueError."""
    placements = getattr(parameter, "placements", ())
    for name, quantizer in kept.items():
        fmt = quantizer.fmt
        if not isinstance(fmt, BlockFormat):
            continue
        dims = max(parameter.dim(), 1)
        for along, placement in enumerate(placements):
            if getattr(placement, "dim", None) != fmt.axis % dims:
                continue
            size = parameter.shape[fmt.axis]
            shard = -(-size // parameter.device_mesh.size(along))  # type: ignore[attr-defined]
            if shard < size and shard % fmt.block_size:
                raise ValueError(
                    f"MasterWeights: parameter {rule.name!r} of shape {tuple(parameter.shape)} is "
                    f"sharded in pieces of {shard} along axis {fmt.axis % dims}, which cut the "
                    f"blocks of {name}={fmt}; give the blocks another axis or size, or except it"
                )


def _settings(glob: str, values: Any) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        raise TypeError(
            f"MasterWeights: exceptions[{glob!r}] must be a mapping of settings such as "
            f"{{'weight': 'fp32'}}, got {values!r}"
        )
    return values
