"""Machine code of the certified kernels whose tiles are not square, counted as in
test_cuda_counts.py."""

from __future__ import annotations

import pytest

from tests.backends.cuda.product_loops import CEILINGS, PRODUCTS
from tests.backends.cuda.shaped_loops import (
    RULES,
    SHAPES,
    counted,
    in_double,
    is_direct,
    layouts,
    shaped_ceiling,
    shaped_kernel_of,
)
from tests.support import sass
from tests.support.sass import Kernels

pytestmark = pytest.mark.skipif(bool(sass.reason()), reason=sass.reason())


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_smaller_tiles_stay_below_their_ceiling(kernels: Kernels, rule: str):
    for shape in SHAPES:
        # Both ways of a lookup are counted, but only one of them runs.
        lookups = {1: 16.5 if shape == (1, 32) else 6.5}.get(min(shape), 0.45)
        more = 1.5 if in_double(rule) else 0.0
        for tables in layouts(rule):
            found = counted(shaped_kernel_of(kernels, rule, shape, tables), shape)
            assert found.product <= shaped_ceiling(rule, shape) + (lookups if tables else 0.0), (
                shape
            )
            assert found.closed <= (47 if is_direct(shape) else 13) + more, shape
            assert found.kept <= (53 if is_direct(shape) else 9.5) + more, shape


def contracts_nothing(kernels: Kernels, rule: str, shape: tuple[int, int]) -> None:
    for tables in layouts(rule):
        found = counted(shaped_kernel_of(kernels, rule, shape, tables), shape)
        # Each instruction occurs as often as the products ask, in proportion to the square tile's.
        products = round(len(found.loop.body) / found.product)
        for instruction, count in CEILINGS[rule].steps.items():
            wanted = count * products // PRODUCTS
            assert found.loop.count(instruction) >= wanted, (instruction, shape)


def test_nothing_is_contracted_away_in_smaller_tiles(kernels: Kernels):
    # This tile does not go through shared memory.
    contracts_nothing(kernels, "odd, two steps", (1, 32))


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_nothing_is_contracted_away_in_any_tile(kernels: Kernels, rule: str):
    for shape in SHAPES:
        contracts_nothing(kernels, rule, shape)
