"""``python -m bench.walk``: the functions of the package that a call goes through.

For each call it prints how many Python functions of the package ran, in how many files, and with
--list each of them in order.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import lpkernels as lp

PACKAGE = Path(lp.__file__).parent


def functions_of(call: Callable[[], Any]) -> list[tuple[str, str]]:
    """(file, function) of every Python call of the package that a second `call()` makes."""
    call()
    rows: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            rows.append((str(path.relative_to(PACKAGE)), frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return rows


def calls() -> dict[str, Callable[[], Any]]:
    """The calls of a small training step, by name."""
    torch.set_num_threads(1)
    x = torch.randn(4, 8, requires_grad=True)
    image = torch.randn(2, 4, 6, 6, requires_grad=True)
    linear = lp.nn.Linear(8, 4, recipe="fp8_wang2018")
    scaled = lp.nn.Linear(32, 32, recipe="mxfp8")
    wide = torch.randn(4, 32, requires_grad=True)
    conv = lp.nn.Conv2d(4, 4, 3, recipe="fp8_wang2018")
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    return {
        "Linear, training forward": lambda: linear(x),
        "Linear, forward and backward": lambda: linear(x).sum().backward(),
        "Linear mxfp8, forward and backward": lambda: scaled(wide).sum().backward(),
        "Conv2d, training forward": lambda: conv(image),
        "quantize": lambda: lp.quantize(a, "e5m2"),
        "matmul": lambda: lp.matmul(a, b, "e6m9"),
    }


def main() -> None:
    """Prints the table, and the functions of the calls that --list names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", default="", help="print the functions of calls with this text")
    text = parser.parse_args().list
    for name, call in calls().items():
        rows = functions_of(call)
        print(f"{name:36} {len(rows):4} calls in {len({file for file, _ in rows}):2} files")
        if text and text.lower() in name.lower():
            print("\n".join(f"    {file:40} {function}" for file, function in rows))


if __name__ == "__main__":
    main()
