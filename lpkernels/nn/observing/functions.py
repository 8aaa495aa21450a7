"""The functions of torch that layers compute: their names, and the names of their arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from torch import nn
from torch.nn import functional as F

_CONV = "input weight bias stride padding dilation groups"
_CONV_TRANSPOSE = "input weight bias stride padding output_padding groups dilation"
_RECURRENT = "input hx params has_biases num_layers dropout train bidirectional batch_first"
_PACKED = "data batch_sizes hx params has_biases num_layers dropout train bidirectional"
_CELL = "input hx w_ih w_hh b_ih b_hh"
_KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_NAMES: dict[str, str] = {
    "matmul": "input other",
    # The method of the right operand, `w.__rmatmul__(x)`; it is reported as a matmul.
    "rmatmul": "other input",
    "mm": "input mat2",
    "bmm": "input mat2",
    "mv": "input vec",
    "addmm": "input mat1 mat2",
    "baddbmm": "input batch1 batch2",
    "einsum": "equation",
    "linear": "input weight bias",
    "bilinear": "input1 input2 weight bias",
    **dict.fromkeys([f"conv{d}d" for d in (1, 2, 3)], _CONV),
    **dict.fromkeys([f"conv_transpose{d}d" for d in (1, 2, 3)], _CONV_TRANSPOSE),
    "scaled_dot_product_attention": (
        "query key value attn_mask dropout_p is_causal scale enable_gqa"
    ),
    **dict.fromkeys(_KINDS, _RECURRENT),
    **dict.fromkeys([f"{kind}_cell" for kind in _KINDS], _CELL),
}
_MULTI_HEAD = "multi_head_attention_forward"
# Products whose arguments are numbered, not named.
_OTHERS = (
    "tensordot", "conv_tbc", "convolution", "_convolution", "chain_matmul", "multi_dot", "addbmm",
    "addmv", "dot", "vdot", "inner", "vecdot", "matrix_power", "linear_cross_entropy",
    "addmm_", "addmv_", "addbmm_", "baddbmm_", "spmm", "dsmm", "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd", "_scaled_mm", "scaled_mm", "_grouped_mm", "grouped_mm",
    "sparse_mm", "smm", "sspaddmm", "hspmm",
)  # fmt: skip

PRODUCTS = frozenset({*_NAMES, _MULTI_HEAD, *_OTHERS} - {"rmatmul"})
"""The names of all functions that compute products."""

#: Functions without products that are emulated as the layers of these classes, and nowhere else.
WITHOUT_PRODUCTS: dict[str, tuple[type[nn.Module], ...]] = {
    "embedding": (nn.Embedding,),
    "batch_norm": (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
    "layer_norm": (nn.LayerNorm,),
    "group_norm": (nn.GroupNorm,),
    "rms_norm": (nn.RMSNorm,),
    "softmax": (nn.Softmax,),
    "gelu": (nn.GELU,),
}
LAYERS = PRODUCTS | WITHOUT_PRODUCTS.keys()
"""The names of all functions that layers of `lpkernels.nn` compute."""

_ARGUMENTS: dict[str, str] = {
    **_NAMES,
    "embedding": "input weight padding_idx max_norm norm_type scale_grad_by_freq sparse",
    "batch_norm": "input running_mean running_var weight bias training momentum eps",
    "layer_norm": "input normalized_shape weight bias eps",
    "group_norm": "input num_groups weight bias eps",
    "rms_norm": "input normalized_shape weight eps",
    "softmax": "input dim",
    "gelu": "input approximate",
}


class _Everything:
    def __contains__(self, name: object) -> bool:
        # torch calls these to read and write the attributes of a tensor.
        return name not in ("get", "set", "delete")


EVERYTHING: Container[str] = _Everything()
"""The names of all operations."""


def name_of(func: Any) -> str:
    """A function's name: without torch.linalg's prefix, the overload of torch.ops and underscores
    around (`__matmul__`).
    """
    name = getattr(func, "__name__", "").partition(".")[0]
    name = name.strip("_") if name.startswith("__") else name
    return name.removeprefix("linalg_")


def operation_of(name: str) -> str:
    """The operation that a function of this name computes."""
    return "matmul" if name == "rmatmul" else name


def arguments_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name; those without a name are "0", "1", ..."""
    names = _argument_names(name)
    if name in _KINDS and len(args) > 3 and isinstance(args[3], list | tuple):
        names = _PACKED.split()
    names = [*names, *map(str, range(len(names), len(args)))]
    # The operators of torch.ops call the first one "self".
    given = {"input" if key == "self" else key: value for key, value in kwargs.items()}
    return dict(zip(names, args, strict=False)) | given


def _argument_names(name: str) -> Sequence[str]:
    if name == _MULTI_HEAD:
        return _multi_head_names()
    return _ARGUMENTS.get(name, "").split()


@functools.cache
def _multi_head_names() -> tuple[str, ...]:
    function: Callable[..., Any] = F.multi_head_attention_forward
    return tuple(inspect.signature(function).parameters)
