"""A figure without a display, and its file. matplotlib is imported when one is drawn."""

from pathlib import Path
from typing import Any

import numpy as np


def new_figure(size: tuple[float, float]) -> Any:
    """An empty figure of that many inches, which draws into memory only."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def whole_numbers(axis: Any) -> None:
    """Ticks at whole numbers alone, also on an axis that is shorter than 1."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))


def plain_numbers(axis: Any) -> None:
    """Labels as 0.25, 2.073 and 0.0000015, where matplotlib would write a power of ten or an
    offset."""
    from matplotlib.ticker import LogFormatter

    class PlainLog(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            # LogFormatter leaves ticks that are too close without a label.
            plain = np.format_float_positional(float(f"{x:g}"), trim="-")
            return plain if super().__call__(x, pos) else ""

    if axis.get_scale() == "log":
        axis.set_major_formatter(PlainLog())
        axis.set_minor_formatter(PlainLog())
    else:
        axis.get_major_formatter().set_useOffset(False)
        axis.get_major_formatter().set_scientific(False)


def _take_dollars_as_text(figure: Any) -> None:
    """Names come from users, so that a dollar begins no formula; the ticks of logarithms are
    formulas."""
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if isinstance(axis.get_major_formatter(), LogFormatter):
            for tick in (*axis.majorTicks, *axis.minorTicks):
                tick.label1.set_parse_math(True)
                tick.label2.set_parse_math(True)


def save_figure(figure: Any, path: str | Path, title: str, *, dpi: int = 110) -> Path:
    """Writes the figure, and the folders above it; the same figure gives the same file.

    Raises: ValueError: matplotlib does not write files with that ending.
    """
    if title:
        figure.suptitle(title)
    _take_dollars_as_text(figure)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The software's name and version are left out, because they would change the file.
    figure.savefig(path, dpi=dpi, metadata={"Software": None} if path.suffix == ".png" else None)
    return path
