"""A2Q+: weights that never overflow an accumulator, at every step of training."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import lpkernels as lp
from lpkernels.techniques.accumulation import (
    a2q_penalty,
    a2q_plus,
    max_l1_norm,
    never_overflows,
)
from tests.loops import each
from tests.support.refusals import refuses

BITS, FRAC = 9, 5
QUANTUM = 2.0**-FRAC
VARIANTS = list(itertools.product((False, True), (False, True)))


def recipe(signed: bool, bits: int = BITS) -> lp.Recipe:
    """Inputs of 4 bits, weights of 7 and an accumulator that wraps."""
    inputs = "fixed4_f3" if signed else "ufixed4_f4"
    frac = FRAC + (3 if signed else 4)
    return lp.Recipe(input=inputs, weight=f"fixed7_f{FRAC}", fprop=f"fixed{bits}_f{frac}_wrap")


def norm(signed: bool) -> int:
    return max_l1_norm(BITS, 4, signed_inputs=signed, zero_centred=not signed)


def codes(layer: nn.Module) -> np.ndarray:
    scaled = layer.weight.detach().flatten(1) * 2**FRAC
    assert torch.equal(scaled, scaled.round())
    return scaled.to(torch.int64).numpy()


def check_safe(layer: nn.Module, signed: bool) -> None:
    """No inputs overflow; the worst of them have the exact sum in the accumulator."""
    found = codes(layer)
    assert never_overflows(found, BITS, 4, signed_inputs=signed).all()
    assert np.abs(found).sum(1).max() <= norm(signed)
    low, high = (-8, 7) if signed else (0, 15)
    for one, other in ((high, low), (low, high)):
        worst = np.where(found > 0, one, other)
        exact = (worst * found).sum(1)
        x = torch.from_numpy(worst).float() * 2.0 ** (-3 if signed else -4)
        acc = layer.recipe.fprop
        sums = lp.matmul(x, layer.weight.detach().flatten(1).T, acc).diagonal()
        assert (sums.double() / acc.fmt.quantum).tolist() == exact.tolist()


def network(signed: bool, learned: bool) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        lp.nn.Conv2d(2, 6, 3, stride=2, groups=2, recipe=recipe(signed)),
        nn.ReLU() if not signed else nn.Tanh(),
        nn.Flatten(),
        lp.nn.Linear(54, 4, recipe=recipe(signed)),
    )
    for layer in (model[0], model[3]):
        # Far outside of what the accumulator takes.
        nn.init.normal_(layer.weight, 0.1)
        assert not never_overflows((layer.weight.detach().flatten(1) * 2**FRAC).long().numpy(),
                                   BITS, 4, signed_inputs=signed).any()  # fmt: skip
        assert a2q_plus(layer, BITS, learned=learned) is layer
    return model


@pytest.mark.parametrize("signed, learned", VARIANTS)
def test_no_step_of_training_overflows(signed: bool, learned: bool):
    model = network(signed, learned)
    labels = torch.arange(32) % 4
    images = torch.rand(4, 2, 8, 8)[labels] * 0.7 + torch.rand(32, 2, 8, 8) * 0.3
    images = images * 2 - 1 if signed else images
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    layers, losses = (model[0], model[3]), []
    for layer in layers:
        # The projection has left what the accumulator allows, and not much less.
        check_safe(layer, signed)
        assert np.abs(codes(layer)).sum(1).max() > norm(signed) / 2
    for _ in range(50):
        loss = nn.functional.cross_entropy(model(images) * 4, labels)
        penalty = a2q_penalty(model) if learned else loss.new_zeros(())
        optimizer.zero_grad()
        (loss + 0.1 * penalty).backward()
        optimizer.step()
        losses.append(loss.item())
        for layer in layers:
            check_safe(layer, signed)
    assert losses[-1] < 0.8 * losses[0]


def by_text(v: Tensor, signed: bool, log2_g: Tensor | None = None) -> Tensor:
    """The weights before they are rounded, row by row in float64, from the paper's formulas."""
    rows = []
    for i, row in enumerate(v.double()):
        u = row if signed else row - row.sum() / row.numel()
        size = u.abs().sum()
        if log2_g is None:
            rows.append(u if size <= QUANTUM * norm(signed) else u * QUANTUM * norm(signed) / size)
        else:
            g = 2.0 ** log2_g[i].double().reshape(())
            rows.append(u * min(float(g), QUANTUM * norm(signed)) / size)
    return torch.stack(rows)


def linear(signed: bool, learned: bool) -> lp.nn.Linear:
    """Stored weights of four rows: within the bound, far beyond it, near it, of one size."""
    torch.manual_seed(1)
    layer = a2q_plus(lp.nn.Linear(12, 4, recipe=recipe(signed)), BITS, learned=learned)
    v = torch.randn(4, 12) * torch.tensor([[0.02], [3.0], [0.3], [0.0]]) + 0.01
    v[3] = torch.tensor([1.0, -1.0] * 6) * 2
    stored = layer.parametrizations["weight"]
    with torch.no_grad():
        (stored.original0 if learned else stored.original).copy_(v)
        if learned:
            logs = math.log2(QUANTUM * norm(signed)) + torch.tensor([-1.0, 0.5, -0.25, 2.0])
            stored.original1.copy_(logs[:, None])
    return layer


@pytest.mark.parametrize("signed, learned", VARIANTS)
def test_weights_are_those_of_the_formula_rounded_toward_zero(signed: bool, learned: bool):
    layer = linear(signed, learned)
    stored = [p.detach() for p in layer.parametrizations["weight"].parameters()]
    wanted = by_text(stored[0], signed, stored[1] if learned else None)
    rounded = (wanted / QUANTUM).trunc().clamp(-64, 63) * QUANTUM
    assert torch.equal(layer.weight.double(), rounded)
    check_safe(layer, signed)


@pytest.mark.parametrize("signed, learned", VARIANTS)
def test_gradients_are_those_of_finite_differences_of_the_unrounded_weights(signed, learned):
    layer, factors = linear(signed, learned), torch.randn(4, 12, dtype=torch.float64)
    (layer.weight.double() * factors).sum().backward()
    stored = list(layer.parametrizations["weight"].parameters())
    values = [p.detach().double() for p in stored]

    def total() -> float:
        return float((by_text(values[0], signed, values[1] if learned else None) * factors).sum())

    for value, parameter in zip(values, stored, strict=True):
        assert parameter.grad is not None
        for index in np.ndindex(*value.shape):
            sums = []
            for step in (1e-6, -2e-6):
                value[index] += step
                sums.append(total())
            value[index] += 1e-6
            slope = (sums[0] - sums[1]) / 2e-6
            assert parameter.grad[index].item() == pytest.approx(slope, rel=1e-4, abs=1e-5)


@each("signed, learned", VARIANTS)
def test_the_first_weights_are_the_nearest_within_the_bound(signed: bool, learned: bool):
    """The nearest point of an l1 ball has its optimality conditions: one theta for every row."""
    torch.manual_seed(2)
    layer = lp.nn.Conv2d(3, 5, 2, recipe=recipe(signed))
    with torch.no_grad():
        layer.weight.mul_(torch.tensor([0.05, 1.0, 4.0, 20.0, 0.0]).view(-1, 1, 1, 1))
        layer.weight[3, 0] = 1.5  # four of one size
        u = layer.weight.flatten(1).double()
    u = u if signed else u - u.mean(1, keepdim=True)
    a2q_plus(layer, BITS, learned=learned)
    v = next(layer.parametrizations["weight"].parameters()).detach().flatten(1).double()
    limit = QUANTUM * norm(signed)
    for row, kept in zip(u, v, strict=True):
        if row.abs().sum() <= limit:
            torch.testing.assert_close(kept, row, rtol=1e-6, atol=0)
            continue
        assert kept.abs().sum() == pytest.approx(limit, rel=1e-5)
        shrunk = (row.abs() - kept.abs())[kept != 0]
        theta = shrunk.mean()
        torch.testing.assert_close(shrunk, theta.expand_as(shrunk), rtol=1e-4, atol=1e-6)
        assert (row.abs()[kept == 0] <= theta + 1e-6).all()
        assert torch.equal(kept.sign()[kept != 0], row.sign()[kept != 0])
    # A row of zeros stays one, and has gradients.
    layer.weight.sum().backward()
    assert not layer.weight[4].any()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


@each("signed, learned", VARIANTS)
def test_outputs_of_almost_equal_weights_stay_within_the_bound(signed: bool, learned: bool):
    layer = a2q_plus(lp.nn.Linear(1000, 5, recipe=recipe(signed)), BITS, learned=learned)
    stored = next(layer.parametrizations["weight"].parameters())
    with torch.no_grad():
        stored.copy_(torch.tensor([[0.1], [1e4], [-1e4], [3e-30], [-0.7]]).expand(5, 1000))
        # One last place apart, and one weight alone.
        stored[1, ::3] = torch.nextafter(stored[1, ::3], torch.tensor(math.inf))
        stored[2, 7] = 5.0
    check_safe(layer, signed)
    if not signed:
        assert not layer.weight[0].any() and not layer.weight[4].any()
    layer.weight.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


def test_the_penalty_counts_learned_norms_above_the_bound():
    layer = linear(False, True)
    model = nn.Sequential(layer, linear(True, True), linear(True, False), nn.Linear(4, 4))
    # In each learned layer two outputs are above: by 0.5 and by 2 binades.
    penalty = a2q_penalty(model)
    assert penalty.item() == pytest.approx(5.0, abs=1e-4)
    penalty.backward()
    log2_g = layer.parametrizations["weight"].original1
    assert log2_g.grad.flatten().tolist() == [0, 1, 0, 1]
    fresh = a2q_plus(lp.nn.Linear(12, 4, recipe=recipe(False)), BITS, learned=True)
    assert a2q_penalty(fresh).item() < 1e-5
    with pytest.raises(ValueError, match="no layer of a2q_plus"):
        a2q_penalty(model[2])


@each("signed, learned", VARIANTS)
def test_state_dicts_copies_and_removal_keep_the_weights(signed: bool, learned: bool):
    layer = linear(signed, learned)
    names = ["original0", "original1"] if learned else ["original"]
    keys = [f"parametrizations.weight.{name}" for name in names]
    assert list(layer.state_dict()) == ["bias", *keys]
    other = a2q_plus(lp.nn.Linear(12, 4, recipe=recipe(signed)), BITS, learned=learned)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weight, layer.weight)
    assert torch.equal(copy.deepcopy(layer).weight, layer.weight)
    before = layer.weight.detach().clone()
    x = torch.rand(3, 12)
    y = layer(x)
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is lp.nn.Linear
    assert torch.equal(layer.weight, before) and torch.equal(layer(x), y)


def layer(**fields: str) -> lp.nn.Linear:
    return lp.nn.Linear(4, 3, recipe=lp.Recipe(**fields))


FIXED = {"input": "ufixed4_f4", "weight": "fixed6_f5"}
TURNED = "fixed6_f5:rht16"
NOT_FINITE = layer(**FIXED)
nn.init.constant_(NOT_FINITE.weight, math.inf)
REFUSED = [
    ((nn.Linear(4, 3), 8), TypeError, r"one of lp.nn's Linear.*got torch.nn.*lp.convert"),
    ((lp.nn.ConvTranspose2d(2, 2, 2), 8), TypeError, "got lpkernels.*ConvTranspose2d"),
    ((layer(), 8), ValueError, "recipe's weight must be a FixedFormat, got None"),
    ((layer(input="ufixed4_f4", weight="e4m3"), 8), ValueError, "a FixedFormat, got e4m3"),
    ((layer(weight="fixed6_f5"), 8), ValueError, r'recipe\'s input must be.*input="ufixed8_f8"'),
    ((layer(**{**FIXED, "weight": "fixed6_f5_wrap"}), 8), ValueError, "wraps.*take fixed6_f5$"),
    ((layer(**FIXED), 4), ValueError, "4 bits can overflow .* inputs of ufixed4_f4"),
    ((layer(**FIXED), 1), ValueError, "accumulator_bits"),
    ((layer(**FIXED).half(), 8), TypeError, r"must be float32, got torch.float16"),
    ((NOT_FINITE, 8), ValueError, "holds infinities or NaN"),
    ((lp.nn.LazyLinear(3, recipe=lp.Recipe(**FIXED)), 8), ValueError, "run a lazy layer"),
    ((a2q_plus(layer(**FIXED), 8), 8), ValueError, "parametrized already"),
    ((layer(**dict.fromkeys(("input", "weight", "grad_output"), TURNED)), 9), ValueError,
     "recipe's weight is fixed6_f5:rht16, whose Hadamard transform makes other weights"),
    ((lp.nn.Linear(1, 3, recipe=lp.Recipe(**FIXED)), 8), ValueError, "one weight for each output"),
]  # fmt: skip
test_other_layers_are_refused = refuses(a2q_plus, [
    *((args, {}, *rest) for args, *rest in REFUSED),
    ((layer(**FIXED), 8), {"learned": "no"}, TypeError, "learned must be True or False, got 'no'"),
])  # fmt: skip


@each("inputs, least", [("ufixed4_f4", 5), ("ufixed3_f0", 4), ("fixed4_f3", 5)])
def test_the_narrowest_accumulator_holds_a_product(inputs: str, least: int):
    narrow = layer(input=inputs, weight="fixed6_f5")
    with pytest.raises(ValueError, match="can overflow with the smallest"):
        a2q_plus(narrow, least - 1)
    assert never_overflows(
        (a2q_plus(narrow, least).weight * 32).long().numpy(), least, int(inputs.split("_")[0][-1]),
        signed_inputs=inputs.startswith("f"),
    ).all()  # fmt: skip
