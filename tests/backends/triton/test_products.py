"""The tiles of products without tiers, and the facts of packed operands."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from lpkernels.arithmetic import accumulator, as_quantizer
from lpkernels.backends import Fused
from lpkernels.backends.planning.triton_tiles import Tile
from lpkernels.backends.triton import _matmul, _products
from lpkernels.backends.triton._layout import Operand
from lpkernels.backends.triton.operands import facts as _facts
from lpkernels.backends.triton.operands.matrices import pack_operand
from tests.backends.triton.sums import beside_reference
from tests.support.products import DRAWN, lanes_of_all_kinds, tensor

TILES = [Tile(4, 32, 1), Tile(16, 16, 2)]


@pytest.mark.parametrize(
    "tile, swapped", [(TILES[0], True), (TILES[1], False), (TILES[1], True)], ids=str
)
def test_bits_do_not_depend_on_tiles(tile, swapped, device, monkeypatch):
    monkeypatch.setattr(_products, "exact_tile", lambda *_: tile)
    monkeypatch.setattr(_matmul, "transposes", lambda *_: swapped)
    generator = torch.Generator().manual_seed(1)
    a, b, bias = (lanes_of_all_kinds(s, generator) for s in ((9, 7), (7, 33), (33,)))
    beside_reference(a, b, DRAWN, device, bias=bias)


@pytest.mark.parametrize(
    "acc",
    ["e4m3:toward_negative:order=pairwise", "e4m3:toward_negative:order=compensated",
     "e4m3:toward_negative:block=4:aligned_bits=3"],
)  # fmt: skip
def test_tiles_do_not_matter_in_other_orders(acc: str, device, monkeypatch) -> None:
    generator = torch.Generator().manual_seed(4)
    a, b = tensor((5, 6), "wide", generator), tensor((6, 9), "cancelling", generator)
    fused = Fused((), (), as_quantizer("e3m2:to_odd").to_ints())
    for tile in (Tile(2, 16, 1), Tile(8, 4, 1)):
        monkeypatch.setattr(_products, "exact_tile", lambda *_, tile=tile: tile)
        beside_reference(a, b, accumulator(acc), device, fused=fused, name=f"{tile}")


def packed_operand(
    x: Tensor, rounding: tuple[int, ...] = (), batch: tuple[int, ...] = ()
) -> Operand:
    return pack_operand(x, torch.Size(batch), _facts.new_facts(x.device)[0], rounding)


def facts_of(x: np.ndarray) -> list[int]:
    """The facts by the definition, in Python's integers."""
    none = _facts.NONE.value
    facts = [none, none, none, none]
    for value in x.flatten().tolist():
        if not math.isfinite(value):
            facts[_facts.SPECIAL.value] = 1
        elif value:
            top, bottom = value.as_integer_ratio()
            last = (abs(top) & -abs(top)).bit_length() - 1
            highest = abs(top).bit_length() - bottom.bit_length()
            found = (highest, bottom.bit_length() - 1 - last, abs(top).bit_length() - last)
            facts[:3] = map(max, facts, found)
    return facts


@pytest.mark.parametrize(
    "values",
    [[], [0.0, -0.0], [1.0], [1.5, -6.0], [1e-45, 3e-45], [3.4028235e38, 2.0**-149],
     [float("inf"), 1.0], [float("nan")], [2.0**-126 - 2.0**-149, 2.0**-126], [0.1, 1e10, -7.0]],
    ids=str,
)  # fmt: skip
def test_facts(values: list[float], device: str) -> None:
    x = torch.zeros(3, 5)
    x.view(-1)[: len(values)] = torch.tensor(values)
    for rounding in ((), as_quantizer("e5m2").to_ints()):
        packed = packed_operand(x.to(device), rounding)
        rows = packed.values.cpu()[: 5 * packed.step].view(5, packed.step)[:, :3]
        assert packed.facts.tolist() == facts_of(rows.numpy())
