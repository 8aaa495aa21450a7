"""Products of the ``cuda`` backend as csrc/cuda/product makes them: its own code says which tier,
tiles, splits, kernels and scratch memory a product gets, compiled for the host with g++.

The device chooses the tier from the facts that packing finds; here a `Range` gives them for each
operand.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from bench.predict.plans import Plan, ceil_div, not_counted
from bench.predict.ranges import FLOAT32
from bench.predict.shapes import Shape
from lpkernels.arithmetic import Accumulator

EXACT, ORDERED = "exact", "ordered"
TENSOR = ("tensor cores, half", "tensor cores, bfloat16")
#: The tile of kernels that have no other.
SQUARE = (128, 128)
# By the numbers of Tier in csrc/cuda/product/tier.h; the last one is for all orders but sequence.
_TIERS = (
    EXACT,
    "two steps", "two steps, watched", "two steps, clipped", "odd, two steps",
    "split", "split, watched", "split, clipped", "odd, split",
    "floor", "floor, watched", "floor, clipped", "odd, floor",
    "double, split", "double, floor", "toward zero", "stochastic",
    "converted", "half precision", "bfloat16", "float32", *TENSOR, ORDERED,
)  # fmt: skip
_SOURCES = Path(__file__).parents[2] / "csrc"


class _Answer(NamedTuple):
    """The output of cuda_plans.cpp for a product. The cut is made for the kernel of its tier."""

    tier: int
    in_float: int
    tensor: int
    scratch: int
    launches: int
    rows: int
    cols: int
    tiles: int
    splits: int
    passes: int
    chunks: int
    beside: int


@functools.cache
def _program() -> subprocess.Popen[str]:
    """The program, compiled and started once; it ends with this process."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise RuntimeError(
            "bench.predict: csrc/cuda says how it makes a product through a program that g++ "
            "compiles, and g++ is not installed; on Debian: apt install g++"
        )
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "cuda_plans"
        sources = Path(__file__).with_suffix(".cpp"), _SOURCES / "cpu" / "drivers" / "table.cpp"
        subprocess.run(
            [compiler, "-std=c++17", "-O1", f"-I{_SOURCES}", *sources, "-o", program], check=True
        )
        started = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    # This ends its input and waits for it.
    atexit.register(started.communicate)
    return started


@functools.lru_cache(maxsize=1 << 16)
def _ask(acc: Accumulator, shape: Shape, processors: int, fast_doubles: bool) -> _Answer:
    sizes = (shape.matrices, shape.m, shape.n, shape.k, int(shape.skips), *shape.packed)
    rest = (shape.chunks(acc.chunk), processors, int(fast_doubles), *acc.to_ints())
    ints = (*shape.left, *shape.right, *sizes, *rest)
    program = _program()
    assert program.stdin is not None and program.stdout is not None
    print(len(ints), *ints, file=program.stdin, flush=True)
    return _Answer(*map(int, program.stdout.readline().split()))


def closes_in_float(acc: Accumulator) -> bool:
    """Whether chunks end in float32 and not in double: the rule of csrc/cuda/rules/outer_way.h."""
    return bool(_ask(acc, Shape(1, 1, 1, 1, FLOAT32, FLOAT32), 1, True).in_float)


def tier(acc: Accumulator, shape: Shape, *, fast_doubles: bool = True) -> str:
    """The kernel of a product, by its name in bench/results/cuda-sm_90-counts.jsonl; "exact" and
    "ordered" are not among these.

    fast_doubles: the processor adds doubles at half the rate of floats, no less.
    """
    return _TIERS[_ask(acc, shape, 1, fast_doubles).tier]


def plan(shape: Shape, acc: Accumulator, processors: int, *, fast_doubles: bool = True) -> Plan:
    """How the backend makes the product of that shape with an accumulator on so many processors.

    Raises: NotImplementedError: it takes a kernel whose instructions were not counted.
    """
    found = _ask(acc, shape, processors, fast_doubles)
    kernel = _TIERS[found.tier]
    if kernel in (EXACT, ORDERED):
        raise not_counted("cuda", kernel, acc)
    places = processors * found.beside
    waves = found.passes * ceil_div(found.tiles * found.splits, places) * found.beside
    return Plan(
        kernel, (found.rows, found.cols), found.tiles, found.splits, waves, found.launches,
        found.scratch, found.chunks if found.splits > 1 else 0,
    )  # fmt: skip
