"""The layers: each derives from a class of torch.nn and computes by a recipe.

A layer has two bases: a mixin of this file, whose ``forward`` calls a function of
`lpkernels.functional`, and torch.nn's class, which has all else. The constructor takes the
arguments of torch.nn's class, as the installed torch has them, and ``recipe``. Type checkers read
``__init__.pyi``, where the arguments are written out. A mixin's docstring is part of the public
docstring of its layers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels import functional
from lpkernels.arithmetic import ANY_RANK, NO_PRODUCT, Ranks, Recipe, check_axes
from lpkernels.functional.attention import apart
from lpkernels.functional.attention import ranks as attention_ranks
from lpkernels.functional.cells import ranks as recurrent_ranks
from lpkernels.functional.conv import ranks as conv_ranks
from lpkernels.functional.dtypes import widened
from lpkernels.functional.products import bilinear_ranks
from lpkernels.functional.tabled import tabled
from lpkernels.functional.torch_calls import own
from lpkernels.nn.calls import Calls
from lpkernels.nn.emulated import Emulated, recipe_name
from lpkernels.nn.ranges_and_scales import OneInput
from lpkernels.nn.torch_functions import EMULATIONS, names_of
from lpkernels.recipes import as_recipe

#: {torch.nn's class: the class that emulates it}; `_layer` adds to it.
LAYERS: dict[type, Any] = {}

# The part of a docstring that all layers have.
_SHARED = """

Arguments are torch's own, as there: https://docs.pytorch.org/docs/stable/generated/torch.nn.{name}.html

Args:
    recipe: a Recipe or its name; the default is torch's own arithmetic. It is an attribute, which
        may be assigned at any time.

Parameters, buffers, initial values, state_dict keys and the call are torch's too. Where the recipe
rounds, tensors are float32, or float16 and bfloat16, which are widened exactly. Results are in
float32, or in such a dtype that all tensors have. NaN and overflow follow docs/contract.md.

Raises:
    TypeError: recipe is no Recipe and no name. A call: float64 tensors, which no recipe rounds.
    ValueError: a name that no recipe has; a format along an axis that a tensor of the layer lacks,
        or along "k" where the layer is no matrix product; `scaling` in a recipe of another layer
        than linear ones and convolutions. A call: shapes that do not fit.
"""


def _layer(name: str, mixin: type, functions: str, **attributes: Any) -> Any:
    """The layer that has a name in torch.nn and the forward of a mixin.

    functions: the names of the functions of `lpkernels.functional` that compute it; the first
        is the layer's ``_function``.
    """
    plain = getattr(torch.nn, name)
    names = functions.split()
    computed = " or ".join(f"``lpkernels.functional.{function}``" for function in names)
    # The mixin's own words, if it has any.
    note = inspect.cleandoc(mixin.__doc__ or "")
    doc = f"``torch.nn.{name}`` computed by {computed}.\n\n{note}"
    attributes["_function"] = staticmethod(getattr(functional, names[0]))
    if issubclass(mixin, _OfAttributes):
        attributes["_attribute_names"] = [
            x for x in names_of(names[0]) if not x.startswith("input")
        ]
    return _with_recipe((mixin, plain), plain, doc, attributes)


def _lazy_layer(layer: Any) -> Any:
    """The lazy form of a layer, which becomes the layer with the first input."""
    plain = getattr(torch.nn, f"Lazy{layer.__name__}")
    head = f"``torch.nn.{plain.__name__}`` that becomes ``lpkernels.nn.{layer.__name__}`` with the "
    return _with_recipe((plain, layer), plain, f"{head}first input.", {"cls_to_become": layer})


def _with_recipe(bases: Any, plain: type, doc: str, attributes: dict[str, Any]) -> Any:
    """A class of these bases with plain's name and constructor, which takes a recipe too."""

    def __init__(self: Any, *args: Any, recipe: Recipe | str = "fp32", **kwargs: Any) -> None:
        super(layer, self).__init__(*args, **kwargs)
        self.recipe = recipe

    signature = inspect.signature(plain.__init__)  # type: ignore[misc]
    option = inspect.signature(__init__).parameters["recipe"]
    arguments = list(signature.parameters.values())
    place = next((i for i, p in enumerate(arguments) if p.kind is p.VAR_KEYWORD), len(arguments))
    arguments.insert(place, option)
    __init__.__signature__ = signature.replace(parameters=arguments)  # type: ignore[attr-defined]
    namespace = {
        "__module__": "lpkernels.nn",
        "__doc__": doc.rstrip() + _SHARED.format(name=plain.__name__),
        "__init__": __init__,
        **attributes,
    }
    layer: Any = type(plain.__name__, bases, namespace)
    LAYERS[plain] = layer
    return layer


class _OfAttributes(Emulated):
    """A layer whose function takes the layer's attributes, by their names, behind the input."""

    #: The names of these attributes.
    _attribute_names: ClassVar[list[str]]

    def forward(self, input: Tensor) -> Tensor:
        return self._computed(input)

    def _computed(self, *inputs: Tensor) -> Tensor:
        attributes = {name: getattr(self, name) for name in self._attribute_names}
        y: Tensor = own(self._function, *inputs, **attributes, recipe=self._arithmetic)
        return y


class _Linear(OneInput):
    """
    >>> layer = lp.nn.Linear(4, 2, recipe=lp.Recipe(input="e4m3fn", weight="e4m3fn", fprop="e5m10"))
    >>> layer(torch.ones(3, 4)).shape
    torch.Size([3, 2])
    >>> layer.recipe = "bf16_mixed"
    >>> layer
    Linear(in_features=4, out_features=2, bias=True, recipe=bf16_mixed)
    """

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def _ranks(cls, layer: Any) -> tuple[Ranks, ...]:
        return (Ranks("linear", weight=2, bias=None if layer.bias is None else 1),)

    def forward(self, input: Tensor) -> Tensor:
        x, options = self._operand(input)
        y = own(functional.linear, x, self.weight, self.bias, **options)
        return y if x is input else self._narrowed(y, input)


class TransposedLinear(OneInput):
    """transformers' Conv1D: a linear layer whose weight is (in_features, out_features)."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def _ranks(cls, layer: Any) -> tuple[Ranks, ...]:
        return (Ranks("linear", weight=2, bias=1),)

    def forward(self, x: Tensor) -> Tensor:
        operand, options = self._operand(x)
        y = own(functional.linear, operand, self.weight.t(), self.bias, **options)
        return y if operand is x else self._narrowed(y, x)


class _Bilinear(_OfAttributes):
    @classmethod
    def _ranks(cls, layer: Any) -> tuple[Ranks, ...]:
        return bilinear_ranks(layer.bias)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:  # type: ignore[override]
        return self._computed(input1, input2)


class _Convolution(OneInput):
    """The common part of convolutions and transposed ones."""

    _function: ClassVar[Callable[..., Tensor]]
    weight: Tensor
    bias: Tensor | None
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Any
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def _ranks(cls, layer: Any) -> tuple[Ranks, ...]:
        return (conv_ranks(cls._function.__name__, len(layer.kernel_size), layer.bias),)


class _Conv(_Convolution):
    """With a padding_mode other than "zeros" the input is padded first: the recipe quantises the
    padded input, and where several of its gradients belong to one element they are added in
    float32.

    >>> layer = lp.nn.Conv2d(3, 8, 3, padding=1, recipe="hfp8_sun2019")
    >>> layer(torch.ones(1, 3, 5, 5)).shape
    torch.Size([1, 8, 5, 5])
    """

    padding_mode: str
    _reversed_padding_repeated_twice: list[int]

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x, padding = input, self.padding
        if self.padding_mode != "zeros":
            x, padding = input if self._arithmetic.is_torch else widened(input), 0
            x = F.pad(x, self._reversed_padding_repeated_twice, mode=self.padding_mode)
        x, options = self._operand(x)
        geometry = (self.stride, padding, self.dilation, self.groups)
        y = own(self._function, x, weight, bias, *geometry, **options)
        return y if x is input else self._narrowed(y, input)


class _ConvTranspose(_Convolution):
    _output_padding: Callable[..., list[int]]

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        sizes = (self.stride, self.padding, self.kernel_size, len(self.kernel_size), self.dilation)
        output_padding = self._output_padding(input, output_size, *sizes)
        geometry = (self.stride, self.padding, output_padding, self.groups, self.dilation)
        x, options = self._operand(input)
        y = own(self._function, x, self.weight, self.bias, *geometry, **options)
        return y if x is input else self._narrowed(y, input)


class _Embedding(_OfAttributes):
    """Of the recipe only `weight`, `output`, `grad_output` and `grad_weight` matter. Layers by
    ``from_pretrained`` have torch's own arithmetic.
    """

    _has_products = False

    @classmethod
    def _ranks(cls, layer: Any) -> tuple[Ranks, ...]:
        return (Ranks("embedding", weight=2, output=ANY_RANK, no_k=NO_PRODUCT),)


class _MultiheadAttention(Emulated):
    """It is computed so in training and in evaluation.

    The recipe is for the projections, out_proj's among them, and for both products of the
    attention; `attention_recipe` gives these two products a recipe of their own. As in torch,
    out_proj holds parameters and is never called. Nested tensors are taken by a recipe that is
    torch's arithmetic only.
    """

    # The attributes that torch's function takes by their names.
    _attribute_names = (
        "num_heads in_proj_weight in_proj_bias bias_k bias_v add_zero_attn training q_proj_weight "
        "k_proj_weight v_proj_weight"
    ).split()
    # The recipe of the attention's products where it differs from the layer's, and its traced form.
    _attention: tuple[Recipe, Recipe] | None = None

    @property
    def attention_recipe(self) -> Recipe:
        """How the layer multiplies query and key, and weights and value, between its projections.

        It is `recipe`, unless a Recipe or a name is assigned; assigning `recipe` takes it back.
        """
        return self._recipe if self._attention is None else self._attention[0]

    @attention_recipe.setter
    def attention_recipe(self, recipe: Recipe | str) -> None:
        recipe = as_recipe(recipe)
        if recipe.axes:
            check_axes(recipe, self._ranks(self)[1])
        self._refuse_scaling(recipe)
        self._attention = (recipe, tabled(recipe))

    def _assign(self, recipe: Recipe) -> None:
        super()._assign(recipe)
        vars(self).pop("_attention", None)

    def extra_repr(self) -> str:
        text = super().extra_repr()
        if self._attention is None:
            return text
        return f"{text}, attention_recipe={recipe_name(self.attention_recipe)}"

    @classmethod
    def _ranks(cls, layer: Any) -> tuple[Ranks, ...]:
        return attention_ranks(layer.in_proj_bias, layer.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        layer: Any = self
        recipe = self._arithmetic
        inner = None if self._attention is None else self._attention[recipe is self._tabled]
        if recipe.is_torch and (inner is None or inner.is_torch):
            masks = (key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
            torchs: tuple[Tensor, Tensor | None] = super().forward(query, key, value, *masks)
            return torchs
        transposed = layer.batch_first and query.dim() == 3
        if transposed:
            query, key, value = (x.transpose(0, 1) for x in apart(query, key, value))
        y, weights = own(
            functional.multi_head_attention_forward, query, key, value,
            embed_dim_to_check=layer.embed_dim, dropout_p=layer.dropout,
            out_proj_weight=layer.out_proj.weight, out_proj_bias=layer.out_proj.bias,
            use_separate_proj_weight=not layer._qkv_same_embed_dim,
            key_padding_mask=key_padding_mask, need_weights=need_weights, attn_mask=attn_mask,
            average_attn_weights=average_attn_weights, is_causal=is_causal,
            recipe=recipe, attention_recipe=inner,
            **{name: getattr(layer, name) for name in self._attribute_names},
        )  # fmt: skip
        return y.transpose(0, 1) if transposed else y, weights


_CELLS = (torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell)
_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu, *_CELLS)


class _Recurrent(Emulated):
    """torch.nn's own forward checks and arranges; the function it ends in is emulated."""

    _functions: ClassVar = {function: EMULATIONS[function].emulated for function in _RECURRENT}

    @classmethod
    def _ranks(cls, layer: Any) -> tuple[Ranks, ...]:
        name = cls._function.__name__
        if getattr(layer, "nonlinearity", "tanh") == "relu":
            name = name.replace("tanh", "relu")
        return (recurrent_ranks(name, layer.bias),)

    def forward(self, input: Any, hx: Any = None) -> Any:
        with Calls(self._arithmetic, self._functions):
            return super().forward(input, hx)


# A layer that sums, but does not multiply by weights in its sums, or does neither.
class _WithoutProducts(_OfAttributes):
    _has_products = False
    _by_class_alone = True

    @classmethod
    def _ranks(cls, layer: Any) -> tuple[Ranks, ...]:
        return (Ranks(cls._function.__name__, ANY_RANK, output=ANY_RANK, no_k=NO_PRODUCT),)


class _Norm(_WithoutProducts):
    #: The rank of the input.
    _input_rank = ANY_RANK

    @classmethod
    def _ranks(cls, layer: Any) -> tuple[Ranks, ...]:
        rank = len(getattr(layer, "normalized_shape", (1,)))
        # RMSNorm has no bias.
        tensors = (layer.weight, getattr(layer, "bias", None))
        weight, bias = (None if tensor is None else rank for tensor in tensors)
        name, input = cls._function.__name__, cls._input_rank
        return (Ranks(name, input, weight, bias, input, NO_PRODUCT),)


class _BatchNorm(_Norm):
    """torch.nn's own forward keeps the statistics; the function it ends in is emulated."""

    _functions: ClassVar = {F.batch_norm: functional.batch_norm}

    def forward(self, input: Tensor) -> Tensor:
        with Calls(self._arithmetic, self._functions):
            y: Tensor = super(_OfAttributes, self).forward(input)  # torch.nn's
            return y


class _RMSNorm(_Norm):
    def forward(self, x: Tensor) -> Tensor:
        return self._computed(x)


class _Softmax(_WithoutProducts):
    """With dim None it is torch's own."""

    dim: int | None

    def forward(self, input: Tensor) -> Tensor:
        if self._arithmetic.is_torch or self.dim is None:
            y: Tensor = super(_OfAttributes, self).forward(input)  # torch.nn's
            return y
        return self._computed(input)


Linear = _layer("Linear", _Linear, "linear")
LazyLinear = _lazy_layer(Linear)
Bilinear = _layer("Bilinear", _Bilinear, "bilinear")
Conv1d, Conv2d, Conv3d = (_layer(f"Conv{n}d", _Conv, f"conv{n}d") for n in (1, 2, 3))
LazyConv1d, LazyConv2d, LazyConv3d = map(_lazy_layer, (Conv1d, Conv2d, Conv3d))
ConvTranspose1d, ConvTranspose2d, ConvTranspose3d = (
    _layer(f"ConvTranspose{n}d", _ConvTranspose, f"conv_transpose{n}d") for n in (1, 2, 3)
)
LazyConvTranspose1d, LazyConvTranspose2d, LazyConvTranspose3d = map(
    _lazy_layer, (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)
)
Embedding = _layer("Embedding", _Embedding, "embedding")
MultiheadAttention = _layer(
    "MultiheadAttention", _MultiheadAttention, "multi_head_attention_forward"
)
LSTM = _layer("LSTM", _Recurrent, "lstm")
GRU = _layer("GRU", _Recurrent, "gru")
RNN = _layer("RNN", _Recurrent, "rnn_tanh rnn_relu")
LSTMCell = _layer("LSTMCell", _Recurrent, "lstm_cell")
GRUCell = _layer("GRUCell", _Recurrent, "gru_cell")
RNNCell = _layer("RNNCell", _Recurrent, "rnn_tanh_cell rnn_relu_cell")
BatchNorm1d = _layer("BatchNorm1d", _BatchNorm, "batch_norm")
BatchNorm2d = _layer("BatchNorm2d", _BatchNorm, "batch_norm", _input_rank=4)
BatchNorm3d = _layer("BatchNorm3d", _BatchNorm, "batch_norm", _input_rank=5)
LayerNorm = _layer("LayerNorm", _Norm, "layer_norm")
GroupNorm = _layer("GroupNorm", _Norm, "group_norm")
RMSNorm = _layer("RMSNorm", _RMSNorm, "rms_norm")
Softmax = _layer("Softmax", _Softmax, "softmax")

#: torch.nn's layers without products, by the name of the function that computes them.
WITHOUT_PRODUCTS: dict[str, tuple[type, ...]] = {}
for _plain, _class in LAYERS.items():
    if not _class._has_products:
        _name = _class._function.__name__
        WITHOUT_PRODUCTS[_name] = (*WITHOUT_PRODUCTS.get(_name, ()), _plain)

__all__ = [layer.__name__ for layer in LAYERS.values()]
