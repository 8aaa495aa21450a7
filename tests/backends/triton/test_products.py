"""The parts that products share: packing, facts, tables, tiles, flags of made tiles, and the
kernels that get compiled."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lpkernels.arithmetic import Accumulator, as_quantizer
from lpkernels.backends import _reference, _tables
from lpkernels.backends.triton import _config, _launch, _matmul, _products, _roundings
from lpkernels.backends.triton._layout import ABSENT, PAD, Operand, Sums
from lpkernels.backends.triton._problem import LONGEST, Made, Problem
from lpkernels.backends.triton.exact import sequential
from lpkernels.backends.triton.operands import facts as _facts
from lpkernels.backends.triton.operands.matrices import pack_operand
from lpkernels.reference import twin
from lpkernels.reference.values import narrow, widen
from lpkernels.rng import derive_seed
from tests.backends import by_hand
from tests.backends.triton.sums import DRAWN, beside_reference
from tests.compare import assert_bit_equal
from tests.loops import each, rows
from tests.support.products import ROLE, SEED, lanes_of_all_kinds

TILES = [_config.Tile(4, 32, 1), _config.Tile(16, 16, 2)]


@each("tile, swapped", [(TILES[0], True), (TILES[1], False), (TILES[1], True)])
def test_bits_do_not_depend_on_tiles(tile, swapped, device, monkeypatch):
    monkeypatch.setattr(_products, "exact_tile", lambda *_: tile)
    monkeypatch.setattr(_matmul, "transposes", lambda *_: swapped)
    generator = torch.Generator().manual_seed(1)
    a, b, bias = (lanes_of_all_kinds(s, generator) for s in ((9, 7), (7, 33), (33,)))
    beside_reference(a, b, DRAWN, device, bias=bias)


def whole_sums(out: Tensor, k: int, **changed: Any) -> Sums:
    """The outputs of one contiguous matrix."""

    def steps(size: int, stride: int) -> Tensor:
        return _tables.offsets((size,), (stride,), out.device)

    m, n = out.shape
    zero = steps(1, 0)
    sums = Sums(
        out, zero, steps(m, n), steps(n, 1), steps(m, 1), steps(n, 1), zero, zero, False, None,
        None, None, (1, m, n, k),
    )  # fmt: skip
    return sums._replace(**changed)


@each("acc", [DRAWN, Accumulator("e5m4", "toward_negative", chunk=4)])
def test_steps_left_out_and_absent_taps(acc: Accumulator, device: str) -> None:
    generator = torch.Generator().manual_seed(2)
    m, n, k = 5, 6, 21
    a, b = lanes_of_all_kinds((m, k), generator), lanes_of_all_kinds((k, n), generator)
    present = torch.rand(m, k, generator=generator) < 0.7
    # Two chunks have no step at all; one of them is the last.
    present[:, 6:12], present[:, -3:] = False, False
    products = (
        (widen(a[:, i, None].numpy()) * widen(b[i].numpy()), present[:, i, None].numpy())
        for i in range(k)
    )
    seed = derive_seed(int(SEED), ROLE)
    row, col = np.arange(m)[:, None], np.arange(n)
    with np.errstate(invalid="ignore"):
        want = narrow(twin.accumulate(products, (m, n), acc, seed=seed, row=row, col=col))

    steps = present.any(0).nonzero().flatten()
    assert len(steps) < k
    left = a.clone()
    left.view(torch.int32)[~present] = ABSENT
    starts = torch.searchsorted(steps, torch.arange(0, k + acc.chunk, acc.chunk))
    out = torch.empty(m, n, device=device)
    sums = whole_sums(out, len(steps), positions=steps.to(device), starts=starts.to(device))
    right = packed_operand(b[steps].mT.to(device))
    _products.products(gathered(left[:, steps].to(device)), right, sums, acc.to_ints(), SEED, ROLE)
    assert_bit_equal(out, want)


def packed_operand(
    x: Tensor, rounding: tuple[int, ...] = (), batch: tuple[int, ...] = ()
) -> Operand:
    return pack_operand(x, torch.Size(batch), _facts.new_facts(x.device)[0], rounding)


def problem_of(left: Operand, right: Operand, sums: Sums, acc: Accumulator) -> Problem:
    """A problem without draws and without a rounded result."""
    ints = acc.to_ints()
    seed = _launch.seed_on(None, sums.out.device)
    return Problem(left, right, sums, *_roundings.roundings_of(ints), ints, seed, 0)


def gathered(x: Tensor) -> Operand:
    """A matrix that is looked up lane by lane and step by step, from its end on."""
    lanes, steps = x.shape
    batch = torch.full((1,), 7, dtype=torch.int64, device=x.device)
    values = torch.cat([x.new_zeros(7), x.flip(0, 1).flatten(), x.new_zeros(PAD)])
    last = torch.arange(lanes - 1, -1, -1, device=x.device) * steps
    return Operand(
        values, batch, last, torch.arange(steps - 1, -1, -1, device=x.device), 0,
        _facts.new_facts(x.device)[0], True,
    )  # fmt: skip


def test_only_tiles_with_a_piece_that_was_not_made_are_computed(device: str) -> None:
    a, b = torch.randn(9, 5), torch.randn(5, 40)
    acc = Accumulator("e5m4")
    operands = (packed_operand(x.to(device)) for x in (a, b.mT))
    out = torch.zeros(9, 40, device=device)
    # The tiles are 4 x 16: three down and three across, numbered down first. Each has two pieces,
    # and tiers 1 to 3 have made some of them.
    pieces = [[2, 3], [0, 4], [2, 2], [3, 3], [2, 4], [4, 0], [3, 2], [2, 2], [0, 0]]
    values = torch.tensor(pieces, dtype=torch.int32, device=device).flatten()
    problem = problem_of(*operands, whole_sums(out, 5), acc)
    sequential.launch(problem, _config.Tile(8, 8, 4), Made(values, (4, 16), 2))
    want = torch.zeros(9, 40)
    full = by_hand.matmul(_reference.BACKEND, a, b, None, acc.to_ints(), None, 0)
    for part in ((slice(4, 8), slice(16)), (slice(8, 9), slice(16, 40))):
        want[part] = full[part]
    assert_bit_equal(out, want)


@rows(
    "k, chunk, starts, found",
    (21, None, None, (0, 1)), (21, 8, None, (8, 3)), (21, 64, None, (21, 1)), (21, 64, 4, (64, 3)),
    (21, 2**40, 2, (LONGEST, 1)), (0, 8, None, (0, 0)),
)  # fmt: skip
def test_a_chunk_is_no_longer_than_its_sum_and_fits_32_bits(k, chunk, starts, found):
    table = None if starts is None else torch.zeros(starts, dtype=torch.int64)
    sums = whole_sums(torch.zeros(2, 3), k, starts=table)
    x = Operand(torch.zeros(1), sums.batch, None, None, 32, torch.zeros(4), False)
    assert problem_of(x, x, sums, Accumulator("e5m4", chunk=chunk)).chunks() == found


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


@rows(
    "values",
    [], [0.0, -0.0], [1.0], [1.5, -6.0], [1e-45, 3e-45], [3.4028235e38, 2.0**-149],
    [float("inf"), 1.0], [float("nan")], [2.0**-126 - 2.0**-149, 2.0**-126], [0.1, 1e10, -7.0],
)  # fmt: skip
def test_facts(values: list[float], device: str) -> None:
    x = torch.zeros(3, 5)
    x.view(-1)[: len(values)] = torch.tensor(values)
    for rounding in ((), as_quantizer("e5m2").to_ints()):
        packed = packed_operand(x.to(device), rounding)
        held = packed.values.cpu()[: 5 * packed.step].view(5, packed.step)[:, :3]
        assert packed.facts.tolist() == facts_of(held.numpy())


def test_packing_pads_with_zeros_and_does_not_repeat_matrices(device: str) -> None:
    x = torch.randn(2, 1, 5, 3).to(device)
    packed = packed_operand(x, batch=(2, 4))
    width = _config.padded_lanes(5)
    assert packed.values.numel() == 2 * 3 * width + PAD
    assert packed.batch.tolist() == [0] * 4 + [3 * width] * 4
    held = packed.values[: 2 * 3 * width].view(2, 3, width)
    assert_bit_equal(held[..., :5], x[:, 0].mT)
    assert not held[..., 5:].any()


def test_tiles_fit_the_operands() -> None:
    for m in (1, 2, 15, 33, 1000, 10**6):
        for n in (1, 7, 64, 300, 10**6):
            for matrices in (1, 1000):
                tile = _config.exact_tile(m, n, matrices, 132)
                assert _config.padded_lanes(m) % tile.bm == 0
                assert _config.padded_lanes(n) % tile.bn == 0
