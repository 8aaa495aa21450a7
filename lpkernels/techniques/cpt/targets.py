"""The targets of a schedule, and the formats and accumulators that its widths are for them.

Targets are found in a model, and asked before anything changes whether they can be set.
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any

from torch.nn import Module

from lpkernels.arithmetic import Accumulator, as_accumulator
from lpkernels.formats import Format, as_format
from lpkernels.nn.emulated import Emulated
from lpkernels.techniques.cpt.tracks import Precision

#: Widths to formats: a table, a text with {bits} in it such as "fixed{bits}_f4", or a name of
#: TABLES.
Formats = Mapping[int, Format | str] | str
#: Mantissa bits to accumulators: a table, a text with {bits} in it, or a function.
Accumulators = Mapping[int, Accumulator | str] | Callable[[int], Accumulator | str] | str

#: Tables by name. float: of each width a format without codes for infinity, as wide in range as
#: its neighbours; 4, 6 and 8 bits are the types of OCP MX and E4M3.
TABLES: Mapping[str, Mapping[int, str]] = {
    "float": {
        3: "e2m0_sat",
        4: "fp4_e2m1",
        5: "e2m2_sat",
        6: "fp6_e3m2",
        7: "e3m3_sat",
        8: "e4m3fn_sat",
    }
}

#: A module, an object with set_precision(forward_bits, backward_bits), such a function, or several.
Targets = Any

# The attributes that every module has; others are a module's own.
_OF_MODULES = frozenset(vars(Module()))


class Target:
    """A module, an object or a function whose precision a schedule sets.

    name: of the module in its model, "" for a function.
    thing: has set_precision, set_accumulator or both; or is a function.
    """

    def __init__(self, name: str, thing: Any) -> None:
        self.name, self.thing = name, thing
        self.is_function = not any(callable(getattr(thing, setter, None)) for setter in _SETTERS)
        #: Whether there are bits to set: not in a layer whose recipe changes the sums alone.
        self.rounds = getattr(thing, "precision", None) != (None, None)

    @property
    def stays(self) -> bool:
        """Whether it is a layer of lpkernels whose recipe is torch's own arithmetic."""
        return isinstance(self.thing, Emulated) and self.thing.recipe.is_torch

    def set(
        self,
        precision: Precision,
        formats: Mapping[int, Format] | None,
        accumulators: Mapping[int, Accumulator],
    ) -> None:
        self._set(self.thing, precision, formats, accumulators)

    def _set(
        self,
        thing: Any,
        precision: Precision,
        formats: Mapping[int, Format] | None,
        accumulators: Mapping[int, Accumulator],
    ) -> None:
        if precision.forward is not None and self.rounds:
            forward: int | tuple[int, int] = precision.forward
            if precision.weight is not None:
                forward = (precision.forward, precision.weight)
            options: dict[str, Any] = {} if formats is None else {"formats": formats}
            setter = thing if self.is_function else thing.set_precision
            setter(forward, precision.backward, **options)
        if precision.accumulator is not None:
            thing.set_accumulator(accumulators[precision.accumulator])

    def check(
        self,
        label: str,
        asked: Sequence[Precision],
        formats: Mapping[int, Format] | None,
        accumulators: Mapping[int, Accumulator],
    ) -> None:
        """Raises ValueError unless a copy of the target takes every setting; the target does not
        change.

        A plain function is not asked: what it does cannot be undone.
        """
        self._check_methods(label, asked[0], formats)
        if self.is_function:
            return
        twin = _twin(self.thing)
        for precision in asked:
            try:
                self._set(twin, precision, formats, accumulators)
            except (TypeError, ValueError, NotImplementedError) as error:
                given = {k: v for k, v in precision._asdict().items() if v is not None}
                raise ValueError(f"{label}: {self} does not take {given} bits: {error}") from error

    def _check_methods(self, label: str, one: Precision, formats: Any) -> None:
        if self.is_function and one.accumulator is not None:
            raise ValueError(
                f"{label}: {self} takes (forward_bits, backward_bits), and no accumulator; give "
                "objects with set_precision and set_accumulator, or leave accumulator_bits out"
            )
        for setter, bits in zip(_SETTERS, (one.forward, one.accumulator), strict=True):
            has = self.is_function or callable(getattr(self.thing, setter, None))
            if bits is not None and not has:
                raise ValueError(f"{label}: {self} has no {setter}, which the schedule needs")
        if formats is not None and one.forward is not None:
            called = self.thing if self.is_function else self.thing.set_precision
            if not _takes(called, "formats"):
                raise ValueError(
                    f"{label}: set_precision of {self} takes no formats=, which the schedule "
                    "gives; leave formats out or add the parameter"
                )

    def __str__(self) -> str:
        kind = getattr(self.thing, "__name__", type(self.thing).__name__)
        return f"target {self.name!r} ({kind})" if self.name else f"target {kind}"


_SETTERS = ("set_precision", "set_accumulator")


def _takes(function: Callable[..., Any], option: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        # Some built-in functions have no signature; the call will say.
        return True
    return any(p.name == option or p.kind is p.VAR_KEYWORD for p in parameters)


def _twin(thing: Any) -> Any:
    """A copy to try settings on: its own attributes, and the buffers of a module, are copied;
    parameters and submodules are shared."""
    if not isinstance(thing, Module):
        return copy.deepcopy(thing)
    # Not copy.copy: a class may make its objects otherwise, as those of sharded modules (FSDP2) do.
    twin = object.__new__(type(thing))
    vars(twin).update(vars(thing))
    memo: dict[int, Any] = {id(each): each for each in [*thing.parameters(), *thing.modules()]}
    for name, value in vars(thing).items():
        if name not in _OF_MODULES:
            # An attribute that cannot be copied, such as a process group or a lock, is no
            # precision.
            with suppress(TypeError, RuntimeError):
                vars(twin)[name] = copy.deepcopy(value, memo)
    vars(twin)["_buffers"] = {k: v if v is None else v.clone() for k, v in thing._buffers.items()}
    return twin


def find_targets(label: str, targets: Targets) -> list[Target]:
    """All targets, by the names that their modules have.

    Raises:
        TypeError: neither a module, an object with set_precision, a function, nor several.
        ValueError: a model in which nothing has a precision to set, or an empty list.
    """
    if isinstance(targets, list | tuple):
        found = [
            Target(f"{index}.{target.name}".rstrip("."), target.thing)
            for index, each in enumerate(targets)
            for target in find_targets(label, each)
        ]
        if not found:
            raise ValueError(f"{label}: expected at least one target, got none")
        return found
    if isinstance(targets, Module):
        return _of_model(label, targets)
    if not any(hasattr(targets, setter) for setter in _SETTERS) and not callable(targets):
        raise TypeError(
            f"{label}: expected a model, an object with set_precision(forward_bits, backward_bits),"
            f" a function of these, or a list of such, got {type(targets).__name__}"
        )
    return [Target("", targets)]


def _of_model(label: str, model: Module) -> list[Target]:
    named = [Target(name, module) for name, module in model.named_modules()]
    found = [target for target in named if not (target.is_function or target.stays)]
    if not found:
        raise ValueError(
            f"{label}: no module of {type(model).__name__} has a precision to set; convert the "
            "model to a recipe that rounds, or give modules with set_precision"
        )
    return found


def grouped(label: str, targets: Iterable[Target], globs: Iterable[str]) -> dict[str, list[Target]]:
    """The targets of each glob over their names, the first that matches, and the rest under "".

    Raises: ValueError: a glob that no target has, or that earlier ones leave none.
    """
    groups: dict[str, list[Target]] = {glob: [] for glob in globs}
    rest: list[Target] = []
    names = []
    for target in targets:
        names.append(target.name)
        own = next((glob for glob in groups if fnmatchcase(target.name, glob)), None)
        (rest if own is None else groups[own]).append(target)
    for glob, members in groups.items():
        if not members:
            shown = ", ".join(map(repr, names[:5]))
            raise ValueError(
                f"{label}: layers: {glob!r} matches no target that an earlier pattern leaves, got "
                f"{shown}{' ...' if len(names) > 5 else ''}"
            )
    return {**groups, **({"": rest} if rest else {})}


def format_table(formats: Formats, widths: Iterable[int]) -> dict[int, Format]:
    """The format of each width, the table's own others included.

    Raises:
        TypeError: neither a table nor a text.
        ValueError: a width that the table lacks, a text without {bits}, an unknown format.
    """
    widths = sorted(set(widths))
    if isinstance(formats, str) and formats not in TABLES:
        pattern = _pattern("formats", formats, f"a name ({', '.join(TABLES)})")
        return {bits: as_format(pattern.format(bits=bits)) for bits in widths}
    table: Any = TABLES[formats] if isinstance(formats, str) else formats
    if not isinstance(table, Mapping):
        raise TypeError(
            f"formats: expected a mapping {{bits: format}} or a text, got {type(table).__name__}"
        )
    _complete("formats", table, widths)
    return {int(bits): as_format(fmt) for bits, fmt in table.items()}


def accumulator_table(accumulators: Accumulators, widths: Iterable[int]) -> dict[int, Accumulator]:
    """The accumulator of each number of mantissa bits; errors as of `format_table`."""
    widths = sorted(set(widths))
    if isinstance(accumulators, str):
        pattern = _pattern("accumulators", accumulators, "a mapping or a function")
        return {bits: as_accumulator(pattern.format(bits=bits)) for bits in widths}
    if isinstance(accumulators, Mapping):
        _complete("accumulators", accumulators, widths)
        return {bits: as_accumulator(accumulators[bits]) for bits in widths}
    if not callable(accumulators):
        raise TypeError(
            "accumulators: expected a text such as 'e8m{bits}', a mapping or a function of the "
            f"bits, got {type(accumulators).__name__}"
        )
    return {bits: as_accumulator(accumulators(bits)) for bits in widths}


def _pattern(label: str, text: str, other: str) -> str:
    if "{bits}" not in text or text.count("{") > 1:
        raise ValueError(
            f"{label}: expected a text with {{bits}} in it once, such as 'e8m{{bits}}', or "
            f"{other}, got {text!r}"
        )
    return text


def _complete(label: str, table: Mapping[int, Any], widths: list[int]) -> None:
    missing = [bits for bits in widths if bits not in table]
    if missing:
        raise ValueError(
            f"{label}: the table lacks {', '.join(map(str, missing))} of the scheduled bits, got "
            f"{', '.join(map(str, sorted(table)))}; add the missing widths"
        )
