"""observe: which calls are told, in what names, and with which tensors."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lpkernels as lp
from lpkernels.nn.observing import PRODUCTS, Call, observe
from lpkernels.nn.observing.parts import multi_head_attention
from tests.compare import assert_bit_equal
from tests.nn.observed import Calls, cnn, mean_square, of_weight, watched
from tests.support.autograd import Computes

X, ODD = torch.randn(2, 4), torch.full((2, 4), 1.1)
IMAGES = torch.randn(2, 3, 5, 5)


def test_a_cnn_calls_its_products_in_order():
    seen = watched(cnn(), IMAGES)
    assert seen.names == [("0.0", "conv2d"), ("1", "conv_transpose2d"), ("3", "linear")]
    assert seen.arguments[0]["padding"] == (1, 1)
    assert_bit_equal(seen.arguments[0]["input"], IMAGES)
    assert [str(call.run) for call in seen.calls[:1]] == ["module '0.0' (Conv2d)"]
    outer = [seen.calls[0].run.outer, seen.calls[0].run.outer.outer]
    assert [run.name for run in outer] == ["0", ""]


@pytest.mark.parametrize("convert", [False, True])
@pytest.mark.parametrize(
    "model, inputs",
    [
        (cnn(), (IMAGES,)),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (torch.randn(2, 3, 8),)),
        (nn.LSTM(5, 6, 2, bidirectional=True), (torch.randn(4, 2, 5, requires_grad=True),)),
        (of_weight(lambda x, w: torch.einsum("ij,kj->ik", x, w) @ w), (X,)),
    ],
)
def test_a_watched_step_has_the_bits_of_an_unwatched_one(model, inputs, convert: bool):
    if convert:
        lp.convert(model, lp.Recipe(input="e4m3:stochastic", grad_output="e5m2"))
    model.zero_grad()
    torch.manual_seed(1)
    mean_square(model(*inputs)).backward()
    expected = [p.grad for p in model.parameters()]
    model.zero_grad()
    torch.manual_seed(1)
    watched(model, *inputs)
    lp.revert(model)
    for p, gradient in zip(model.parameters(), expected, strict=True):
        assert_bit_equal(p.grad, gradient)


@pytest.mark.parametrize("function, name, operands", [
        (lambda x, w: x @ w, "matmul", ["input", "other"]),
        (lambda x, w: w.__rmatmul__(x), "matmul", ["other", "input"]),
        (lambda x, w: torch.einsum("ij,jk", x, w), "einsum", ["1", "2"]),
        (lambda x, w: F.linear(x, w), "linear", ["input", "weight"]),
        (lambda x, w: torch.ops.aten.mm.default(x, w), "mm", ["input", "mat2"]),
        (lambda x, w: F.scaled_dot_product_attention(x, w, value=w), "scaled_dot_product_attention",
         ["query", "key", "value"]),
        (lambda x, w: torch.lstm_cell(x, (x[:, :1], x[:, :1]), w, w[:, :1]), "lstm_cell",
         ["input", "hx.0", "hx.1", "w_ih", "w_hh"]),
    ])  # fmt: skip
def test_functions_and_their_arguments_have_torchs_names(function, name: str, operands: list[str]):
    seen = watched(nn.Sequential(of_weight(function)), X)
    assert seen.names == [("0", name)]
    assert name in PRODUCTS
    assert [n for n, x in seen.arguments[0].items() if "." not in n and isinstance(x, Tensor)] == [
        n for n in operands if "." not in n
    ]
    assert set(operands) <= seen.arguments[0].keys()


def test_emulated_layers_and_calls_are_told_as_what_they_stand_for():
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.memory(F.linear(m.layer(x) @ x.mT, torch.eye(4)[:, : len(x)]))[0]

    model: Any = Computes(forward, layer=nn.Linear(4, 4), memory=nn.LSTM(4, 3))
    plain = watched(model, X)
    model.zero_grad()
    seen = watched(lp.convert(model, "hfp8_sun2019"), X)
    assert seen.names == plain.names
    assert seen.names == [("layer", "linear"), ("", "matmul"), ("", "linear"), ("memory", "lstm")]
    assert all("recipe" in arguments for arguments in seen.arguments)
    assert [set(g) for g in seen.gradients] == [set(g) for g in plain.gradients]
    assert_bit_equal(seen.gradients[0]["weight"], model.layer.weight.grad)


def test_a_visitors_own_arithmetic_is_neither_told_nor_emulated():
    class Multiplies(Calls):
        def before(self, call: Call, arguments: Mapping[str, Any]) -> None:
            super().before(call, arguments)
            assert_bit_equal(ODD @ ODD.mT, expected)
            assert not (self.arguments[-1]["input"] * 2).requires_grad

        def gradient(self, call: Call, of: str, gradient: Tensor) -> None:
            super().gradient(call, of, gradient)
            assert_bit_equal(ODD @ ODD.mT, expected)

    expected, seen = ODD @ ODD.mT, Multiplies()
    model = lp.convert(nn.Sequential(of_weight(torch.matmul)), lp.Recipe(input="e5m2"))
    with observe(model, seen):
        model(X).sum().backward()
    assert seen.names == [("0", "matmul")] and seen.gradients[0]


def test_attention_and_recurrent_layers_in_parts():
    attention = nn.MultiheadAttention(8, 2)
    seen = watched(attention, *[torch.randn(5, 3, 8)] * 3, parts=True)
    parts = ["in_proj_q", "in_proj_k", "in_proj_v", "scores", "values", "out_proj"]
    assert seen.names == [("", part) for part in parts]
    assert seen.calls[3].operation == "matmul"
    assert seen.calls[3].function is F.multi_head_attention_forward
    assert all({"result", "input"} & gradients.keys() for gradients in seen.gradients)
    lstm = nn.LSTM(4, 3, 1)
    seen = watched(lstm, torch.randn(6, 2, 4), parts=True)
    assert seen.names == [("", "ih_l0"), ("", "hh_l0")]
    # The steps are one product.
    assert seen.arguments[1]["input"].shape == (12, 3)
    assert seen.gradients[1]["result"].shape == seen.results[1].shape == (12, 12)
    torch.testing.assert_close(seen.gradients[1]["weight"], lstm.weight_hh_l0.grad)
    wgrad = seen.gradients[1]["result"].mT @ seen.arguments[1]["input"]
    torch.testing.assert_close(wgrad, lstm.weight_hh_l0.grad)


SCRIPTED, COMPILED = torch.jit.script(nn.Linear(4, 4)), nn.Sequential(torch.compile(nn.ReLU()))


@pytest.mark.parametrize("model, inputs, options, error, message", [
        (SCRIPTED, (X,), {}, NotImplementedError, "^module.*TorchScript"),
        (COMPILED, (X,), {}, NotImplementedError, "^module '0'.*torch.comp"),
        (nn.Sequential(nn.LSTM(4, 4, proj_size=2)), (X,), {"parts": True},
         NotImplementedError, r"^lstm with proj_size, called by module '0' \(LSTM\)"),
    ])  # fmt: skip
def test_a_scripted_or_compiled_module_is_not_observed(model, inputs, options, error, message):
    with pytest.raises(error, match=message):
        watched(model, *inputs, **options)


def test_around_false_tells_the_calls_of_the_model_alone():
    model, seen = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), Calls()
    x = torch.randn(2, 4)
    with observe(model, seen, around=False):
        x @ x.mT
        y = model(x)
        assert torch._C._len_torch_function_stack() == 0
        (y @ y.mT).sum().backward()
        model[1](x)
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            model(torch.randn(2, 3))
        assert torch._C._len_torch_function_stack() == 0
    assert seen.names == [(name, "linear") for name in ("0", "1", "1", "0")]
    assert {*seen.gradients[1]} == {"result", "input", "weight", "bias"}


EMPTY = torch.tensor([[True, True, True], [False, False, False], [True, False, True]])


def matmul(a: Tensor, b: Tensor, name: str) -> Tensor:
    return a @ b


def linear(x: Tensor, w: Tensor, b: Tensor | None, name: str) -> Tensor:
    return F.linear(x, w, b)


def parts_of(layer: nn.MultiheadAttention, x: Tensor, **options: Any) -> tuple[Any, Any]:
    """The result of the observer's parts and the layer's own result, with the same draws."""
    names = "in_proj_weight in_proj_bias bias_k bias_v add_zero_attn".split()
    of = {
        "query": x, "key": x, "value": x, "embed_dim_to_check": 8, "num_heads": 2,
        **{name: getattr(layer, name) for name in names}, "dropout_p": layer.dropout,
        "out_proj_weight": layer.out_proj.weight, "out_proj_bias": layer.out_proj.bias, **options,
    }  # fmt: skip
    torch.manual_seed(3)
    found = multi_head_attention(of, linear=linear, matmul=matmul)
    torch.manual_seed(3)
    return found, layer(x, x, x, **options)


@pytest.mark.parametrize("average", [False, True])
def test_multi_head_attention_tells_its_weights_after_dropout_as_torch_does(average: bool) -> None:
    more = {"add_bias_kv": average, "add_zero_attn": average}
    layer, x = nn.MultiheadAttention(8, 2, dropout=0.5, **more), torch.randn(3, 2, 8)
    found, want = parts_of(layer, x, average_attn_weights=average)
    torch.testing.assert_close(found, want)
