"""Multi-head attention under a policy: the projections have a recipe, its products another."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.nn.policy_models import MODELS, Transformer, converted
from tests.support.autograd import alike, compiled, gradients

FP32, FUNCTIONS = lp.Recipe(), lp.nn.FUNCTIONS


def test_the_projections_of_attention_are_linear_layers_and_its_products_functions(
    tmp_path: Path,
) -> None:
    model, (_, x) = lp.convert(Transformer(), "mxfp8"), MODELS["transformer"]
    heads, body = model.heads, lp.recipe("mxfp8")
    assert (heads.recipe, heads.attention_recipe) == (body, FP32)
    assert "attention_recipe=fp32" in str(heads)
    seen = [row.emulated for row in lp.nn.summary(model, x).rows if row.name == "heads"]
    # The four projections are of one size, and one row; so are both products of the attention.
    assert seen == [True, False]
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


# Ways to give attention one tensor three times. Autograd adds its gradients in the same order.
FORMS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "views": lambda m, x: m(x, x.view_as(x), x.view_as(x))[0],
    "copies": lambda m, x: m(x, x.clone(), x.clone())[0],
    "recomputed": lambda m, x: checkpoint(lambda t: m(t, t, t)[0], x, use_reentrant=True),
    "kept": lambda m, x: checkpoint(lambda *t: m(*t)[0], x, x, x, use_reentrant=False),
}
# In these ways the order differs, which changes no bit where the sums are exact in float32.
OTHER_ORDERS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "one view": lambda m, x: m(x, x, x.view_as(x))[0],
    "memory": lambda m, x: (lambda memory: m(x, memory, memory)[0])(x.clone()),
    "three recomputed": lambda m, x: checkpoint(lambda *t: m(*t)[0], x, x, x, use_reentrant=True),
}
# The sum of three gradients of these dgrads is exact in float32.
DRAWS = {name: "e4m3:stochastic" for name in ("input", "weight", "grad_output")}
EXACT = (
    lp.Recipe(**DRAWS, dgrad="e5m4", wgrad="e6m9", fprop="e6m9:stochastic"),
    lp.Recipe(grad_input="e5m2:stochastic", dgrad="e6m9_chunk4", output="e5m6"),
)
OTHERS = (lp.Recipe(input="affine4", weight="tensor_e4m3", grad_output="affine5"), "mxfp8")


@pytest.mark.parametrize(
    "recipe, form",
    [(recipe, form) for recipe in EXACT for form in (FORMS | OTHER_ORDERS).values()]
    + [(recipe, form) for recipe in OTHERS for form in FORMS.values()],
)
@pytest.mark.parametrize("batch_first", [False, True])
def test_results_do_not_depend_on_which_inputs_are_one_object(
    recipe: Any, form: Callable[[Any, Tensor], Tensor], batch_first: bool
) -> None:
    layer = lp.nn.MultiheadAttention(32, 4, batch_first=batch_first, recipe=recipe)
    sample = torch.randn(5, 3, 32)

    def step(forward: Callable[[Any, Tensor], Tensor]) -> list[Any]:
        x = sample.clone().requires_grad_()
        torch.manual_seed(4)
        layer.zero_grad()
        y = forward(layer, x)
        y.square().sum().backward()
        return [y.detach(), x.grad, *(p.grad for p in layer.parameters())]

    for got, want in zip(step(form), step(lambda m, x: m(x, x, x)[0]), strict=True):
        assert_bit_equal(got, want)
