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


def panels(count: int, size: tuple[float, float], *, across: int = 2, **share: Any) -> list[Any]:
    """The axes of that many panels of one figure, at most so many side by side.

    size: of a panel, in inches.  share: sharex, sharey, as for matplotlib's subplots.
    """
    across = min(across, count)
    down = -(-count // across)
    figure = new_figure((size[0] * across + 0.6, size[1] * down + 0.4))
    axes = list(figure.subplots(down, across, squeeze=False, **share).flat)
    for rest in axes[count:]:
        rest.set_visible(False)
    return axes[:count]


def finish(axes: Any, *, legend: str = "", fontsize: str = "small", **labels: Any) -> None:
    """Sets labels, scales and limits of axes, a grid, and a legend if anything has a label.

    legend: its title.
    """
    axes.set(**labels)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(title=legend or None, fontsize=fontsize)


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
