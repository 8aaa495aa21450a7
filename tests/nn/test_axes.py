"""A layer refuses a format along an axis that one of its tensors lacks as soon as it can know."""

import re
from typing import Any

import pytest
import torch
from torch import nn

import lpkernels as lp
from tests.nn.layer_cases import LAYERS, inputs, plain

GRADIENTS = {"grad_input": "input", "grad_weight": "weight", "grad_output": "output"}
ALL_OF_CONV = {
    f"Conv{kind}{n}d": (n + 2, n + 2, 1, n + 2) for kind in ("", "Transpose") for n in (1, 2, 3)
}
RECURRENT = dict.fromkeys(("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"), (2, 2, 1, 2))
# The ranks of input, weight, bias and output; 0 stands for a rank that only a call tells.
KNOWN = {
    **ALL_OF_CONV,
    **RECURRENT,
    "Linear": (0, 2, 1, 0),
    "Bilinear": (2, 2, 1, 2),
    "Embedding": (0, 2, 0, 0),
    "MultiheadAttention": (3, 2, 1, 3),
    "BatchNorm1d": (0, 1, 1, 0),
    "BatchNorm2d": (4, 1, 1, 4),
    "BatchNorm3d": (5, 1, 1, 5),
    "LayerNorm": (0, 1, 1, 0),
    "GroupNorm": (0, 1, 1, 0),
    "RMSNorm": (0, 1, 0, 0),
    "Softmax": (0, 0, 0, 0),
    "GELU": (0, 0, 0, 0),
}
KINDS = {
    "MultiheadAttention": "multi_head_attention_forward",
    "RNN": "rnn_relu",
    "RNNCell": "rnn_tanh_cell",
    **{f"BatchNorm{n}d": "batch_norm" for n in (1, 2, 3)},
    "RMSNorm": "rms_norm",
    "LSTMCell": "lstm_cell",
    "GRUCell": "gru_cell",
}


def kind(name: str) -> str:
    """The function that a layer computes by: conv_transpose2d of ConvTranspose2d."""
    return KINDS.get(name) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def known(name: str) -> dict[str, int]:
    found = dict(zip(("input", "weight", "bias", "output"), KNOWN[name], strict=True))
    found |= {gradient: found[of] for gradient, of in GRADIENTS.items()}
    return {tensor: rank for tensor, rank in found.items() if rank}


@pytest.mark.parametrize("name", LAYERS)
def test_where_a_rank_is_known_the_recipe_is_refused(name: str) -> None:
    layer = lp.convert(plain(name), {getattr(nn, name): "fp32"})
    for tensor, rank in known(name).items():
        for axis in (rank, -rank - 1):
            recipe = lp.Recipe(**{tensor: f"affine4_axis{axis}"})
            match = f"runs along axis {axis}, but {kind(name)}'s {tensor} has {rank} dimension"
            with pytest.raises(ValueError, match=f"^{kind(name)}: .*{match}"):
                layer.recipe = recipe
            with pytest.raises(ValueError, match=f"^convert: '': .*{match}"):
                lp.convert(plain(name), {getattr(nn, name): recipe})
    assert layer.recipe == lp.Recipe()


@pytest.mark.parametrize("name", LAYERS)
def test_no_layer_refuses_what_a_call_takes(name: str) -> None:
    tensors = known(name) or {"input": 1}
    for axis in (lambda rank: rank - 1, lambda rank: -rank):
        recipe = lp.Recipe(**{t: f"block2_axis{axis(rank)}_e2m1" for t, rank in tensors.items()})
        layer = lp.convert(plain(name), {getattr(nn, name): recipe})
        layer(*inputs(name))


@pytest.mark.parametrize(
    "make",
    [
        lambda recipe: lp.nn.Linear(4, 3, recipe=recipe),
        lambda recipe: lp.nn.LazyLinear(3, recipe=recipe),
        lambda recipe: lp.nn.LazyConv2d(3, 2, recipe=recipe),
        lambda recipe: lp.nn.GRUCell(4, 3, recipe=recipe),
    ],
    ids=["linear", "lazy", "lazy convolution", "cell"],
)
def test_a_constructor_refuses(make: Any) -> None:
    with pytest.raises(ValueError, match=r"'s bias has 1 dimension; the axis must be in -1\.\.0"):
        make(lp.Recipe(bias="affine4_axis1"))


def test_a_tensor_that_a_layer_lacks_is_not_asked_for_its_axis() -> None:
    recipe = lp.Recipe(bias="affine4_axis1")
    for layer in (nn.Linear(4, 3, bias=False), nn.Conv1d(4, 3, 1, bias=False)):
        lp.convert(layer, recipe)
    lp.convert(nn.GRU(4, 3, bias=False), recipe)
    lp.convert(nn.LayerNorm((2, 3)), {nn.LayerNorm: recipe})


def test_a_precision_along_an_axis_that_is_not_there_changes_no_layer() -> None:
    first, second = (lp.Recipe(weight="e4m3", **more) for more in ({}, {"bias": "e5m2"}))
    model = nn.Sequential(lp.nn.Linear(4, 4, recipe=first), lp.nn.Linear(4, 4, recipe=second))
    match = r"set_precision: Linear '0': block4_axis2_e2m1 .* linear's weight has 2 dimensions"
    with pytest.raises(ValueError, match=match):
        lp.set_precision(model, 4, None, formats={4: "block4_axis2_e2m1"})
    with pytest.raises(ValueError, match="set_precision: Linear: block4_axis2_e2m1 runs along"):
        model[0].set_precision(4, None, formats={4: "block4_axis2_e2m1"})
    assert [layer.recipe for layer in model] == [first, second]


def test_a_refused_call_leaves_the_running_range_as_it_is() -> None:
    recipe = lp.Recipe(input="affine8", output="affine8_axis2", input_range="running:0.9")
    layer = lp.nn.Linear(4, 3, recipe=recipe)
    with pytest.raises(ValueError, match="linear's output has 2 dimensions"):
        layer(torch.ones(2, 4))
    assert not layer.input_range_weight
    layer(torch.ones(2, 5, 4))
    assert layer.input_range_weight


def test_a_compiled_layer_refuses_as_an_eager_one() -> None:
    layer = lp.nn.Linear(4, 3, recipe=lp.Recipe(input="affine4_axis2"))
    whole = torch.compile(layer, backend="eager", fullgraph=True)
    assert whole(torch.ones(2, 5, 4)).shape == (2, 5, 3)
    compiled = torch.compile(layer, backend="eager")
    match = "linear: affine4_axis2 runs along axis 2, but linear's input has 2 dimensions"
    with pytest.raises(ValueError, match=match):
        compiled(torch.ones(2, 4))
