"""torch's grouped_mm in converted models: under every recipe the product of each group alone, and
models of transformers whose experts call it."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import lpkernels as lp
from tests.nn.layer_cases import same
from tests.support.autograd import Computes, gradients, leaves

grouped_mm = getattr(F, "grouped_mm", None)
pytestmark = pytest.mark.skipif(grouped_mm is None, reason="this torch has no grouped products")
# te_delayed keeps the scales of layers, and fp32 is torch's own function.
RECIPES = sorted({*lp.recipes()} - {"fp32", "te_delayed"})
#: Hadamard transforms take sums of a multiple of 32; without one an odd number is left over.
TRANSFORMED = ("mxfp4_sr", "nvfp4_46_pretraining", "nvfp4_pretraining")
BEYOND = 5


def of_torch(recipe: Any, a: Tensor, b: Tensor, ends: list[int] | None) -> Tensor:
    offs = None if ends is None else torch.tensor(ends, dtype=torch.int32)
    return lp.convert(Computes(lambda _, *x: grouped_mm(*x, offs=offs)), recipe)(a, b)


def one_by_one(recipe: Any, a: Tensor, b: Tensor, ends: list[int] | None) -> Tensor:
    """The products of the groups, each by lp.matmul, and zeros beyond the last end."""

    def product(left: Tensor, right: Tensor) -> Tensor:
        return lp.matmul(left, right, recipe=recipe)

    if ends is None:
        return torch.stack([product(x, w) for x, w in zip(a, b, strict=True)])
    groups = [slice(*pair) for pair in zip([0, *ends], ends, strict=False)]
    if a.dim() == b.dim():
        return torch.stack([product(a[:, group], b[group]) for group in groups])
    if a.dim() == 2:
        parts = [product(a[group], w) for group, w in zip(groups, b, strict=True)]
        return F.pad(torch.cat(parts), (0, 0, 0, len(a) - ends[-1]))
    parts = [product(x, b[:, group]) for group, x in zip(groups, a, strict=True)]
    return F.pad(torch.cat(parts, 1), (0, b.shape[1] - ends[-1]))


def steps_agree(recipe: Any, shapes: list[tuple[int, ...]], ends: list[int] | None) -> None:
    operands, results = leaves(*shapes), []
    for function in (of_torch, one_by_one):
        torch.manual_seed(5)
        results.append(gradients(function(recipe, *operands, ends), operands))
    same(*results, parts=("y", "da", "db"))


@pytest.mark.parametrize("form", ["rows", "columns", "sums", "pairs"])
@pytest.mark.parametrize("name", RECIPES)
def test_a_grouped_product_is_the_product_of_each_group(name: str, form: str) -> None:
    """Empty groups at the start and inside, groups of one, and an end before the tensor's."""
    ends = [0, 32, 32, 96] if name in TRANSFORMED else [0, 5, 5, 38, 39]
    m, k, n = (32, 64, 32) if name in TRANSFORMED else (33, 37, 35)
    groups, length = len(ends), ends[-1] + BEYOND
    shapes = {
        "rows": [(length, k), (groups, k, n)], "columns": [(groups, m, k), (k, length)],
        "sums": [(m, length), (length, n)], "pairs": [(groups, m, k), (groups, k, n)],
    }[form]  # fmt: skip
    steps_agree(lp.recipe(name), shapes, None if form == "pairs" else ends)


@pytest.mark.parametrize("ends", [[0, 0], [7, 7], [0, 7], [3, 3]])
def test_groups_without_rows_have_gradients_of_zero(ends: list[int]) -> None:
    recipe = lp.recipe("fp8_wang2018")
    steps_agree(recipe, [(7, 9), (2, 9, 4)], ends)
    a, b = leaves((7, 9), (2, 9, 4))
    y, da, db = gradients(of_torch(recipe, a, b, ends), (a, b))
    empty = [stop == start for start, stop in zip([0, *ends], ends, strict=False)]
    assert not y[ends[-1] :].any() and not da[ends[-1] :].any() and not db[empty].any()


def ones(*shape: int) -> Tensor:
    return torch.ones(shape)


ROWS, WEIGHTS = ones(6, 4), ones(2, 4, 8)
REFUSED = {
    "floats": (ROWS, WEIGHTS, torch.tensor([3.0, 6.0]), "offs of integers in 1 dimension"),
    "matrix": (ROWS, WEIGHTS, torch.tensor([[3, 6]]), "offs of integers in 1 dimension"),
    "scalar": (ROWS, ones(1, 4, 8), torch.tensor(6), "offs of integers in 1 dimension"),
    "too many": (ROWS, WEIGHTS, torch.tensor([1, 3, 6]), r"shapes \(6, 4\) and \(2, 4, 8\)"),
    "none": (ROWS, ones(0, 4, 8), torch.tensor([], dtype=torch.int32), "of groups, not 0"),
    "beyond": (ROWS, WEIGHTS, torch.tensor([3, 7]), r"offs=\[3, 7\].* dimension of 6"),
    "negative": (ROWS, WEIGHTS, torch.tensor([-1, 6]), r"offs=\[-1, 6\]"),
    "descending": (ROWS, WEIGHTS, torch.tensor([4, 2]), r"offs=\[4, 2\]"),
    "without ends": (ROWS, WEIGHTS, None, "offs=None"),
    "both 3": (ones(2, 6, 4), WEIGHTS, torch.tensor([3, 6]), "offs .* unless both have 3"),
    "vector": (ones(4), WEIGHTS, torch.tensor([3, 6]), "operands of 2 or 3 dimensions"),
    "sums": (ROWS, ones(2, 5, 8), torch.tensor([3, 6]), "a has K=4 but b has K=5"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_groups_are_refused(case: str) -> None:
    *operands, offs, message = REFUSED[case]
    net = lp.convert(Computes(lambda _, *x: grouped_mm(*x, offs=offs)), "fp8_wang2018")
    with pytest.raises(ValueError, match=message):
        net(*operands)


SIZES = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 24,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "num_experts_per_tok": 2, "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
#: gpt-oss adds biases to its experts' products, Qwen's has an expert for all tokens.
EXPERTS = {"Mixtral": "num_local_experts", "Qwen2Moe": "num_experts", "GptOss": "num_local_experts"}
TOKENS = torch.arange(24).reshape(2, 12)


def with_experts(name: str, implementation: str | None) -> Any:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(**SIZES, **{EXPERTS[name]: 5})
    if implementation is not None:
        config._experts_implementation = implementation
    torch.manual_seed(0)
    return getattr(transformers, f"{name}ForCausalLM")(config)


@pytest.mark.parametrize("implementation", [None, "grouped_mm", "batched_mm", "eager"])
@pytest.mark.parametrize("name", EXPERTS)
def test_every_product_of_experts_is_emulated(name: str, implementation: str | None) -> None:
    model = with_experts(name, implementation)
    assert model.config._experts_implementation == (implementation or "grouped_mm")
    lp.convert(model, lp.recipe("fp8_wang2018"))
    for backward in (False, True):
        lp.nn.summary(model, TOKENS, backward=backward).require(1.0)


@pytest.mark.parametrize("name", EXPERTS)
def test_a_policy_of_linear_layers_names_the_experts_that_it_leaves_to_torch(name: str) -> None:
    policy, advice = lp.policy("mxfp8"), r"2 \w+Experts with stacks of .*{'\*\.experts': recipe}"
    model = with_experts(name, None)
    with pytest.warns(lp.nn.NotEmulatedWarning, match=advice):
        lp.convert(model, policy)
    left = lp.nn.summary(model, TOKENS)
    experts = [row for row in left.rows if row.name.endswith(".experts")]
    assert experts and not any(row.emulated for row in experts)
    with warnings.catch_warnings():
        warnings.simplefilter("error", lp.nn.NotEmulatedWarning)
        lp.convert(model, {"*.experts": policy["*"]} | policy)
    rows = lp.nn.summary(model, TOKENS).rows
    assert all(row.emulated for row in rows if row.name.endswith(".experts"))


def experts_and_products(name: str, implementation: str) -> tuple[Tensor, Tensor]:
    model = lp.convert(with_experts(name, implementation), lp.recipe("fp8_wang2018"))
    torch.manual_seed(1)
    y = model(TOKENS, labels=TOKENS)
    y.loss.backward()
    return y.logits.detach(), model.get_input_embeddings().weight.grad


@pytest.mark.parametrize("name", ["Mixtral", "Qwen2Moe"])
def test_experts_by_grouped_mm_are_those_of_the_loop(name: str) -> None:
    """A product of a group is that of the expert's own tokens. The sums of weight gradients alone
    run over other orders of tokens."""
    same(experts_and_products(name, "grouped_mm"), experts_and_products(name, "eager"))
