"""trace: the operations of a model and its loss, nothing of the model changed, and refusals."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lpkernels as lp
from lpkernels.techniques.assignment import Op, group, trace
from tests.support.autograd import Computes
from tests.support.refusals import refused
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
    sizes = [(op.is_gemm, op.numel, sorted(op.params.values())) for op in ops]
    assert sizes == [(op.is_gemm, op.numel, sorted(op.params.values())) for op in chain()]
    assert " ".join(op.operation for op in ops) == (
        "input conv2d batch_norm relu conv2d batch_norm relu avg_pool2d linear log_softmax nll_loss"
    )
    assert ops[1].params == {"0.weight": 36}
    assert [op.inputs for op in ops[1:]] == [(name,) for name in names[:-1]]
    # The batch is counted.
    four, eight = (group(trace(chain_model(), F.cross_entropy, chain_batch(n))) for n in (4, 8))
    assert [home.numel for home in four] == [584, 6736, 3348, 162]
    assert [home.numel for home in eight] == [1096, 12880, 6484, 322]
    assert [len(home.tensors) for home in four] == [len(home.tensors) for home in eight]


@pytest.mark.parametrize("view", [
    lambda y: y[:, 1:3], lambda y: y.permute(1, 0).reshape(-1).unsqueeze(0),
    lambda y: y.T.contiguous().clone(), lambda y: y.float().to(torch.float64),
    lambda y: y.expand(2, 4, 6),
])  # fmt: skip
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


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2


def unneeded(m: Any, x: Tensor) -> Tensor:
    m.linear(x)
    (x > 0).sum()
    return torch.relu(x) * torch.ones(6).cumsum(0).softmax(0)


Y = torch.randn(6, 6)


@pytest.mark.parametrize("function, inputs, expected", [
    # Whoever reads a part of a split reads the whole.
    (split, (X,), "sigmoid 24 input, relu 12 sigmoid, cat 24 sigmoid relu"),
    # An operation in place makes a new result, and views show it.
    (in_place, (X,), "linear* 24 input, relu 24 linear, mul 18 input, setitem 24 relu mul, "
     "add 24 setitem"),
    # A tensor of the same shape is a constant.
    (lambda m, x: (x + torch.randn_like(x)) * x.new_full((6,), 2.0), (X,),
     "add 24 input, mul 24 add"),
    # An autograd function is followed inside.
    (lambda m, x: torch.relu(Doubles.apply(x)), (X,), "mul 24 input, relu 24 mul"),
    # Operations that the loss does not need are not told.
    (unneeded, (X,), "relu 24 input, mul 24 relu"),
    (lambda m, x: F.cross_entropy(input=m.linear(x), target=LABELS, reduction="none"), (X,),
     "linear* 24 input, log_softmax 24 linear, nll_loss 4 log_softmax"),
    # Products of activations are GEMMs, and several inputs are told by name.
    (lambda m, x, y: x @ y, (X, Y), "matmul* 24 input.0 input.1"),
    (lambda m, x, y: torch.einsum("ij,jk->ik", x, y), (X, Y), "einsum* 24 input.0 input.1"),
    (lambda m, x, y: torch.addmm(y[0], x, y), (X, Y), "addmm* 24 input.1 input.0"),
    (lambda m, x, y: F.conv1d(x[:, None], y[:, None, :3]), (X, Y), "conv1d* 96 input.0 input.1"),
    (lambda m, x, y: F.conv_transpose1d(x[:, None], y[None, :, :3]), (X, Y),
     "conv_transpose1d* 192 input.0 input.1"),
])  # fmt: skip
def test_an_operation_reads_the_results_that_its_arguments_are_made_of(
    function: Any, inputs: Any, expected: str
):
    assert lines(ops_of(function, *inputs, linear=nn.Linear(6, 6))) == expected


def lines(ops: list[Op]) -> str:
    """Each operation but the inputs: its name, which * follows if it is a GEMM, elements, reads."""
    texts = [f"{op.name}{'*' * op.is_gemm} {op.numel} {' '.join(op.inputs)}" for op in ops]
    return ", ".join(line for line in texts if not line.startswith("input"))


def test_a_parameter_of_the_model_itself_has_its_own_name():
    model = Computes(lambda m, x: x * m.scale, scale=nn.Parameter(torch.ones(6)))
    ops = trace(model, lambda y, t: (y + model.scale).mean(), (X, None))
    assert [dict(op.params) for op in ops] == [{}, {".scale": 6}, {".scale": 6}, {}]
    assert "scale.P" in homes(group(ops))


LINEAR = {"a.weight": 36, "a.bias": 6}
FLAT = torch.randn(12)


@pytest.mark.parametrize("function, parts, params", [
    # They are in the order of the model.
    (lambda m, x: torch.addmm(m.a.bias, x, m.a.weight), {"a": nn.Linear(6, 6)},
     {"addmm": LINEAR}),
    # A shared module has its parameters once.
    (lambda m, x: m.a(torch.relu(m.a(x))), {"a": nn.Linear(6, 6)},
     {"a": LINEAR, "relu": {}, "a_1": LINEAR}),
    # A module with several operations names each.
    (lambda m, x: m.a(x), {"a": Computes(lambda m, x: torch.relu(x) + 1)},
     {"a.relu": {}, "a.add": {}}),
    # A part of a parameter is that parameter.
    (lambda m, x: x + m.a[:6], {"a": nn.Parameter(torch.ones(9))}, {"add": {".a": 9}}),
    # Parameters that share memory are told apart.
    (lambda m, x: torch.relu(x * m.a) + m.b,
     {"a": nn.Parameter(FLAT[:6]), "b": nn.Parameter(FLAT[6:])},
     {"mul": {".a": 6}, "relu": {}, "add": {".b": 6}}),
    # The statistics of a norm are no tensors.
    (lambda m, x: m.a(x), {"a": nn.BatchNorm1d(6)}, {"a": {"a.weight": 6, "a.bias": 6}}),
])  # fmt: skip
def test_an_operation_has_the_parameters_that_it_reads(
    function: Any, parts: Any, params: dict[str, dict[str, int]]
):
    ops = ops_of(function, X, **parts)
    sizes_by_name = {op.name: list(op.params.items()) for op in ops[1:]}
    assert sizes_by_name == {name: list(sizes.items()) for name, sizes in params.items()}
    # However many operations read a parameter, it is one tensor.
    names = {name.removeprefix(".") for sizes in params.values() for name in sizes}
    assert {key[:-2] for key in homes(group(ops)) if key.endswith(".P")} == names


def test_tokens_and_labels_are_no_tensors_and_a_lookup_starts_the_network():
    model = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7))
    tokens = torch.randint(7, (4, 3))
    ops = trace(model, lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten()), (tokens, tokens))
    assert edges(list(ops)) == {
        "0": (), "1": ("0",), "loss.log_softmax": ("1",), "loss.nll_loss": ("loss.log_softmax",),
    }  # fmt: skip
    assert dict(ops[0].params) == {"0.weight": 35}
    assert [home.index for home in group(ops)] == [0, 1]
    named = trace(
        nn.Bilinear(6, 6, 2), lambda y, t: y.sum(), ({"input1": X, "input2": Y[:4]}, None)
    )
    assert [op.name for op in named] == ["input.input1", "input.input2", "bilinear", "loss.sum"]
    # A random layer is told as it is in its mode.
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout())
    for names in (["input", "0", "1"], ["input", "0"]):
        ops = trace(model, F.mse_loss, (X, torch.randn(4, 3)))
        assert [op.name for op in ops] == [*names, "loss.mse_loss"]
        model.eval()


def test_unknown_operations_are_named_in_one_warning_and_stay_high():
    model = Computes(lambda m, x: torch.fft.fft(m.lstm(x)[0]).abs(), lstm=nn.LSTM(6, 3))
    with pytest.warns(UserWarning) as caught:
        ops = trace(model, lambda y, t: y.sum(), (X, None))
    assert [str(warning.message) for warning in caught] == [
        "trace: held in high precision, for what they compute is not known: lstm (lstm), "
        "fft_fft (fft_fft)"
    ]
    assert caught[0].filename == __file__
    assert [op.name for op in ops if not op.known] == ["lstm", "fft_fft"]
    unknown = {t.key for home in group(ops) for t in home.tensors if not t.known}
    assert unknown >= {"lstm.Y", "lstm.weight_hh_l0.P", "fft_fft.GY"}


SUMS = lp.Recipe(fprop="e6m7", dgrad="e6m7", wgrad="e6m7")


@pytest.mark.parametrize("recipe", ["fp8_wang2018", SUMS, lp.policy("fp16_mixed")])
@pytest.mark.parametrize("build, x", [
    (chain_model, torch.randn(4, 1, 8, 8)),
    (lambda: nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Flatten()),
     torch.randn(4, 3, 8)),
    (lambda: Computes(lambda m, x: F.gelu(x @ m.w.weight.t()) @ m.w.weight, w=nn.Linear(6, 6)), X),
])  # fmt: skip
def test_a_converted_model_has_the_ops_of_the_plain_one(build: Any, x: Tensor, recipe: Any):
    model = build()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = trace(model, F.cross_entropy, (x, LABELS))
        lp.convert(model, recipe)
        assert trace(model, F.cross_entropy, (x, LABELS)) == plain


def test_trace_keeps_no_tensor_alive():
    storages = []

    def notes(m: Any, x: Tensor) -> Tensor:
        y = torch.relu(x)
        storages.append(torch.multiprocessing.reductions.StorageWeakRef(y.untyped_storage()))
        return y + 1

    ops_of(notes, X)
    assert storages[0].expired()


def attention(m: Any, x: Tensor) -> Tensor:
    q, k, v = m.qkv(x).view(2, 3, 3, 2, 4).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=m.p)


def multi_head(result: int = 0) -> Any:
    return lambda m, x, *memory: m.layer(x, *(memory or (x, x)))[result]


def heads(dropout: float = 0.0, training: bool = True, result: int = 8) -> dict[str, nn.Module]:
    layer = nn.MultiheadAttention(8, 2, dropout, batch_first=True).train(training)
    layer.out_proj = nn.Linear(8, result)
    return {"layer": layer}


LONG = torch.randn(2, 5, 8)
INTO = "in_proj_q* 48 input, in_proj_k* 48 input"
SELF = f"{INTO}, in_proj_v* 48 input, scores* 36 in_proj_q in_proj_k"
SOFTMAX, DROPOUT = "softmax 36 scores", "softmax 36 scores, dropout 36 softmax"
OUT = "out_proj* 48 values"


@pytest.mark.parametrize("function, parts, operands, expected", [
    (attention, {"qkv": nn.Linear(8, 24), "p": 0.0}, (),
     f"qkv* 144 input, scores* 36 qkv, {SOFTMAX}, values* 48 softmax qkv"),
    (attention, {"qkv": nn.Linear(8, 24), "p": 0.5}, (),
     f"qkv* 144 input, scores* 36 qkv, {DROPOUT}, values* 48 dropout qkv"),
    (multi_head(), heads(), (), f"{SELF}, {SOFTMAX}, values* 48 softmax in_proj_v, {OUT}"),
    (multi_head(), heads(0.5, False), (),
     f"{SELF}, {SOFTMAX}, values* 48 softmax in_proj_v, {OUT}"),
    (multi_head(), heads(), (LONG, LONG.clone()),
     "in_proj_q* 48 input.0, in_proj_k* 80 input.1, in_proj_v* 80 input.2, "
     "scores* 60 in_proj_q in_proj_k, softmax 60 scores, values* 48 softmax in_proj_v, " + OUT),
    (multi_head(), heads(result=5), (),
     f"{SELF}, {SOFTMAX}, values* 48 softmax in_proj_v, out_proj* 30 values"),
    # Where the weights are the result nothing needs the values.
    (multi_head(1), heads(0.5), (),
     f"{INTO}, scores* 36 in_proj_q in_proj_k, {DROPOUT}, mean 18 dropout"),
])  # fmt: skip
def test_attention_in_one_call_is_its_products(
    function: Any, parts: Any, operands: Any, expected: str
):
    ops = ops_of(function, torch.randn(2, 3, 8), *operands, **parts)
    assert lines(ops).replace("layer.", "") == expected
    if "layer" in parts:
        # There is one packed weight, whatever reads it.
        assert sum("in_proj_weight" in key for key in homes(group(ops))) == 2


@pytest.mark.parametrize("option", ["add_zero_attn", "add_bias_kv"])
def test_attention_to_keys_beside_those_of_its_input_is_not_taken_apart(option: str) -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=True, **{option: True})
    ops = ops_of(multi_head(), torch.randn(2, 3, 8), layer=layer)
    assert not any(op.name.endswith("scores") for op in ops)


def wrapped(function: Callable[[Tensor], Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), Computes(lambda m, x: function(torch.relu(x))))


@pytest.mark.parametrize("function, match", [
    (lambda y: y if y.sum() > 0 else -y, r"reads a value that .*\(bool\)"),
    (lambda y: y * y.max().item(), r"reads a value that .*\(item\)"),
    (lambda y: y[: int((y > 0).sum())], r"reads a value that .*\(int\)"),
    (lambda y: y[y > 0], r"makes a tensor of a size that .*\(getitem\)"),
    (lambda y: y.masked_select(y > 0), r"makes a tensor of a size that .*\(masked_select\)"),
    (lambda y: y[torch.where(y[:, 0] > 0)], r"makes a tensor of a size that .*\(where\)"),
])  # fmt: skip
def test_control_flow_by_values_is_refused_with_its_module(function, match):
    model = wrapped(function)
    where = r"trace: module '1' \(Computes\) "
    with pytest.raises(NotImplementedError, match=where + match):
        trace(model, lambda y, t: y.sum(), (X, None))
    assert not any(m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("function", [
    lambda y: y if bool((torch.arange(3) > 1).any()) else -y, lambda y: torch.where(y > 0, y, -y),
    lambda y: y[torch.arange(4) > 1], lambda y: y.masked_select(torch.arange(6) > 1),
    lambda y: y * (y > 0)[torch.tensor([3, 2, 1, 0])],
])  # fmt: skip
def test_decisions_by_shapes_and_constants_are_taken(function: Callable[[Tensor], Any]):
    assert trace(wrapped(function), lambda y, t: y.sum(), (X, None))[-1].numel == 1


LINE = nn.Linear(6, 6)


SPARSE = Computes(lambda m, x: torch.sparse.mm(torch.relu(x).to_sparse(), x.t()))
test_what_cannot_be_followed_is_refused = refused(
    [
        (lambda: trace(SPARSE, lambda y, t: y.sum(), (X, None)), r"torch\.sparse_coo"),
        # A parameter that decides.
        (lambda: trace(LINE, lambda y, t: y.sum() if LINE.bias[0] > 0 else y.mean(), (X, None)),
         "the loss, or what runs around the model"),
    ],
    NotImplementedError,
)  # fmt: skip
