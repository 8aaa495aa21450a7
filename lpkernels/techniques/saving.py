"""Files of techniques: JSON that says what it is, and the schema of its shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lpkernels import schemas


def read(
    path: str | Path, kind: str, what: str, writer: str, *, key: str = "type"
) -> dict[str, Any]:
    """The values of a file, in the shape of today.

    Args:
        kind: what its `key` must be.
        what, writer: how errors name it, and what writes it.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another kind of file, or a later schema.
    """
    path = Path(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: expected {what}, got no JSON: {error}") from error
    if not isinstance(found, dict) or found.get(key) != kind:
        raise ValueError(f"{path}: expected {what}, as {writer} writes it")
    return schemas.current(found, kind, path)
