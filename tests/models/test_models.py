"""Models nobody here wrote: converted whole, they train, equal the reference and come back."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import lpkernels as lp
from lpkernels.nn._product_sizes import SIZES
from tests.compare import assert_bit_equal
from tests.models.architectures import ARCHITECTURES, Architecture, Batch

_NARROW = lp.Accumulator("e6m7", chunk=16)
RECIPES = {
    # 8-bit operands, 16-bit sums in chunks of 64, first and last layer alike.
    "fp8": lp.recipe("fp8_wang2018"),
    # float32 operands, narrow sums.
    "sums": lp.Recipe(fprop=_NARROW, dgrad=_NARROW, wgrad=_NARROW),
}
_EMULATED_PRODUCTS = {
    f"lpkernels::_{name}" for name in ("matmul", "conv_fprop", "conv_dgrad", "conv_wgrad")
}
_TORCHS_PRODUCTS = {name for name in SIZES if name.startswith("aten::")} | {
    "aten::convolution_backward",
    "aten::convolution_overrideable",
}

each_architecture = pytest.mark.parametrize(
    "architecture", ARCHITECTURES.values(), ids=ARCHITECTURES
)
each_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


class Products(TorchDispatchMode):
    """Counts emulated products and notes torch's, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.emulated, self.torchs = 0, set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        self.emulated += name in _EMULATED_PRODUCTS
        if name in _TORCHS_PRODUCTS:
            self.torchs.add(name)
        return func(*args, **(kwargs or {}))


def backward(model: nn.Module, batch: Batch) -> float:
    """The loss; gradients are left in the parameters. Dropout draws the same each time."""
    torch.manual_seed(2)
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    return loss.item()


@contextmanager
def outputs_of(model: nn.Module) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """The outputs of modules in the order of the calls, where an output is one tensor."""
    found: list[tuple[str, torch.Tensor]] = []
    handles = []
    for name, module in model.named_modules():

        def note(_: Any, args: Any, output: Any, name: str = name) -> None:
            if isinstance(output, torch.Tensor):
                found.append((name, output.detach()))

        handles.append(module.register_forward_hook(note))
    yield found
    for handle in handles:
        handle.remove()


@each_architecture
def test_every_product_is_emulated_forward_and_backward(architecture: Architecture) -> None:
    model, batch = architecture.model(), architecture.batch()
    lp.convert(model, RECIPES["fp8"])
    summary = lp.nn.summary(model, kwargs=batch)
    assert len({row.name for row in summary.rows}) == architecture.products
    assert summary.share == 1.0, [row for row in summary.rows if not row.emulated]
    assert str(summary).endswith("are emulated: 100.0%")
    with Products() as products:
        backward(model, batch)
    assert products.torchs == set()
    # A product has two gradients; an image needs none. Sums of bias gradients come on top.
    assert products.emulated >= 3 * sum(row.calls for row in summary.rows) - 1


@each_recipe
@each_architecture
def test_layers_and_gradients_are_the_references_to_the_bit(
    architecture: Architecture, recipe: lp.Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lp.backends.status()["cpu"] != "available":
        pytest.skip("the cpu backend is not built")
    batch, got = architecture.batch(), {}
    for backend in ("cpu", "reference"):
        monkeypatch.setenv("LPKERNELS_BACKEND", backend)
        model = lp.convert(architecture.model(), recipe)
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


@each_recipe
@each_architecture
def test_losses_fall_in_twenty_steps(architecture: Architecture, recipe: lp.Recipe) -> None:
    model, batch = lp.convert(architecture.model(), recipe), architecture.batch()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3]), losses


@each_architecture
def test_conversion_keeps_parameters_and_keys_and_reverts_exactly(
    architecture: Architecture,
) -> None:
    model, plain, batch = architecture.model(), architecture.model(), architecture.batch()
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
