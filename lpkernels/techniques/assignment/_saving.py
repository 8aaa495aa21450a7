"""Assignments and scores as JSON, and the check that they belong to a model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from lpkernels.schemas import schema
from lpkernels.techniques.assignment.grouping import Group, Kind, TensorSpec, regroup
from lpkernels.techniques.assignment.pins import Pins
from lpkernels.techniques.assignment.precisions import Formats
from lpkernels.techniques.saving import read as read_file

if TYPE_CHECKING:
    from lpkernels.techniques.assignment.assignment import Assignment

_WHAT = "lpkernels assignment"
# An error names this many tensors.
_NAMED = 3


def to_json(assignment: Assignment) -> dict[str, Any]:
    """The fields as plain values, from which `from_json` makes them again."""
    formats = {
        kind: [str(each) for each in getattr(assignment.formats, kind)] for kind in get_args(Kind)
    }
    pins = assignment.pins
    return {
        "what": _WHAT,
        "schema": schema(_WHAT),
        "formats": formats,
        "pins": {"high": list(pins.high), "low": list(pins.low), "tied": list(pins.tied)},
        "low_groups": list(assignment.low_groups),
        "tensors": [
            [t.key, t.kind, t.numel, t.group, t.known, t.key in assignment.low]
            for t in assignment.tensors.values()
        ],
    }


def write(path: str | Path, values: dict[str, Any]) -> None:
    """Writes JSON, with each list or mapping inside on one line."""
    # One tensor a line: a change shows as that line.
    lines = []
    for key, value in values.items():
        text = json.dumps(value)
        if key == "tensors":
            text = "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in value) + "\n]"
        lines.append(f"{json.dumps(key)}: {text}")
    Path(path).write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")


def read(path: str | Path, what: str) -> dict[str, Any]:
    """The values of a file of that kind.

    Raises: ValueError: it holds something else.
    """
    return read_file(path, what, f"an {what}", "its save()", key="what")


def from_json(path: str | Path) -> dict[str, Any]:
    """The fields of an Assignment.

    Raises: ValueError: a file of something else, or one that was changed to make no sense.
    """
    values = read(path, _WHAT)
    try:
        rows = [(TensorSpec(*row[:5]), row[5]) for row in values["tensors"]]
        formats = Formats(**{kind: tuple(pair) for kind, pair in values["formats"].items()})
        return {
            "groups": regroup(tensor for tensor, _ in rows),
            "low": frozenset(tensor.key for tensor, is_low in rows if is_low),
            "low_groups": tuple(values["low_groups"]),
            "formats": formats,
            "pins": Pins(**values["pins"]),
        }
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{path}: a field is missing or of another type: {error}") from error


def check_same(
    mine: Sequence[Group], model: Sequence[Group], *, kinds: Sequence[Kind] = get_args(Kind)
) -> None:
    """Raises: ValueError: the groups do not hold the same tensors; those of these kinds, of the
    same sizes."""
    of_mine, of_model = (_sizes(groups) for groups in (mine, model))
    missing, extra = of_model.keys() - of_mine.keys(), of_mine.keys() - of_model.keys()
    if missing or extra:
        raise ValueError(
            f"assignment: it is of another model: {_some('it lacks', missing)}"
            f"{' and ' if missing and extra else ''}{_some('the model lacks', extra)}; trace the "
            "model and demote its own groups"
        )
    other = [key for key, size in of_model.items() if of_mine[key] != size and size[0] in kinds]
    if other:
        key = other[0]
        weights = any(of_model[each][0] in ("weight", "grad_weight") for each in other)
        raise ValueError(
            f"assignment: it is of another {'model' if weights else 'batch'}: {len(other)} tensors "
            f"have other sizes; {key!r} has {of_mine[key][1]} elements in it and {of_model[key][1]}"
            " in the model; trace with the batch it was made for, or make it again"
        )


def _sizes(groups: Sequence[Group]) -> dict[str, tuple[str, int]]:
    return {t.key: (t.kind, t.numel) for group in groups for t in group.tensors}


def _some(text: str, keys: Iterable[str]) -> str:
    named = sorted(keys)
    if not named:
        return ""
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return f"{text} {', '.join(repr(key) for key in named[:_NAMED])}{more}"
