"""The tensors that a recipe rounds, the axes of their formats, and whether a layer has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from lpkernels.formats.grids import axis_alone, misfit
from lpkernels.formats.integers import AXIS_K, KIND, InBlock, Ints, counted_rank
from lpkernels.formats.integers import axis as axis_of

if TYPE_CHECKING:
    from lpkernels.arithmetic._quantizer import Quantizer
    from lpkernels.arithmetic._recipe import Recipe


class Tensor(NamedTuple):
    """A tensor that a quantizer of a recipe rounds.

    Attributes:
        rank: the tensor of the forward pass whose rank it has.
        products: the products that read it, or the one that makes it.
        along: of an operand the axis that its product sums, as a linear layer has operands: x (N,
            I), w (O, I), g (N, O); None: no operand.
        general: the quantizer that holds where this one, of one product alone, is None.
    """

    rank: str
    products: tuple[str, ...]
    along: int | None = None
    general: str | None = None


#: The quantizers of a recipe, by field.
TENSORS = {
    "input": Tensor("input", ("fprop", "wgrad"), -1),
    "weight": Tensor("weight", ("fprop", "dgrad"), -1),
    "bias": Tensor("bias", ("fprop",)),
    "output": Tensor("output", ("fprop",)),
    "grad_output": Tensor("output", ("dgrad", "wgrad"), -1),
    "grad_input": Tensor("input", ("dgrad",)),
    "grad_weight": Tensor("weight", ("wgrad",)),
    "dgrad_weight": Tensor("weight", ("dgrad",), -2, "weight"),
    "wgrad_input": Tensor("input", ("wgrad",), -2, "input"),
    "wgrad_grad_output": Tensor("output", ("wgrad",), -2, "grad_output"),
}

#: `Ranks.no_k` of layers without matrix products.
NO_PRODUCT = (
    "there is none; leave the layer out (exclude= of lp.convert; in a whole model the name of a "
    "method, such as 'mxfp8', does so), or give the dimension, such as axis=-1"
)
#: The rank, in layers without matrix products, that only a call tells: torch has no tensor of more
#: dimensions, so that every axis but "k" may be there.
ANY_RANK = 64


class Axis(NamedTuple):
    """A quantizer of a recipe whose format has an axis.

    Attributes:
        quantizer: the field of the recipe.
        fmt: the format's integers as `misfit` reads them, so that compiled graphs hold nothing of
            the format but its axis.
    """

    quantizer: str
    fmt: Ints


class Ranks(NamedTuple):
    """The number of dimensions of each tensor that a kind of layer rounds.

    None stands for an absent tensor, and for one whose rank only a call tells. A gradient has the
    rank of its tensor.

    Attributes:
        layer: the name of the layer in errors.
        input, weight, bias, output: the ranks.
        no_k: why no blocks can run along "k" there, and how to do without; "" where the layer is a
            matrix product, and they can.
    """

    layer: str
    input: int | None = None
    weight: int | None = None
    bias: int | None = None
    output: int | None = None
    no_k: str = ""


def axes(quantizers: Iterable[tuple[str, Quantizer]]) -> tuple[Axis, ...]:
    """An Axis for each of the `quantizers`, (field, quantizer), whose format has one."""
    formats = ((name, quantizer.to_ints()) for name, quantizer in quantizers)
    return tuple([Axis(name, axis_alone(fmt)) for name, fmt in formats if axis_of(fmt) is not None])


def check_axes(recipe: Recipe, *ranks: Ranks, owner: str = "") -> None:
    """Checks that every tensor has the axis along which the recipe rounds it.

    Args:
        recipe: the recipe of the layer.
        ranks: of the tensors of a layer; several where its products differ.
        owner: begins the error; "" is the kind of the layer.

    Raises:  ValueError: a tensor lacks an axis.
    """
    for name, fmt in recipe.axes:
        for layer in ranks:
            rank = getattr(layer, TENSORS[name].rank)
            if rank is None or (fmt[InBlock.AXIS] == AXIS_K and not layer.no_k):
                continue
            if fmt[InBlock.AXIS] == AXIS_K:
                raise ValueError(
                    f"{owner or layer.layer}: {name}={getattr(recipe, name).fmt} has blocks along "
                    f"'k', the summed dimension of a matrix product, but {layer.no_k}"
                )
            problem = misfit(fmt, rank)
            if problem is not None:
                rank = counted_rank(fmt[KIND], rank)
                has = f"{layer.layer}'s {name} has {rank} dimension{'' if rank == 1 else 's'}"
                raise problem.error(owner or layer.layer, getattr(recipe, name).fmt, has)
