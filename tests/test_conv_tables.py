"""The tables of a convolution's three passes, read by NumPy: no kernel runs."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from lpkernels.arithmetic import Accumulator
from lpkernels.backends import Convolution, _conv_geometry, _conv_phases, _conv_tables
from lpkernels.reference import twin
from lpkernels.reference.sums import Rounds, inner_sum
from lpkernels.reference.values import narrow, widen
from lpkernels.rng import SITE_BIAS, SITE_OUTER
from tests.cases import ConvCase, accumulators_named
from tests.compare import assert_bit_equal
from tests.support.operands import ABSENT, ALL_CASES, in_frame

CPU = torch.device("cpu")
SEED = 20240229
ACCUMULATORS = accumulators_named("""
    e5m5_chunk7:stochastic:product=e4m3:product_rounding=stochastic e5m4_chunk3:outer=e5m3
    e4m3_chunk1:toward_negative
""")


def operands(case: ConvCase) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Any]:
    """x, w, bias and dy, some of them zeros and infinite, and the geometry."""
    rng = np.random.default_rng(len(str(case)))
    shapes = (case.input_shape, case.weight_shape, case.weight_shape[:1], case.output_shape)
    made = [rng.integers(-9, 10, shape).astype(np.float32) / 8 for shape in shapes]
    made[1].flat[::7] = np.inf
    sizes = (case.input_shape, case.weight_shape, case.output_shape)
    return (*made, _conv_geometry.geometry_of(*sizes, Convolution(*case.geometry)))


def run(
    product: Any, left: np.ndarray, right: np.ndarray, out: np.ndarray,
    acc: Accumulator, bias: np.ndarray | None,
) -> None:  # fmt: skip
    """The sums of one product, chunk by chunk as `starts` says. left is (G, lanes, length)."""
    t = _conv_tables.Tables(*(f.numpy() if isinstance(f, torch.Tensor) else f for f in product))
    steps = len(t.steps)
    positions = np.arange(steps) if t.positions is None else t.positions
    given = _conv_phases.starts(product, acc.chunk)
    chunks = -(-t.length // acc.chunk)
    starts = np.minimum(np.arange(chunks + 1) * acc.chunk, steps) if given is None else given
    for g in range(len(t.batch)):
        keys = (t.row_batch[g] + t.row_keys)[:, None], (t.col_batch[g] + t.col_keys)[None, :]
        row, col = reversed(keys) if t.swapped else keys
        rounds = Rounds(acc, SEED, row, col)
        shape = (len(t.rows), len(t.cols))
        inner, outer = inner_sum(rounds, shape), np.zeros(shape)
        for c in range(chunks):
            for k in range(int(starts[c]), int(starts[c + 1])):
                bits = right[t.batch[g] + t.lanes + t.steps[k]]
                with np.errstate(invalid="ignore"):
                    b = widen(bits.view(np.float32))
                    exact = widen(left[g, :, positions[k]])[:, None] * b[None, :]
                present = np.broadcast_to(bits != ABSENT, shape)
                where = int(positions[k])
                inner.push(rounds.product(exact, where), present, where)
            outer = rounds.add_outermost(outer, inner.take(), SITE_OUTER, c)
        if bias is not None:
            outer = rounds.add_outermost(outer, widen(bias)[col], SITE_BIAS, 0)
        out[t.out_batch[g] + t.rows[:, None] + t.cols[None, :]] = narrow(outer)


#: Every convolution with the draws, and with one of the other two sums.
CASES = [
    (case, acc)
    for number, case in enumerate(ALL_CASES.values())
    for acc in (ACCUMULATORS[0], ACCUMULATORS[1 + number % 2])
]


@pytest.mark.parametrize("case, acc", CASES)
def test_fprop(case: ConvCase, acc: Accumulator) -> None:
    x, w, bias, dy, g = operands(case)
    out = np.full(dy.size, np.nan, np.float32)
    (product,) = _conv_tables.fprop(g, CPU)
    left = w.reshape(g.groups, g.out_channels, product.length)
    run(product, left, in_frame(x, _conv_tables.fprop_frame(g)), out, acc, bias)
    want = twin.conv_fprop(x, w, bias, *case.geometry, acc, seed=SEED)
    assert_bit_equal(out.reshape(dy.shape), want)


@pytest.mark.parametrize("case, acc", CASES)
def test_dgrad(case: ConvCase, acc: Accumulator) -> None:
    x, w, _, dy, g = operands(case)
    out = np.zeros(x.size, np.float32)
    split = w.reshape(g.groups, g.out_channels, g.in_channels, g.taps).transpose(0, 2, 1, 3)
    left = split.reshape(g.groups, g.in_channels, g.out_channels * g.taps)
    image = in_frame(dy, _conv_phases.dgrad_frame(g))
    for product in _conv_phases.dgrad(g, CPU):
        run(product, left, image, out, acc, None)
    want = twin.conv_dgrad(dy, w, x.shape, *case.geometry, acc, seed=SEED)
    assert_bit_equal(out.reshape(x.shape), want)


@pytest.mark.parametrize("case, acc", CASES)
def test_wgrad(case: ConvCase, acc: Accumulator) -> None:
    x, w, _, dy, g = operands(case)
    out = np.full(w.size, np.nan, np.float32)
    (product,) = _conv_tables.wgrad(g, CPU)
    frame = _conv_tables.gradient_frame(g)
    gradient = in_frame(dy, frame).view(np.float32)
    channels = np.arange(g.groups * g.out_channels).reshape(g.groups, g.out_channels, 1)
    left = gradient[channels + np.arange(product.length) * frame.place_step]
    run(product, left, in_frame(x, _conv_tables.wgrad_frame(g)), out, acc, None)
    want = twin.conv_wgrad(x, dy, w.shape, *case.geometry, acc, seed=SEED)
    assert_bit_equal(out.reshape(w.shape), want)


@pytest.mark.parametrize("case", ALL_CASES.values())
def test_all_positions_have_a_product_of_dgrad(case: ConvCase) -> None:
    *_, g = operands(case)
    products = _conv_phases.dgrad(g, CPU)
    columns = sum(product.sizes[2] for product in products)
    assert _conv_phases.meets_all(g) == (columns == g.batch * math.prod(g.size)) or g.batch == 0
