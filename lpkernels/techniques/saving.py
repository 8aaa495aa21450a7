"""Files of techniques: JSON with its kind and its schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lpkernels import schemas


def read(
    path: str | Path, kind: str, what: str, writer: str, *, key: str = "type"
) -> dict[str, Any]:
    """The values of a file, in the shape of today.

    Args:
        kind: the value that `key` must have.
        what, writer: the names that errors give the file and its writer.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another kind of file, or another schema.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected {what}, got no text: {error}") from error
    return parsed(text, path, kind, what, writer, key=key)


def parsed(
    text: str, where: object, kind: str, what: str, writer: str, *, key: str = "type"
) -> dict[str, Any]:
    """The values of a file's text, as `read` returns them. where: how errors name the file."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: expected {what}, got no JSON: {error}") from error
    if not isinstance(found, dict) or found.get(key) != kind:
        raise ValueError(f"{where}: expected {what}, as {writer} writes it")
    return schemas.check(found, where)


def write(path: str | Path, values: Mapping[str, Any], *, rows: str | None = None) -> Path:
    """Writes one JSON object, on one line.

    rows: the name of a list. Each of its items, and each other field, then has a line of its own,
        so that a change of an item shows as that line.
    """
    text = json.dumps(values)
    if rows is not None:
        fields = {key: json.dumps(value) for key, value in values.items()}
        if rows in values:
            items = ",\n".join(f"  {json.dumps(row)}" for row in values[rows])
            fields[rows] = f"[\n{items}\n]"
        text = "{" + ",\n".join(f"{json.dumps(k)}: {v}" for k, v in fields.items()) + "}"
    path = Path(path)
    path.write_text(f"{text}\n", encoding="utf-8")
    return path
