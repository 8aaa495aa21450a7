"""Models nobody here wrote, traced whole and assigned: plain and converted."""

import warnings
from typing import Any

import pytest
import torch

import lpkernels as lp
from lpkernels.techniques import assignment
from tests.models.architectures import ARCHITECTURES, RECIPES, Architecture
from tests.support.techniques import roundings


def loss(output: Any, _: Any) -> torch.Tensor:
    return output.loss


def traced(model: Any, architecture: Architecture) -> tuple[assignment.Op, ...]:
    with warnings.catch_warnings():
        # A warning would tell of an operation that is not known.
        warnings.simplefilter("error", UserWarning)
        return assignment.trace(model, loss, (architecture.batch(), None))


@pytest.mark.parametrize("architecture", ARCHITECTURES.values())
def test_every_product_parameter_and_edge_is_traced(architecture: Architecture) -> None:
    model = architecture.model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ops = traced(model, architecture)
    assert all(op.known for op in ops)
    # The operations have every parameter of the model once, with its size.
    sizes = {name: numel for op in ops for name, numel in op.full_params.items()}
    assert sizes == {name: p.numel() for name, p in model.named_parameters()}
    # There is one end: everything leads to the loss, which is one number.
    read = {name for op in ops for name in op.inputs}
    assert [op.name for op in ops if op.name not in read] == [ops[-1].name]
    assert (ops[-1].operation, ops[-1].numel) == ("nll_loss", 1)
    # A transformer has two modules of attention. Each counts as one product but makes two: scores
    # and values.
    attention = 2 if "input_ids" in architecture.batch() or hasattr(model, "vit") else 0
    assert sum(op.is_gemm for op in ops) == architecture.products + attention
    plain = assignment.demote(assignment.group(ops), 0.6)
    assert 0.6 <= plain.ratio
    assert 0 < assignment.operator_based(ops).ratio < 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    # A converted model has the tensors of the plain one.
    lp.convert(model, RECIPES["fp8"])
    converted = assignment.group(traced(model, architecture))
    assert converted == assignment.group(ops)
    plain.check(converted)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_models_train_under_an_assignment(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model, batch = architecture.model(), (architecture.batch(), None)
    # Of a transformer the one with eager attention stays plain.
    if not name.endswith("-eager"):
        lp.convert(model, RECIPES["fp8"])
    ops = traced(model, architecture)
    made = assignment.demote(assignment.group(ops), 0.6)
    assigned = assignment.assign(model, loss, made)
    assert {*roundings(assigned, batch).values()} == {1}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # The gradients of these small models fit without a scale.
    for _ in range(2):
        optimizer.zero_grad()
        value = assigned(*batch)
        value.backward()
        assert not assigned.overflowed and value.isfinite()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        assigned.step()
