"""Machine code of csrc/cuda for sm_90: the cost of a product in each kernel. Registers are looked
at for every architecture in the module.

Wherever the tests run, small kernels of each family show that nothing is contracted. Ceilings, and
the kernels whose modules take seconds to disassemble, are looked at with pytest -m slow.
"""

import itertools
import re
from pathlib import Path

import pytest

from tests.backends.cuda import product_loops as square
from tests.backends.cuda import shaped_loops as shaped
from tests.backends.cuda.product_loops import CEILINGS, OPERAND_BLOCKS, PRODUCTS, Tensor
from tests.loops import each
from tests.support import sass
from tests.support.sass import Kernels

pytestmark = pytest.mark.skipif(bool(sass.reason()), reason=sass.reason())
LAYOUTS = list(itertools.product((False, True), (False, True)))
#: Both types, with tables and without, in every tile.
TENSORS = [Tensor(*kind, tile) for kind in LAYOUTS for tile in square.TENSOR_TILES]


@pytest.mark.slow
@pytest.mark.parametrize("name", CEILINGS)
def test_products_stay_below_their_ceilings(kernels: Kernels, name: str):
    ceiling = CEILINGS[name]
    for tables, chunks in LAYOUTS:
        loop = square.main_loop(kernels, ceiling.tile, tables, chunks)
        # Tables cost at most eight lookups of each operand in a stage, and chunks some integers.
        more = 0.5 if tables or chunks else 0.0
        assert len(loop.body) / PRODUCTS <= ceiling.most + more, (tables, chunks)


@pytest.mark.slow
@each("name", OPERAND_BLOCKS)
def test_blocks_aligned_by_operands_stay_below_their_ceiling(name: str, kernels: Kernels):
    steps = OPERAND_BLOCKS[name]
    measured, added = square.operand_steps(kernels, steps)
    assert (len(measured) + len(added)) / (4 * steps.steps) <= steps.most


@each("name", OPERAND_BLOCKS)
def test_blocks_aligned_by_operands_contract_nothing(name: str, kernels: Kernels):
    _, added = square.operand_steps(kernels, OPERAND_BLOCKS[name])
    # One multiply-add cuts a product; one addition takes away what cut it, and one adds the rest.
    additions = sum(i.name.split(".")[0] in ("FADD", "DADD") for i in added)
    assert additions == 2 * 4 * OPERAND_BLOCKS[name].steps


def contracts_nothing(kernels: Kernels, name: str, tables: bool, chunks: bool) -> None:
    loop = square.main_loop(kernels, CEILINGS[name].tile, tables, chunks)
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


@each("of", TENSORS)
def test_native_chunks_run_on_tensor_cores(of: Tensor, kernels: Kernels):
    stage = square.tensor_stage(kernels, of)
    # The stage is 32 steps of a warp's 64 x 32 outputs; fragments are read once, four matrices at a
    # time.
    assert stage.count("HMMA") == 32
    assert stage.count("LDSM") == 12
    assert stage.count("DADD", "DMUL", "DFMA") == 0
    if not of.tables:
        # Operands are copied past the registers, and chunks end outside.
        copied = 4 if of.tile == (128, 128) else 6
        assert stage.count("LDGSTS") == copied and stage.count("FADD") == 0
        # One instruction finds whether a sum lies half way, in each of the three ways that look.
        code = square.tensor_kernel(kernels, of).code
        assert sum(i.name == "LOP3.LUT.PAND" for i in code) == 3 * 64


@pytest.mark.slow
@each("of", [of for of in TENSORS if not of.tables])
def test_products_on_tensor_cores_stay_below_their_ceiling(of: Tensor, kernels: Kernels):
    stage = square.tensor_stage(kernels, of)
    assert len(stage.body) / square.TENSOR_PRODUCTS <= square.tensor_ceiling(of.tile)


@pytest.mark.slow
@pytest.mark.parametrize("rule", shaped.RULES)
def test_smaller_tiles_stay_below_their_ceiling(kernels: Kernels, rule: str):
    for shape in shaped.SHAPES:
        # Both ways of a lookup are shaped.counted, but only one of them runs.
        lookups = {1: 16.5 if shape == (1, 32) else 6.5}.get(min(shape), 0.45)
        more = 1.5 if shaped.in_double(rule) else 0.0
        for tables in shaped.layouts(rule):
            found = shaped.counted(shaped.shaped_kernel_of(kernels, rule, shape, tables), shape)
            ceiling = shaped.shaped_ceiling(rule, shape) + (lookups if tables else 0.0)
            assert found.product <= ceiling, shape
            assert found.closed <= (47 if shaped.is_direct(shape) else 13) + more, shape
            assert found.kept <= (53 if shaped.is_direct(shape) else 9.5) + more, shape


def shaped_contracts_nothing(kernels: Kernels, rule: str, shape: tuple[int, int]) -> None:
    for tables in shaped.layouts(rule):
        found = shaped.counted(shaped.shaped_kernel_of(kernels, rule, shape, tables), shape)
        # Each instruction occurs as often as the products ask, in proportion to the square tile's.
        products = round(len(found.loop.body) / found.product)
        for instruction, count in CEILINGS[rule].steps.items():
            wanted = count * products // PRODUCTS
            assert found.loop.count(instruction) >= wanted, (instruction, shape)


def test_nothing_is_contracted_away_in_smaller_tiles(kernels: Kernels):
    # This tile does not go through shared memory.
    shaped_contracts_nothing(kernels, "odd, two steps", (1, 32))


@pytest.mark.slow
@pytest.mark.parametrize("rule", shaped.RULES)
def test_nothing_is_contracted_away_in_any_tile(kernels: Kernels, rule: str):
    for shape in shaped.SHAPES:
        shaped_contracts_nothing(kernels, rule, shape)
