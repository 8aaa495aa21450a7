"""Figures without a display, and their files. matplotlib is imported when one is drawn.

A picture has one of three forms: curves over a number, rows of points with intervals, and the
frontier of memory and error. A function that draws returns matplotlib's figure; `save_figure`
writes it.
"""

from pathlib import Path
from typing import IO, Any

import numpy as np


def panels(count: int, size: tuple[float, float], *, across: int = 2, **share: Any) -> list[Any]:
    """The axes of that many panels of one new figure, at most so many side by side.

    size: of a panel, in inches.  share: sharex, sharey, as for matplotlib's subplots.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = min(across, count)
    down = -(-count // across)
    figure = Figure(figsize=(size[0] * across + 0.6, size[1] * down + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(down, across, squeeze=False, **share).flat)
    for rest in axes[count:]:
        rest.set_visible(False)
    return axes[:count]


def finish(axes: Any, *, legend: str | None = "", fontsize: str = "small", **labels: Any) -> None:
    """Sets labels, scales and limits of axes, a grid, and a legend if anything has a label.

    legend: its title; None: there is no legend.
    """
    axes.set(**labels)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if legend is not None and axes.get_legend_handles_labels()[0]:
        axes.legend(title=legend or None, fontsize=fontsize)


def whole_numbers(axis: Any) -> None:
    """Ticks at whole numbers alone, also on an axis that is shorter than 1."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))


def _plain_numbers(axis: Any) -> None:
    """Labels as 0.25, 2.073 and 0.0000015, where matplotlib would write a power of ten or an
    offset."""
    from matplotlib.ticker import LogFormatter, ScalarFormatter

    class PlainLog(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            # LogFormatter leaves ticks that are too close without a label.
            plain = np.format_float_positional(float(f"{x:g}"), trim="-")
            return plain if super().__call__(x, pos) else ""

    formatter = axis.get_major_formatter()
    if isinstance(formatter, LogFormatter):
        base = axis.get_transform().base
        axis.set_major_formatter(PlainLog(base))
        axis.set_minor_formatter(PlainLog(base))
    elif isinstance(formatter, ScalarFormatter):
        formatter.set_useOffset(False)
        formatter.set_scientific(False)


def save_figure(figure: Any, file: str | Path | IO[Any], title: str = "", **options: Any) -> Any:
    """Writes a figure, and the folders above its file; the same figure gives the same file.

    Args:
        file: a path, whose ending says which kind of picture, or a file that is open.
        title: above the picture.
        options: of matplotlib's savefig.
    Returns: `file`.
    Raises: ValueError: matplotlib does not write files with that ending.
    """
    from matplotlib.text import Text

    if title:
        figure.suptitle(title)
    for axes in figure.axes:
        _plain_numbers(axes.xaxis)
        _plain_numbers(axes.yaxis)
    # Names come from users, so that a dollar begins no formula.
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    if isinstance(file, str | Path):
        file = Path(file)
        file.parent.mkdir(parents=True, exist_ok=True)
        # The software's name and version are left out, because they would change the file.
        options["metadata"] = {"Software": None} if file.suffix == ".png" else None
    figure.savefig(file, **{"dpi": 130, **options})
    return file
