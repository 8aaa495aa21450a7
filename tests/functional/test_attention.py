"""scaled_dot_product_attention and multi_head_attention_forward under a recipe."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import lpkernels as lp
from lpkernels.rng import derive_seed
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, RECIPES, STOCHASTIC
from tests.support.autograd import (
    SEED,
    Steps,
    assert_composed,
    close,
    gradients,
    leaves,
    output_gradients,
    same,
    transposed,
)

SUMS = lp.Recipe(fprop="fp32", dgrad="fp32", wgrad="fp32")
F = lp.functional
sdpa = F.scaled_dot_product_attention
torch_sdpa = torch.nn.functional.scaled_dot_product_attention
MASKS: dict[str, dict[str, Any]] = {
    "no mask": {},
    "causal": {"is_causal": True},
    "bool mask": {"attn_mask": torch.rand(2, 1, 4, 5, generator=torch.Generator()) > 0.4},
    "additive mask": {"attn_mask": torch.randn(3, 4, 5, generator=torch.Generator())},
    "one row for all": {"attn_mask": torch.tensor([[0.0, -math.inf, 1.0, 2.0, 0.5]])},
    "scale": {"scale": 0.3},
}
#: Of query, key and value.
SHAPES = ((2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 6))


class Attention:
    """Attention and its gradients in two products of the reference; the softmax is torch's."""

    def __init__(self, recipe: lp.Recipe, seed: int = SEED) -> None:
        self.scores, self.values = Steps(recipe, seed), Steps(recipe, derive_seed(seed, 16))

    def forward(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        attn_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> np.ndarray:
        self.scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        s = torch.from_numpy(self.scores.product(q, k)) * self.scale
        if is_causal:
            attn_mask = torch.ones(s.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            s = s.masked_fill(~attn_mask, -math.inf)
        elif attn_mask is not None:
            s = s + attn_mask
        self.p = s.softmax(-1)
        return self.values.product(self.p.numpy(), transposed(v))

    def gradients(self, g: np.ndarray) -> list[np.ndarray]:
        """Those of q, k and v."""
        dp, dv, _ = self.values.gradients(g)
        ds = torch._softmax_backward_data(torch.from_numpy(dp), self.p, -1, torch.float32)
        dq, dk, _ = self.scores.gradients((ds * self.scale).numpy())
        return [dq, dk, transposed(dv)]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("options", MASKS.values(), ids=MASKS)
def test_attention_is_its_steps_by_the_reference(
    options: dict[str, Any], recipe: lp.Recipe, backends: list[str]
) -> None:
    tensors, steps = leaves(*SHAPES), Attention(recipe)
    y = steps.forward(*(t.detach().numpy() for t in tensors), **options)
    want = [y, *steps.gradients(output_gradients(y.shape)[0].numpy())]
    assert_composed(partial(sdpa, *tensors, **options, recipe=recipe), tensors, want, backends)


SHARED = ((2, 6, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8))
GROUPED: dict[str, Any] = {"enable_gqa": True}
ALONE = torch.ones(4, 5, dtype=torch.bool).index_fill(0, torch.tensor([1]), False)
#: The shapes of query, key, value and of a mask that has a gradient, and the other arguments.
AS_IN_TORCH: dict[str, tuple[tuple[tuple[int, ...], ...], dict[str, Any]]] = {
    "gradient of a mask": ((*SHAPES, (3, 4, 5)), {}),
    "dropout": (SHAPES, {"dropout_p": 0.5}),
    "a query without a key": (SHAPES, {"attn_mask": ALONE}),
    "leading dimensions broadcast": (((3, 2, 4), (5, 4), (5, 4)), {}),
    "shared heads": (SHARED, GROUPED),
    "shared heads, causal": (SHARED, {"is_causal": True, **GROUPED}),
    **{
        f"shared heads, mask {shape}": ((*SHARED, shape), GROUPED)
        for shape in ((2, 6, 5, 5), (6, 5, 5), (1, 5, 5), (5, 5))
    },
}


@pytest.mark.parametrize("shapes, options", AS_IN_TORCH.values(), ids=AS_IN_TORCH)
def test_attention_summed_in_sequence_is_torchs_within_fp32(shapes: Any, options: Any) -> None:
    tensors, results = leaves(*shapes), []
    for function in (partial(sdpa, recipe=SUMS), torch_sdpa):
        torch.manual_seed(5)
        results.append(gradients(function(*tensors, **options), tensors))
    close(*results)


def test_query_whose_scores_are_all_minus_infinity_gets_zeros_where_a_mask_is() -> None:
    query, key = torch.tensor([[math.inf, 1.0]]), torch.tensor([[-1.0, 2.0], [-3.0, 0.0]])
    all_keys = torch.ones(1, 2, dtype=torch.bool)
    for mask in (all_keys, ~all_keys):
        assert_bit_equal(sdpa(query, key, key, mask, recipe=SUMS), torch.zeros(1, 2))
    assert sdpa(query, key, key, recipe=SUMS).isnan().all()


@pytest.mark.parametrize("options", [{}, MASKS["causal"]])
def test_shared_heads_are_one_sum(options: dict[str, Any]) -> None:
    q, k, v = (torch.randn(2, h, 5, 8, requires_grad=True) for h in (6, 2, 2))
    tensors = [q, k, v]
    got = gradients(sdpa(*tensors, **options, enable_gqa=True, recipe=DETERMINISTIC), tensors)
    grouped = (q.unflatten(1, (2, 3)), k.unsqueeze(2), v.unsqueeze(2))
    same(got, gradients(sdpa(*grouped, **options, recipe=DETERMINISTIC).flatten(1, 2), tensors))


RANDOM = torch.Generator().manual_seed(0)
E = torch.randn(4, 2, 8, generator=RANDOM)
WEIGHT, OUT = (torch.randn(n, 8, generator=RANDOM) / 2 for n in (24, 8))


def multi_head(*inputs: torch.Tensor, **options: Any) -> Any:
    call = {"in_proj_weight": WEIGHT, "in_proj_bias": None, "bias_k": None, "bias_v": None}
    call |= {"add_zero_attn": False, "dropout_p": 0.0, "out_proj_weight": OUT}
    call |= {"embed_dim_to_check": 8, "num_heads": 2, "out_proj_bias": None, "recipe": SUMS}
    return F.multi_head_attention_forward(*inputs, **(call | options))


def test_multi_head_attention_takes_a_mask_for_every_head() -> None:
    mask = torch.rand(2 * 2, 4, 4, generator=torch.Generator()) < 0.3
    got, want = (multi_head(E, E, E, attn_mask=mask, recipe=how) for how in (SUMS, "fp32"))
    close(list(got), list(want))


@pytest.mark.parametrize("x", [E[:, 0], E[:, :1]], ids=["alone", "batch of one"])
def test_multi_head_attention_of_one_sequence_is_torchs(x: torch.Tensor) -> None:
    close(list(multi_head(x, x, x)), list(multi_head(x, x, x, recipe="fp32")))


@pytest.mark.parametrize("recipe", [DETERMINISTIC, STOCHASTIC])
def test_weights_of_multi_head_attention_do_not_change_its_output(recipe: lp.Recipe) -> None:
    seed = torch.tensor(SEED)
    with_weights, weights = multi_head(E, E, E, recipe=recipe, generator=seed)
    y, none = multi_head(E, E, E, need_weights=False, recipe=recipe, generator=seed)
    assert none is None and weights.shape == (2, 4, 4)
    assert_bit_equal(with_weights, y)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_multi_head_attention_is_its_steps_by_the_reference(recipe: lp.Recipe) -> None:
    inputs = leaves((4, 2, 8), (5, 2, 8), (5, 2, 8))
    w, b, w_out, b_out = leaves((24, 8), (24,), (8, 8), (8,))
    options = {"in_proj_weight": w, "in_proj_bias": b, "out_proj_weight": w_out}
    options |= {"out_proj_bias": b_out, "recipe": recipe, "need_weights": False}
    got, _ = multi_head(*inputs, **options, generator=torch.tensor(SEED))

    def heads(x: np.ndarray) -> np.ndarray:
        """Rows (L * N, E) as (N * heads, L, E / heads)."""
        return x.reshape(-1, 4, 4).swapaxes(0, 1)

    def rows(x: np.ndarray) -> np.ndarray:
        return x.swapaxes(0, 1).reshape(-1, 8)

    seeds = [SEED, *(derive_seed(SEED, 15 + i) for i in range(1, 5))]
    projections = [Steps(recipe, seed) for seed in seeds[:3]]
    pieces = [[part.detach().numpy() for part in t.chunk(3)] for t in (w, b)]
    flattened = (x.detach().numpy().reshape(-1, 8) for x in inputs)
    projected = map(Steps.product, projections, flattened, *pieces)
    attention, out = Attention(recipe, seeds[3]), Steps(recipe, seeds[4])
    y = attention.forward(*map(heads, projected))
    y = out.product(rows(y), *(t.detach().numpy() for t in (w_out, b_out)))
    dy, dw_out, db_out = out.gradients(output_gradients(got.shape)[0].reshape(-1, 8).numpy())
    of_inputs = attention.gradients(heads(dy))
    dx, dw, db = zip(*map(Steps.gradients, projections, map(rows, of_inputs)), strict=True)
    dx = [d.reshape(x.shape) for d, x in zip(dx, inputs, strict=True)]
    want = [y.reshape(got.shape), *dx, np.concatenate(dw), np.concatenate(db), dw_out, db_out]
    same(gradients(got, [*inputs, w, b, w_out, b_out]), want)


def test_products_between_the_projections_may_have_a_recipe_of_their_own() -> None:
    x = torch.randn(4, 2, 8)
    q, k, v = F.linear(x, WEIGHT, recipe=DETERMINISTIC).chunk(3, -1)
    q, k, v = (t.reshape(4, 4, 4).transpose(0, 1) for t in (q, k, v))
    y = sdpa(q, k, v, recipe=SUMS).transpose(0, 1).reshape(4, 2, 8)
    got, _ = multi_head(x, x, x, recipe=DETERMINISTIC, attention_recipe=SUMS)
    assert_bit_equal(got, F.linear(y, OUT, recipe=DETERMINISTIC))
