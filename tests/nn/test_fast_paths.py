"""torch's containers never read the weights of an emulated layer past it."""

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.nn.layer_cases import twins
from tests.support.autograd import Operators, compiled

RECIPE = lp.Recipe(input="e4m3", weight="e4m3", fprop="e6m9")
X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
PADDING = torch.tensor([[False] * 3 + [True] * 2, [False] * 5])
FUSED = {"aten::_transformer_encoder_layer_fwd", "aten::_nested_tensor_from_mask"}
# Nested tensors are a prototype in torch, and TorchScript is deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*nested tensors", "ignore:.torch.jit")


def block() -> Any:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(8, 2, 16, 0.0, nn.GELU(), batch_first=True)


def encoder() -> Any:
    return nn.TransformerEncoder(block(), 3)


def converted(layer: nn.Module) -> nn.Module:
    return lp.convert(layer, {type(layer): RECIPE})


def of_both_modes(model: nn.Module, *inputs: Tensor, **options: Any) -> list[Tensor]:
    """The result in training and in evaluation, without gradients and without padded places."""
    with torch.no_grad():
        return [mode(*inputs, **options)[~PADDING] for mode in (model.train(), model.eval())]


def transformer() -> Any:
    return nn.Transformer(8, 2, 2, 1, 16, 0.0, nn.GELU(), batch_first=True)


@pytest.mark.parametrize("child", ["linear1", "linear2", "norm1", "norm2", "self_attn"])
@pytest.mark.parametrize("in_place", [True, False], ids=["converted", "assigned"])
@pytest.mark.parametrize("options", [{}, {"src_key_padding_mask": PADDING}], ids=["", "padded"])
@pytest.mark.parametrize(
    "make, owner", [(block, ""), (encoder, "layers.1"), (transformer, "encoder.layers.1")]
)
def test_a_transformer_computes_in_evaluation_what_it_computes_in_training(
    make: Callable[[], Any], owner: str, child: str, in_place: bool, options: dict[str, Tensor]
) -> None:
    model, inputs = make(), (X, X) if make is transformer else (X,)
    plain, _ = of_both_modes(model, *inputs, **options)
    layer = model.get_submodule(owner)
    if in_place:
        converted(getattr(layer, child))
    else:
        setattr(layer, child, converted(copy.deepcopy(getattr(layer, child))))
    trained, tested = of_both_modes(model, *inputs, **options)
    torch.testing.assert_close(tested, trained, rtol=1e-5, atol=1e-5)
    # Norms round little of this recipe.
    if child not in ("norm1", "norm2"):
        assert not torch.allclose(trained, plain, atol=1e-3)


def test_a_container_is_switched_in_its_copies_and_back_by_revert() -> None:
    model = encoder().eval()
    with torch.no_grad():
        converted(model.layers[1].linear1)
        want = model(X, src_key_padding_mask=PADDING)
        for twin in twins(model):
            assert_bit_equal(twin(X, src_key_padding_mask=PADDING), want)
        lp.revert(model)
        with Operators() as operators:
            model(X, src_key_padding_mask=PADDING)
    assert FUSED <= set(operators.names)


def test_a_container_of_torch_keeps_its_fast_path() -> None:
    model = encoder().eval()
    with torch.no_grad():
        with Operators() as operators:
            want = model(X)
            model(X, src_key_padding_mask=PADDING)
        assert FUSED <= set(operators.names)
        for other in (torch.jit.script(model), torch.jit.trace(model, X), compiled(model)):
            torch.testing.assert_close(other(X), want)


@pytest.mark.parametrize("recipe", [None, RECIPE], ids=["torch", "emulated"])
def test_a_projection_that_attention_never_calls_is_refused(recipe: Any) -> None:
    layer = block().eval()
    if recipe is not None:
        converted(layer.self_attn)
    layer.self_attn.out_proj = lp.nn.Linear(8, 8, recipe=RECIPE)
    for call in (layer.self_attn.train(), layer.self_attn.eval(), lambda x, *_: layer(x)):
        with torch.no_grad(), pytest.raises(ValueError, match="reads the weight of out_proj and n"):
            call(X, X, X)


def test_attention_that_calls_its_projection_may_have_an_emulated_one() -> None:
    quantizable = torch.ao.nn.quantizable.MultiheadAttention(8, 2)
    quantizable.out_proj = lp.nn.Linear(8, 8, recipe=RECIPE)
    quantizable(X, X, X)
    # convert leaves the layer of an attention that never calls it to the attention.
    attention = nn.MultiheadAttention(8, 2)
    attention.out_proj = nn.Linear(8, 8)
    lp.convert(attention, RECIPE)(X, X, X)
    assert type(attention.out_proj) is nn.Linear


@pytest.mark.skipif(
    not hasattr(nn, "LinearCrossEntropyLoss"), reason="torch has the loss from 2.13 on"
)
def test_the_layer_of_a_linear_cross_entropy_stays_torchs() -> None:
    match = "LinearCrossEntropyLoss reads its weight and never calls it"
    loss = nn.LinearCrossEntropyLoss(8, 4)
    with pytest.warns(UserWarning, match=match):
        lp.convert(nn.ModuleList([nn.Linear(8, 8), loss]), RECIPE)
    assert type(loss.linear) is nn.Linear
    loss.linear = lp.nn.Linear(8, 4, recipe=RECIPE)
    with pytest.raises(ValueError, match=r"reads the weight of linear.*cross_entropy"):
        loss(X[0], torch.zeros(5, dtype=torch.long))


def reads_weights(cls: type[nn.Module]) -> bool:
    """Whether forward reads the weight or bias of anything but the module itself."""
    forward = ast.parse(textwrap.dedent(inspect.getsource(cls.forward)))
    reads = [x for x in ast.walk(forward) if isinstance(x, ast.Attribute)]
    reads = [x for x in reads if x.attr in ("weight", "bias", "_flat_weights")]
    return any(not isinstance(x.value, ast.Name) for x in reads)


def test_torch_has_no_other_container_that_reads_the_weights_of_its_layers() -> None:
    modules = vars(torch.nn.modules).values()
    classes = [x for x in modules if isinstance(x, type) and "forward" in vars(x)]
    found = {cls.__name__ for cls in classes if reads_weights(cls)}
    known = {"TransformerEncoderLayer", "TransformerEncoder", "MultiheadAttention"}
    assert found - {"LinearCrossEntropyLoss"} == known
