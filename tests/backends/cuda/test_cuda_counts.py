"""Machine code of csrc/cuda for sm_90: what a product costs in each kernel of square tiles and on
tensor cores. Registers are looked at for every architecture in the module.

Wherever the tests run, small kernels of each family show that nothing is contracted. Ceilings, and
the kernels whose modules take seconds to disassemble, are looked at with pytest -m slow.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from tests.backends.cuda.product_loops import (
    CEILINGS,
    OPERAND_BLOCKS,
    PARTS_CEILING,
    PRODUCTS,
    TENSOR_PRODUCTS,
    TENSOR_TILES,
    Tensor,
    ends_of,
    kernel_of,
    main_loop,
    operand_steps,
    parts_loops,
    tensor_ceiling,
    tensor_kernel,
    tensor_stage,
)
from tests.loops import each
from tests.support import sass
from tests.support.sass import Kernels

pytestmark = pytest.mark.skipif(bool(sass.reason()), reason=sass.reason())
LAYOUTS = list(itertools.product((False, True), (False, True)))


@pytest.mark.slow
@pytest.mark.parametrize("name", CEILINGS)
def test_products_and_the_ends_of_chunks_stay_below_their_ceilings(kernels: Kernels, name: str):
    ceiling, double = CEILINGS[name], name.startswith("double")
    for tables, chunks in LAYOUTS:
        loop = main_loop(kernels, ceiling.tile, tables, chunks)
        # Tables cost at most eight lookups of each operand in a stage, and chunks some integers.
        more = 0.5 if tables or chunks else 0.0
        assert len(loop.body) / PRODUCTS <= ceiling.most + more, (tables, chunks)
        if chunks:
            ends = ends_of(kernel_of(kernels, ceiling.tile, tables, chunks))
            # The ceilings hold for each of 64 sums.
            assert ends.closed / 64 <= (32 if double else 24), tables
            assert ends.kept / 64 <= (10 if double else 8), tables
            assert ends.in_double / 64 <= (66 if double else 57), tables


@pytest.mark.slow
def test_parts_of_split_sums_are_added_below_their_ceiling(kernels: Kernels):
    in_float, in_double = parts_loops(kernels)
    assert in_float <= PARTS_CEILING
    assert in_double <= 60


@pytest.mark.slow
@each("name", OPERAND_BLOCKS)
def test_blocks_aligned_by_operands_stay_below_their_ceiling(name: str, kernels: Kernels):
    steps = OPERAND_BLOCKS[name]
    measured, added = operand_steps(kernels, steps)
    assert (len(measured) + len(added)) / (4 * steps.steps) <= steps.most


@each("name", OPERAND_BLOCKS)
def test_blocks_aligned_by_operands_contract_nothing(name: str, kernels: Kernels):
    _, added = operand_steps(kernels, OPERAND_BLOCKS[name])
    # One multiply-add cuts a product; one addition takes away what cut it, and one adds the rest.
    additions = sum(i.name.split(".")[0] in ("FADD", "DADD") for i in added)
    assert additions == 2 * 4 * OPERAND_BLOCKS[name].steps


def contracts_nothing(kernels: Kernels, name: str, tables: bool, chunks: bool) -> None:
    loop = main_loop(kernels, CEILINGS[name].tile, tables, chunks)
    for instruction, count in CEILINGS[name].steps.items():
        assert loop.count(instruction) >= count, (instruction, tables, chunks)


@pytest.mark.parametrize("name", ["double, split", "stochastic"])
def test_nothing_is_contracted_away(kernels: Kernels, name: str):
    for tables in (False, True):
        contracts_nothing(kernels, name, tables, chunks=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", CEILINGS)
def test_nothing_is_contracted_away_in_any_layout(kernels: Kernels, name: str):
    for tables, chunks in LAYOUTS:
        contracts_nothing(kernels, name, tables, chunks)


def test_no_kernel_spills_or_uses_local_memory(tmp_path: Path):
    found = sass.in_library("all", tmp_path)
    assert found
    for cubin in found:
        usage = sass.usage(cubin)
        assert set(re.findall(r"STACK:(\d+)", usage)) <= {"0"}, usage
        assert set(re.findall(r"LOCAL:(\d+)", usage)) <= {"0"}, usage


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("exact_kernel<4, 6,", 1),
        pytest.param("ordered_kernel<TreeTile<false>", 1, marks=pytest.mark.slow),
        pytest.param("exact_kernel<", 14, marks=pytest.mark.slow),
        pytest.param("ordered_kernel<", 6, marks=pytest.mark.slow),
    ],
)
def test_sums_that_are_not_certified_are_rounded_in_double(kernels: Kernels, name: str, count: int):
    found = [kernels[n] for n in kernels if name in n]
    assert len(found) == count
    for function in found:
        names = {i.name.split(".")[0] for i in function.code}
        # Two-sum and the rules are separate additions; a division would contract as DFMA.
        assert {"DADD", "DMUL"} <= names


@each("bfloat16, tables, tile", itertools.product((False, True), (False, True), TENSOR_TILES))
def test_native_chunks_run_on_tensor_cores(
    bfloat16: bool, tables: bool, tile: tuple[int, int], kernels: Kernels
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
@each("bfloat16, tile", itertools.product((False, True), TENSOR_TILES))
def test_products_on_tensor_cores_stay_below_their_ceiling(
    bfloat16: bool, tile: tuple[int, int], kernels: Kernels
):
    stage = tensor_stage(kernels, Tensor(bfloat16, False, tile))
    assert len(stage.body) / TENSOR_PRODUCTS <= tensor_ceiling(tile)
