"""What must my kernel return? Test vectors of an H100's FP8 unit, and three kernels against them.

`lpkernels vectors` writes operands a and b, the start c and the right bits d of every case. Put
your kernel in the place of the three below: it takes a, b (cases, k) and c (cases,).

    python examples/kernel_vectors.py --unit h100_e4m3 --out vectors
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lpkernels.report.figures import finish, panels, save_figure

Array = NDArray[np.float32]


def one_by_one(a: Array, b: Array, c: Array) -> Array:
    """float32 in the order of k, a rounding for each product."""
    for left, right in zip(a.T, b.T, strict=True):
        c = c + left * right
    return c


def exact(a: Array, b: Array, c: Array) -> Array:
    """The exact sum, rounded once."""
    return (c + (a.astype(np.float64) * b).sum(1)).astype(np.float32)


def aligned(a: Array, b: Array, c: Array) -> Array:
    """The unit's step for finite cases: all terms are cut 13 places below the largest exponent."""

    def exponent(x: Array, least: float) -> Array:
        return np.maximum(np.where(x == 0, -np.inf, np.floor(np.log2(np.abs(x)))), least)

    terms = np.concatenate([a.astype(np.float64) * b, c[:, None]], 1)
    exponents = np.concatenate([exponent(a, -6) + exponent(b, -6), exponent(c, -126)[:, None]], 1)
    exponents[terms == 0] = -126
    place = 2.0 ** (exponents.max(1, keepdims=True) - 13)
    total = (np.trunc(terms / place) * place).sum(1)
    last = 2.0 ** (exponent(total, -126) - 13)
    return (np.trunc(total / last) * last + 0.0).astype(np.float32)


def main() -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--unit", default="h100_e4m3")
    parser.add_argument("--cases", type=int, default=7000)
    parser.add_argument("--out", type=Path, default=Path("vectors"))
    options = parser.parse_args()
    command = ["vectors", options.unit, "--cases", str(options.cases), "--out", str(options.out)]
    subprocess.run([sys.executable, "-m", "lpkernels", *command], check=True)

    kinds = json.loads((options.out / "vectors.json").read_text())["kinds"]
    with np.load(options.out / "vectors.npz") as arrays:
        a, b, c, d = (arrays[name] for name in "abcd")
    (axes,) = panels(1, (8, 4))
    shares = {}
    for i, kernel in enumerate((one_by_one, exact, aligned)):
        with np.errstate(all="ignore"):
            # NaN has the bits 0x7fc00000 in d; a kernel may return any NaN.
            equal = kernel(a, b, c).view(np.uint32) == d.view(np.uint32)
        by_kind = [equal[kind :: len(kinds)].mean() for kind in range(len(kinds))]
        axes.bar(np.arange(len(kinds)) + 0.25 * (i - 1), by_kind, 0.25, label=kernel.__name__)
        shares[kernel.__name__] = float(equal.mean())
        print(f"{kernel.__name__:10} {equal.mean():.1%} of {len(d)} cases have the right bits")
    axes.set_xticks(range(len(kinds)), kinds)
    finish(axes, ylabel="share of equal bits", ylim=(0, 1.3))
    save_figure(axes.figure, options.out / "equal.png", f"Three kernels against {options.unit}")
    return shares


if __name__ == "__main__":
    main()
