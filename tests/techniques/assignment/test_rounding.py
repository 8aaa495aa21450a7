"""The tensors that a step rounds, against steps written out by hand."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lpkernels as lp
from lpkernels.techniques.assignment import Formats, Pins, assign
from tests.compare import assert_bit_equal
from tests.loops import each, rows
from tests.support.autograd import Computes
from tests.techniques.assignment import runs
from tests.techniques.assignment.networks import chain_batch, demoted, seeded_chain

PACKED = each("pack", [True, False])


@PACKED
@each("ratio, scale", [0.0, 0.6, 1.0], [2.0**10, 2.0**16, 2.0**20])
def test_a_step_of_the_chain_is_the_one_written_by_hand(ratio: float, pack: bool, scale: float):
    model = seeded_chain()[0]
    torch.manual_seed(1)
    batch = chain_batch(32)
    assigned = runs.assigned_of(model, batch, ratio, pack=pack)
    found, found_gradients = runs.gradients(assigned, batch, scale)
    # 8 bits hold powers of two up to 2^16, so below that rounding the loss's gradient by hand
    # changes no bit.
    expected, expected_gradients = runs.chain_by_hand(
        copy.deepcopy(model), batch, assigned.assignment, scale, scale <= 2.0**16
    )
    assert_bit_equal(found, expected)
    assert all(gradient.isfinite().all() for gradient in found_gradients.values())
    assert found_gradients.keys() == expected_gradients.keys()
    runs.same(found_gradients, expected_gradients)


def shared(m: Any, x: Tensor) -> Tensor:
    y = m.first(x)
    return m.second(y) + m.third(y)


def fan_out_by_hand(model: Any, x: Tensor, made: Any, branches: bool) -> dict[str, Tensor]:
    """The gradients of `shared`, under the loss (y * y).sum()."""

    def q(t: Tensor, key: str) -> Tensor:
        return lp.quantize(t.detach(), made.format_of(key))

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
    found = {"first": gy.T @ x, "second": ga.T @ y, "third": gb.T @ y}
    return {f"{n}.weight": q(v, f"{n}.weight.GP") for n, v in found.items()}


@PACKED
@each("fan_out", ["sum", "branches"])
def test_the_gradient_of_a_fan_out(fan_out: str, pack: bool) -> None:
    torch.manual_seed(2)
    layers = {n: nn.Linear(6, 6, bias=False) for n in ("first", "second", "third")}
    model, x = Computes(shared, **layers), torch.randn(5, 6)
    batch = (x, None)
    options: Any = {"fan_out": fan_out, "pack": pack}
    assigned = runs.assigned_of(model, batch, 1.0, lambda y, _: (y * y).sum(), **options)
    found = runs.gradients(assigned, batch)[1]
    branches = fan_out == "branches"
    expected = fan_out_by_hand(model, x, assigned.assignment, branches)
    runs.same(found, expected)
    other = fan_out_by_hand(model, x, assigned.assignment, not branches)
    assert not torch.equal(found["first.weight"], other["first.weight"])


def test_what_works_in_place_is_rounded_in_place() -> None:
    def inside(m: Any, x: Tensor) -> Tensor:
        y = m.linear(x)
        # The results are not used: y is changed.
        y.add_(1)
        torch.relu_(y)
        return m.head(y)

    torch.manual_seed(2)
    layers = {"linear": nn.Linear(6, 5), "head": nn.Linear(5, 3)}
    batch = (torch.randn(4, 6), torch.arange(4) % 3)
    one, other = (
        runs.gradients(runs.assigned_of(Computes(f, **layers), batch, 1.0), batch)
        for f in (inside, lambda m, x: m.head(torch.relu(m.linear(x) + 1)))
    )
    assert_bit_equal(one[0], other[0])
    runs.same(one[1], other[1])


def test_a_shared_parameter_is_rounded_once_and_so_is_its_gradient() -> None:
    torch.manual_seed(2)
    layer = nn.Linear(6, 6, bias=False)
    model = Computes(lambda m, x: m.layer(torch.relu(m.layer(x))) @ m.layer.weight.T, layer=layer)
    batch = (torch.randn(4, 6), torch.arange(4) % 3)
    assigned = runs.assigned_of(model, batch, 1.0)
    told = runs.seen_by(assigned)
    gradient = runs.gradients(assigned, batch)[1]["layer.weight"]
    seen = [key for key, _, _ in told]
    assert seen.count("layer.weight.P") == seen.count("layer.weight.GP") == 1
    assert_bit_equal(gradient, lp.quantize(gradient, "fp_6_9_0:nearest_away"))


def plain(model: nn.Module, loss: Any, batch: Any) -> tuple[Any, Any]:
    """A step of the model with float32 in place of both precisions, and torch's own step."""
    made = demoted(model, batch, 1.0, loss, formats=Formats.same("fp32"))
    found = runs.gradients(assign(copy.deepcopy(model), loss, made), batch)
    value = loss(model(batch[0]), batch[1])
    (value * 1024).backward()
    return found, (value.detach(), {name: p.grad for name, p in model.named_parameters()})


def test_high_precision_of_float32_is_plain_training():
    model, batch = seeded_chain()
    found, expected = plain(model, F.cross_entropy, batch)
    assert_bit_equal(found[0], expected[0])
    runs.same(found[1], expected[1])


WEIGHTS = torch.tensor([1.0, 0.5, 2.0])


@each("target", ["classes", "shares"])
@rows(
    "options",
    {}, {"reduction": "sum"}, {"weight": WEIGHTS}, {"ignore_index": 1}, {"label_smoothing": 0.1},
    {"label_smoothing": 0.1, "weight": WEIGHTS}, {"label_smoothing": 0.2, "ignore_index": 2},
    {"label_smoothing": 0.2, "reduction": "sum"},
)  # fmt: skip
def test_cross_entropy_in_two_is_torchs(options: dict[str, Any], target: str) -> None:
    torch.manual_seed(2)
    model, x, labels = nn.Linear(6, 3), torch.randn(5, 6), torch.arange(5) % 3
    if target == "shares":
        labels = torch.randn(5, 3).softmax(1)
        options = {k: v for k, v in options.items() if k != "ignore_index"}
    found, expected = plain(model, lambda y, t: F.cross_entropy(y, t, **options), (x, labels))
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1]["weight"], expected[1]["weight"])


def test_a_maximum_finds_its_elements_whatever_its_result_is_rounded_to() -> None:
    torch.manual_seed(2)
    model = Computes(lambda m, x: m.linear(x).amax(0, keepdim=True), linear=nn.Linear(6, 5))
    batch = (torch.randn(7, 6), torch.zeros(1, dtype=torch.int64, device="cpu"))
    made = demoted(model, batch, pins=Pins(high="linear.Y"))
    assigned = assign(model, F.cross_entropy, made)
    assert made.is_low("amax.Y") and not made.is_low("linear.Y")
    gradient = runs.gradients(assigned, batch)[1]["linear.bias"]
    assert gradient.isfinite().all()
    assert (gradient != 0).all()


def test_a_format_along_an_axis_that_a_tensor_lacks_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    batch = (torch.ones(5, 4), torch.zeros(5, dtype=torch.int64))
    for kind, axis, refusal in (
        (
            "weight",
            1,
            r"axis1 runs along axis 1, but 0\.bias\.P has shape \(3,\)",
        ),
        ("grad_weight", 1, r"axis 1, but 0\.bias\.GP has shape \(3,\)"),
        ("activation", -3, r"axis -3, but input\.Y has shape \(5, 4\)"),
    ):
        made = demoted(model, batch, 0.0, formats=Formats(**{kind: f"affine8_axis{axis}"}))
        with pytest.raises(ValueError, match=refusal):
            assign(model, F.cross_entropy, made, promote=None)(*batch)
