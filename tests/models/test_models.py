"""Models nobody here wrote: converted whole, they train, equal the reference and come back."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.models.architectures import ARCHITECTURES, LENGTH, RECIPES, WITH_RECIPES, backward
from tests.support.autograd import Operators, same


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_product_is_emulated_forward_and_backward(name: str) -> None:
    model, batch = ARCHITECTURES[name].model(), ARCHITECTURES[name].batch()
    lp.convert(model, RECIPES["fp8"])
    summary = lp.nn.summary(model, batch)
    assert len({row.name for row in summary.rows}) == ARCHITECTURES[name].products
    assert summary.share == 1.0, [row for row in summary.rows if not row.emulated]
    assert str(summary).endswith("are emulated: 100.0%")
    with Operators() as operators:
        backward(model, batch)
    assert not operators.products_of_torch
    # A product has two gradients; an image needs none. Sums of bias gradients come on top.
    products = ("matmul", "conv_fprop", "conv_dgrad", "conv_wgrad")
    count = sum(name in products for name in operators.emulated)
    assert count >= 3 * sum(row.calls for row in summary.rows) - 1


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_loaded_in_bfloat16_is_converted_and_trains(name: str, tmp_path: Path) -> None:
    plain = ARCHITECTURES[name].model()
    plain.save_pretrained(tmp_path)
    model = type(plain).from_pretrained(tmp_path, dtype=torch.bfloat16).train()
    lp.convert(model, RECIPES["fp8"])
    batch = {
        key: x.bfloat16() if x.is_floating_point() else x
        for key, x in ARCHITECTURES[name].batch().items()
    }
    assert lp.nn.summary(model, batch).share == 1.0
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        assert math.isfinite(backward(model, batch))
        optimizer.step()
    assert model(**batch).logits.dtype == torch.bfloat16
    changed = [not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True)]
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    # A step that is small beside a gain of 1 is lost in bfloat16.
    assert sum(changed) > len(changed) / 2


@pytest.mark.parametrize(("name", "recipe"), WITH_RECIPES)
def test_layers_and_gradients_are_the_references_to_the_bit(name, recipe, monkeypatch):
    if lp.backends.status()["cpu"] != "available":
        pytest.skip("the cpu backend is not built")
    models, losses = [], []
    for backend in ("cpu", "reference"):
        monkeypatch.setenv("LPKERNELS_BACKEND", backend)
        models.append(lp.convert(ARCHITECTURES[name].model(), RECIPES[recipe]))
        losses.append(backward(models[-1], ARCHITECTURES[name].batch()))
    assert losses[0] == losses[1]
    assert_same_gradients_and_state(*models)


def assert_same_gradients_and_state(model: nn.Module, other: nn.Module) -> None:
    """To the bit. Backward goes through the layers from the last to the first."""
    pairs = zip(model.named_parameters(), other.parameters(), strict=True)
    for (name, p), q in reversed(list(pairs)):
        assert_bit_equal(p.grad, q.grad, f"gradient of {name!r}")
    same([*model.state_dict().values()], [*other.state_dict().values()], "tensor")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_conversion_keeps_parameters_and_keys_and_reverts_exactly(name: str) -> None:
    model, plain = (ARCHITECTURES[name].model() for _ in range(2))
    batch = ARCHITECTURES[name].batch()
    parameters, keys = list(map(id, model.parameters())), list(model.state_dict())
    lp.convert(model, RECIPES["fp8"])
    assert list(map(id, model.parameters())) == parameters
    assert list(model.state_dict()) == keys
    backward(model, batch)
    lp.revert(model)
    # The statistics of batch norm have moved.
    model.load_state_dict(plain.state_dict())
    assert list(map(id, model.parameters())) == parameters
    assert attributes(model) == attributes(plain)
    assert backward(model, batch) == backward(plain, batch)
    assert_same_gradients_and_state(model, plain)


def attributes(model: nn.Module) -> list[Any]:
    return [(type(module), sorted(vars(module))) for module in model.modules()]


@pytest.mark.parametrize("name", ["llama-eager", "llama-sdpa"])
def test_rotary_positions_are_no_product_and_stay_exact(name: str) -> None:
    plain, model = (ARCHITECTURES[name].model() for _ in range(2))
    lp.convert(model, RECIPES["fp8"])
    positions = torch.arange(LENGTH)[None]
    x = torch.zeros(1, LENGTH, 16)
    rotary, plain_rotary = (m.model.rotary_emb for m in (model, plain))
    assert lp.nn.summary(rotary, x, positions).rows == ()
    same(rotary(x, positions), plain_rotary(x, positions))


@pytest.mark.parametrize("name", ["vit-sdpa", "bert-sdpa", "gpt2-sdpa", "llama-sdpa"])
def test_a_converted_model_is_saved_and_loaded(name: str, tmp_path: Path) -> None:
    model = ARCHITECTURES[name].model()
    kind = type(model)
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


def test_experts_of_grouped_products_are_not_forgotten() -> None:
    """Mixtral, whose experts transformers runs by one grouped product for all of them."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 40, "num_hidden_layers": 2}
    transformers = pytest.importorskip("transformers")
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4}
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **heads))
    lp.convert(model, lp.recipe("fp8_wang2018"))
    tokens = torch.arange(24).reshape(2, 12)
    found = lp.nn.summary(model, tokens)
    # Each of 24 tokens passes two experts of three matrices, in each of two layers.
    experts = [row.macs for row in found.rows if row.name.endswith("experts")]
    assert sum(experts) == 2 * 24 * 2 * 3 * 32 * 64
    others = sum(row.macs for row in found.rows if not row.name.endswith("experts"))
    assert found.macs == others + sum(experts)
    assert found.emulated_macs in (others, found.macs)
    both = lp.nn.summary(model, tokens, backward=True)
    assert both.macs == 3 * found.macs and both.share == found.share
