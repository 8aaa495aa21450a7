"""The loops of the kernels of products in csrc/cuda, found in their machine code for sm_90, and how
many instructions each may have.

Instructions are counted, not run. The count is of the loop over stages, without the loop inside it
that closes chunks, divided by the loop's products.
"""

import itertools
from typing import NamedTuple

from tests.backends import sass
from tests.backends.sass import Function, Kernels, Loop, loops, target_of

# A stage of 8 steps for 8 x 8 outputs.
PRODUCTS = 512


class Ceiling(NamedTuple):
    #: The tile, before its two flags (tables, chunks).
    tile: str
    most: float
    #: Instructions that show a product, and how many of each a stage has.
    steps: dict[str, int]


# Sums are never contracted: Veltkamp's splitting has its product and both its additions, and the
# roundings of TwoStepRule and FloorRule are two multiply-adds beside that of the sum.
SPLIT = {"FFMA": 512, "FMUL": 512, "FADD": 1024}
CEILINGS = {
    "float32": Ceiling("CertifiedTile<HardwareRule<0>", 1.25, {"FFMA": 512}),
    "toward zero": Ceiling("CertifiedTile<TruncationRule", 2.75, {"FFMA": 512}),
    "stochastic": Ceiling("StochasticTile<", 7.2, {"FFMA": 512, "IDP": 512}),
    # One conversion takes two sums, and each sum takes one instruction on the way back.
    "converted": Ceiling(
        "CertifiedTile<ConvertRule", 3.0, {"FFMA": 512, "F2FP": 256, "HADD2": 512}
    ),
    "double, split": Ceiling(
        "CertifiedTile<DoubleSplitRule", 4.8, {"DFMA": 512, "DMUL": 512, "DADD": 1024}
    ),
    "double, floor": Ceiling("CertifiedTile<DoubleFloorRule", 6.8, {"DFMA": 1536}),
}
for _name, _rule, _steps, _odd, *_most in (
    ("two steps", "TwoStepRule", {"FFMA": 1536}, {"FFMA": 2048}, 3.4, 3.9, 5.5, 6.9),
    ("split", "SplitRule", SPLIT, SPLIT | {"FFMA": 1024}, 4.4, 4.9, 6.5, 7.9),
    ("floor", "FloorRule", {"FFMA": 1536}, {"FFMA": 2048}, 5.5, 5.9, 7.6, 8.9),
):
    _tile = f"CertifiedTile<{_rule}"
    CEILINGS |= {
        _name: Ceiling(f"{_tile}<NearestSum, 0>", _most[0], _steps),
        f"{_name}, watched": Ceiling(f"{_tile}<NearestSum, 1>", _most[1], _steps),
        f"{_name}, clipped": Ceiling(f"{_tile}<NearestSum, 2>", _most[2], _steps | {"FMNMX": 1024}),
        f"odd, {_name}": Ceiling(f"{_tile}<OddSum, 1>", _most[3], _odd),
    }


def layouts(name: str) -> list[tuple[bool, bool]]:
    """Whether elements are looked up and sums have chunks, for each kernel. Kernels of rare tiers
    look up all elements."""
    rare = name.startswith(("odd", "double")) or name.endswith("clipped")
    return list(itertools.product((True,) if rare else (False, True), (False, True)))


def flag(value: bool) -> str:
    return "true" if value else "false"


def made(kernels: Kernels, tile: str) -> Function:
    """The code that makes a tile: in a kernel that tiers share, the part for its tier."""
    (name,) = [n for n in kernels if f", {tile} >" in n]
    tier = name.split(f", {tile} >")[0].rsplit("Made<", 1)[1]
    alone = name.count("Made<") == 1
    return kernels[name] if alone else sass.chosen(kernels[name], int(tier))


def kernel_of(kernels: Kernels, tile: str, tables: bool, chunks: bool) -> Function:
    # StochasticTile has no other argument.
    flags = f"{flag(tables)}, {flag(chunks)}>"
    return made(kernels, tile + flags if tile.endswith("<") else f"{tile}, {flags}")


def stage_loop(function: Function) -> Loop:
    """The loop over stages: the longest loop, without the loops inside it."""
    return max(loops(function), key=lambda loop: loop.count("FFMA", "DFMA"))


def main_loop(kernels: Kernels, tile: str, tables: bool, chunks: bool) -> Loop:
    """The loop over stages without the code that ends a chunk."""
    function = kernel_of(kernels, tile, tables, chunks)
    return stage_without_ends(function) if chunks else stage_loop(function)


def stage_without_ends(function: Function) -> Loop:
    """The loop over stages without the code that ends a chunk."""
    main = stage_loop(function)
    # There is one loop for each way of joining outer sums; it takes a thread's sums a row of 8 at a
    # time.
    rows = [
        i
        for i in loops(function)
        if main.first < i.first and i.last < main.last and i.count("STG") >= 8
    ]
    (in_float,) = [i for i in rows if any(x.name == "LOP3.LUT.PAND" for x in i.body)]
    # The code that most stages jump over.
    first, behind = next(
        (index, to)
        for index in range(main.first, in_float.first)
        if (to := target_of(function, index)) is not None
        and max(i.last for i in rows) < to <= main.last
    )
    body = [*function.code[main.first : first + 1], *function.code[behind : main.last + 1]]
    return Loop(main.first, main.last, body)
