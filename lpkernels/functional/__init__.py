"""Emulated arithmetic as functions: rounding, products, and torch's layers under a Recipe."""

from lpkernels.functional.attention import (
    multi_head_attention_forward,
    scaled_dot_product_attention,
)
from lpkernels.functional.conv import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from lpkernels.functional.layer import packed_activations
from lpkernels.functional.linear import linear
from lpkernels.functional.matmul import matmul
from lpkernels.functional.packing import pack, unpack
from lpkernels.functional.products import addmm, baddbmm, bilinear, bmm, einsum
from lpkernels.functional.quantize import count, quantize
from lpkernels.functional.recurrent import (
    gru,
    gru_cell,
    lstm,
    lstm_cell,
    rnn_relu,
    rnn_relu_cell,
    rnn_tanh,
    rnn_tanh_cell,
)
from lpkernels.functional.scaled import Scaled, scaled
from lpkernels.functional.seeds import seed_from
from lpkernels.functional.without_products import (
    batch_norm,
    embedding,
    group_norm,
    layer_norm,
    rms_norm,
    softmax,
)

__all__ = [
    "Scaled",
    "addmm",
    "baddbmm",
    "batch_norm",
    "bilinear",
    "bmm",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "count",
    "einsum",
    "embedding",
    "group_norm",
    "gru",
    "gru_cell",
    "layer_norm",
    "linear",
    "lstm",
    "lstm_cell",
    "matmul",
    "multi_head_attention_forward",
    "pack",
    "packed_activations",
    "quantize",
    "rms_norm",
    "rnn_relu",
    "rnn_relu_cell",
    "rnn_tanh",
    "rnn_tanh_cell",
    "scaled",
    "scaled_dot_product_attention",
    "seed_from",
    "softmax",
    "unpack",
]
