"""The plan made in Python is the one that csrc/cuda, compiled for the host, makes for drawn
products."""

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from lpkernels.arithmetic import Accumulator
from lpkernels.backends.planning import Shape, cuda
from lpkernels.backends.planning.cuda_cuts import (
    FLOAT_SHAPES,
    RARE_SHAPES,
    SHAPES,
    TENSOR_SHAPES,
)
from lpkernels.backends.planning.cuda_tiers import TENSOR, may_certify, tier
from lpkernels.backends.planning.ranges import Range
from lpkernels.formats import FP32
from lpkernels.rounding import ROUNDINGS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"),
]
FORMATS = (
    "e5m10 bf16 fp32 e6m9 e5m2 e4m3fn e4m3fn_sat e5m10_sat e8m14 e8m22 e6m9_sat e6m11 e6m12 e8m10 "
    "e5m9 e4m7none_sat e6m0 e8m21 e7m16 e5m3_nosub fixed16_f8 e6m9_nosub"
).split()
# By the numbers of Tier in csrc/cuda/product/tier.h.
TIERS = (
    "exact",
    "two steps", "two steps, watched", "two steps, clipped", "odd, two steps",
    "split", "split, watched", "split, clipped", "odd, split",
    "floor", "floor, watched", "floor, clipped", "odd, floor",
    "double, split", "double, floor", "toward zero", "stochastic",
    "converted", "half precision", "bfloat16", "float32", *TENSOR,
)  # fmt: skip


def drawn(rng: random.Random) -> Accumulator:
    """Some accumulator in sequence or of native chunks."""
    while True:
        chunk = rng.choice([None, None, 1, 8, 64, 63, 100])
        outer = rng.choice(FORMATS) if chunk and rng.random() < 0.4 else None
        outer_rounding = rng.choice(ROUNDINGS) if chunk and rng.random() < 0.2 else None
        rest = {"chunk": chunk, "outer": outer, "outer_rounding": outer_rounding}
        rounding = rng.choice(ROUNDINGS) if rng.random() < 0.5 else "nearest_even"
        product = rng.choice(FORMATS) if rng.random() < 0.2 else None
        bits = rng.choice([8, 8, 3, 13])
        try:
            if chunk and rng.random() < 0.3:
                return Accumulator("fp32", order="native", **rest)
            fmt = rng.choice(FORMATS)
            return Accumulator(fmt, rounding, product=product, random_bits=bits, **rest)
        except ValueError:
            continue


def operand(rng: random.Random) -> Range:
    width, lowest = rng.randint(1, 24), rng.randint(-70, 10)
    return Range(width, lowest, lowest + width + rng.randint(0, 30))


def shaped(rng: random.Random) -> Shape:
    narrow = (1, rng.choice([16, 32, 64, 9000]), rng.choice([16, 32, 64, 9000]))
    fixed = [(1, 1, 1), (32, 1, 9), (1, 300, 200), (7, 128, 129), (1, 512, 4608), (96, 9000, 1)]
    sizes = rng.choice([*fixed, narrow])
    k = rng.choice([1, 9, 64, 100, 1000, 200_000, rng.randint(1, 900_000)])
    length = k + 5 if rng.random() < 0.3 else 0
    packed = (rng.randint(1, 99_999), rng.randint(1, 99_999))
    return Shape(*sizes, k, operand(rng), operand(rng), length=length, packed=packed)


def line(acc: Accumulator, s: Shape, processors: int) -> str:
    chunks = s.chunks(acc.chunk)
    sizes = (s.matrices, s.m, s.n, s.k, int(s.skips), *s.packed, chunks, processors)
    ints = (*s.left, *s.right, *sizes, *acc.to_ints())
    return " ".join(map(str, (len(ints), *ints)))


def test_tiers_cuts_and_scratch_are_those_of_csrc(tmp_path: Path) -> None:
    rng = random.Random(5)
    cases = [(drawn(rng), shaped(rng), rng.choice([1, 84, 132])) for _ in range(20_000)]
    program = tmp_path / "plan_host"
    source = Path(__file__).with_name("plan_host.cpp")
    headers = Path(__file__).parents[3] / "csrc"
    compiler = ["g++", "-std=c++17", "-O1", f"-I{headers}"]
    subprocess.run([*compiler, source, "-o", program], check=True)
    lines = "\n".join(line(*case) for case in cases)
    tiles, others = set(), set()
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    for (acc, shape, processors), answer in zip(cases, done.stdout.splitlines(), strict=True):
        number, size, *rest = map(int, answer.split())
        want = "exact" if number < 0 else TIERS[number]
        assert tier(acc, shape, fast_doubles=True) == want, (acc, shape)
        if may_certify(acc):
            cuts = cuda.cuts_for(shape, acc, processors)
            assert [*cuts.others, *cuts.shaped] == rest, (acc, shape)
            assert cuda.scratch(shape, acc, cuts) == size, (acc, shape)
            tiles.add((cuts.shaped.rows, cuts.shaped.cols))
            others.add((acc.fmt == FP32, cuts.others.rows, cuts.others.cols))
    assert tiles == {(s.rows, s.cols) for s in (*SHAPES.shapes, *TENSOR_SHAPES.shapes)}
    assert others == {
        (single, s.rows, s.cols)
        for single, table in ((False, RARE_SHAPES), (True, FLOAT_SHAPES))
        for s in table.shapes
    }
