"""The operators as a layer calls them: directly, or by torch's dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from lpkernels.backends import Parts
from lpkernels.ops import _packing, _products, _quantize
from lpkernels.ops._operator import is_direct


class Operators(NamedTuple):
    """The operators of a layer's products, by name; their arguments are positional."""

    multiply: Callable[..., Tensor]
    add_bias: Callable[..., Tensor]
    quantize: Callable[..., Tensor]
    scaled: Callable[..., Parts]
    dequantize: Callable[..., Tensor]
    pack: Callable[..., Tensor]
    encode: Callable[..., Tensor | None]
    unpack: Callable[..., Tensor]
    pack_parts: Callable[..., Tensor | None]
    unpack_parts: Callable[..., Parts]
    direct: bool = False


#: By torch's dispatcher wherever it has something to do.
DISPATCHED = Operators(
    _products.multiply,
    _products.add_bias,
    _quantize.quantize,
    _quantize.scaled,
    _packing.dequantize,
    _packing.pack,
    _packing.encode,
    _packing.unpack,
    _packing.pack_parts,
    _packing.unpack_parts,
)
#: For tensors that `is_direct` accepts, and for the results of these operators.
DIRECT = Operators(
    _products.multiply_directly,
    _products.add_bias_directly,
    _quantize.quantize_directly,
    _quantize.scaled_directly,
    _packing.dequantize_directly,
    _packing.pack_directly,
    _packing.encode_directly,
    _packing.unpack_directly,
    _packing.pack_parts_directly,
    _packing.unpack_parts_directly,
    direct=True,
)


def operators_for(*tensors: Tensor | None) -> Operators:
    """The operators for a call of a layer with these tensors."""
    return DIRECT if is_direct(*tensors) else DISPATCHED
