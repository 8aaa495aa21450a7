"""Draws docs/pictures/scaled-formats.png: one tensor in three scaled formats, error by magnitude.

    python -m bench.scaled_formats

The tensor is normal, and its rows differ in size by factors from 1 to 2^-12, as channels do.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.report.figures import new_figure, save_figure

FORMATS = ("mxfp8", "nvfp4", "fp8_tensor")
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "scaled-formats.png"
BINADES = range(-20, 3)


def tensor() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.exp2(-torch.arange(1024) * 12 / 1023)
    return torch.randn(1024, 1024, generator=generator) * sizes[:, None]


def errors(x: Tensor, fmt: str) -> list[float]:
    """The root mean square of the relative errors of the values in each of `BINADES`."""
    relative = ((lp.quantize(x, fmt) - x) / x).double().square()
    exponent = torch.frexp(x).exponent - 1
    return [relative[exponent == e].mean().sqrt().item() for e in BINADES]


def main() -> None:
    x, figure = tensor(), new_figure((7, 4))
    axes = figure.subplots()
    for fmt in FORMATS:
        axes.plot([2.0**e for e in BINADES], errors(x, fmt), marker="o", markersize=3, label=fmt)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlabel("magnitude of a value, by binade")
    axes.set_ylabel("relative error, root mean square")
    axes.legend()
    save_figure(figure, PICTURE, "One tensor in three scaled formats")


if __name__ == "__main__":
    main()
