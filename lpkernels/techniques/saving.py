"""Files of techniques: JSON that says what it is, and of which version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read(
    path: str | Path, kind: str, version: int, what: str, writer: str, *, key: str = "type"
) -> dict[str, Any]:
    """The values of a file.

    Args:
        kind, version: what its `key` and "version" must be.
        what, writer: how errors name it, and what writes it.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another kind of file, or another version.
    """
    path = Path(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: expected {what}, got no JSON: {error}") from error
    if not isinstance(found, dict) or found.get(key) != kind:
        raise ValueError(f"{path}: expected {what}, as {writer} writes it")
    if found.get("version") != version:
        raise ValueError(
            f"{path}: expected version {version} of {what}, got {found.get('version')!r}; read it "
            "with the lpkernels that wrote it, or make it again"
        )
    return found
