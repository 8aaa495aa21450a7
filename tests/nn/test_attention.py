"""Multi-head attention under a policy: the projections have a recipe, its products another."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lpkernels as lp
from tests.nn.layer_cases import same, step, twins
from tests.nn.policy_models import MODELS, Transformer, converted
from tests.support.autograd import alike, compiled, gradients

FP32, FUNCTIONS = lp.Recipe(), lp.nn.FUNCTIONS


def test_the_projections_of_attention_have_the_recipe_and_its_products_another() -> None:
    model, (_, x) = lp.convert(Transformer(), "mxfp8"), MODELS["transformer"]
    heads, body = model.heads, lp.recipe("mxfp8")
    assert (heads.recipe, heads.attention_recipe) == (body, FP32)
    assert "attention_recipe=fp32" in str(heads)
    seen = [row.emulated for row in lp.nn.summary(model, x).rows if row.name == "heads"]
    # The four projections are of one size, and one row; so are both products of the attention.
    assert seen == [True, False]
    state = torch.randn(4, 2, 8, requires_grad=True)
    parameters = [*heads.parameters(), state]

    def by_the_function(x: Tensor, *_: Tensor) -> Any:
        projections = (heads.in_proj_weight, heads.in_proj_bias, None, None, False, 0.0)
        out, recipes = (heads.out_proj.weight, heads.out_proj.bias), {"attention_recipe": FP32}
        function = lp.functional.multi_head_attention_forward
        return function(x, x, x, 8, 2, *projections, *out, recipe=body, **recipes)

    heads.batch_first = False
    runs = (heads, compiled(heads), by_the_function)
    alike(runs, lambda run: gradients(run(*[state] * 3)[0], parameters))


def test_the_recipe_of_attention_goes_with_copies_policies_and_the_layers_own(
    tmp_path: Path,
) -> None:
    model = lp.convert(Transformer(), "mxfp8")
    heads = model.heads
    lp.save_policy(model, tmp_path / "policy.json")
    again = lp.convert(Transformer(), lp.load_policy(tmp_path / "policy.json"))
    for other in (again, *twins(model)):
        assert converted(other) == converted(model)
        assert other.heads.attention_recipe == FP32
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


# Ways to give attention one tensor three times.
FORMS: dict[str, Callable[[Any, Tensor], Any]] = {
    "views": lambda m, x: m(x, x.view_as(x), x.view_as(x)),
    "one view": lambda m, x: m(x, x, x.view_as(x)),
    "copies": lambda m, x: m(x, x.clone(), x.clone()),
    "memory": lambda m, x: (lambda memory: m(x, memory, memory))(x.clone()),
    "recomputed": lambda m, x: checkpoint(lambda t: m(t, t, t), x, use_reentrant=True),
    "three recomputed": lambda m, x: checkpoint(m, x, x, x, use_reentrant=True),
    "kept": lambda m, x: checkpoint(m, x, x, x, use_reentrant=False),
}
# These add its gradients in another order, which moves no bit where the sum of three is exact.
OTHER_ORDERS = {"one view", "memory", "three recomputed"}
DRAWS = {name: "e4m3:stochastic" for name in ("input", "weight", "grad_output")}
EXACT = (
    lp.Recipe(**DRAWS, dgrad="e5m4", wgrad="e6m9", fprop="e6m9:stochastic"),
    lp.Recipe(grad_input="e5m2:stochastic", dgrad="e6m9_chunk4", output="e5m6"),
)
OTHERS = (lp.Recipe(input="affine4", weight="tensor_e4m3", grad_output="affine5"), "mxfp8")


@pytest.mark.parametrize(
    "recipe, form",
    [(recipe, form) for recipe in EXACT for form in FORMS]
    + [(recipe, form) for recipe in OTHERS for form in FORMS if form not in OTHER_ORDERS],
)
@pytest.mark.parametrize("batch_first", [False, True])
def test_results_do_not_depend_on_which_inputs_are_one_object(
    recipe: Any, form: str, batch_first: bool
) -> None:
    layer = lp.nn.MultiheadAttention(32, 4, batch_first=batch_first, recipe=recipe)
    run, same_object = (partial(one, layer) for one in (FORMS[form], lambda m, x: m(x, x, x)))
    x = torch.randn(5, 3, 32)
    same(step(layer, run, x), step(layer, same_object, x))
