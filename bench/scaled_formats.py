"""Draws docs/pictures/scaled-formats.png, or times layers under scaled recipes.

    python -m bench.scaled_formats                # one tensor in three formats, error by magnitude
    python -m bench.scaled_formats --layers 20    # forward and backward, for 20 seconds

The tensor is normal, and its rows differ in size by factors from 1 to 2^-12, as channels do. Layers
are 512 to 512 features at batch 512, on one thread, in turns, in processor time. Memory that is
freed stays with the process, as in one whose larger tensors taught its allocator so.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from time import process_time

import torch
from torch import Tensor

import lpkernels as lp
from bench.timing import interleave
from lpkernels.report.figures import panels, save_figure

FORMATS = ("mxfp8", "nvfp4", "fp8_tensor")
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "scaled-formats.png"
BINADES = range(-20, 3)
# Recipes, whether products are torch's own, and the recipe that they are compared with.
LAYERS = (
    ("mxfp8", True, "fp32"),
    ("nvfp4_pretraining", True, "fp32"),
    ("deepseek_v3", False, "hopper_fp8"),
)
_SIZE = 512


def tensor() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.exp2(-torch.arange(1024) * 12 / 1023)
    return torch.randn(1024, 1024, generator=generator) * sizes[:, None]


def errors(x: Tensor, fmt: str) -> list[float]:
    """The root mean square of the relative errors of the values in each of `BINADES`."""
    relative = ((lp.quantize(x, fmt) - x) / x).double().square()
    exponent = torch.frexp(x).exponent - 1
    return [relative[exponent == e].mean().sqrt().item() for e in BINADES]


def _step(name: str, native: bool) -> Callable[[], None]:
    """Forward and backward of a layer under a recipe."""
    generator, recipe = torch.Generator().manual_seed(0), lp.recipe(name)
    if native:
        recipe = dataclasses.replace(recipe, fprop=lp.NATIVE, dgrad=lp.NATIVE, wgrad=lp.NATIVE)
    layer = lp.nn.Linear(_SIZE, _SIZE, recipe=recipe)
    x, g = (torch.randn(_SIZE, _SIZE, generator=generator) for _ in range(2))
    x.requires_grad_()

    def step() -> None:
        x.grad = layer.weight.grad = layer.bias.grad = None
        layer(x).backward(g)

    return step


def time_layers(seconds: float) -> None:
    torch.set_num_threads(1)
    torch.zeros(16 << 20, dtype=torch.uint8)
    a, b = torch.randn(2, _SIZE, _SIZE)
    runs: dict[str, Callable[[], object]] = {"product": lambda: a @ b}
    for name, native, base in LAYERS:
        runs |= {name: _step(name, native), base: _step(base, False)}
    found = interleave(runs, seconds, clock=process_time)
    print(f"product {2 * _SIZE**3 / found['product'].best / 1e9:.0f} GFLOP/s")
    for name, _, base in LAYERS:
        its, other = found[name], found[base]
        ratio = its.best / other.best
        print(
            f"{name}: {its.best * 1e3:.2f} ms, {ratio:.2f} of {base} ({other.best * 1e3:.2f} ms); "
            f"median of the ratios {its.ratio(other):.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=float, metavar="SECONDS", help="time layers")
    seconds = parser.parse_args().layers
    draw() if seconds is None else time_layers(seconds)


def draw() -> None:
    x, (axes,) = tensor(), panels(1, (6.4, 3.6))
    for fmt in FORMATS:
        axes.plot([2.0**e for e in BINADES], errors(x, fmt), marker="o", markersize=3, label=fmt)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlabel("magnitude of a value, by binade")
    axes.set_ylabel("relative error, root mean square")
    axes.legend()
    save_figure(axes.figure, PICTURE, "One tensor in three scaled formats")


if __name__ == "__main__":
    main()
