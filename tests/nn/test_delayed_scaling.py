"""Delayed scaling in layers: vectors of TransformerEngine, codes and gradients, what is kept."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import lpkernels as lp
from lpkernels.functional.running import next_scales
from tests.compare import assert_bit_equal
from tests.nn.delayed import E4M3, E5M2, PLAIN, ROLES, SHORT, SUMS, quantized, recipe, trained
from tests.nn.layer_cases import LAYERS, converted, inputs, plain, same

VECTORS = Path(__file__).parents[1] / "data" / "scaled_formats" / "delayed.npz"
INF, NAN = float("inf"), float("nan")
SERVED = {
    "Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"
}  # fmt: skip
KEYS = [f"scaling.{role}_{what}" for role in ROLES for what in ("history", "scale")]


def vectors() -> Iterator[tuple[str, np.ndarray, dict[str, np.ndarray]]]:
    """The cases: name, largest magnitudes, arrays."""
    with np.load(VECTORS) as file:
        arrays = dict(file)
    for key in arrays:
        family, _, case = key.removesuffix("/encode_used").partition("/")
        if key.endswith("/encode_used"):
            found = {k.rpartition("/")[2]: v for k, v in arrays.items() if f"/{case}/" in k}
            yield case, arrays[f"{family}/amax"], {**found, "encode_used": arrays[key]}


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
        x = torch.zeros(2, 3)
        x[1, 2] = -float(value)
        layer(x)
        lp.nn.update_scales(layer)
        if "history" in wanted and (i < last and not (largest[: i + 1] == 0).any()):
            assert_bit_equal(layer.scaling.input_history, torch.tensor(wanted["history"][i]))


def by_the_rule(
    history: list[float], scale: float, most: float, algorithm: str
) -> tuple[list[float], float]:
    """The update of one role, in float32 numbers one by one."""
    if history[0] == 0:
        return history, scale
    largest = history[0]
    if algorithm == "max":
        largest = NAN if any(h != h for h in history) else max(history)
    if 0 < largest < INF:
        with np.errstate(over="ignore"):
            quotient = np.float32(most) / np.float32(largest)
        scale = float(min(quotient, np.finfo(np.float32).max))
    return [0.0, *history[2:], history[0]][: len(history)] if history[1:] else [0.0], scale


@pytest.mark.parametrize("algorithm", ["max", "most_recent"])
def test_updates_follow_the_rule(algorithm: str) -> None:
    scaling = lp.DelayedScaling(5, algorithm)
    generator = torch.Generator().manual_seed(0)
    values = torch.tensor([0.0, INF, NAN, 1e-45, 3e38, 1e-40, 1.5, 0.7, 300.0, 1e-6])
    most = torch.tensor([448.0, 57344.0, 224.0, 127.0])
    histories, scales = torch.zeros(4, 5), torch.ones(4)
    wanted = [([0.0] * 5, 1.0)] * 4
    for _ in range(60):
        newest = values[torch.randint(len(values), (4,), generator=generator)]
        histories[:, 0] = newest
        histories, scales = next_scales(histories, scales, most, scaling)
        wanted = [
            by_the_rule([float(new), *h[1:]], s, float(m), algorithm)
            for new, (h, s), m in zip(newest, wanted, most, strict=True)
        ]
        assert_bit_equal(histories, torch.tensor([h for h, _ in wanted]))
        assert_bit_equal(scales, torch.tensor([s for _, s in wanted]))


@pytest.mark.parametrize("name", ["Linear", "Conv2d", "ConvTranspose1d"])
def test_products_take_the_codes_of_the_scales_of_earlier_steps(name: str) -> None:
    layer = trained(converted(name, PLAIN), *inputs(name))
    (x,) = inputs(name)
    x = (2.5 * x).requires_grad_()
    kept = layer.scaling
    xq, wq = (t.detach().requires_grad_() for t in (x, layer.weight))
    xq = quantized(xq, kept.input_scale, E4M3).detach().requires_grad_()
    wq = quantized(wq, kept.weight_scale, E4M3).detach().requires_grad_()
    y = layer(x)
    reference = plain(name)
    reference.weight = nn.Parameter(wq.detach())
    want = reference(xq)
    assert_bit_equal(y.detach(), want.detach())
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)) * 40
    y.backward(g)
    want.backward(quantized(g, kept.grad_output_scale, E5M2))
    assert_bit_equal(x.grad, xq.grad)
    assert_bit_equal(layer.weight.grad, reference.weight.grad)
    seen = [kept.of(role)[0][0] for role in ROLES]
    assert seen == [t.detach().abs().max() for t in (x, layer.weight, g)]


@pytest.mark.parametrize(
    "name, acc", list(product(("Linear", "Conv1d"), ("native", "fp32", "fp32_chunkscale")))
)
def test_scales_of_the_tensors_themselves_are_current_scaling(name: str, acc: str) -> None:
    """In every kind of product, and for gradients that are rounded stochastically."""
    sums = {"fprop": acc, "dgrad": acc, "wgrad": acc, "grad_output": "tensor_e5m2_te:stochastic"}
    delayed = converted(name, recipe(SHORT, **sums))
    current = converted(name, replace(recipe(SHORT, **sums), scaling=None))
    (x,) = inputs(name)
    g = torch.randn(current(x).shape, generator=torch.Generator().manual_seed(1))
    for role, tensor, most in zip(ROLES, (x, delayed.weight, g), (448, 448, 57344), strict=True):
        delayed.scaling.of(role)[1].copy_(torch.full((), float(most)) / tensor.detach().abs().max())
    found = []
    for layer in (delayed, current):
        given = x.clone().requires_grad_()
        torch.manual_seed(3)
        y = layer(given)
        y.backward(g)
        found.append([y.detach(), given.grad, *(p.grad for p in layer.parameters())])
    same(*found)


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


@pytest.mark.parametrize("name", LAYERS)
def test_buffers_come_and_go_with_the_recipe(name: str) -> None:
    if name not in SERVED:
        with pytest.raises(ValueError, match=rf"{name}: delayed:history=4:max is for linear"):
            converted(name, PLAIN)
        return
    keys = list(plain(name).state_dict())
    layer = converted(name, PLAIN)
    assert list(layer.state_dict()) == keys + KEYS
    layer.scaling.input_scale.fill_(8.0)
    layer.recipe = replace(PLAIN, scaling=lp.DelayedScaling(2))
    assert layer.scaling.input_history.shape == (2,) and layer.scaling.input_scale == 8
    layer.recipe = replace(PLAIN, scaling=None)
    assert list(layer.state_dict()) == keys
    layer.recipe = PLAIN
    lp.revert(layer)
    assert list(layer.state_dict()) == keys and type(layer) is type(plain(name))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scales_stay_in_float32(dtype: torch.dtype) -> None:
    layer = trained(converted("Linear", PLAIN), *inputs("Linear"))
    (x,) = inputs("Linear")
    kept = copy.deepcopy(layer.scaling.state_dict())
    layer.to(dtype)
    same(layer.scaling.state_dict().values(), kept.values())
    layer(x.to(dtype)).sum().backward()
    assert layer.scaling.input_history[0] == x.to(dtype).abs().max()
    assert layer.weight.grad.dtype == dtype


def test_state_without_scales_loads_with_a_warning() -> None:
    layer = trained(converted("Linear", PLAIN), *inputs("Linear"))
    whole, old = copy.deepcopy(layer.state_dict()), plain("Linear").state_dict()
    assert layer.scaling.input_scale != 1
    with pytest.warns(UserWarning, match="no scaling.input_history, .*; the layer starts"):
        layer.load_state_dict(old)
    for role in ROLES:
        history, scale = layer.scaling.of(role)
        assert scale == 1 and not history.any()
    layer.load_state_dict(whole)
    same(layer.state_dict().values(), whole.values())


@pytest.mark.parametrize("name", sorted(SERVED))
def test_a_layer_has_scales_of_its_own_tensors(name: str) -> None:
    kept = trained(converted(name, SUMS), *inputs(name)).scaling
    assert 1 not in [kept.of(role)[1] for role in ROLES]
