"""The shapes of records, by number, and the only way in which a shape changes.

A record says its kind and its `schema`, an integer apart from the package's version. Where a shape
changes, a row in `MIGRATIONS` says how older records get the new one, and a small file of the new
shape joins tests/data/schemas. A setting that a record lacks has its default; that is no change.

This file imports nothing of the package: `python -m mutants` runs it alone.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

Record = dict[str, Any]

#: Of runs and sweeps, of techniques and commands, of benchmarks, of mutants, proofs and attacks.
KINDS = frozenset({
    "run", "promotions", "diagnosis", "sweep", "cell", "sweep-results", "accumulate", "units",
    "frontier study", "policy",
    "error matrix", "format space", "training recipe", "lpkernels assignment",
    "lpkernels assignment's scores", "prediction", "prediction_total", "accumulator_speed",
    "accumulation", "accumulator training", "activation memory", "assignment step",
    "assignment_scores", "bench", "certificates", "counted, never run", "diagnosis step",
    "fp8 units", "frontier choices", "frontier coinciding", "frontier curves", "frontier numerics",
    "frontier stopping", "frontier transfer", "general path", "instructions", "landscape",
    "optimizer states", "precision", "precision range", "tensor core", "training loop",
    "triton_counts", "update", "update of small parameters",
    "mutants", "proofs", "attack",
})  # fmt: skip


class Migration(NamedTuple):
    """A change of the shape of a kind.

    change: turns a record of schema `before` into one of schema `after`. It is called for the
        header and then for every line below it; for a kind without headers, for every line.
    """

    kind: str
    before: int
    after: int
    change: Callable[[Record], Record]


def _without_margin(record: Record) -> Record:
    """A plan before margins had none."""
    return {**record, "config": {"margin": 0, **record["config"]}} if "config" in record else record


MIGRATIONS: tuple[Migration, ...] = (Migration("accumulate", 1, 2, _without_margin),)


def schema(kind: str) -> int:
    """The schema of a kind today: 1, or where its last migration leads.

    Raises: ValueError: an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"expected a kind of record among schemas.KINDS, got {kind!r}; add it")
    return max((each.after for each in MIGRATIONS if each.kind == kind), default=1)


def header(kind: str) -> Record:
    """The beginning of a header, which holds for the lines below it."""
    return {"type": "header", "kind": kind, "schema": schema(kind)}


def line(kind: str) -> Record:
    """The beginning of a line that needs no header."""
    return {"type": kind, "schema": schema(kind)}


def current(record: Record, kind: str, where: object) -> Record:
    """A record that stands alone in the shape of today; without a number it is of schema 1.

    where: how an error names its file.
    Raises: ValueError: a schema that this version does not know.
    """
    return _changed(record, kind, _schema_of(record, kind, where), begins=True)


def all_current(records: Iterable[Any], where: object) -> list[Any]:
    """As `current`, for the lines of a file: the schema of a header holds until the next header.

    Lines of a kind outside `KINDS`, and lines that are no records, stay as they are.
    """
    found: list[Any] = []
    kind, number, below = "", 1, False
    for record in records:
        begins = isinstance(record, dict) and (not below or record.get("type") == "header")
        if begins:
            below = record.get("type") == "header"
            kind = str(record.get("kind") if below else record.get("kind", record.get("type")))
            number = _schema_of(record, kind, where) if kind in KINDS else 1
        if isinstance(record, dict) and kind in KINDS:
            record = _changed(record, kind, number, begins=begins)
        found.append(record)
    return found


def _schema_of(record: Record, kind: str, where: object) -> int:
    number, known = record.get("schema", 1), schema(kind)
    if type(number) is not int or number < 1:
        raise ValueError(
            f"{where}: expected as schema of {kind!r} an integer from 1 to {known}, got {number!r}"
        )
    if number > known:
        raise ValueError(
            f"{where}: expected schema <= {known} of {kind!r}, got {number}, which a later version "
            "wrote; update lpkernels to read it"
        )
    return number


def _changed(record: Record, kind: str, number: int, *, begins: bool) -> Record:
    steps = {each.before: each for each in MIGRATIONS if each.kind == kind}
    while number in steps:
        record, number = steps[number].change(record), steps[number].after
    return {**record, "schema": number} if begins else record
