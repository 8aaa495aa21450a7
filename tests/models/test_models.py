"""Models nobody here wrote: converted whole, they train, equal the reference and come back."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from lpkernels.nn._product_sizes import SIZES
from tests.compare import assert_bit_equal
from tests.models.architectures import ARCHITECTURES, LENGTH, RECIPES, WITH_RECIPES, backward
from tests.support.autograd import Operators

_TORCHS_PRODUCTS = {name for name in SIZES if name.startswith("aten::")} | {
    "aten::convolution_backward",
    "aten::convolution_overrideable",
}


@contextmanager
def outputs_of(model: nn.Module) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """The outputs of modules in the order of the calls, where an output is one tensor."""
    found: list[tuple[str, torch.Tensor]] = []
    names = {module: name for name, module in model.named_modules()}

    def note(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor) and module in names:
            found.append((names[module], output.detach()))

    handle = nn.modules.module.register_module_forward_hook(note)
    yield found
    handle.remove()


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
    assert not _TORCHS_PRODUCTS & {*operators.names}
    # A product has two gradients; an image needs none. Sums of bias gradients come on top.
    products = ("matmul", "conv_fprop", "conv_dgrad", "conv_wgrad")
    count = sum(name in products for name in operators.emulated)
    assert count >= 3 * sum(row.calls for row in summary.rows) - 1


@pytest.mark.parametrize(("name", "recipe"), WITH_RECIPES)
def test_layers_and_gradients_are_the_references_to_the_bit(name, recipe, monkeypatch):
    if lp.backends.status()["cpu"] != "available":
        pytest.skip("the cpu backend is not built")
    batch, got = ARCHITECTURES[name].batch(), {}
    for backend in ("cpu", "reference"):
        monkeypatch.setenv("LPKERNELS_BACKEND", backend)
        model = lp.convert(ARCHITECTURES[name].model(), RECIPES[recipe])
        with outputs_of(model) as outputs:
            loss = backward(model, batch)
        got[backend] = (outputs, dict(model.named_parameters()), dict(model.named_buffers()), loss)
    (outputs, parameters, buffers, loss), want = got["cpu"], got["reference"]
    assert [name for name, _ in outputs] == [name for name, _ in want[0]]
    for (name, y), (_, expected) in zip(outputs, want[0], strict=True):
        assert_bit_equal(y, expected, f"output of {name!r}")
    # Backward goes through the layers from the last to the first.
    for name in reversed(parameters):
        assert_bit_equal(parameters[name].grad, want[1][name].grad, f"gradient of {name!r}")
    for name, buffer in buffers.items():
        assert_bit_equal(buffer, want[2][name], name)
    assert loss == want[3]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_conversion_keeps_parameters_and_keys_and_reverts_exactly(name: str) -> None:
    model, plain = (ARCHITECTURES[name].model() for _ in range(2))
    batch = ARCHITECTURES[name].batch()
    optimised, keys = list(model.parameters()), list(model.state_dict())
    modules = [(module, type(module)) for module in model.modules()]
    lp.convert(model, RECIPES["fp8"])
    assert all(a is b for a, b in zip(model.parameters(), optimised, strict=True))
    assert list(model.state_dict()) == keys
    assert any(type(module) is not cls for module, cls in modules)
    backward(model, batch)
    lp.revert(model)
    # The statistics of batch norm have moved.
    model.load_state_dict(plain.state_dict())
    assert all(a is b for a, b in zip(model.parameters(), optimised, strict=True))
    now = zip(model.modules(), modules, strict=True)
    assert all(a is module and type(a) is cls for a, (module, cls) in now)
    assert [sorted(vars(m)) for m in model.modules()] == [sorted(vars(m)) for m in plain.modules()]
    assert backward(model, batch) == backward(plain, batch)
    state = plain.state_dict()
    for name, value in model.state_dict().items():
        assert_bit_equal(value, state[name], name)
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert_bit_equal(p.grad, q.grad, f"gradient of {name!r}")
    assert_bit_equal(model.eval()(**batch).logits, plain.eval()(**batch).logits, "logits")


TRANSFORMERS = [name for name in ARCHITECTURES if name.endswith("-sdpa")]


@pytest.mark.parametrize("name", ["llama-eager", "llama-sdpa"])
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


@pytest.mark.parametrize("name", TRANSFORMERS)
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


@pytest.mark.parametrize("name", ["gpt2-sdpa", "llama-sdpa"])
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


@pytest.mark.parametrize("name", TRANSFORMERS)
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
