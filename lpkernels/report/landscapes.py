"""Pictures of the loss around trained weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lpkernels.experiments.measuring.landscape import LossSlice, LossSurface
from lpkernels.report.figures import new_figure, save_figure

__all__ = ["plot_slices", "plot_surfaces"]


def plot_slices(
    slices: Mapping[str, Sequence[LossSlice]], path: str | Path, *, title: str = ""
) -> Path:
    """Draws the loss along directions, a colour for each label: thin for a slice, thick the mean.

    Args:
        slices: by label the slices of one arm, say of its seeds, at the same places.
        path: the file; its ending says which kind.
        title: above the picture.
    Returns: the path.

    Raises: ValueError: none, or a file of a kind that matplotlib does not know.
    """
    if not any(slices.values()):
        raise ValueError("plot_slices: expected at least one slice, got none")
    figure = new_figure((6.5, 4.0))
    axes = figure.subplots()
    for number, (label, own) in enumerate(slices.items()):
        for each in own:
            axes.plot(each.at, each.losses, color=f"C{number}", lw=0.6, alpha=0.4)
        if own:
            mean = np.mean([each.losses for each in own], axis=0)
            axes.plot(own[0].at, mean, color=f"C{number}", lw=2, label=label)
    axes.set(xlabel="distance, in norms of the filters", ylabel="loss", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return save_figure(figure, path, title)


def plot_surfaces(
    surfaces: Mapping[str, LossSurface], path: str | Path, *, title: str = ""
) -> Path:
    """Draws the loss on planes, a panel for each label, with the same levels in all.

    Args:
        surfaces: by label.
        path: the file; its ending says which kind.
        title: above the picture.
    Returns: the path.
    Raises: ValueError: none, or a file of a kind that matplotlib does not know.
    """
    if not surfaces:
        raise ValueError("plot_surfaces: expected at least one surface, got none")
    figure = new_figure((4.2 * len(surfaces) + 0.6, 3.8))
    panels = figure.subplots(1, len(surfaces), squeeze=False)[0]
    finite = np.concatenate([s.losses[np.isfinite(s.losses)].ravel() for s in surfaces.values()])
    low = max(float(finite.min()), np.finfo(np.float64).tiny)
    levels = np.geomspace(low, max(float(finite.max()), 2 * low), 16)
    for axes, (label, surface) in zip(panels, surfaces.items(), strict=True):
        drawn = axes.contourf(
            surface.at, surface.at, surface.losses.T, levels=levels, norm="log", extend="both"
        )
        axes.set_title(label, fontsize="small")
        axes.set(xlabel="first direction", aspect="equal")
    panels[0].set_ylabel("second direction")
    figure.colorbar(drawn, ax=list(panels), label="loss", format="%.3g")
    return save_figure(figure, path, title)
