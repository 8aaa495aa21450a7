"""Drop-in layers: torch.nn's modules under a Recipe, and the conversion of whole models."""

from typing import TYPE_CHECKING

from lpkernels._first_use import on_first_use
from lpkernels.nn._positions import FIRST, FUNCTIONS, GATES, LAST
from lpkernels.nn._staying import NotEmulatedWarning
from lpkernels.nn.activations import GELU, Softmax
from lpkernels.nn.attention import MultiheadAttention
from lpkernels.nn.conv import Conv1d, Conv2d, Conv3d, LazyConv1d, LazyConv2d, LazyConv3d
from lpkernels.nn.conv_transpose import (
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    LazyConvTranspose1d,
    LazyConvTranspose2d,
    LazyConvTranspose3d,
)
from lpkernels.nn.convert import convert, revert, set_precision, set_recipe
from lpkernels.nn.embedding import Embedding
from lpkernels.nn.linear import Bilinear, LazyLinear, Linear
from lpkernels.nn.norms import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    LayerNorm,
    RMSNorm,
)
from lpkernels.nn.policies import Policy
from lpkernels.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from lpkernels.nn.summary import Row, Summary, summary

__all__ = [
    "FIRST",
    "FUNCTIONS",
    "GATES",
    "GELU",
    "GRU",
    "LAST",
    "LSTM",
    "RNN",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Bilinear",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Embedding",
    "GRUCell",
    "GroupNorm",
    "LSTMCell",
    "LayerNorm",
    "LazyConv1d",
    "LazyConv2d",
    "LazyConv3d",
    "LazyConvTranspose1d",
    "LazyConvTranspose2d",
    "LazyConvTranspose3d",
    "LazyLinear",
    "Linear",
    "MultiheadAttention",
    "NotEmulatedWarning",
    "Policy",
    "RMSNorm",
    "RNNCell",
    "Row",
    "Softmax",
    "Summary",
    "calibrate",
    "convert",
    "revert",
    "set_precision",
    "set_recipe",
    "summary",
    "update_scales",
]

if TYPE_CHECKING:
    from lpkernels.nn import observing as observing
    from lpkernels.nn.scaling import calibrate, update_scales
else:
    _SCALING = {"calibrate": "scaling", "update_scales": "scaling"}
    __getattr__, __dir__ = on_first_use(__name__, ("observing",), _SCALING)
