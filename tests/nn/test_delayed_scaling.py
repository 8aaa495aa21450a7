"""Delayed scaling in layers: vectors of TransformerEngine, codes and gradients; training that is
checkpointed, compiled, evaluated and calibrated."""

import copy
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lpkernels as lp
from lpkernels.functional.running import next_scales
from tests.compare import assert_bit_equal
from tests.nn.layer_cases import ONE_INPUT, assert_steps_alike, converted, inputs, plain, same
from tests.support.autograd import compiled, fresh_compiler  # noqa: F401

VECTORS = Path(__file__).parents[1] / "data" / "scaled_formats" / "delayed.npz"
INF, NAN = float("inf"), float("nan")
ROLES = ("input", "weight", "grad_output")


def recipe(scaling: lp.DelayedScaling, **fields: Any) -> lp.Recipe:
    operands = {"input": "tensor_e4m3_te", "weight": "tensor_e4m3_te"}
    return lp.Recipe(**{**operands, "grad_output": "tensor_e5m2_te", "scaling": scaling, **fields})


SHORT = lp.DelayedScaling(4)
PLAIN = recipe(SHORT)
# Every sum has one order, whatever the compiler makes of the rest.
SUMS = recipe(
    SHORT, grad_output="tensor_e5m2_te:stochastic", fprop="fp32", dgrad="fp32", wgrad="fp32"
)


def quantized(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The values of x's codes by torch's own cast, which is right within the format's range."""
    most = torch.finfo(dtype).max
    codes = (x * scale).clamp(-most, most).to(dtype).float()
    return codes * (1 / scale)


E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def trained(layer: Any, *x: Tensor, steps: int = 3) -> Any:
    """The layer after steps that change its scales, not its weights."""
    for i in range(steps):
        layer(*(each * (i + 1) for each in x)).square().sum().backward()
        lp.nn.update_scales(layer)
    layer.zero_grad()
    return layer


def vectors() -> Iterator[tuple[str, np.ndarray, dict[str, np.ndarray]]]:
    """The cases: name, largest magnitudes, arrays."""
    with np.load(VECTORS) as file:
        arrays = dict(file)
    for key in arrays:
        family, _, case = key.removesuffix("/encode_used").partition("/")
        if key.endswith("/encode_used"):
            of_case = {k.rpartition("/")[2]: v for k, v in arrays.items() if f"/{case}/" in k}
            yield case, arrays[f"{family}/amax"], {**of_case, "encode_used": arrays[key]}


@pytest.mark.parametrize("case, largest, wanted", list(vectors()))
def test_transformer_engines_vectors(
    case: str, largest: np.ndarray, wanted: dict[str, np.ndarray]
) -> None:
    words = case.removeprefix("len").split("_margin")
    length, _, algorithm = words[0].partition("_")
    scaling = lp.DelayedScaling(int(length), algorithm, int(words[1]) if words[1:] else 0)
    layer = lp.convert(nn.Linear(3, 2, bias=False), recipe(scaling))
    # A 0 rolls in the Python path, whose arrays these are, and not in the fused one.
    zeros = np.flatnonzero(largest == 0)
    last = zeros[0] if len(zeros) and algorithm == "max" and length != "1" else len(largest)
    for i, value in enumerate(largest):
        if i <= last:
            assert_bit_equal(layer.scaling.input_scale, torch.tensor(wanted["encode_used"][i]))
        layer(torch.tensor([[0.0, 0.0, -value]]))
        lp.nn.update_scales(layer)
        if "history" in wanted and (i < last and not (largest[: i + 1] == 0).any()):
            assert_bit_equal(layer.scaling.input_history, torch.tensor(wanted["history"][i]))


def test_a_value_that_is_not_finite_leaves_the_scale_and_a_zero_the_history_too() -> None:
    histories = torch.tensor([[1.0, 2.0, NAN], [INF, 2.0, 3.0], [0.0, 2.0, 3.0], [1.0, 2.0, 4.0]])
    most = torch.full((4,), 448.0)
    after, scales = next_scales(histories, torch.full((4,), 8.0), most, lp.DelayedScaling(3))
    rolled = torch.tensor([[0.0, NAN, 1.0], [0.0, 3.0, INF], [0.0, 2.0, 3.0], [0.0, 4.0, 1.0]])
    assert_bit_equal(after, rolled)
    assert scales.tolist() == [8.0, 8.0, 8.0, 112.0]


@pytest.mark.parametrize("name", ["Linear", "Conv2d", "ConvTranspose1d"])
def test_products_take_the_codes_of_the_scales_of_earlier_steps(name: str) -> None:
    layer, reference = trained(converted(name, PLAIN), *inputs(name)), plain(name)
    scales, x = layer.scaling, (2.5 * inputs(name)[0]).requires_grad_()
    reference.weight = nn.Parameter(quantized(layer.weight.detach(), scales.weight_scale, E4M3))
    codes = quantized(x.detach(), scales.input_scale, E4M3).requires_grad_()
    y, want = layer(x), reference(codes)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)) * 40
    y.backward(g)
    want.backward(quantized(g, scales.grad_output_scale, E5M2))
    same(
        [y.detach(), x.grad, layer.weight.grad],
        [want.detach(), codes.grad, reference.weight.grad],
    )
    newest = [scales.of(role)[0][0] for role in ROLES]
    assert newest == [t.detach().abs().max() for t in (x, layer.weight, g)]
    state = copy.deepcopy(layer.state_dict())
    assert_bit_equal(layer.eval()(x).detach(), want.detach())
    layer(50 * x).sum().backward()
    same(layer.state_dict().values(), state.values())


@pytest.mark.parametrize("name", ["Linear", "Conv1d"])
@pytest.mark.parametrize("acc", ["native", "fp32", "fp32_chunkscale"])
def test_scales_of_the_tensors_themselves_are_current_scaling(name: str, acc: str) -> None:
    """In every kind of product, and for gradients that are rounded stochastically."""
    sums = {"fprop": acc, "dgrad": acc, "wgrad": acc, "grad_output": "tensor_e5m2_te:stochastic"}
    delayed = converted(name, recipe(SHORT, **sums))
    current = converted(name, replace(recipe(SHORT, **sums), scaling=None))
    (x,) = inputs(name)
    y = current(x).detach()
    # The gradient of the sum of squares.
    tensors = zip(ROLES, (x, delayed.weight, 2 * y), (448.0, 448.0, 57344.0), strict=True)
    for role, tensor, most in tensors:
        delayed.scaling.of(role)[1].copy_(torch.tensor(most) / tensor.detach().abs().max())
    assert_steps_alike(delayed, delayed, x, other=current)


def test_integer_codes_and_values_that_are_not_finite() -> None:
    fields = {"input": "tensor_int8", "weight": None, "grad_output": None}
    layer = lp.convert(nn.Linear(4, 4, bias=False), recipe(SHORT, **fields))
    nn.init.eye_(layer.weight)
    layer.scaling.input_scale.fill_(2.0)
    x = torch.tensor([[0.75, -0.25, 1e9, -INF]])
    assert layer(x).tolist() == [[1.0, 0.0, 63.5, -63.5]]
    assert list(layer.state_dict()) == ["weight", "scaling.input_history", "scaling.input_scale"]
    assert layer.scaling.input_history[0] == INF
    x[0, 0] = NAN
    assert layer(x).isnan().all() and layer.scaling.input_history[0].isnan()
    assert layer(torch.zeros(0, 4)).shape == (0, 4)


@pytest.mark.parametrize("name", ONE_INPUT)
def test_a_layer_has_scales_of_its_own_tensors(name: str) -> None:
    scales = trained(converted(name, SUMS), *inputs(name)).scaling
    assert 1 not in [scales.of(role)[1] for role in ROLES]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    return lp.convert(nn.Sequential(*layers), SUMS)


def train(
    model: nn.Module, call: Any, first: int = 0, end: int = 4, *, before_backward: bool = False
) -> Iterable[Tensor]:
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
    return state_of(model)


def state_of(model: nn.Module) -> Iterable[Tensor]:
    return copy.deepcopy(model.state_dict()).values()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("before_backward", [True, False])
def test_checkpointing_equals_none(reentrant: bool, before_backward: bool) -> None:
    """before_backward: the scales are updated before backward computes forward again."""
    model, plain_model = network(), network()

    def call(x: Tensor) -> Tensor:
        return model[4](checkpoint(model[2:4], model[:2](x), use_reentrant=reentrant))

    want = train(plain_model, plain_model, before_backward=before_backward)
    same(train(model, call, before_backward=before_backward), want)


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_models_equal_eager_ones() -> None:
    model, eager = network(), network()
    # In training a graph changes the histories, in evaluation it does not.
    call = compiled(model)
    train(model, call, end=2)
    model.eval()
    state = state_of(model)
    with torch.no_grad():
        assert_bit_equal(call(torch.ones(5, 6)), model(torch.ones(5, 6)))
    same(state_of(model), state)
    model.train()
    same(train(model, call, first=2), train(eager, eager))


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
        for role, x in (("input", torch.cat(seen)), ("weight", layer.weight.detach())):
            history, scale = layer.scaling.of(role)
            assert_bit_equal(history, torch.stack([*torch.zeros(3), x.abs().max()]))
            assert_bit_equal(scale, 448.0 / x.abs().max())
        assert layer.scaling.grad_output_scale == 1
    kept = {k: v for k, v in model.state_dict().items() if "scaling" not in k}
    same(kept.values(), [state[k] for k in kept])


def failing(batches: int) -> Iterator[Tensor]:
    for _ in range(batches):
        yield torch.ones(5, 6)
    raise KeyError("no such file")


def test_calibration_that_fails_changes_nothing() -> None:
    model = network()
    state = state_of(model)
    with pytest.raises(KeyError):
        lp.nn.calibrate(model, failing(1))
    for batches, error in ((3, TypeError), ([], ValueError)):
        with pytest.raises(error, match=r"calibrate: .*batch"):
            lp.nn.calibrate(model, batches)
    assert model[0].recipe == SUMS and model.training
    same(state_of(model), state)
    with pytest.raises(ValueError, match="calibrate: Linear has no layer with delayed scales"):
        lp.nn.calibrate(nn.Linear(2, 2), [torch.ones(1, 2)])
    lp.nn.update_scales(nn.Linear(2, 2))
