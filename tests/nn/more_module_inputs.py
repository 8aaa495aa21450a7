"""Inputs of layers that torch's own lists (common_modules) leave out."""

from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.testing._internal.common_modules import FunctionInput, ModuleInput


def _leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape).requires_grad_()


def _input(desc: str, constructor: FunctionInput, *args: Any, **kwargs: Any) -> ModuleInput:
    return ModuleInput(constructor, FunctionInput(*args, **kwargs), desc=desc)


def _packed(features: int, enforce_sorted: bool) -> PackedSequence:
    lengths = torch.tensor([4, 2, 1] if enforce_sorted else [2, 4, 1])
    packed = pack_padded_sequence(torch.randn(4, 3, features), lengths, False, enforce_sorted)
    return PackedSequence(packed.data.detach().requires_grad_(), *packed[1:])


def _recurrent(name: str) -> list[ModuleInput]:
    options = {"projections": {"proj_size": 2}} if name == "LSTM" else {}
    if name == "RNN":
        options["relu"] = {"nonlinearity": "relu"}
    found = [
        _input("packed", FunctionInput(3, 4), _packed(3, True)),
        _input("packed unsorted", FunctionInput(3, 4, 2, bidirectional=True), _packed(3, False)),
        _input("dropout", FunctionInput(3, 4, 3, dropout=0.5), _leaf(4, 2, 3)),
    ]
    return found + [
        _input(f"packed {key}", FunctionInput(3, 4, **more), _packed(3, True))
        for key, more in options.items()
    ]


def _attention() -> list[ModuleInput]:
    query, key, value = _leaf(2, 3, 4), _leaf(2, 5, 6), _leaf(2, 5, 2)
    masks = {
        "attn_mask": torch.rand(3, 5) < 0.3,
        "key_padding_mask": torch.tensor([[False] * 4 + [True], [False] * 5]),
    }
    other = FunctionInput(4, 2, kdim=6, vdim=2, batch_first=True)
    plain = FunctionInput(4, 2, batch_first=True)
    causal = torch.nn.Transformer.generate_square_subsequent_mask(3)
    return [
        _input("other sizes, masks", other, query, key, value, **masks),
        _input("no weights", other, query, key, value, need_weights=False),
        _input("all heads", other, query, key, value, average_attn_weights=False),
        _input("causal", plain, *[_leaf(2, 3, 4)] * 3, attn_mask=causal, is_causal=True),
        _input("dropout", FunctionInput(4, 2, dropout=0.5), *[_leaf(3, 2, 4)] * 3),
    ]


def _convolution(dims: int) -> list[ModuleInput]:
    x = _leaf(2, 4, *(6, 5, 4)[:dims])
    strided = FunctionInput(4, 6, 2, stride=2, padding=1, dilation=2, groups=2)
    modes = [
        _input(mode, FunctionInput(4, 3, 3, padding=1, padding_mode=mode, bias=False), x)
        for mode in ("reflect", "replicate", "circular")
    ]
    same = _input("same dilated", FunctionInput(4, 3, 2, padding="same", dilation=2), x)
    valid = _input("valid", FunctionInput(4, 3, 2, padding="valid"), x)
    return [_input("strided groups", strided, x), same, valid, *modes]


def _transposed(dims: int) -> list[ModuleInput]:
    x = _leaf(2, 4, *(4, 3, 2)[:dims])
    options = {"stride": 3, "padding": 1, "output_padding": 2, "groups": 2, "dilation": 2}
    sized = FunctionInput(4, 3, 3, stride=2, bias=False)
    return [
        _input("strided groups", FunctionInput(4, 6, 2, **options), x),
        _input("output size", sized, x, output_size=[2 * n + 2 for n in x.shape[2:]]),
    ]


def _embedding() -> list[ModuleInput]:
    rows = torch.tensor([[1, 3, 1], [0, 2, 1]])
    return [
        _input("padding", FunctionInput(4, 3, padding_idx=1), rows),
        _input("frequencies", FunctionInput(4, 3, scale_grad_by_freq=True), rows),
        _input("norms", FunctionInput(4, 3, max_norm=1.0), rows),
    ]


def more_inputs(name: str) -> list[ModuleInput]:
    """The further inputs of the class of this name; a lazy form has none of its own."""
    if name in ("LSTM", "GRU", "RNN"):
        return _recurrent(name)
    if name.startswith("ConvTranspose"):
        return _transposed(int(name[-2]))
    if name.startswith("Conv"):
        return _convolution(int(name[-2]))
    others = {"MultiheadAttention": _attention, "Embedding": _embedding}
    return others[name]() if name in others else []
