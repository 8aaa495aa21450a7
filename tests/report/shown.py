"""What tables show, and that pictures are the same each time."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console


def text(table: Any, width: int = 120) -> str:
    """What a console of this width shows."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def same_each_time(draw: Callable[[Path], Path], folder: Path, least: int = 1000) -> None:
    """Two pictures are one PNG file of more than `least` bytes, without the software's name."""
    one, two = (draw(folder / "deep" / name).read_bytes() for name in ("a.png", "b.png"))
    assert one == two and len(one) > least
    assert one.startswith(b"\x89PNG") and b"Software" not in one
