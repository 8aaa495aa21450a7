"""trace: the operations of a model and its loss, and nothing of the model changed."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lpkernels as lp
from lpkernels.techniques.assignment import group, trace
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.support.computes import Computes
from tests.techniques.assignment.networks import (
    chain,
    chain_batch,
    chain_model,
    edges,
    homes,
    ops_of,
)

LABELS = torch.arange(4) % 3
X = torch.randn(4, 6)


def test_the_chain_is_the_data_of_the_paper():
    ops = trace(chain_model(), F.cross_entropy, chain_batch())
    names = ["input", *"01234568", "loss.log_softmax", "loss.nll_loss"]
    assert [op.name for op in ops] == names
    assert [op.is_gemm for op in ops] == [op.is_gemm for op in chain()]
    assert [op.numel for op in ops] == [op.numel for op in chain()]
    assert [sorted(op.params.values()) for op in ops] == [
        sorted(op.params.values()) for op in chain()
    ]
    assert ops[1].params == {"0.weight": 36}
    assert [op.inputs for op in ops[1:]] == [(name,) for name in names[:-1]]
    assert [each.numel for each in group(ops)] == [584, 6736, 3348, 162]


def test_the_batch_is_counted():
    four, eight = (group(trace(chain_model(), F.cross_entropy, chain_batch(n))) for n in (4, 8))
    assert [each.numel for each in eight] == [1096, 12880, 6484, 322]
    assert [len(each.tensors) for each in four] == [len(each.tensors) for each in eight]


def test_functions_and_modules_are_seen_alike():
    ops = ops_of(lambda m, x: torch.relu(m.norm(m.linear(x))) + 1,
                 X, linear=nn.Linear(6, 5), norm=nn.LayerNorm(5))  # fmt: skip
    assert [op.operation for op in ops] == ["input", "linear", "layer_norm", "relu", "add"]
    assert [op.name for op in ops] == ["input", "linear", "norm", "relu", "add"]
    assert dict(ops[1].params) == {"linear.weight": 30, "linear.bias": 5}


@each(
    "view",
    [
        lambda y: y.view(8, 3),
        lambda y: y.t(),
        lambda y: y[:, 1:3],
        lambda y: y.permute(1, 0).reshape(-1).unsqueeze(0),
        lambda y: y.T.contiguous().clone(),
        lambda y: y.float().to(torch.float64),
        lambda y: torch.flatten(y, 0),
        lambda y: y.expand(2, 4, 6),
    ],
)
def test_views_and_copies_are_no_ops(view: Callable[[Tensor], Tensor]):
    ops = ops_of(lambda m, x: view(torch.tanh(x)) * 2, X)
    assert edges(ops) == {"input": (), "tanh": ("input",), "mul": ("tanh",)}


def split(m: Any, x: Tensor) -> Tensor:
    a, b = torch.sigmoid(x).chunk(2, dim=1)
    return torch.cat([a, torch.relu(b)], 1)


def in_place(m: Any, x: Tensor) -> Tensor:
    y = m.linear(x)
    row = y[0]
    F.relu_(y)
    y[1:] = 0.5 * x[1:]
    return row + y


def noisy(m: Any, x: Tensor) -> Tensor:
    return torch.tanh(x + torch.randn_like(x)) * x.new_full((6,), 2.0)


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


def more(m: Any, x: Tensor) -> Tensor:
    m.linear(x)
    (x > 0).sum()
    mask = torch.ones(6).cumsum(0).softmax(0)
    return torch.relu(x) * mask


@each(
    "function, read, sizes",
    [
        # Whoever reads a part of a split reads the whole.
        (split, {"sigmoid": "input", "relu": "sigmoid", "cat": "sigmoid relu"}, [24, 12, 24]),
        # Work in place makes a new result, which views show.
        (in_place, {"linear": "input", "relu": "linear", "mul": "input", "setitem": "relu mul",
                    "add": "setitem"}, [24, 24, 18, 24, 24]),
        # A tensor of the same shape is a constant.
        (noisy, {"add": "input", "tanh": "add", "mul": "tanh"}, [24] * 3),
        # An autograd function is followed inside.
        (lambda m, x: torch.relu(Doubles.apply(torch.tanh(x))),
         {"tanh": "input", "mul": "tanh", "relu": "mul"}, [24] * 3),
        # What the loss does not need is not told.
        (more, {"relu": "input", "mul": "relu"}, [24] * 2),
    ],
)  # fmt: skip
def test_what_an_operation_reads(function: Any, read: dict[str, str], sizes: list[int]):
    ops = ops_of(function, X, linear=nn.Linear(6, 6))
    assert edges(ops) == {"input": (), **{name: tuple(of.split()) for name, of in read.items()}}
    assert [op.numel for op in ops[1:]] == sizes


def test_a_shared_module_has_its_parameters_once():
    ops = ops_of(lambda m, x: m.layer(torch.relu(m.layer(x))), X, layer=nn.Linear(6, 6))
    assert [op.name for op in ops] == ["input", "layer", "relu", "layer_1"]
    assert ops[1].params == ops[3].params == {"layer.weight": 36, "layer.bias": 6}
    assert sum("weight" in key for key in homes(group(ops))) == 2


def test_a_parameter_of_the_model_itself_has_its_own_name():
    model = Computes(lambda m, x: x * m.scale, scale=nn.Parameter(torch.ones(6)))
    ops = trace(model, lambda y, t: (y + model.scale).mean(), (X, None))
    assert [dict(op.params) for op in ops] == [{}, {".scale": 6}, {".scale": 6}, {}]
    assert "scale.P" in homes(group(ops))


def test_parameters_that_share_memory_are_told_apart():
    flat = torch.randn(12)
    parts = {"first": nn.Parameter(flat[:6]), "second": nn.Parameter(flat[6:])}
    model = Computes(lambda m, x: torch.relu(x * m.first) + m.second, **parts)
    ops = trace(model, lambda y, t: y.mean(), (X, None))
    assert [list(op.params) for op in ops[1:4]] == [[".first"], [], [".second"]]


@each(
    "function, parts, params",
    [
        # They are in the order of the model.
        (lambda m, x: torch.addmm(m.a.bias, x, m.a.weight), {"a": nn.Linear(6, 6)},
         {"addmm": {"a.weight": 36, "a.bias": 6}}),
        # A module with several operations names each.
        (lambda m, x: m.a(x), {"a": Computes(lambda m, x: torch.relu(x) + 1)},
         {"a.relu": {}, "a.add": {}}),
        # A part of a parameter is that parameter.
        (lambda m, x: x + m.a[:6], {"a": nn.Parameter(torch.ones(9))}, {"add": {".a": 9}}),
        # The statistics of a norm are no tensors.
        (lambda m, x: m.a(x), {"a": nn.BatchNorm1d(6)}, {"a": {"a.weight": 6, "a.bias": 6}}),
    ],
)  # fmt: skip
def test_parameters_of_operations(function: Any, parts: Any, params: dict[str, dict[str, int]]):
    found = {op.name: list(op.params.items()) for op in ops_of(function, X, **parts)[1:]}
    assert found == {name: list(sizes.items()) for name, sizes in params.items()}


def test_tokens_are_no_tensors_and_a_lookup_starts_the_network():
    model = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7))
    tokens = torch.randint(7, (4, 3))
    ops = trace(model, lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten()), (tokens, tokens))
    assert edges(list(ops)) == {
        "0": (), "1": ("0",), "loss.log_softmax": ("1",), "loss.nll_loss": ("loss.log_softmax",),
    }  # fmt: skip
    assert dict(ops[0].params) == {"0.weight": 35}


def test_several_inputs_are_told_by_name():
    ops = ops_of(lambda m, x, y: x @ y.t(), X, torch.randn(5, 6))
    assert edges(ops) == {"input.0": (), "input.1": (), "matmul": ("input.0", "input.1")}
    model = nn.Bilinear(6, 6, 2)
    named = trace(model, lambda y, t: y.sum(), ({"input1": X, "input2": X.clone()}, None))
    assert [op.name for op in named] == ["input.input1", "input.input2", "bilinear", "loss.sum"]


PRODUCTS = {
    "matmul": lambda x, w: x @ w,
    "mm": lambda x, w: torch.mm(x, w),
    "addmm": lambda x, w: torch.addmm(w[0], x, w),
    "einsum": lambda x, w: torch.einsum("ij,jk->ik", x, w),
    "bmm": lambda x, w: torch.bmm(x[None], w[None]),
    "conv1d": lambda x, w: F.conv1d(x[:, None], w[:, None, :3]),
    "conv_transpose1d": lambda x, w: F.conv_transpose1d(x[:, None], w[None, :, :3]),
}


@each("name", PRODUCTS)
def test_products_of_activations_are_gemms(name: str):
    ops = ops_of(lambda m, x, y: PRODUCTS[name](x, y), X, torch.randn(6, 6))
    assert [(op.operation, op.is_gemm) for op in ops[2:]] == [(name, True)]
    assert set(ops[2].inputs) == {"input.0", "input.1"}


def test_labels_are_no_tensors_and_a_random_layer_is_told_as_it_is_in_its_mode():
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout())
    for names in (["input", "0", "1"], ["input", "0"]):
        ops = trace(model, F.mse_loss, (X, torch.randn(4, 3)))
        assert [op.name for op in ops] == [*names, "loss.mse_loss"]
        model.eval()


def test_unknown_operations_are_named_in_one_warning_and_stay_high():
    model = Computes(lambda m, x: torch.fft.fft(m.lstm(x)[0]).abs(), lstm=nn.LSTM(6, 3))
    with pytest.warns(UserWarning) as told:
        ops = trace(model, lambda y, t: y.sum(), (X, None))
    assert [str(each.message) for each in told] == [
        "trace: held in high precision, for what they compute is not known: lstm (lstm), "
        "fft_fft (fft_fft)"
    ]
    assert told[0].filename == __file__
    assert [op.name for op in ops if not op.known] == ["lstm", "fft_fft"]
    assert {t.key for each in group(ops) for t in each.tensors if not t.known} >= {
        *("lstm.Y", "lstm.weight_hh_l0.P", "fft_fft.GY"),
    }


MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "cnn": (chain_model, torch.randn(4, 1, 8, 8)),
    "transformer": (
        lambda: nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Flatten()),
        torch.randn(4, 3, 8),
    ),
    "functions": (
        lambda: Computes(lambda m, x: F.gelu(x @ m.w.weight.t()) @ m.w.weight, w=nn.Linear(6, 6)),
        X,
    ),
}
SUMS = lp.Recipe(fprop="e6m7", dgrad="e6m7", wgrad="e6m7")


@each("recipe", ["fp8_wang2018", SUMS, lp.policy("fp16_mixed")])
@each("name", MODELS)
def test_a_converted_model_has_the_ops_of_the_plain_one(name: str, recipe: Any):
    build, x = MODELS[name]
    model = build()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = trace(model, F.cross_entropy, (x, LABELS))
        lp.convert(model, recipe)
        assert trace(model, F.cross_entropy, (x, LABELS)) == plain


@each("fails", [False, True])
def test_the_model_is_left_as_found(fails: bool):
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 3))
    F.cross_entropy(model(X), LABELS).backward()
    before = copy.deepcopy(model)
    gradients = [p.grad.clone() for p in model.parameters()]
    state = torch.get_rng_state()

    def loss(y: Tensor, labels: Tensor) -> Tensor:
        if fails:
            raise KeyError("mine")
        return F.cross_entropy(y, labels)

    x = X.clone()
    if fails:
        with pytest.raises(KeyError, match="mine"):
            trace(model, loss, (x, LABELS))
    else:
        trace(model, loss, (x, LABELS))
    assert_bit_equal(x, X)
    assert torch.equal(torch.get_rng_state(), state)
    old = before.state_dict()
    for name, value in model.state_dict().items():
        assert_bit_equal(value, old[name], name)
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        assert_bit_equal(p.grad, gradient)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert model.training


def test_trace_keeps_no_tensor_alive():
    seen = []

    def notes(m: Any, x: Tensor) -> Tensor:
        y = torch.relu(x)
        seen.append(torch.multiprocessing.reductions.StorageWeakRef(y.untyped_storage()))
        return y + 1

    ops_of(notes, X)
    assert seen[0].expired()
