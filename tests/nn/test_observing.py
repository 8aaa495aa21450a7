"""observe: which calls are told, in what names, with which tensors and gradients; trace: one run
that leaves the model, and torch's random state, as found."""

import gc
import math
import weakref
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import lpkernels as lp
from lpkernels.nn.observing import PRODUCTS, Call, Visitor, observe
from lpkernels.nn.observing.observer import trace
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
    outer = seen.calls[0].run.outer
    assert [outer.name, outer.outer.name] == ["0", ""]


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


@pytest.mark.parametrize("average", [False, True])
def test_attention_in_parts_has_torchs_result_and_weights_after_dropout(average: bool) -> None:
    more = {"add_bias_kv": average, "add_zero_attn": average}
    layer, x = nn.MultiheadAttention(8, 2, dropout=0.5, **more), torch.randn(3, 2, 8)
    results = []
    for around in (nullcontext(), observe(layer, Calls(), parts=True)):
        torch.manual_seed(3)
        with around:
            results.append(layer(x, x, x, average_attn_weights=average))
    torch.testing.assert_close(*results)


def test_results_and_gradients_are_those_of_autograd():
    first, second = nn.Linear(4, 4), nn.Linear(4, 3)
    x = torch.randn(2, 4, requires_grad=True)
    seen = Calls()
    with observe(nn.Sequential(first, nn.Tanh(), second), seen):
        y = first(x)
        z = second(y.tanh())
        found = torch.autograd.grad(z.square().sum(), [x, first.weight, first.bias, y, z])
    assert_bit_equal(seen.results[0].detach(), y.detach())
    names = ["input", "weight", "bias", "result"]
    for name, gradient in zip(names, found, strict=False):
        assert_bit_equal(seen.gradients[0][name], gradient)
    assert_bit_equal(seen.gradients[1]["result"], found[4])
    # Nobody asked autograd for the gradients of the second layer's parameters.
    assert "weight" not in seen.gradients[1]


def test_a_shared_module_is_called_anew_and_its_weight_has_one_gradient():
    layer = nn.Linear(4, 4)
    seen = watched(nn.Sequential(layer, nn.Tanh(), layer), X)
    assert seen.names == [("0", "linear")] * 2
    assert seen.calls[0].run is not seen.calls[1].run
    for gradients in seen.gradients:
        assert_bit_equal(gradients["weight"], layer.weight.grad)


def test_gradients_go_to_the_step_they_belong_to():
    """One observation covers several steps; one step has no backward pass."""
    layer, seen = nn.Linear(4, 2), Calls()
    with observe(layer, seen):
        for step in range(3):
            y = layer(X * (step + 1)).square().sum()
            if step != 1:
                layer.zero_grad()
                y.backward()
                assert_bit_equal(seen.gradients[step]["weight"], layer.weight.grad)
    assert seen.gradients[1] == {}
    assert not layer.weight._backward_hooks


def test_an_operand_changed_in_place_is_told_as_it_entered():
    seen = Calls()
    x = torch.randn(2, 4, requires_grad=True)
    model = of_weight(lambda x, w: (x * 1).relu_())
    with observe(model, seen, operations={"relu_"}):
        (model(x) * 3).sum().backward()
    assert_bit_equal(seen.arguments[0]["0"], x.detach())
    assert_bit_equal(seen.results[0].detach(), x.detach().relu())
    assert_bit_equal(seen.gradients[0]["result"], torch.full_like(x, 3))
    assert_bit_equal(seen.gradients[0]["0"], x.grad)


@pytest.mark.parametrize("recipe", [None, "e4m3"])
def test_a_recomputation_of_a_checkpoint_is_told_once(recipe):
    part = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    net = Computes(lambda m, x: checkpoint(m.part, x, use_reentrant=False), part=part)
    if recipe is not None:
        lp.convert(net, lp.Recipe(input=recipe))
    seen = watched(net, X)
    assert seen.names == [("part.0", "linear")]
    assert "weight" in seen.gradients[0]


def test_nothing_is_kept_for_a_visitor():
    alive: list[weakref.ref[Tensor]] = []

    class Counts(Visitor):
        def before(self, call: Call, arguments: Mapping[str, Any]) -> None:
            alive.append(weakref.ref(arguments["input"]))

        def after(self, call: Call, result: Any) -> None:
            alive.append(weakref.ref(result))

        def gradient(self, call: Call, of: str, gradient: Tensor) -> None:
            alive.append(weakref.ref(gradient))

    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    with observe(model, Counts()):
        with torch.no_grad():
            model(torch.randn(2, 4))
        gc.collect()
        assert len(alive) == 4 and not any(ref() is not None for ref in alive)
        mean_square(model(torch.randn(2, 4))).backward()
        gc.collect()
        assert len(alive) > 8 and not any(ref() is not None for ref in alive)


def test_hooks_are_gone_afterwards():
    model, seen = cnn(), Calls()
    x = torch.randn(2, 3, 5, 5, requires_grad=True) * 1
    with pytest.raises(ZeroDivisionError), observe(model, seen):
        y = model(x)
        raise ZeroDivisionError
    y.sum().backward()
    assert not any(seen.gradients)
    held = [t._backward_hooks for t in (x, y, *model.parameters())]
    assert not any(held)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    model(x)
    assert len(seen.calls) == 3


class Untidy(nn.Module):
    """Writes everything that a forward pass can write."""

    def __init__(self, error: type[Exception] | None = None) -> None:
        super().__init__()
        self.layer, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()
        self.error = error
        self.register_buffer("signs", torch.tensor([0.0, -0.0, math.nan]))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.norm(self.layer(x)))
        if y.requires_grad:
            y.sum().backward(retain_graph=True)
        self.drop.eval()
        with torch.no_grad():
            self.layer.weight.mul_(2)
            self.signs.abs_()
            self.count += 1
        self.norm.running_mean = torch.ones(4)
        self.layer.bias.grad = None
        torch.manual_seed(0)
        if self.error is not None:
            raise self.error("in the middle")
        return y * torch.rand(4)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    found = dict([*model.named_parameters(), *model.named_buffers()])
    gradients = {f"{n}.grad": p.grad for n, p in model.named_parameters() if p.grad is not None}
    return found | gradients


@pytest.mark.parametrize("loss", [None, torch.sum])
@pytest.mark.parametrize("error", [None, ValueError])
def test_everything_is_put_back(loss: Any, error: Any):
    model = Untidy(error)
    model.layer(X).sum().backward()
    before, random = tensors_of(model), torch.get_rng_state()
    copies = {name: t.detach().clone() for name, t in before.items()}
    with nullcontext() if error is None else pytest.raises(error, match="in the middle"):
        trace(model, Visitor(), X, loss=loss)
    after = tensors_of(model)
    assert after.keys() == before.keys()
    for name, tensor in after.items():
        assert tensor is before[name]
        assert_bit_equal(tensor.detach(), copies[name], name)
    assert_bit_equal(torch.get_rng_state(), random)
    assert all(module.training for module in model.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_forward_pass_alone_records_nothing():
    seen = [Calls(), Calls()]
    trace(nn.Linear(4, 2), seen[0], X)
    trace(nn.Linear(4, 2), seen[1], kwargs={"input": X}, loss=lambda y: y.sum())
    assert [calls.results[0].requires_grad for calls in seen] == [False, True]


def test_a_forward_pass_gives_lazy_layers_their_sizes():
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    trace(model, Calls(), X)
    assert model[0].weight.shape == (3, 4) and type(model[0]) is nn.Linear


@pytest.mark.parametrize(
    "loss, message",
    [
        (lambda y: y, r"^the loss must be a scalar tensor, got shape \(2, 2\)"),
        (lambda y: y.sum() * math.inf, "^the loss is -?inf; use inputs on which it is finite"),
    ],
)
def test_a_loss_without_gradients_is_refused(loss, message):
    with pytest.raises(ValueError, match=message):
        trace(nn.Linear(4, 2), Calls(), X, loss=loss)
