"""What tables show, and that pictures are the same each time."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from lpkernels.report.figures import save_figure


def text(table: Any, width: int = 120) -> str:
    """What a console of this width shows."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def same_each_time(draw: Callable[[], Any], folder: Path, least: int = 1000) -> None:
    """Two figures are one PNG file of more than `least` bytes, without the software's name."""
    paths = [folder / "deep" / name for name in ("a.png", "b.png")]
    one, two = (save_figure(draw(), path, "title").read_bytes() for path in paths)
    assert one == two and len(one) > least
    assert one.startswith(b"\x89PNG") and b"Software" not in one
