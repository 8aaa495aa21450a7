"""Training with delayed scales: resumed, checkpointed, compiled, evaluated, calibrated."""

import copy
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.nn.delayed import E4M3, PLAIN, SUMS, quantized, trained
from tests.nn.layer_cases import converted, inputs, same
from tests.support.autograd import compiled, fresh_compiler  # noqa: F401


def network(its: lp.Recipe = SUMS) -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    return lp.convert(nn.Sequential(*layers), its)


Call = Callable[[Tensor], Tensor]


def train(
    model: nn.Module, call: Call, first: int = 0, end: int = 4, *, before_backward: bool = False
) -> dict[str, Tensor]:
    """The state of the model after steps from first to end, each with a seed of its own."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for i in range(first, end):
        torch.manual_seed(i)
        x = torch.randn(5, 6) * 2**i
        optimizer.zero_grad()
        loss = call(x).square().mean()
        if before_backward:
            lp.nn.update_scales(model)
        loss.backward()
        if not before_backward:
            lp.nn.update_scales(model)
        optimizer.step()
    return copy.deepcopy(model.state_dict())


def same_state(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert got.keys() == want.keys()
    same(got.values(), want.values())


class Checkpointed(nn.Module):
    def __init__(self, model: nn.Sequential, reentrant: bool) -> None:
        super().__init__()
        self.model, self.reentrant = model, reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.model[:2](x)
        x = checkpoint(self.model[2:4], x, use_reentrant=self.reentrant)
        return self.model[4](x)


@pytest.mark.parametrize(
    "reentrant, early", [(True, False), (False, False), (True, True), (False, True)]
)
def test_checkpointing_equals_none(reentrant: bool, early: bool) -> None:
    """early: scales are updated before the backward pass, which computes forward again."""
    model = network()
    want = train(model, model, before_backward=early)
    model = network()
    call = Checkpointed(model, reentrant)
    same_state(train(model, call, before_backward=early), want)


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_models_equal_eager_ones() -> None:
    model = network()
    want = train(model, model)
    model = network()
    # In training a graph changes the histories, in evaluation it does not.
    call = compiled(model)
    train(model, call, end=2)
    model.eval()
    state = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        assert_bit_equal(call(torch.ones(5, 6)), model(torch.ones(5, 6)))
    same_state(model.state_dict(), state)
    model.train()
    same_state(train(model, call, first=2), want)


def test_evaluation_notes_nothing_and_rounds_with_the_scales() -> None:
    layer = trained(converted("Linear", PLAIN), *inputs("Linear"))
    state = copy.deepcopy(layer.state_dict())
    layer.eval()
    x = 50 * inputs("Linear")[0]
    want = F.linear(
        quantized(x, layer.scaling.input_scale, E4M3),
        quantized(layer.weight.detach(), layer.scaling.weight_scale, E4M3),
        layer.bias,
    )
    assert_bit_equal(layer(x).detach(), want.detach())
    layer(x).sum().backward()
    same_state(layer.state_dict(), state)


def test_scales_never_updated_are_a_warning_once() -> None:
    layer = converted("Linear", PLAIN)
    (x,) = inputs("Linear")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # One layer may run several times in a pass.
        (layer(x) + layer(2 * x)).sum().backward()
    with pytest.warns(UserWarning, match="its scales were never updated; call lpkernels.nn.upd"):
        layer(x).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(x).sum().backward()
        other = trained(converted("Linear", PLAIN), x)
        # Accumulated gradients: the largest of both passes counts.
        for factor in (8.0, 3.0):
            other(factor * x).sum().backward()
    assert other.scaling.input_history[0] == 8 * x.abs().max()


def test_calibration_finds_scales_for_the_first_step() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 2))
    lp.convert(model, PLAIN)
    batches = [torch.randn(5, 6) * 2**i for i in range(3)]
    reference = copy.deepcopy(lp.revert(copy.deepcopy(model))).eval()
    state, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    lp.nn.calibrate(model, [(x, "label") for x in batches])
    assert torch.equal(torch.get_rng_state(), rng) and model[1].training
    assert model[0].recipe == PLAIN and not model[0]._forward_hooks
    with torch.no_grad():
        hidden = [reference[:3](x) for x in batches]
    for layer, seen in ((model[0], batches), (model[3], hidden)):
        largest = {
            "input": torch.cat(seen).abs().max(),
            "weight": layer.weight.detach().abs().max(),
        }
        for role, value in largest.items():
            history, scale = layer.scaling.of(role)
            assert_bit_equal(history, torch.stack([*torch.zeros(3), value]))
            assert_bit_equal(scale, torch.full((), 448.0) / value)
        assert layer.scaling.grad_output_scale == 1
    kept = {k: v for k, v in model.state_dict().items() if "scaling" not in k}
    same(kept.values(), [state[k] for k in kept])


def failing(batches: int) -> Iterator[Tensor]:
    for _ in range(batches):
        yield torch.ones(5, 6)
    raise KeyError("no such file")


def test_calibration_that_fails_changes_nothing() -> None:
    model = network()
    state = copy.deepcopy(model.state_dict())
    with pytest.raises(KeyError):
        lp.nn.calibrate(model, failing(1))
    for batches, error in ((3, TypeError), ([], ValueError)):
        with pytest.raises(error, match=r"calibrate: .*batch"):
            lp.nn.calibrate(model, batches)
    assert model[0].recipe == SUMS and model.training
    same_state(model.state_dict(), state)
    with pytest.raises(ValueError, match="calibrate: Linear has no layer with delayed scales"):
        lp.nn.calibrate(nn.Linear(2, 2), [torch.ones(1, 2)])
    lp.nn.update_scales(nn.Linear(2, 2))
