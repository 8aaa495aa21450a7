"""The three convolution passes: geometry against torch, bits against the exact sums."""

import numpy as np
import pytest
import torch

from lpkernels.arithmetic import Accumulator
from lpkernels.reference import exact, twin
from tests.cases import CONV_CASES, EVERY_ACCUMULATOR, ConvCase
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.operands import operand

SEED = 99
PASSES = ("conv_fprop", "conv_dgrad", "conv_wgrad")


def arguments(case: ConvCase, name: str, kind: str) -> tuple:
    """The arguments of one pass up to the accumulator."""
    rng = np.random.default_rng(len(name) + sum(case.input_shape))
    shapes = (case.input_shape, case.weight_shape, case.output_shape, case.weight_shape[:1])
    x, w, g, bias = (operand(kind, shape, rng) for shape in shapes)
    operands = {
        "conv_fprop": (x, w, bias),
        "conv_dgrad": (g, w, case.input_shape),
        "conv_wgrad": (x, g, case.weight_shape),
    }
    return (*operands[name], *case.geometry)


def torch_pass(name: str, args: tuple) -> np.ndarray:
    """The same pass in float64 by torch."""
    first, second, third, stride, padding, dilation, groups = args
    a, b = torch.from_numpy(first).double(), torch.from_numpy(second).double()
    conv = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}[len(stride)]
    if name == "conv_fprop":
        bias = torch.from_numpy(third).double()
        return conv(a, b, bias, stride, padding, dilation, groups).numpy()
    backward = torch.ops.aten.convolution_backward
    dgrad = name == "conv_dgrad"
    missing = torch.zeros(third, dtype=torch.float64)
    g, x, w = (a, missing, b) if dgrad else (b, a, missing)
    flags = [False, [0] * len(stride), groups, [dgrad, not dgrad, False]]
    return backward(g, x, w, None, stride, padding, dilation, *flags)[0 if dgrad else 1].numpy()


@each("case, name", CONV_CASES.values(), PASSES)
def test_conv_in_fp32_is_torch_within_rounding(name: str, case: ConvCase) -> None:
    args = arguments(case, name, "plain")
    got = getattr(twin, name)(*args, Accumulator("fp32"))
    want = torch_pass(name, args)
    assert got.shape == want.shape
    assert np.allclose(got, want, rtol=1e-5, atol=1e-5)


@each("case, name", CONV_CASES.values(), PASSES)
def test_conv_equals_exact(name: str, case: ConvCase) -> None:
    number = list(CONV_CASES.values()).index(case)
    for offset, kind in ((0, "wide"), (9, "special")):
        acc = EVERY_ACCUMULATOR[(3 * number + PASSES.index(name) + offset) % len(EVERY_ACCUMULATOR)]
        if case.weight_shape[0] * np.prod(case.input_shape) > 400 and kind == "special":
            continue
        args = arguments(case, name, kind)
        got = getattr(twin, name)(*args, acc, seed=SEED)
        assert_bit_equal(got, getattr(exact, name)(*args, acc, seed=SEED), f"{acc} {kind}")


@each("number, acc", enumerate(EVERY_ACCUMULATOR))
def test_conv_equals_exact_for_every_accumulator(number: int, acc: Accumulator) -> None:
    """The accumulators take the three passes in turn."""
    name = PASSES[number % len(PASSES)]
    case = ConvCase((1, 4, 4, 3), (2, 2, 2, 3), (2, 1), (1, 2), (1, 2), 2)
    args = arguments(case, name, "wide")
    got = getattr(twin, name)(*args, acc, seed=SEED)
    assert_bit_equal(got, getattr(exact, name)(*args, acc, seed=SEED), name)


@each("name", ["fprop", "dgrad", "wgrad"])
def test_conv_ignores_what_falls_on_padding(name: str) -> None:
    # Only the middle tap of a 3-wide kernel meets a 1-wide input; the others are inf and NaN.
    one = np.ones((1, 1, 1), np.float32)
    w = np.array([[[np.inf, 2.0, np.nan]]], np.float32)
    geometry = ((1,), (1,), (1,), 1, Accumulator("fp16", chunk=2))
    if name == "fprop":
        assert twin.conv_fprop(one, w, None, *geometry).item() == 2.0
    elif name == "dgrad":
        assert twin.conv_dgrad(one, w, (1, 1, 1), *geometry).item() == 2.0
    else:
        g = np.full((1, 1, 1), np.inf, np.float32)
        assert twin.conv_wgrad(one, g, (1, 1, 3), *geometry).tolist() == [[[0.0, np.inf, 0.0]]]


def test_conv_counts_positions_on_padding_for_chunks() -> None:
    # k = 0 is absent at the first output: its chunk of 2 holds one product, the next chunk two.
    x = np.array([[[1.0, 2.0**-11, 2.0**-11]]], np.float32)
    w = np.ones((1, 1, 4), np.float32)
    got = twin.conv_fprop(x, w, None, (1,), (1,), (1,), 1, Accumulator("fp16", chunk=2))
    assert got[0, 0, 0] == 1 + 2.0**-10


def test_conv_does_not_depend_on_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    case, acc = CONV_CASES["conv2d_groups"], Accumulator("e5m3", "stochastic", chunk=4)
    whole = {n: getattr(twin, n)(*arguments(case, n, "wide"), acc, seed=SEED) for n in PASSES}
    monkeypatch.setattr("lpkernels.reference.sums._TILE_OUTPUTS", 30)
    for name, want in whole.items():
        got = getattr(twin, name)(*arguments(case, name, "wide"), acc, seed=SEED)
        assert_bit_equal(got, want, name)


def test_conv_dgrad_reaches_rows_that_no_output_reads() -> None:
    # conv_transpose with output_padding asks for an input longer than the outputs cover.
    g, w = np.ones((1, 1, 2), np.float32), np.ones((1, 1, 2), np.float32)
    got = twin.conv_dgrad(g, w, (1, 1, 7), (2,), (0,), (1,), 1, Accumulator("fp32"))
    assert got.tolist() == [[[1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]]]
