"""A figure without a display, and its file. matplotlib is imported when one is drawn."""

from pathlib import Path
from typing import Any


def new_figure(size: tuple[float, float]) -> Any:
    """An empty figure of that many inches, which draws into memory only."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: str | Path, title: str, *, dpi: int = 110) -> Path:
    """Writes the figure, and the folders above it; the same figure gives the same file.

    Raises: ValueError: matplotlib does not write files with that ending.
    """
    if title:
        figure.suptitle(title)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The software's name and version are left out, because they would change the file.
    figure.savefig(path, dpi=dpi, metadata={"Software": None} if path.suffix == ".png" else None)
    return path
