"""Batched gradients of every layer, and TorchScript, which takes none."""

from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from tests.compare import assert_bit_equal
from tests.functional.layer_recipes import DETERMINISTIC, STOCHASTIC
from tests.nn.layer_cases import LAYERS, converted, first, inputs, leaves

NATIVE = lp.Recipe(input="e4m3", weight="e5m2", grad_output="e5m2")
# The gates of recurrent layers, softmax and GELU have gradients of torch's between ours.
TORCHS_BACKWARD = "MultiheadAttention LSTM GRU RNN LSTMCell GRUCell RNNCell Softmax GELU".split()
# oneDNN has no LSTM with projections, vmap calls an operator once for each sample, and TorchScript
# is deprecated.
pytestmark = pytest.mark.filterwarnings(
    "ignore:LSTM with projections", "ignore:There is a performance drop", "ignore:.torch.jit"
)


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "Embedding"])
@pytest.mark.parametrize("recipe", [DETERMINISTIC, STOCHASTIC, NATIVE], ids="dsn")
def test_batched_gradients_are_those_of_one_pass_after_another(
    name: str, recipe: lp.Recipe
) -> None:
    layer, xs = converted(name, recipe), leaves(inputs(name))
    asked = [*xs, *layer.parameters()]
    y = first(layer(*xs))
    batch = torch.randn(3, *y.shape)
    options: dict[str, Any] = {"retain_graph": True, "allow_unused": True}
    got = torch.autograd.grad(y, asked, batch, is_grads_batched=True, **options)
    apart = [torch.autograd.grad(y, asked, g, **options) for g in batch]
    for gradients, one_by_one in zip(got, zip(*apart, strict=True), strict=True):
        if gradients is None:
            assert one_by_one == (None,) * 3
        elif recipe == NATIVE or name in TORCHS_BACKWARD:
            # torch's own operators may compute a batch in another order.
            torch.testing.assert_close(gradients, torch.stack(one_by_one), rtol=1e-5, atol=1e-5)
        else:
            assert_bit_equal(gradients, torch.stack(one_by_one))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("recipe", [DETERMINISTIC, STOCHASTIC], ids="ds")
def test_torchscript_is_refused(name: str, recipe: lp.Recipe) -> None:
    layer = converted(name, recipe).eval()
    for model in (layer, nn.Sequential(layer)):
        with pytest.raises(NotImplementedError, match=r"torch\.export"):
            torch.jit.script(model)
    with pytest.raises(NotImplementedError, match=r"torch\.export"):
        torch.jit.trace(layer, inputs(name), check_trace=False)
