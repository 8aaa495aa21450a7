"""Stochastic results one rounding after another, with the seeds and keys that docs/contract.md
writes down; of the package only the generator and the rule of one rounding are used."""

import re
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels.rng import Role, derive_seed, draw
from lpkernels.rounding import round_scalar
from tests.compare import assert_bit_equal
from tests.support.autograd import signed

F = lp.functional
SEED = 987654321
FMT = lp.parse_format("e4m2")
ACC = lp.Accumulator("e5m3", "stochastic", product="e5m4", product_rounding="stochastic")
ROUNDED = ("input", "weight", "bias", "output", "grad_output", "grad_input", "grad_weight")
RECIPE = lp.Recipe(
    **dict.fromkeys(ROUNDED, lp.Quantizer(FMT, "stochastic")),
    **dict.fromkeys(("fprop", "dgrad", "wgrad"), ACC),
)
# The roles and sites as the page numbers them.
DIRECT, INPUT, WEIGHT, BIAS, FPROP, OUTPUT = range(6)
GRAD_OUTPUT, DGRAD, GRAD_INPUT, WGRAD, GRAD_WEIGHT, GRAD_BIAS = range(6, 12)
SUM, PRODUCT, OF_BIAS, QUANTIZE, OF_OUTPUT = 0, 1, 3, 4, 5

# The position in the sum, the left and the right factor.
Term = tuple[int, float, float]


def quantized(x: np.ndarray, role: int, seed: int = SEED, site: int = QUANTIZE) -> np.ndarray:
    seed = derive_seed(seed, role)
    bits = [draw(seed, site, 0, 0, k, 32) for k in range(x.size)]
    values = [
        round_scalar(float(v), FMT, "stochastic", draw=drawn)
        for v, drawn in zip(x.ravel(), bits, strict=True)
    ]
    return np.array(values, np.float32).reshape(x.shape)


def summed(
    terms: Iterable[Term],
    role: int,
    row: int,
    col: int,
    bias: float | None = None,
    seed: int = SEED,
) -> float:
    seed = derive_seed(seed, role)

    def rounded(value: Fraction, fmt: Any, site: int, k: int) -> Fraction:
        drawn = draw(seed, site, row, col, k, ACC.random_bits)
        bits = {"draw": drawn, "random_bits": ACC.random_bits}
        return Fraction(round_scalar(value, fmt, "stochastic", **bits))

    total = Fraction(0)
    for k, left, right in terms:
        term = rounded(Fraction(float(left)) * Fraction(float(right)), ACC.product, PRODUCT, k)
        total = rounded(total + term, ACC.fmt, SUM, k)
    if bias is not None:
        total = rounded(total + Fraction(float(bias)), ACC.fmt, OF_BIAS, 0)
    return float(total)


def positive(*shape: int) -> torch.Tensor:
    """Values that no format here holds, and no sums that are zero or large."""
    return torch.randint(1, 64, shape).div(64)


def gradients(y: torch.Tensor, leaves: list[torch.Tensor]) -> tuple[np.ndarray, list[np.ndarray]]:
    g = positive(*y.shape)
    return g.numpy(), [each.numpy() for each in torch.autograd.grad(y, leaves, g)]


def how(backend: str = "auto") -> dict[str, Any]:
    return {"generator": torch.tensor(SEED), "backend": backend}


def same(got: Any, want: Any, name: str = "result") -> None:
    assert_bit_equal(np.ascontiguousarray(got), np.asarray(want, np.float32), name)


def test_roles_are_numbered_as_on_the_page() -> None:
    page = Path(__file__).parents[2] / "docs" / "contract.md"
    (line,) = re.findall(r"^- Roles: .*?\n(?=- )", page.read_text(), re.MULTILINE | re.DOTALL)
    found = {name: int(number) for number, name in re.findall(r"(\d+) `(\w+)`", line)}
    assert found == {role.name.lower(): role for role in Role if role}


def test_the_draws_of_matmul_and_of_its_output_are_those_of_the_contract(backend: str) -> None:
    a, b = positive(2, 4, 3), positive(2, 3, 5)
    quantizer = lp.Quantizer(FMT, "stochastic")
    got = lp.matmul(a, b, ACC, output=quantizer, **how(backend))
    sums = np.empty((2, 4, 5), np.float32)
    for i, m, n in np.ndindex(sums.shape):
        terms = [(k, a[i, m, k], b[i, k, n]) for k in range(3)]
        sums[i, m, n] = summed(terms, DIRECT, i * 4 + m, n)
    same(got, quantized(sums, OUTPUT, site=OF_OUTPUT))


def linear(
    x: np.ndarray, w: np.ndarray, b: np.ndarray | None, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """y of a linear layer, and its rounded operands."""
    xq, wq = quantized(x, INPUT, seed), quantized(w, WEIGHT, seed)
    bq = None if b is None else quantized(b, BIAS, seed)
    y = np.empty((len(x), len(w)), np.float32)
    for row, o in np.ndindex(y.shape):
        terms = [(k, xq[row, k], wq[o, k]) for k in range(x.shape[1])]
        y[row, o] = summed(terms, FPROP, row, o, None if bq is None else bq[o], seed)
    return quantized(y, OUTPUT, seed, OF_OUTPUT), xq, wq


def weight_gradient(gq: np.ndarray, xq: np.ndarray, seed: int) -> np.ndarray:
    dw = np.empty((gq.shape[1], xq.shape[1]), np.float32)
    for o, i in np.ndindex(dw.shape):
        terms = [(row, gq[row, o], xq[row, i]) for row in range(len(gq))]
        dw[o, i] = summed(terms, WGRAD, o, i, None, seed)
    return quantized(dw, GRAD_WEIGHT, seed)


def test_transposed_convolution_with_more_output_than_a_stride(backend: str) -> None:
    """The convolution of y makes four positions; x has three of them."""
    x, w, b = (positive(*shape).requires_grad_() for shape in ((2, 2, 3), (2, 3, 2), (3,)))
    numbers = {"dilation": 2, "output_padding": 1}
    y = F.conv_transpose1d(x, w, b, **numbers, recipe=RECIPE, **how(backend))
    g, (dx, dw, db) = gradients(y, [x, w, b])
    (batch, ins, length), (_, outs, taps), made = x.shape, w.shape, 4
    size = y.shape[2]
    assert (size, (size - 2 * (taps - 1) - 1) + 1) == (6, made)
    xq = quantized(x.detach().numpy(), INPUT)
    wq = quantized(w.detach().numpy(), WEIGHT)
    bq = quantized(b.detach().numpy(), BIAS)
    sums = np.empty(y.shape, np.float32)
    for n, o, at in np.ndindex(sums.shape):
        terms = [
            (c * taps + t, xq[n, c, at - 2 * t], wq[c, o, t])
            for c, t in np.ndindex(ins, taps)
            if 0 <= at - 2 * t < length
        ]
        sums[n, o, at] = summed(terms, FPROP, n * size + at, o, bq[o])
    same(y.detach(), quantized(sums, OUTPUT, site=OF_OUTPUT))
    gq = quantized(g, GRAD_OUTPUT)
    sums = np.empty(x.shape, np.float32)
    for n, c, i in np.ndindex(sums.shape):
        terms = [
            (o * taps + t, gq[n, o, i + 2 * t], wq[c, o, t]) for o, t in np.ndindex(outs, taps)
        ]
        sums[n, c, i] = summed(terms, DGRAD, n * made + i, c)
    same(dx, quantized(sums, GRAD_INPUT), "gradient of x")
    sums = np.empty(w.shape, np.float32)
    for c, o, t in np.ndindex(sums.shape):
        terms = [
            (n * length + i, xq[n, c, i], gq[n, o, i + 2 * t]) for n, i in np.ndindex(batch, length)
        ]
        sums[c, o, t] = summed(terms, WGRAD, c, o * taps + t)
    same(dw, quantized(sums, GRAD_WEIGHT), "gradient of w")
    positions = list(np.ndindex(batch, size))
    of_bias = [
        summed([(k, gq[n, o, at], 1) for k, (n, at) in enumerate(positions)], GRAD_BIAS, 0, o)
        for o in range(outs)
    ]
    same(db, of_bias, "gradient of b")


@pytest.mark.parametrize("sizes", [(2, 2, 2), (3, 2, 1)])
def test_the_draws_of_a_recurrent_layer_are_those_of_the_contract(
    sizes: tuple[int, ...], backend: str
) -> None:
    """The last step's rows come first, in both directions. The state's weight is zero, so that a
    step has only the gradient of its output."""
    steps, most, hidden = len(sizes), sizes[0], 2
    x = [positive(n, 3) for n in sizes]
    weights = [positive(hidden, 3), torch.zeros(hidden, hidden)] * 2
    weights = [w.clone().requires_grad_() for w in weights]
    packed = {} if len(set(sizes)) == 1 else {"batch_sizes": torch.tensor(sizes)}
    rows = torch.cat(x) if packed else torch.stack(x)
    call = {"has_biases": False, "bidirectional": True, "recipe": RECIPE, **packed, **how(backend)}
    y, _ = F.rnn_relu(rows, torch.zeros(2, most, hidden), weights, **call)
    g, grads = gradients(y, [weights[0], weights[2]])
    got, g = (v.reshape(sum(sizes), 2, hidden) for v in (y.detach().numpy(), g))
    first = np.cumsum((0, *sizes))
    for direction, order in enumerate((range(steps), range(steps)[::-1])):
        seed = derive_seed(SEED, 15 + direction + 1)
        # The rows of the positions, in the order of the steps from the last to the first.
        rows = [first[t] + n for t in reversed(order) for n in range(sizes[t])]
        w = weights[2 * direction].detach().numpy()
        want, xq, _ = linear(torch.cat(x).numpy()[rows], w, None, seed)
        same(got[rows, direction], want)
        gq = quantized(g[rows, direction], GRAD_OUTPUT, seed)
        same(grads[direction], weight_gradient(gq, xq, seed), "gradient of w_ih")


def test_a_running_range_has_a_seed_of_its_own() -> None:
    x, w = positive(4, 3), positive(2, 3)
    rest = lp.Recipe(weight="e4m2:stochastic")
    recipe = lp.Recipe(
        input="affine4:stochastic", weight=rest.weight, input_range=lp.RunningRange(0.9)
    )
    layer = lp.nn.Linear(3, 2, bias=False, recipe=recipe)
    layer.weight.data.copy_(w)
    with lp.seed_from(torch.tensor(SEED)):
        got = layer(x)
    of_input, of_rest = (derive_seed(SEED, call) for call in (1, 2))
    generator = signed(derive_seed(of_input, INPUT))
    xq = lp.quantize(x, "affine4", "stochastic", generator=generator)
    want = F.linear(xq, w, recipe=rest, generator=signed(of_rest))
    same(got.detach(), want)
