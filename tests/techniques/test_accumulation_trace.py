"""Which products a plan sees: lengths, composite layers, functions; which models it refuses."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lpkernels as lp
from lpkernels.techniques.accumulation import plan
from tests.loops import each
from tests.nn.observed import of_weight
from tests.support.autograd import Computes, OwnBackward
from tests.support.refusals import refuses
from tests.support.techniques import grad, mean_square


def lengths(model: nn.Module, sample: Tensor | tuple[Tensor, ...]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in plan(model, sample, loss=mean_square, operand="e5m2").rows:
        found.setdefault(row.layer, []).append(row.length)
    return found


def test_lengths_of_linear_layers():
    model = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 7))
    # Nobody asks for the gradient of the sample, so the first layer has no dgrad.
    assert lengths(model, torch.randn(5, 3, 12)) == {"0": [12, 15], "2": [20, 7, 15]}
    assert lengths(model, grad(5, 12)) == {"0": [12, 20, 5], "2": [20, 7, 5]}
    assert lengths(nn.Linear(12, 20), torch.randn(12)) == {"Linear": [12, 1]}


CONVOLUTIONS = [
    (nn.Conv2d(3, 8, 3, stride=2, padding=1), (2, 3, 6, 6), [27, 32, 18]),
    (nn.Conv2d(4, 8, 3, groups=2), (2, 4, 6, 6), [18, 36, 32]),
    (nn.Conv2d(3, 8, 3, stride=2, dilation=2), (1, 3, 9, 9), [27, 72, 9]),
    (nn.Conv2d(3, 8, 2, padding="same"), (1, 3, 5, 5), [12, 32, 25]),
    (nn.Conv1d(3, 8, 4), (2, 3, 9), [12, 32, 12]),
    (nn.Conv3d(2, 3, 2), (1, 2, 3, 3, 3), [16, 24, 8]),
    (nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 5), [16, 54, 50]),
    (nn.ConvTranspose1d(4, 6, 4, padding=1), (4, 7), [16, 24, 7]),
]


@each("layer, sample, expected", CONVOLUTIONS)
def test_lengths_of_convolutions(layer: nn.Module, sample: tuple[int, ...], expected: list[int]):
    found = plan(layer, grad(*sample), loss=mean_square, operand="e5m2").rows
    assert [row.length for row in found] == expected
    assert [row.gemm for row in found] == ["fprop", "dgrad", "wgrad"]


def test_products_of_functions_share_the_recipe_of_their_module():
    model = Computes(lambda own, q, k: (q @ k.mT) @ k + torch.bmm(q, q.mT).matmul(k).sum())
    made = plan(model, (grad(2, 3, 8), grad(2, 3, 8)), loss=mean_square, operand="bf16")
    short, long = [3, 8, 3], [8, 3, 3]
    names = {"matmul": long, "matmul_2": short, "bmm": long, "matmul_3": short}
    assert {row.layer for row in made.rows} == names.keys() and list(made) == [""]
    for name, length in names.items():
        assert [row.length for row in made.rows if row.layer == name] == length
    widest = max(row.format.man_bits for row in made.rows if row.gemm == "dgrad")
    assert made[""].dgrad.fmt.man_bits == widest


def test_broadcast_operands_sum_over_what_was_broadcast():
    shared = Computes(lambda own, x, w: x @ w)
    assert lengths(shared, (grad(4, 5, 8), grad(8, 3))) == {"matmul": [8, 3, 20]}
    assert lengths(shared, (grad(8), grad(8))) == {"matmul": [8, 1, 1]}
    assert lengths(shared, (grad(5, 8), grad(8))) == {"matmul": [8, 1, 5]}


# Inputs of one shape are one tensor, as for self-attention.
COMPOSITES = [
    (nn.LSTM(5, 6, 2, bidirectional=True), [(4, 2, 5)]),
    (nn.GRU(5, 6, 2), [(4, 2, 5)]),
    (nn.RNN(5, 6, nonlinearity="relu"), [(4, 2, 5)]),
    (nn.MultiheadAttention(8, 2, batch_first=True), [(4, 2, 8)] * 3),
    (nn.MultiheadAttention(8, 2, kdim=5, vdim=3), [(4, 2, 8), (3, 2, 5), (3, 2, 3)]),
    (nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0), [(4, 2, 8), (3, 2, 8)]),
]


@each("model, shapes", COMPOSITES)
def test_composite_layers_have_all_three_products(model: nn.Module, shapes: list):
    inputs = {shape: grad(*shape) for shape in shapes}
    sample = tuple(inputs[shape] for shape in shapes)
    made = plan(model, sample, loss=mean_square, operand="bf16")
    assert made.uncovered == "" and "no row" not in str(made)
    assert {row.gemm for row in made.rows} == {"fprop", "dgrad", "wgrad"}
    assert all(row.exponents is not None for row in made.rows)


def test_products_that_the_trace_does_not_see_are_named_below_the_table():
    parts = {"layer": nn.Linear(4, 4), "w": nn.Parameter(torch.randn(4, 4))}
    model = Computes(lambda m, x: torch.cdist(OwnBackward.apply(m.layer(x), m.w), x), **parts)
    made = plan(model, torch.randn(2, 4), loss=torch.sum, operand="e5m2")
    assert made.uncovered == (
        "products that reach torch and have no row here: aten::_cdist_forward x1, "
        "aten::_cdist_backward x1, aten::mm x2"
    )
    assert str(made).splitlines()[-1] == made.uncovered


def test_lengths_of_attention_and_recurrent_layers():
    attend = Computes(lambda own, *x: F.scaled_dot_product_attention(*x, is_causal=True))
    found = lengths(attend, (grad(2, 4, 6, 8), grad(2, 4, 6, 8), grad(2, 4, 6, 3)))
    assert found == {"scores": [8, 6, 6], "values": [6, 3, 6]}
    found = lengths(nn.MultiheadAttention(8, 2), (grad(5, 3, 8),) * 3)
    assert found == {
        **{name: [8, 8, 15] for name in ("in_proj_q", "in_proj_k", "in_proj_v", "out_proj")},
        "scores": [4, 5, 5],
        "values": [5, 4, 5],
    }
    # There are four gates of 7; the weight's gradient is one sum over 6 steps of 3 samples.
    found = {"ih_l0": [5, 28, 18], "hh_l0": [7, 28, 18]}
    assert lengths(nn.LSTM(5, 7), grad(6, 3, 5)) == found


X = torch.ones(2, 4)
ATEN = torch.ops.aten
EINSUM = of_weight(lambda x, w: torch.einsum("ij,kj->ik", x, x))


def convolution(x: Tensor, w: Tensor) -> Tensor:
    numbers = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    return ATEN.convolution(x.view(1, 1, 2, 4), w.view(4, 1, 2, 2), None, *numbers)


LAYER, OVERFLOWING = nn.Linear(4, 4), nn.Linear(4, 4)
nn.init.constant_(OVERFLOWING.weight, 1e6)
UNTRACED = [
    (EINSUM, X, r"the model|module.*einsum.*not traced"),
    (nn.Sequential(EINSUM), X, r"'0' \(Computes\).*einsum"),
    (of_weight(lambda x, w: torch.linalg.vecdot(x, w[0])), X, "vecdot"),
    (of_weight(lambda x, w: torch.linalg.multi_dot([x, w, w])), X, "multi_dot"),
    (of_weight(convolution), X, "torch's convolution"),
    (nn.LSTM(4, 4, proj_size=2), X.unsqueeze(1), "proj_size"),
    (nn.Bilinear(4, 4, 2), (X, X), "bilinear"),
    (nn.MultiheadAttention(4, 2, add_zero_attn=True), (X, X, X), "add_zero_attn"),
    (torch.jit.script(nn.Linear(4, 4)), X, "TorchScript"),
]
MODELS = [
    (nn.LazyLinear(4), X, "run the model on a batch first"),
    (lp.nn.Linear(4, 4), X, r"lp.revert\(model\)"),
    (nn.ReLU(), grad(2, 4), "no matrix product"),
    (of_weight(lambda x, w: (x @ w).detach()), X, "no gradient"),
    (nn.Linear(4, 4).requires_grad_(False), X, "no gradient"),
    (LAYER, X * math.inf, "input of 'Linear' holds infinities"),
    (OVERFLOWING, X, "weight of 'Linear' reaches 1e\\+06, which overflows"),
]
OPTIONS = [
    ({"loss": lambda y: y}, ValueError, r"scalar tensor, got shape \(2, 4"),
    ({"loss": lambda y: 1.0}, ValueError, "got float"),
    ({"operand": "e5m99"}, ValueError, "plan: operand"),
    ({"chunk": 0}, ValueError, "chunk: expected at least 1, got 0"),
    ({"chunk": 1.5}, TypeError, 'a length, "best" or None'),
    ({"margin": -1}, ValueError, "plan: margin: expected"),
    ({"headroom": 1.0}, TypeError, "headroom: expected an int"),
    ({"exp_bits": 9}, ValueError, "exp_bits: expected 2 to 8, got 9"),
    ({"rounding": "toward_zero"}, ValueError, "stochastic, align"),
    ({"model": lambda x: x}, TypeError, "must be a torch.nn.Module, got function"),
]
REFUSED = [
    *(({"model": m, "sample": x}, NotImplementedError, text) for m, x, text in UNTRACED),
    *(({"model": m, "sample": x}, ValueError, text) for m, x, text in MODELS),
    *OPTIONS,
]
USUAL = {"model": LAYER, "sample": X, "loss": mean_square, "operand": "e4m3"}
test_what_cannot_be_planned_is_refused = refuses(plan, [((), *row) for row in REFUSED], **USUAL)
