"""Models nobody here wrote, traced whole and assigned: plain and converted."""

import warnings
from typing import Any

import pytest
import torch

import lpkernels as lp
from lpkernels.techniques.assignment import (
    Op,
    assign,
    audit,
    demote,
    group,
    kept_memory,
    operator_based,
    trace,
    train_with_assignment,
)
from lpkernels.techniques.loss_scaling import LossScaler
from tests.models.architectures import ARCHITECTURES, Architecture
from tests.models.test_models import RECIPES, each_architecture

# There are two modules of attention. Each counts as one product but makes two: scores and values.
LAYERS = {"resnet": 0, "mobilenet_v2": 0}


def traced(model: Any, architecture: Architecture) -> tuple[Op, ...]:
    with warnings.catch_warnings():
        # A warning would tell of an operation that is not known.
        warnings.simplefilter("error", UserWarning)
        return trace(model, lambda output, _: output.loss, (architecture.batch(), None))


@each_architecture
def test_every_product_parameter_and_edge_is_traced(architecture: Architecture) -> None:
    model = architecture.model()
    ops = traced(model, architecture)
    assert all(op.known for op in ops)
    # The operations have every parameter of the model once, with its size.
    sizes = {name: numel for op in ops for name, numel in op.full_params.items()}
    assert sizes == {name: p.numel() for name, p in model.named_parameters()}
    # There is one end: everything leads to the loss, which is one number.
    read = {name for op in ops for name in op.inputs}
    assert [op.name for op in ops if op.name not in read] == [ops[-1].name]
    assert (ops[-1].operation, ops[-1].numel) == ("nll_loss", 1)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_products_are_those_of_the_modules_and_of_attention(name: str) -> None:
    architecture = ARCHITECTURES[name]
    gemms = [op for op in traced(architecture.model(), architecture) if op.is_gemm]
    assert len(gemms) == architecture.products + LAYERS.get(name, 2)


@each_architecture
def test_a_converted_model_has_the_tensors_of_the_plain_one(architecture: Architecture) -> None:
    model = architecture.model()
    plain = group(traced(model, architecture))
    assignment = demote(plain, 0.6)
    lp.convert(model, RECIPES["fp8"])
    assert group(traced(model, architecture)) == plain
    assignment.check(group(traced(model, architecture)))


@each_architecture
def test_models_are_assigned_and_left_as_found(architecture: Architecture) -> None:
    model = architecture.model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ops = traced(model, architecture)
    assert 0.6 <= demote(group(ops), 0.6).ratio
    assert 0 < operator_based(ops).ratio < 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("converted", [False, True], ids=["plain", "converted"])
@each_architecture
def test_models_train_under_an_assignment(architecture: Architecture, converted: bool) -> None:
    model = architecture.model()
    if converted:
        lp.convert(model, RECIPES["fp8"])
    made = demote(group(traced(model, architecture)), 0.6)
    assigned = assign(model, lambda output, _: output.loss, made)
    batch = (architecture.batch(), None)
    assert audit(assigned, batch).departures == ()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # The gradients of these small models fit without a scale.
    scaler = LossScaler(init_scale=1.0)
    found = list(train_with_assignment(assigned, optimizer, [batch] * 2, scaler=scaler))
    assert all(result.loss.isfinite() and not result.skipped for result in found)


@pytest.mark.parametrize("converted", [False, True], ids=["plain", "converted"])
@each_architecture
def test_what_a_step_keeps_is_predicted(architecture: Architecture, converted: bool) -> None:
    model = architecture.model()
    if converted:
        lp.convert(model, RECIPES["fp8"])
    ops = traced(model, architecture)
    made = demote(group(ops), 0.6)
    with assign(model, lambda output, _: output.loss, made, promote=None) as assigned:
        assigned(architecture.batch(), None).backward()
        assert kept_memory(ops, made) == assigned.memory()
