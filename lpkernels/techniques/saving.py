"""Files of techniques: one JSON object, with its kind in the field "what" and a schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lpkernels import schemas


def read(path: str | Path, kind: str) -> dict[str, Any]:
    """The values of a file of this kind.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another kind of file, or another schema.
    """
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: expected the JSON of {kind!r}: {error}") from error
    if not isinstance(values, dict) or values.get("what") != kind:
        raise ValueError(f'{path}: expected a JSON object with {{"what": {kind!r}}}')
    return schemas.check(values, path)


def write(path: str | Path, values: Mapping[str, Any], *, rows: str) -> None:
    """Writes the values as JSON. A field has a line of its own, and so has an item of the list
    `rows`, so that a change of an item shows as that line."""
    fields = {key: json.dumps(value) for key, value in values.items()}
    items = ",\n".join(f"  {json.dumps(row)}" for row in values[rows])
    fields[rows] = f"[\n{items}\n]"
    text = ",\n".join(f"{json.dumps(key)}: {value}" for key, value in fields.items())
    Path(path).write_text(f"{{{text}}}\n", encoding="utf-8")
