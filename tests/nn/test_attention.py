"""Multi-head attention under a policy: the projections have a recipe, its products another."""

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lpkernels as lp
from tests.nn.policy_models import MODELS, Transformer, converted
from tests.support.autograd import alike, compiled, gradients

FP32, FUNCTIONS = lp.Recipe(), lp.nn.FUNCTIONS


def test_the_projections_of_attention_are_linear_layers_and_its_products_functions(
    tmp_path: Path,
) -> None:
    model, (_, x) = lp.convert(Transformer(), "policy:mxfp8"), MODELS["transformer"]
    heads, body = model.heads, lp.recipe("mxfp8")
    assert (heads.recipe, heads.attention_recipe) == (body, FP32)
    assert "attention_recipe=fp32" in str(heads)
    seen = [row.emulated for row in lp.nn.summary(model, x).rows if row.name == "heads"]
    # Both products of the attention are of one size, and one row.
    assert seen == [True, False, True]
    state = torch.randn(2, 4, 8, requires_grad=True)
    parameters = [heads.in_proj_weight, heads.out_proj.weight, state]
    y = heads(state, state, state, need_weights=False)[0]
    q, k, v = (
        t.unflatten(-1, (2, 4)).transpose(1, 2)
        for t in lp.functional.linear(
            state, heads.in_proj_weight, heads.in_proj_bias, recipe=body
        ).chunk(3, -1)
    )
    inner = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    want = lp.functional.linear(inner, heads.out_proj.weight, heads.out_proj.bias, recipe=body)
    # torch fuses the two products, whose sums have another order.
    torch.testing.assert_close(y, want, rtol=0.07, atol=1e-3)
    for got, its in zip(
        torch.autograd.grad(y.sum(), parameters), torch.autograd.grad(want.sum(), parameters),
        strict=True,
    ):  # fmt: skip
        assert (got - its).norm() < 0.02 * its.norm()
    lp.save_policy(model, tmp_path / "policy.json")
    again = lp.convert(Transformer(), lp.load_policy(tmp_path / "policy.json"))
    for other in (again, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert converted(other) == converted(model)
        assert other.heads.attention_recipe == FP32
    alike((heads, compiled(heads)), lambda run: gradients(run(*[state] * 3)[0], parameters))
    # A width is the projections' own, and a recipe given to the layer is that of both.
    heads.set_accumulator("fp32")
    assert heads.attention_recipe == FP32
    lp.set_recipe(model, {"heads.attention": "bf16_mixed", "heads": "fp16_mixed"})
    assert heads.attention_recipe == lp.recipe("bf16_mixed")
    lp.set_recipe(model, {"heads": "fp16_mixed", FUNCTIONS: "fp32"})
    assert heads.attention_recipe == heads.recipe == lp.recipe("fp16_mixed")
    with pytest.raises(ValueError, match=r"delayed:.*is for linear layers and convolutions"):
        heads.attention_recipe = "te_delayed"
    with pytest.raises(ValueError, match=r"include='heads\.attention' fits"):
        lp.convert(Transformer(), "fp32", include="heads.attention")
    lp.revert(model)
    assert type(heads) is nn.MultiheadAttention and "_attention" not in vars(heads)
