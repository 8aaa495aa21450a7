"""A layer refuses a format along an axis that one of its tensors lacks as soon as it can know."""

import re

import pytest
from torch import nn

import lpkernels as lp
from tests.nn.layer_cases import LAYERS, converted, inputs

GRADIENTS = {"grad_input": "input", "grad_weight": "weight", "grad_output": "output"}
# The ranks of input, weight, bias and output; 0 stands for a rank that only a call tells.
KNOWN = {
    **{f"Conv{n}d": (n + 2, n + 2, 1, n + 2) for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": (n + 2, n + 2, 1, n + 2) for n in (1, 2, 3)},
    **dict.fromkeys(("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"), (2, 2, 1, 2)),
    "Linear": (0, 2, 1, 0), "Bilinear": (2, 2, 1, 2), "Embedding": (0, 2, 0, 0),
    "MultiheadAttention": (3, 2, 1, 3), "BatchNorm1d": (0, 1, 1, 0), "BatchNorm2d": (4, 1, 1, 4),
    "BatchNorm3d": (5, 1, 1, 5), **dict.fromkeys(("LayerNorm", "GroupNorm"), (0, 1, 1, 0)),
    "RMSNorm": (0, 1, 0, 0), **dict.fromkeys(("Softmax", "GELU"), (0, 0, 0, 0)),
}  # fmt: skip
KINDS = {
    "MultiheadAttention": "multi_head_attention_forward", "RNN": "rnn_relu",
    "RNNCell": "rnn_tanh_cell", **{f"BatchNorm{n}d": "batch_norm" for n in (1, 2, 3)},
    "RMSNorm": "rms_norm", "LSTMCell": "lstm_cell", "GRUCell": "gru_cell",
}  # fmt: skip


def kind(name: str) -> str:
    """The function that a layer computes by: conv_transpose2d of ConvTranspose2d."""
    return KINDS.get(name) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def known(name: str) -> dict[str, int]:
    found = dict(zip(("input", "weight", "bias", "output"), KNOWN[name], strict=True))
    found |= {gradient: found[of] for gradient, of in GRADIENTS.items()}
    return {tensor: rank for tensor, rank in found.items() if rank}


@pytest.mark.parametrize("name", LAYERS)
def test_where_a_rank_is_known_the_recipe_is_refused(name: str) -> None:
    layer = converted(name, lp.Recipe())
    for tensor, rank in known(name).items():
        for axis in (rank, -rank - 1):
            recipe = lp.Recipe(**{tensor: f"affine4_axis{axis}"})
            match = f"runs along axis {axis}, but {kind(name)}'s {tensor} has {rank} dimension"
            with pytest.raises(ValueError, match=f"^{kind(name)}: .*{match}"):
                layer.recipe = recipe
            with pytest.raises(ValueError, match=f"^convert: '': .*{match}"):
                converted(name, recipe)
    assert layer.recipe == lp.Recipe()


@pytest.mark.parametrize("name", LAYERS)
def test_no_layer_refuses_what_a_call_takes(name: str) -> None:
    tensors = known(name) or {"input": 1}
    for axes in ({t: rank - 1 for t, rank in tensors.items()}, {t: -tensors[t] for t in tensors}):
        recipe = lp.Recipe(**{t: f"block2_axis{axis}_e2m1" for t, axis in axes.items()})
        converted(name, recipe)(*inputs(name))


@pytest.mark.parametrize("name", ["deepseek_v3", "mxfp4_sr", "mxfp8"])
def test_a_layer_without_products_refuses_blocks_along_a_sum(name: str) -> None:
    match = "has blocks along 'k', the summed dimension of a matrix product, but there is none"
    with pytest.raises(ValueError, match=match):
        lp.nn.Softmax(-1, recipe=name)
    norm = nn.LayerNorm(4, elementwise_affine=False)
    for layer in (nn.Softmax(-1), nn.GELU(), nn.Embedding(4, 4), norm):
        with pytest.raises(ValueError, match=match):
            lp.convert(layer, {type(layer): name})


def test_a_tensor_that_a_layer_lacks_is_not_asked_for_its_axis() -> None:
    recipe = lp.Recipe(bias="affine4_axis1")
    for layer in (nn.Linear(4, 3, bias=False), nn.Conv1d(4, 3, 1, bias=False)):
        lp.convert(layer, recipe)
    lp.convert(nn.GRU(4, 3, bias=False), recipe)
    lp.convert(nn.LayerNorm((2, 3)), {nn.LayerNorm: recipe})
