"""The three passes of a convolution: positions against torch, sums against the exact ones."""

import itertools
from collections.abc import Iterable

import numpy as np
import pytest
import torch

from lpkernels.arithmetic import Accumulator, accumulator
from lpkernels.arithmetic.products import Convolution
from lpkernels.reference import exact, twin
from lpkernels.reference.values import narrow
from tests.cases import CONV_CASES, EVERY_ACCUMULATOR, ConvCase
from tests.compare import assert_bit_equal
from tests.support.products import operand

SEED = 99
PASSES = ("conv_fprop", "conv_dgrad", "conv_wgrad")
#: Accumulators whose sides differ, beside all others.
ACCUMULATORS = [
    *EVERY_ACCUMULATOR,
    accumulator("e8m13:toward_zero:block=5:aligned_bits=7:operands=e5m2,e4m3fn"),
    accumulator(
        "e5m3_chunk8:stochastic:outer=e6m9:block=2:aligned_bits=9:operands=e2m1,fp16:interleaved=2"
    ),
]
#: No number of these occurs twice, so that none can stand for another.
ODD = ConvCase((1, 4, 4, 3), (6, 2, 2, 3), (2, 1), (1, 2), (1, 2), 2)
CASES = [*CONV_CASES.values(), ODD]


def tensors(case: ConvCase, kind: str) -> tuple[np.ndarray, ...]:
    """x, w, the gradient of the output, and a bias."""
    rng = np.random.default_rng(sum(case.input_shape))
    shapes = (case.input_shape, case.weight_shape, case.output_shape, case.weight_shape[:1])
    if kind == "whole":
        return tuple(rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes)
    return tuple(operand(kind, shape, rng) for shape in shapes)


def pass_of(case: ConvCase, name: str, kind: str, acc: Accumulator) -> np.ndarray:
    x, w, g, bias = tensors(case, kind)
    operands = {
        "conv_fprop": (x, w, bias),
        "conv_dgrad": (g, w, case.input_shape),
        "conv_wgrad": (x, g, case.weight_shape),
    }
    return getattr(twin, name)(*operands[name], Convolution(*case.geometry), acc, seed=SEED)


def drawn(number: int) -> ConvCase:
    """Any numbers of positions, taps, strides, places of padding and dilations."""
    rng = np.random.default_rng(number)
    kernel, stride, dilation, more = rng.integers(1, 4, (4, 1 + number % 3)).tolist()
    padding = rng.integers(0, 4, len(kernel)).tolist()
    size = [max(1, (k - 1) * d + 2 * m - p)
            for k, d, m, p in zip(kernel, dilation, more, padding, strict=True)]  # fmt: skip
    groups, per_in, per_out, batch = rng.integers(1, 4, 4).tolist()
    shapes = (batch, groups * per_in, *size), (groups * per_out, per_in, *kernel)
    return ConvCase(*shapes, *map(tuple, (stride, padding, dilation)), groups)


@pytest.mark.parametrize("case", [*CASES, *map(drawn, range(90))])
def test_sums_of_whole_numbers_are_those_of_torch(case: ConvCase) -> None:
    x, w, g, bias = (torch.from_numpy(each).double() for each in tensors(case, "whole"))
    conv = (torch.conv1d, torch.conv2d, torch.conv3d)[len(case.stride) - 1]
    y = conv(x.requires_grad_(), w.requires_grad_(), bias, *case.geometry)
    for name, want in zip(PASSES, (y, *torch.autograd.grad(y, (x, w), g)), strict=True):
        got = pass_of(case, name, "whole", Accumulator("fp32"))
        assert_bit_equal(got + 0, want.detach().float().numpy() + 0, name)


# Values of one channel, and a position among them; None: there is none.
Place = tuple[np.ndarray, tuple[int, ...] | None]


class Gathered:
    """The passes with operands that are gathered in the order of k, one output at a time."""

    def __init__(self, case: ConvCase, kind: str, acc: Accumulator):
        self.acc, (self.x, self.w, self.g, self.bias) = acc, tensors(case, kind)
        stride, padding, dilation, groups = case.geometry
        self.per_in, self.per_out = self.w.shape[1], len(self.w) // groups
        self.inputs, self.taps, self.outputs = (
            list(np.ndindex(*values.shape[2:])) for values in (self.x, self.w, self.g)
        )
        # The input that a tap brings to an output, and the output that an input meets there.
        self.input, self.output = {}, {}
        for o, t in itertools.product(self.outputs, self.taps):
            at = tuple((np.multiply(o, stride) - padding + np.multiply(t, dilation)).tolist())
            if at in self.inputs:
                self.input[o, t], self.output[at, t] = at, o

    def sum(self, pairs: Iterable[tuple[Place, Place]], **rest: float) -> float:
        """The exact sum of products in the order of k; one without a position is absent."""
        terms = [
            None if None in (i, j) else exact.summand(float(left[i]), float(right[j]), self.acc)
            for (left, i), (right, j) in pairs
        ]
        return exact.accumulate(terms, self.acc, seed=SEED, **rest)

    def conv_fprop(self) -> np.ndarray:
        out, x, w = np.zeros(self.g.shape), self.x, self.w
        for row, (n, at) in enumerate(itertools.product(range(len(x)), self.outputs)):
            for co, bias in enumerate(self.bias.tolist()):
                first = co // self.per_out * self.per_in
                k = itertools.product(range(self.per_in), self.taps)
                pairs = (((x[n, first + c], self.input.get((at, t))), (w[co, c], t)) for c, t in k)
                out[(n, co, *at)] = self.sum(pairs, row=row, col=co, bias=bias)
        return out

    def conv_dgrad(self) -> np.ndarray:
        out, g, w = np.zeros(self.x.shape), self.g, self.w
        for row, (n, at) in enumerate(itertools.product(range(len(g)), self.inputs)):
            for ci in range(self.x.shape[1]):
                group, c = divmod(ci, self.per_in)
                channels = range(group * self.per_out, (group + 1) * self.per_out)
                k = itertools.product(channels, self.taps)
                pairs = (((g[n, co], self.output.get((at, t))), (w[co, c], t)) for co, t in k)
                out[(n, ci, *at)] = self.sum(pairs, row=row, col=ci)
        return out

    def conv_wgrad(self) -> np.ndarray:
        out, x, g = np.zeros(self.w.shape), self.x, self.g
        for col, (ci, t) in enumerate(itertools.product(range(x.shape[1]), self.taps)):
            group, c = divmod(ci, self.per_in)
            for co in range(group * self.per_out, (group + 1) * self.per_out):
                k = itertools.product(range(len(x)), self.outputs)
                pairs = (((g[n, co], o), (x[n, ci], self.input.get((o, t)))) for n, o in k)
                out[(co, c, *t)] = self.sum(pairs, row=co, col=col)
        return out


def assert_exact(case: ConvCase, name: str, kind: str, acc: Accumulator) -> None:
    want = narrow(getattr(Gathered(case, kind, acc), name)())
    assert_bit_equal(pass_of(case, name, kind, acc), want, f"{name} {acc} {kind}")


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("case", CASES)
def test_sums_are_exact_in_order_and_draws(name: str, case: ConvCase) -> None:
    number = 3 * CASES.index(case) + PASSES.index(name)
    assert_exact(case, name, "wide", ACCUMULATORS[number])
    assert_exact(case, name, "wide", ACCUMULATORS[number % 2 - 2])
    if case.weight_shape[0] * np.prod(case.input_shape) <= 400:
        assert_exact(case, name, "special", ACCUMULATORS[number + 9])


@pytest.mark.parametrize("number, acc", list(enumerate(ACCUMULATORS)))
def test_sums_are_exact_for_every_accumulator(number: int, acc: Accumulator) -> None:
    """The accumulators take the three passes in turn."""
    assert_exact(ODD, PASSES[number % len(PASSES)], "wide", acc)


def test_no_result_depends_on_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    case, acc = CONV_CASES["conv2d_groups"], Accumulator("e5m3", "stochastic", chunk=4)
    whole = {name: pass_of(case, name, "wide", acc) for name in PASSES}
    monkeypatch.setattr("lpkernels.reference.sums._TILE_OUTPUTS", 30)
    for name, want in whole.items():
        assert_bit_equal(pass_of(case, name, "wide", acc), want, name)


def test_dgrad_reaches_rows_that_no_output_reads() -> None:
    # conv_transpose with output_padding asks for an input longer than the outputs cover.
    g, w = np.ones((1, 1, 2), np.float32), np.ones((1, 1, 2), np.float32)
    got = twin.conv_dgrad(g, w, (1, 1, 7), Convolution((2,), (0,), (1,), 1), Accumulator("fp32"))
    assert got.tolist() == [[[1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]]]
