"""What users of transformers do with a model, done with a converted one."""

import copy
from pathlib import Path
from typing import Any

import torch

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.loops import each
from tests.models.architectures import ARCHITECTURES, LENGTH, RECIPES, backward

TRANSFORMERS = [name for name in ARCHITECTURES if name.endswith("-sdpa")]


@each("name", ["llama-eager", "llama-sdpa"])
def test_rotary_positions_are_no_product_and_stay_exact(name: str) -> None:
    plain, model = (ARCHITECTURES[name].model() for _ in range(2))
    lp.convert(model, RECIPES["fp8"])
    positions = torch.arange(LENGTH)[None]
    x = torch.zeros(1, LENGTH, 16)
    rotary = [m.model.rotary_emb for m in (model, plain)]
    summary = lp.nn.summary(rotary[0], x, positions)
    assert summary.rows == ()
    for got, want in zip(*(module(x, positions) for module in rotary), strict=True):
        assert_bit_equal(got, want)


@each("name", TRANSFORMERS)
def test_checkpointing_changes_no_bit(name: str) -> None:
    gradients: list[list[Any]] = []
    for checkpointed in (False, True):
        model = lp.convert(ARCHITECTURES[name].model(), RECIPES["fp8"])
        if checkpointed:
            model.activation_checkpointing_enable()
        backward(model, ARCHITECTURES[name].batch())
        gradients.append([p.grad for p in model.parameters()])
    for got, want in zip(*gradients, strict=True):
        assert_bit_equal(got, want)


@each("name", ["gpt2-sdpa", "llama-sdpa"])
def test_generation_does_not_depend_on_the_cache(name: str) -> None:
    model = lp.convert(ARCHITECTURES[name].model(), RECIPES["sums"]).eval()
    tokens = ARCHITECTURES[name].batch()["input_ids"][:, :4]
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    mask = torch.ones_like(tokens)
    cached, whole = (
        model.generate(tokens, attention_mask=mask, use_cache=cache, **options)
        for cache in (True, False)
    )
    assert cached.shape == (4, LENGTH)
    assert torch.equal(cached, whole)


@each("name", TRANSFORMERS)
def test_a_converted_model_is_saved_and_loaded(name: str, tmp_path: Path) -> None:
    model, kind = ARCHITECTURES[name].model(), type(ARCHITECTURES[name].model())
    lp.convert(model, RECIPES["fp8"]).eval().save_pretrained(tmp_path)
    loaded = kind.from_pretrained(tmp_path)
    assert type(loaded) is kind
    batch = ARCHITECTURES[name].batch()
    want = lp.revert(copy.deepcopy(model))(**batch).logits
    assert_bit_equal(loaded(**batch).logits, want)
    # The converted class itself builds a model with torch's own arithmetic.
    assert_bit_equal(type(model).from_pretrained(tmp_path)(**batch).logits, want)
    lp.convert(loaded, RECIPES["fp8"])
    assert_bit_equal(loaded(**batch).logits, model(**batch).logits)
