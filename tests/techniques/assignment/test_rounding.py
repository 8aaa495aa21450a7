"""The tensors that a step rounds, by hand; the loss's own gradient passes whole."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lpkernels as lp
from lpkernels.techniques.assignment import Formats, Pins, Promoter, assign, group, trace, uniform
from lpkernels.techniques.assignment.tracing import Trace, trace_calls
from tests.compare import assert_bit_equal
from tests.support.autograd import Computes
from tests.support.techniques import roundings
from tests.techniques.assignment import runs
from tests.techniques.assignment.networks import chain_batch, chain_model, demoted, seeded_chain
from tests.techniques.assignment.runs import assigned_of, gradients, same

PACKED = pytest.mark.parametrize("pack", [True, False])


@PACKED
@pytest.mark.parametrize("scale", [2.0**10, 2.0**16, 2.0**20])
@pytest.mark.parametrize("ratio", [0.0, 0.6, 1.0])
def test_a_step_of_the_chain_is_the_one_written_by_hand(ratio: float, pack: bool, scale: float):
    model = seeded_chain()[0]
    torch.manual_seed(1)
    batch = chain_batch(32)
    assigned = runs.assigned_of(model, batch, ratio, pack=pack)
    result, result_gradients = runs.gradients(assigned, batch, scale)
    # 8 bits hold powers of two up to 2^16, so below that rounding the loss's gradient by hand
    # changes no bit.
    expected, expected_gradients = runs.chain_by_hand(
        copy.deepcopy(model), batch, assigned.assignment, scale, scale <= 2.0**16
    )
    assert_bit_equal(result, expected)
    assert all(gradient.isfinite().all() for gradient in result_gradients.values())
    assert result_gradients.keys() == expected_gradients.keys()
    runs.same(result_gradients, expected_gradients)


def shared(m: Any, x: Tensor) -> Tensor:
    y = m.first(x)
    return m.second(y) + m.third(y)


def fan_out_by_hand(model: Any, x: Tensor, assignment: Any, branches: bool) -> dict[str, Tensor]:
    """The gradients of `shared`, under the loss (y * y).sum()."""

    def q(t: Tensor, key: str) -> Tensor:
        return lp.quantize(t.detach(), assignment.format_of(key))

    def together(a: Tensor, b: Tensor, key: str) -> Tensor:
        return q(a, key) + q(b, key) if branches else q(a + b, key)

    weights = {n: q(p, f"{n}.P") for n, p in model.named_parameters()}
    w1, w2, w3 = (weights[f"{n}.weight"] for n in ("first", "second", "third"))
    x = q(x, "input.Y")
    y = q(F.linear(x, w1), "first.Y")
    a, b = q(F.linear(y, w2), "second.Y"), q(F.linear(y, w3), "third.Y")
    total = q(a + b, "add.Y")
    square = q(total * total, "loss.mul.Y")
    g = q(torch.tensor(1024.0, device="cpu"), "loss.sum.GY").expand_as(square)
    g = q(g, "loss.mul.GY")
    # total is read twice by one product.
    g = together(g * total, g * total, "add.GY")
    ga, gb = q(g, "second.GY"), q(g, "third.GY")
    gy = together(ga @ w2, gb @ w3, "first.GY")
    products = {"first": gy.T @ x, "second": ga.T @ y, "third": gb.T @ y}
    return {f"{n}.weight": q(v, f"{n}.weight.GP") for n, v in products.items()}


@PACKED
@pytest.mark.parametrize("fan_out", ["sum", "branches"])
def test_the_gradient_of_a_fan_out(fan_out: str, pack: bool) -> None:
    torch.manual_seed(2)
    layers = {n: nn.Linear(6, 6, bias=False) for n in ("first", "second", "third")}
    model, x = Computes(shared, **layers), torch.randn(5, 6)
    batch = (x, None)
    options: Any = {"fan_out": fan_out, "pack": pack}
    assigned = runs.assigned_of(model, batch, 1.0, lambda y, _: (y * y).sum(), **options)
    result = runs.gradients(assigned, batch)[1]
    branches = fan_out == "branches"
    expected = fan_out_by_hand(model, x, assigned.assignment, branches)
    runs.same(result, expected)
    by_the_other_rule = fan_out_by_hand(model, x, assigned.assignment, not branches)
    assert not torch.equal(result["first.weight"], by_the_other_rule["first.weight"])


def test_a_result_in_place_is_rounded_in_place() -> None:
    def inside(m: Any, x: Tensor) -> Tensor:
        y = m.linear(x)
        # The results are not used: y is changed.
        y.add_(1)
        torch.relu_(y)
        return m.head(y)

    torch.manual_seed(2)
    layers = {"linear": nn.Linear(6, 5), "head": nn.Linear(5, 3)}
    batch = (torch.randn(4, 6), torch.arange(4) % 3)
    first, second = (
        runs.gradients(runs.assigned_of(Computes(f, **layers), batch, 1.0), batch)
        for f in (inside, lambda m, x: m.head(torch.relu(m.linear(x) + 1)))
    )
    assert_bit_equal(first[0], second[0])
    runs.same(first[1], second[1])


def test_a_shared_parameter_is_rounded_once_and_so_is_its_gradient() -> None:
    torch.manual_seed(2)
    layer = nn.Linear(6, 6, bias=False)
    model = Computes(lambda m, x: m.layer(torch.relu(m.layer(x))) @ m.layer.weight.T, layer=layer)
    batch = (torch.randn(4, 6), torch.arange(4) % 3)
    assigned = runs.assigned_of(model, batch, 1.0)
    roundings = runs.seen_by(assigned)
    gradient = runs.gradients(assigned, batch)[1]["layer.weight"]
    keys = [key for key, _, _ in roundings]
    assert keys.count("layer.weight.P") == keys.count("layer.weight.GP") == 1
    assert_bit_equal(gradient, lp.quantize(gradient, "fp_6_9_0:nearest_away"))


def plain(model: nn.Module, loss: Any, batch: Any) -> tuple[Any, Any]:
    """A step of the model with float32 in place of both precisions, and torch's own step."""
    assignment = demoted(model, batch, 1.0, loss, formats=Formats.same("fp32"))
    result = runs.gradients(assign(copy.deepcopy(model), loss, assignment), batch)
    value = loss(model(batch[0]), batch[1])
    (value * 1024).backward()
    return result, (value.detach(), {name: p.grad for name, p in model.named_parameters()})


def test_high_precision_of_float32_is_plain_training():
    model, batch = seeded_chain()
    result, expected = plain(model, F.cross_entropy, batch)
    assert_bit_equal(result[0], expected[0])
    runs.same(result[1], expected[1])


WEIGHTS = torch.tensor([1.0, 0.5, 2.0])


@pytest.mark.parametrize("target", ["classes", "shares"])
@pytest.mark.parametrize("options", [
    {}, {"reduction": "sum"}, {"weight": WEIGHTS}, {"ignore_index": 1}, {"label_smoothing": 0.1},
    {"label_smoothing": 0.1, "weight": WEIGHTS}, {"label_smoothing": 0.2, "ignore_index": 2},
    {"label_smoothing": 0.2, "reduction": "sum"},
])  # fmt: skip
def test_cross_entropy_in_two_is_torchs(options: dict[str, Any], target: str) -> None:
    torch.manual_seed(2)
    model, x, labels = nn.Linear(6, 3), torch.randn(5, 6), torch.arange(5) % 3
    if target == "shares":
        labels = torch.randn(5, 3).softmax(1)
        options = {k: v for k, v in options.items() if k != "ignore_index"}
    result, expected = plain(model, lambda y, t: F.cross_entropy(y, t, **options), (x, labels))
    torch.testing.assert_close(result[0], expected[0])
    torch.testing.assert_close(result[1]["weight"], expected[1]["weight"])


def test_a_maximum_finds_its_elements_whatever_its_result_is_rounded_to() -> None:
    torch.manual_seed(2)
    model = Computes(lambda m, x: m.linear(x).amax(0, keepdim=True), linear=nn.Linear(6, 5))
    batch = (torch.randn(7, 6), torch.zeros(1, dtype=torch.int64, device="cpu"))
    assignment = demoted(model, batch, pins=Pins(high="linear.Y"))
    assigned = assign(model, F.cross_entropy, assignment)
    assert assignment.is_low("amax.Y") and not assignment.is_low("linear.Y")
    gradient = runs.gradients(assigned, batch)[1]["linear.bias"]
    assert gradient.isfinite().all()
    assert (gradient != 0).all()


Loss = Callable[[Any, Tensor], Tensor]
#: A scale that the paper's 8 bits, which end at 114,688, do not hold. Gradients of results are
#: smaller by the number of examples.
LARGE = 2.0**20
FAN_OUT = pytest.mark.parametrize("fan_out", ["sum", "branches"])


def batch_of(examples: int = 32) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(examples, 6), torch.arange(examples) % 5


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))


def ce(y: Tensor, t: Tensor, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(y, t, reduction=reduction)


def decay(y: Tensor) -> Tensor:
    return y.square().mean()


def in_place(y: Tensor, t: Tensor) -> Tensor:
    total = decay(y)
    total += ce(y, t)
    return total


# By name: a loss, and the operations whose gradients are its own.
PASSING: dict[str, tuple[Loss, str]] = {
    "one": (ce, "nll_loss"),
    "a mean of many": (lambda y, t: ce(y, t, "none").mean(), "mean"),
    "a sum of two": (lambda y, t: ce(y, t) + decay(y), "add nll_loss mean"),
    "Python's sum": (
        lambda y, t: sum([ce(y, t), decay(y)], torch.zeros(())), "add add_1 nll_loss mean",
    ),
    "in place": (in_place, "add nll_loss mean"),
    "a difference": (lambda y, t: -(1.0 - ce(y, t) - decay(y)), "neg sub rsub nll_loss mean"),
    "another shape": (
        lambda y, t: (ce(y, t).reshape(1) + decay(y)).sum().squeeze().clone(),
        "sum add nll_loss mean",
    ),
}  # fmt: skip
# Losses whose parts have gradients of their own.
CHANGING: dict[str, tuple[Loss, str]] = {
    "a factor": (lambda y, t: ce(y, t) + 0.3 * decay(y), "add nll_loss mul"),
    "alpha": (lambda y, t: torch.sub(ce(y, t), decay(y), alpha=0.5), "sub"),
    "twice": (lambda y, t: (lambda a: a + a)(ce(y, t)), "add"),
    "read elsewhere": (lambda y, t: (lambda a: a + a * a)(ce(y, t)), "add mul"),
    "many copies of one": (lambda y, t: ce(y, t).expand(3).sum(), "sum"),
    "many": (lambda y, t: y.square().sum() + ce(y, t), "add sum nll_loss"),
}
LOSSES = PASSING | CHANGING


@pytest.mark.parametrize("name", LOSSES)
def test_which_gradients_are_the_loss_s_own(name: str) -> None:
    loss, ops = LOSSES[name]
    plan = trace_calls(network(), loss, batch_of(), grad=True)
    assert plan.unrounded_gradients == {f"loss.{op}.GY" for op in ops.split()}


@FAN_OUT
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(
    "formats", [Formats(), Formats(grad_activation=("fp32", "e5m2:stochastic"))]
)
def test_no_bit_changes_at_a_scale_that_the_format_holds(name: str, formats: Formats, fan_out: Any):
    loss, model, batch = LOSSES[name][0], network(), batch_of()
    assignment = uniform(trace(model, loss, batch), formats=formats)

    def scaled_gradients(scale: float) -> dict[str, Tensor]:
        assigned = assign(model, loss, assignment, promote=None, fan_out=fan_out)
        return {name: grad.clone() for name, grad in gradients(assigned, batch, scale)[1].items()}

    for scale in (2.0**10, 2.0**15):
        passed = scaled_gradients(scale)
        # The same with every gradient rounded.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trace, "unrounded_gradients", frozenset())
            same(passed, scaled_gradients(scale))


@FAN_OUT
@pytest.mark.parametrize("name", PASSING)
def test_a_scale_beyond_the_format_trains(name: str, fan_out: Any) -> None:
    loss, model, batch = PASSING[name][0], network(), batch_of()
    assigned = assigned_of(model, batch, 1.0, loss, promote=None, fan_out=fan_out)
    scaled = gradients(assigned, batch, LARGE)[1]
    assert all(grad.isfinite().all() and grad.any() for grad in scaled.values())


def test_a_loss_inside_the_model_s_output() -> None:
    def forward(m: Any, x: Tensor, target: Tensor) -> Any:
        logits = m.layers(x)
        return {"loss": F.cross_entropy(logits, target), "logits": logits}

    batch = (batch_of(), None)
    model = Computes(forward, layers=network())
    inside = assigned_of(model, batch, 1.0, lambda out, _: out["loss"])
    expected = gradients(assigned_of(network(), batch[0], 1.0), batch[0], LARGE)[1]
    assert all(gradient.isfinite().all() for gradient in expected.values())
    scaled = gradients(inside, batch, LARGE)[1]
    same(scaled, {f"layers.{name}": gradient for name, gradient in expected.items()})


def test_the_gradient_of_a_loss_has_a_price_and_promotes_nothing():
    model, batch = network(), batch_of()
    ops = trace(model, ce, batch)
    assignment = uniform(ops)
    assert assignment.is_low("loss.nll_loss.GY")
    assert sum(home.numel for home in assignment.groups) == sum(home.numel for home in group(ops))
    assigned = assign(model, ce, assignment, promote=Promoter(assignment, 0.01))
    for _ in range(3):
        gradients(assigned, batch, 2.0**127)
        assert assigned.step() == ()
    assert assigned.counts["2.GY"].overflow > 0
    assert "loss.nll_loss.GY" not in assigned.counts


def residual(m: Any, x: Tensor) -> Tensor:
    y = torch.relu_(m.norm(m.first(x)))
    y += m.second(x)
    return m.head(torch.cat([y, y.flip(1)], 1).transpose(0, 1).contiguous().T)


def attention(m: Any, x: Tensor) -> Tensor:
    y = m.attention(x, x, x, need_weights=False)[0]
    return m.head(m.dropout(m.norm(y + x))).mean(1)


def network_of(function: Any, *size: int, **parts: nn.Module) -> Any:
    return Computes(function, **parts), (torch.randn(*size), torch.arange(size[0]) % 3)


NETWORKS: dict[str, Any] = {
    "chain": lambda: (chain_model(), chain_batch()),
    "residual": lambda: network_of(
        residual, 8, 5, norm=nn.BatchNorm1d(6), head=nn.Linear(12, 3), first=nn.Linear(5, 6),
        second=nn.Linear(5, 6),
    ),
    "attention": lambda: network_of(
        attention, 4, 5, 8, attention=nn.MultiheadAttention(8, 2, 0.1, batch_first=True),
        norm=nn.LayerNorm(8), head=nn.Linear(8, 3), dropout=nn.Dropout(0.2),
    ),
    "lstm": lambda: network_of(
        lambda m, x: m.head(m.lstm(x)[0][:, -1]), 4, 7, 5, lstm=nn.LSTM(5, 6, batch_first=True),
        head=nn.Linear(6, 3),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:trace. held in high precision")
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("fan_out", ["sum", "branches"])
def test_a_step_rounds_every_tensor_once_to_its_format(
    name: str, converted: bool, fan_out: Any
) -> None:
    torch.manual_seed(4)
    model, batch = NETWORKS[name]()
    if converted:
        lp.convert(model, lp.Recipe(fprop="e6m9", dgrad="e6m9", wgrad="e6m9"))
    assigned = assigned_of(model, batch, 0.6, fan_out=fan_out)
    rounded = roundings(assigned, batch)
    assert {*assigned.assignment.tensors} - {*rounded} <= {"input.GY"}
    if fan_out == "sum":
        assert {*rounded.values()} == {1}
    elif name == "residual":
        # A gradient is rounded for each reader of its tensor.
        assert (rounded["add.GY"], rounded["norm.GY"]) == (2, 1)
