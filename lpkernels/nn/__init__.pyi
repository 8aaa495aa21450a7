"""What type checkers read of `lpkernels.nn`, whose layers take the arguments of torch as it runs.

tests/nn/test_module_inputs.py compares them.
"""

from typing import Literal

import torch
from torch import Tensor

from lpkernels.arithmetic import Recipe
from lpkernels.nn import observing as observing
from lpkernels.nn.convert import convert as convert
from lpkernels.nn.convert import revert as revert
from lpkernels.nn.convert import set_precision as set_precision
from lpkernels.nn.convert import set_recipe as set_recipe
from lpkernels.nn.emulated import Emulated
from lpkernels.nn.layers import OneInput
from lpkernels.nn.policies import Policy as Policy
from lpkernels.nn.scaling import calibrate as calibrate
from lpkernels.nn.scaling import update_scales as update_scales
from lpkernels.nn.selecting import FIRST as FIRST
from lpkernels.nn.selecting import FUNCTIONS as FUNCTIONS
from lpkernels.nn.selecting import GATES as GATES
from lpkernels.nn.selecting import LAST as LAST
from lpkernels.nn.selecting import NotEmulatedWarning as NotEmulatedWarning
from lpkernels.nn.summary import Summary as Summary
from lpkernels.nn.summary import summary as summary

_Device = torch.device | str | int | None
_DType = torch.dtype | None
_Size = int | tuple[int, ...]
_Sizes = int | list[int] | torch.Size
_PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]

# fmt: off
class Linear(OneInput, torch.nn.Linear):
    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: _Device = None,
        dtype: _DType = None, *, recipe: Recipe | str = "fp32",
    ) -> None: ...

class LazyLinear(torch.nn.LazyLinear, Linear):
    def __init__(
        self, out_features: int, bias: bool = True, device: _Device = None, dtype: _DType = None,
        *, recipe: Recipe | str = "fp32",
    ) -> None: ...

class Bilinear(Emulated, torch.nn.Bilinear):
    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, bias: bool = True,
        device: _Device = None, dtype: _DType = None, *, recipe: Recipe | str = "fp32",
    ) -> None: ...

class _Conv(OneInput):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: _Size, stride: _Size = 1,
        padding: _Size | str = 0, dilation: _Size = 1, groups: int = 1, bias: bool = True,
        padding_mode: _PaddingMode = "zeros", device: _Device = None, dtype: _DType = None,
        *, recipe: Recipe | str = "fp32",
    ) -> None: ...

class _LazyConv:
    def __init__(
        self, out_channels: int, kernel_size: _Size, stride: _Size = 1,
        padding: _Size | str = 0, dilation: _Size = 1, groups: int = 1, bias: bool = True,
        padding_mode: _PaddingMode = "zeros", device: _Device = None, dtype: _DType = None,
        *, recipe: Recipe | str = "fp32",
    ) -> None: ...

class Conv1d(_Conv, torch.nn.Conv1d): ...
class Conv2d(_Conv, torch.nn.Conv2d): ...
class Conv3d(_Conv, torch.nn.Conv3d): ...
class LazyConv1d(_LazyConv, torch.nn.LazyConv1d, Conv1d): ...  # type: ignore[misc]
class LazyConv2d(_LazyConv, torch.nn.LazyConv2d, Conv2d): ...  # type: ignore[misc]
class LazyConv3d(_LazyConv, torch.nn.LazyConv3d, Conv3d): ...  # type: ignore[misc]

class _ConvTranspose(OneInput):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: _Size, stride: _Size = 1,
        padding: _Size = 0, output_padding: _Size = 0, groups: int = 1, bias: bool = True,
        dilation: _Size = 1, padding_mode: _PaddingMode = "zeros", device: _Device = None,
        dtype: _DType = None, *, recipe: Recipe | str = "fp32",
    ) -> None: ...

class _LazyConvTranspose:
    def __init__(
        self, out_channels: int, kernel_size: _Size, stride: _Size = 1,
        padding: _Size = 0, output_padding: _Size = 0, groups: int = 1, bias: bool = True,
        dilation: _Size = 1, padding_mode: _PaddingMode = "zeros", device: _Device = None,
        dtype: _DType = None, *, recipe: Recipe | str = "fp32",
    ) -> None: ...

class ConvTranspose1d(_ConvTranspose, torch.nn.ConvTranspose1d): ...
class ConvTranspose2d(_ConvTranspose, torch.nn.ConvTranspose2d): ...
class ConvTranspose3d(_ConvTranspose, torch.nn.ConvTranspose3d): ...
class LazyConvTranspose1d(_LazyConvTranspose, torch.nn.LazyConvTranspose1d, ConvTranspose1d): ...  # type: ignore[misc]
class LazyConvTranspose2d(_LazyConvTranspose, torch.nn.LazyConvTranspose2d, ConvTranspose2d): ...  # type: ignore[misc]
class LazyConvTranspose3d(_LazyConvTranspose, torch.nn.LazyConvTranspose3d, ConvTranspose3d): ...  # type: ignore[misc]

class Embedding(Emulated, torch.nn.Embedding):
    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
        max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
        sparse: bool = False, _weight: Tensor | None = None, _freeze: bool = False,
        device: _Device = None, dtype: _DType = None, *, recipe: Recipe | str = "fp32",
    ) -> None: ...

class MultiheadAttention(Emulated, torch.nn.MultiheadAttention):
    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
        add_bias_kv: bool = False, add_zero_attn: bool = False, kdim: int | None = None,
        vdim: int | None = None, batch_first: bool = False, device: _Device = None,
        dtype: _DType = None, *, recipe: Recipe | str = "fp32",
    ) -> None: ...
    @property
    def attention_recipe(self) -> Recipe: ...
    @attention_recipe.setter
    def attention_recipe(self, recipe: Recipe | str) -> None: ...

class _Recurrent(Emulated):
    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        proj_size: int = 0, device: _Device = None, dtype: _DType = None,
        *, recipe: Recipe | str = "fp32",
    ) -> None: ...

class LSTM(_Recurrent, torch.nn.LSTM): ...
class GRU(_Recurrent, torch.nn.GRU): ...

class RNN(Emulated, torch.nn.RNN):
    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh",
        bias: bool = True, batch_first: bool = False, dropout: float = 0.0,
        bidirectional: bool = False, device: _Device = None, dtype: _DType = None,
        *, recipe: Recipe | str = "fp32",
    ) -> None: ...

class _GatedCell(Emulated):
    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: _Device = None,
        dtype: _DType = None, *, recipe: Recipe | str = "fp32",
    ) -> None: ...

class LSTMCell(_GatedCell, torch.nn.LSTMCell): ...
class GRUCell(_GatedCell, torch.nn.GRUCell): ...

class RNNCell(Emulated, torch.nn.RNNCell):
    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh",
        device: _Device = None, dtype: _DType = None, *, recipe: Recipe | str = "fp32",
    ) -> None: ...

class _BatchNorm(Emulated):
    # torch takes bias from 2.13 on.
    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
        affine: bool = True, track_running_stats: bool = True, device: _Device = None,
        dtype: _DType = None, *, bias: bool = True, recipe: Recipe | str = "fp32",
    ) -> None: ...

class BatchNorm1d(_BatchNorm, torch.nn.BatchNorm1d): ...
class BatchNorm2d(_BatchNorm, torch.nn.BatchNorm2d): ...
class BatchNorm3d(_BatchNorm, torch.nn.BatchNorm3d): ...

class LayerNorm(Emulated, torch.nn.LayerNorm):
    def __init__(
        self, normalized_shape: _Sizes, eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, device: _Device = None, dtype: _DType = None,
        *, recipe: Recipe | str = "fp32",
    ) -> None: ...

class RMSNorm(Emulated, torch.nn.RMSNorm):
    def __init__(
        self, normalized_shape: _Sizes, eps: float | None = None, elementwise_affine: bool = True,
        device: _Device = None, dtype: _DType = None, *, recipe: Recipe | str = "fp32",
    ) -> None: ...

class GroupNorm(Emulated, torch.nn.GroupNorm):
    # torch takes bias from 2.13 on.
    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True,
        device: _Device = None, dtype: _DType = None, *, bias: bool = True,
        recipe: Recipe | str = "fp32",
    ) -> None: ...

class Softmax(Emulated, torch.nn.Softmax):
    def __init__(self, dim: int | None = None, *, recipe: Recipe | str = "fp32") -> None: ...
