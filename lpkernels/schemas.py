"""The number of a record's shape, and the check that every reader makes.

Records are for one version: where a shape changes, `SCHEMA` rises, and records of another number
are refused.
"""

from collections.abc import Iterable
from typing import Any

Record = dict[str, Any]

SCHEMA = 2


def header(kind: str) -> Record:
    """The beginning of a header, which holds for the lines below it."""
    return {"type": "header", "kind": kind, "schema": SCHEMA}


def line(kind: str) -> Record:
    """The beginning of a line that needs no header."""
    return {"type": kind, "schema": SCHEMA}


def check(record: Record, where: object) -> Record:
    """The record. Raises: ValueError: it is of another schema; `where` names its file."""
    number = record.get("schema")
    if type(number) is not int or number != SCHEMA:
        raise ValueError(
            f"{where}: expected schema {SCHEMA}, got {number!r}, which another version of "
            "lpkernels wrote: read it with that version"
        )
    return record


def check_all(records: Iterable[Any], where: object) -> list[Any]:
    """The lines of a file, each header among them and each line with a number checked."""
    return [
        check(record, where)
        if isinstance(record, dict) and ("schema" in record or record.get("type") == "header")
        else record
        for record in records
    ]
