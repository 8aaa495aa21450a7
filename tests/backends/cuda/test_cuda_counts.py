"""Machine code of csrc/cuda for sm_90, counted: what a product costs in each certified kernel.

Instructions are counted, not run: those of the loop over stages, divided by its products, without
the loop inside it that closes chunks. Registers are looked at for every architecture in the module.

Wherever the tests run, small kernels of each family show that nothing is contracted. Ceilings, and
the kernels whose modules take seconds to disassemble, are looked at with pytest -m slow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lpkernels import _build
from tests.support import sass
from tests.support.sass import Function, Kernels, Loop, fewest, loops, target_of

# A stage of 8 steps for 8 x 8 outputs.
PRODUCTS = 512
# A thread's part of a stage of 32 steps on tensor cores: 64 of a warp's 64 x 32 outputs.
TENSOR_PRODUCTS = 2048


class Ceiling(NamedTuple):
    #: The tile, before its two flags (tables, chunks).
    tile: str
    most: float
    #: Instructions that show a product, and how many of each a stage has.
    steps: dict[str, int]


def rule(name: str, total: str = "NearestSum", limit: int = 0) -> str:
    return f"CertifiedTile<{name}<{total}, {limit}>"


# Sums are never contracted: Veltkamp's splitting has its product and both its additions, and the
# roundings of TwoStepRule and FloorRule are two multiply-adds beside that of the sum.
SPLIT = {"FFMA": 512, "FMUL": 512, "FADD": 1024}
CEILINGS = {
    "float32": Ceiling("CertifiedTile<HardwareRule<0>", 1.25, {"FFMA": 512}),
    "half precision": Ceiling("HalfTile<false", 0.75, {"HFMA2": 256}),
    "bfloat16": Ceiling("HalfTile<true", 0.75, {"HFMA2": 256}),
    "toward zero": Ceiling("CertifiedTile<TruncationRule", 2.75, {"FFMA": 512}),
    "two steps": Ceiling(rule("TwoStepRule", "NearestSum", 0), 3.4, {"FFMA": 1536}),
    "two steps, watched": Ceiling(rule("TwoStepRule", "NearestSum", 1), 3.9, {"FFMA": 1536}),
    "two steps, clipped": Ceiling(
        rule("TwoStepRule", "NearestSum", 2), 5.5, {"FFMA": 1536, "FMNMX": 1024}
    ),
    "odd, two steps": Ceiling(rule("TwoStepRule", "OddSum", 1), 6.9, {"FFMA": 2048}),
    "split": Ceiling(rule("SplitRule", "NearestSum", 0), 4.4, SPLIT),
    "split, watched": Ceiling(rule("SplitRule", "NearestSum", 1), 4.9, SPLIT),
    "split, clipped": Ceiling(rule("SplitRule", "NearestSum", 2), 6.5, SPLIT | {"FMNMX": 1024}),
    "floor": Ceiling(rule("FloorRule", "NearestSum", 0), 5.5, {"FFMA": 1536}),
    "floor, watched": Ceiling(rule("FloorRule", "NearestSum", 1), 5.9, {"FFMA": 1536}),
    "floor, clipped": Ceiling(
        rule("FloorRule", "NearestSum", 2), 7.6, {"FFMA": 1536, "FMNMX": 1024}
    ),
    "odd, split": Ceiling(rule("SplitRule", "OddSum", 1), 7.9, SPLIT | {"FFMA": 1024}),
    "odd, floor": Ceiling(rule("FloorRule", "OddSum", 1), 8.9, {"FFMA": 2048}),
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


def slow_but(kept: Iterable[Any], every: Iterable[Any]) -> list[Any]:
    """Parameters of a test; all but the kept ones are slow."""
    return [pytest.param(one, marks=[pytest.mark.slow] * (one not in kept)) for one in every]


REASON = sass.reason()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)


def in_library(target: str, folder: Path) -> list[Path]:
    library = Path(str(_build.load_extension().__file__)).resolve()
    return sass.cubins(library, target, folder)


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The modules for sm_90 inside lpkernels._C."""
    found = in_library("sm_90", tmp_path_factory.mktemp("cubins"))
    if not found:
        pytest.skip("lpkernels._C was not built for sm_90")
    return found


@pytest.fixture(scope="module")
def kernels(cubins: list[Path]) -> Kernels:
    return Kernels(cubins)


def flag(value: bool) -> str:
    return "true" if value else "false"


def made(kernels: Kernels, tile: str) -> Function:
    """The code that makes a tile in the kernel that its tier shares with others: the part behind
    the question whether the plan names the tier."""
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
    return max(loops(function), key=lambda loop: loop.count("FFMA", "HFMA2", "DFMA"))


def main_loop(kernels: Kernels, tile: str, tables: bool, chunks: bool) -> Loop:
    """The loop over stages without the code that ends a chunk."""
    function = kernel_of(kernels, tile, tables, chunks)
    found = stage_loop(function)
    return found if not chunks else ends_of(function).stage


class Ends(NamedTuple):
    """Instructions of a thread for the ends of a chunk in 64 sums: kept where these wait in memory,
    closed where they join outer sums in float32 (none lies below the format's last place),
    in_double where they join them in double. stage is the loop around these instructions, without
    them."""

    kept: int
    closed: int
    in_double: int
    stage: Loop


def ends_of(function: Function) -> Ends:
    main = stage_loop(function)
    # There is one loop for each way of joining outer sums; it takes a thread's sums a row of 8 at a
    # time.
    rows = [
        i
        for i in loops(function)
        if main.first < i.first and i.last < main.last and i.count("STG") >= 8
    ]
    (in_float,) = [i for i in rows if any(x.name == "LOP3.LUT.PAND" for x in i.body)]
    # Tiles whose sums are not rounded to nearest have one loop more in double, which is longer: it
    # rounds outer sums as the tile does its own.
    in_double = min((i for i in rows if i.count("DADD")), key=lambda i: len(i.body))
    # The code that most stages jump over.
    first, behind = next(
        (index, to)
        for index in range(main.first, in_float.first)
        if (to := target_of(function, index)) is not None
        and max(i.last for i in rows) < to <= main.last
    )
    kept = fewest(function, first + 1, behind, ["STG"], past=[i.first for i in rows])

    def joined(loop: Loop, through: list[str]) -> int:
        return fewest(function, first + 1, loop.first, []) + 8 * (
            1 + fewest(function, loop.first, loop.last, through)
        )

    body = [*function.code[main.first : first + 1], *function.code[behind : main.last + 1]]
    return Ends(
        kept, joined(in_float, ["LOP3.LUT.PAND", "FSETP"]), joined(in_double, ["DADD"]),
        Loop(main.first, main.last, body),
    )  # fmt: skip


#: Instructions for a chunk of an output in the kernel behind split sums, at most.
PARTS_CEILING = 24.0
#: Chunks that the kernel behind split sums adds at a time.
PARTS_AT_ONCE = 8


def parts_loops(kernels: Kernels) -> tuple[float, float]:
    """Instructions for a chunk of an output where sums were split: in float32, and in double."""
    function = kernels["void exact_kernel<4, 0, false>(Job, long)"]
    found = loops(function)
    (in_float,) = [i for i in found if sum(x.name == "LOP3.LUT.PAND" for x in i.body) >= 8]
    in_double = min((i for i in found if i.count("DADD")), key=lambda i: len(i.body))
    way = fewest(function, in_float.first, in_float.last, ["LOP3.LUT.PAND", "FSETP"])
    return (1 + way) / PARTS_AT_ONCE, float(len(in_double.body))


def tensor_ceiling(tile: tuple[int, int]) -> float:
    """Instructions of a product in a stage on tensor cores, packed, at most: smaller tiles copy as
    much for half of the products."""
    return 0.075 if tile == (128, 128) else 0.085


#: Rows and columns of tiles on tensor cores.
TENSOR_TILES = ((128, 128), (128, 64), (64, 128))


class Tensor(NamedTuple):
    """A kernel on tensor cores."""

    bfloat16: bool
    tables: bool
    tile: tuple[int, int]


def tensor_kernel(kernels: Kernels, of: Tensor) -> Function:
    rows, cols = of.tile
    return made(kernels, f"TensorTile<{flag(of.bfloat16)}, {flag(of.tables)}, {rows}, {cols}>")


def tensor_stage(kernels: Kernels, of: Tensor) -> Loop:
    return max(loops(tensor_kernel(kernels, of)), key=lambda loop: loop.count("HMMA"))


def tensor_kept(kernels: Kernels, of: Tensor) -> float:
    """Instructions that keep a sum of a chunk, which waits in memory. They are counted from the
    first to the last store in the straight code with the most stores, without a branch between."""
    found = []
    for stretch in sass.stretches(tensor_kernel(kernels, of)):
        found.append([n for n, x in enumerate(stretch) if x.name.startswith("STG")])
    stores = max(found, key=len)
    return (stores[-1] + 1 - stores[0]) / len(stores)


class Steps(NamedTuple):
    """Straight code of blocks aligned by their operands: the code that finds the largest exponent
    and the code that adds."""

    tile: str
    #: Steps that are taken at a time, each of 2 x 2 outputs.
    steps: int
    #: Instructions of a product at most, in both codes together.
    most: float
    #: The multiply-add that cuts a product.
    cut: str


#: Kernels whose operands take turns have one step at a time, behind a branch.
OPERAND_BLOCKS = {
    "operands, float32": Steps("OperandTile<float, false>", 8, 7.1, "FFMA"),
    "operands, double": Steps("OperandTile<double, false>", 8, 8.2, "DFMA"),
    "operands, in turns": Steps("OperandTile<double, true>", 1, 10.2, "DFMA"),
}


def operand_steps(kernels: Kernels, steps: Steps) -> tuple[Any, Any]:
    """The shortest straight code that measures so many products, and the shortest that adds
    them."""
    (function,) = [kernels[n] for n in kernels if "operand_kernel" in n and steps.tile in n]
    products = 4 * steps.steps

    def shortest(name: str) -> Any:
        found = [s for s in sass.stretches(function) if sum(name in i.name for i in s) == products]
        return min(found, key=len)

    return shortest("VIADDMNMX"), shortest(f"{steps.cut}.RZ")


@pytest.mark.slow
@pytest.mark.parametrize("tables", [False, True], ids=["packed", "tables"])
@pytest.mark.parametrize("name", CEILINGS)
def test_the_end_of_a_chunk_stays_below_its_ceiling(kernels, name: str, tables: bool):
    ends = ends_of(kernel_of(kernels, CEILINGS[name].tile, tables, chunks=True))
    double = name.startswith("double")
    # The ceilings hold for each of 64 sums.
    assert ends.closed / 64 <= (32 if double else 24)
    assert ends.kept / 64 <= (10 if double else 8)
    assert ends.in_double / 64 <= (66 if double else 57)


@pytest.mark.slow
def test_parts_of_split_sums_are_added_below_their_ceiling(kernels):
    in_float, in_double = parts_loops(kernels)
    assert in_float <= PARTS_CEILING
    assert in_double <= 60


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERAND_BLOCKS)
def test_blocks_aligned_by_operands_stay_below_their_ceiling(kernels, name: str):
    steps = OPERAND_BLOCKS[name]
    measured, added = operand_steps(kernels, steps)
    assert (len(measured) + len(added)) / (4 * steps.steps) <= steps.most


@pytest.mark.parametrize("name", OPERAND_BLOCKS)
def test_blocks_aligned_by_operands_contract_nothing(kernels, name: str):
    _, added = operand_steps(kernels, OPERAND_BLOCKS[name])
    # One multiply-add cuts a product; one addition takes away what cut it, and one adds the rest.
    additions = sum(i.name.split(".")[0] in ("FADD", "DADD") for i in added)
    assert additions == 2 * 4 * OPERAND_BLOCKS[name].steps


@pytest.mark.slow
@pytest.mark.parametrize("name", CEILINGS)
def test_instructions_of_a_product_stay_below_the_ceiling(kernels, name: str):
    ceiling = CEILINGS[name]
    for tables, chunks in product((False, True), (False, True)):
        loop = main_loop(kernels, ceiling.tile, tables, chunks)
        # Tables cost at most eight lookups of each operand in a stage, and chunks some integers.
        more = 0.5 if tables or chunks else 0.0
        assert len(loop.body) / PRODUCTS <= ceiling.most + more, (tables, chunks)


@pytest.mark.parametrize("chunks", slow_but((False,), (False, True)), ids=["one sum", "chunks"])
@pytest.mark.parametrize("tables", [False, True], ids=["packed", "tables"])
@pytest.mark.parametrize("name", slow_but(("double, split", "stochastic"), CEILINGS))
def test_nothing_is_contracted_away(kernels, name: str, tables: bool, chunks: bool):
    ceiling = CEILINGS[name]
    loop = main_loop(kernels, ceiling.tile, tables, chunks)
    for instruction, count in ceiling.steps.items():
        assert loop.count(instruction) >= count, instruction


def test_no_kernel_spills_or_uses_local_memory(tmp_path: Path):
    found = in_library("all", tmp_path)
    assert found
    for cubin in found:
        usage = sass.usage(cubin)
        assert set(re.findall(r"STACK:(\d+)", usage)) <= {"0"}, usage
        assert set(re.findall(r"LOCAL:(\d+)", usage)) <= {"0"}, usage


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("exact_kernel<4, 6,", 1),
        ("ordered_kernel<TreeTile<false>", 1),
        pytest.param("exact_kernel<", 14, marks=pytest.mark.slow),
        pytest.param("ordered_kernel<", 6, marks=pytest.mark.slow),
    ],
)
def test_sums_that_are_not_certified_are_rounded_in_double(kernels, name: str, count: int):
    found = [kernels[n] for n in kernels if name in n]
    assert len(found) == count
    for function in found:
        names = {i.name.split(".")[0] for i in function.code}
        # Two-sum and the rules are separate additions; a division would contract as DFMA.
        assert {"DADD", "DMUL"} <= names


@pytest.mark.parametrize("tables", [False, True], ids=["packed", "tables"])
@pytest.mark.parametrize("bfloat16", [False, True], ids=["half", "bfloat16"])
@pytest.mark.parametrize("tile", TENSOR_TILES)
def test_native_chunks_run_on_tensor_cores(
    kernels, bfloat16: bool, tables: bool, tile: tuple[int, int]
):
    of = Tensor(bfloat16, tables, tile)
    stage = tensor_stage(kernels, of)
    # The stage is 32 steps of a warp's 64 x 32 outputs; fragments are read once, four matrices at a
    # time.
    assert stage.count("HMMA") == 32
    assert stage.count("LDSM") == 12
    assert stage.count("DADD", "DMUL", "DFMA") == 0
    if not tables:
        # Operands are copied past the registers, and chunks end outside.
        copied = 4 if tile == (128, 128) else 6
        assert stage.count("LDGSTS") == copied and stage.count("FADD") == 0
        # One instruction finds whether a sum lies half way, in each of the three ways that look.
        code = tensor_kernel(kernels, of).code
        assert sum(i.name == "LOP3.LUT.PAND" for i in code) == 3 * 64


@pytest.mark.slow
@pytest.mark.parametrize("bfloat16", [False, True], ids=["half", "bfloat16"])
@pytest.mark.parametrize("tile", TENSOR_TILES)
def test_products_on_tensor_cores_stay_below_their_ceiling(
    kernels, bfloat16: bool, tile: tuple[int, int]
):
    stage = tensor_stage(kernels, Tensor(bfloat16, False, tile))
    assert len(stage.body) / TENSOR_PRODUCTS <= tensor_ceiling(tile)
