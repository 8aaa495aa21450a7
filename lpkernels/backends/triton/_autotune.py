"""Tiles chosen by a clock, once for each kind of product and device, kept in a file; off at first.

`_config` has the tiles; what is tried are its own and those with half the rows or columns. Results
depend on none of them, so a file from another machine costs time at worst.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from lpkernels.backends.triton._config import SMALLER, power_of_two

# Timed runs of each, after one that compiles.
_RUNS = 3

_path: Path | None = None
_chosen: dict[str, int] = {}


def autotune(path: str | os.PathLike[str] | None) -> None:
    """From now on time the tiles of products that are new, and keep the fastest in a JSON file.

    Args:
        path: the file, made when something is chosen; None: no longer, the tiles of `_config`.
    Raises:
        ValueError: the file is there and is not one of these.
    """
    global _path
    known = {} if path is None else _read(Path(path))
    _path = None if path is None else Path(path)
    _chosen.clear()
    _chosen.update(known)


def _read(path: Path) -> dict[str, int]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
    except json.JSONDecodeError:
        found = None
    ends = range(len(SMALLER))
    if not isinstance(found, dict) or not all(v in ends for v in found.values()):
        raise ValueError(
            f"autotune: {path} holds no tiles; expected a JSON object of numbers from 0 to "
            f"{ends[-1]}, as autotune writes it: delete it or name another file"
        )
    return found


def chosen(
    kernels: str, sizes: tuple[int, int, int, int], device: torch.device, run: Callable[[int], None]
) -> int:
    """Which of `_config.SMALLER` a product takes: 0 unless `autotune` is on.

    Args:
        kernels: names of what makes the sums. sizes: G, M, N, K. run: makes the product with one.
    A captured graph takes what is known and times nothing.
    """
    if _path is None:
        return 0
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    key = f"{name}: {kernels}: {'x'.join(str(power_of_two(size)) for size in sizes)}"
    if key in _chosen or (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        return _chosen.get(key, 0)
    times = [_seconds(partial(run, i), device) for i in range(len(SMALLER))]
    _chosen[key] = times.index(min(times))
    _write(_path)
    return _chosen[key]


def _write(path: Path) -> None:
    """With what other processes have chosen meanwhile; never half a file."""
    both = _read(path) | _chosen
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(both, indent=1, sort_keys=True) + "\n")
    beside.replace(path)


def _seconds(run: Callable[[], None], device: torch.device) -> float:
    """The shortest of a few runs, the device's work included."""
    run()
    best = float("inf")
    for _ in range(_RUNS):
        _wait(device)
        start = time.perf_counter()
        run()
        _wait(device)
        best = min(best, time.perf_counter() - start)
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
