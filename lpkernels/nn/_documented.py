"""The part of a docstring that every layer with a namesake in torch.nn has."""

import inspect
from typing import TypeVar

import torch

L = TypeVar("L", bound=type[torch.nn.Module])

_SHARED = """

Args:
    torch's own: as there,
        https://docs.pytorch.org/docs/stable/generated/torch.nn.{name}.html.
    recipe: a Recipe or its name; the default is torch's own arithmetic. It is an attribute, which
        may be assigned at any time.

Parameters, buffers, initial values, state_dict keys and the call are torch's too. Where the recipe
rounds, tensors are float32, or float16 and bfloat16, which are widened exactly, and results are
float32; NaN, infinity and overflow follow docs/contract.md.

Raises:
    TypeError: recipe is no Recipe and no name. A call: float64 tensors, which no recipe rounds.
    ValueError: a name that no recipe has; a format along an axis that a tensor of the layer lacks,
        or along "k" where the layer is no matrix product; `scaling` in a recipe of another layer
        than linear ones and convolutions. A call: shapes that do not fit.
"""


def like_torch(layer: L) -> L:
    """Adds the shared part to the docstring of a layer."""
    layer.__doc__ = inspect.cleandoc(layer.__doc__ or "") + _SHARED.format(name=layer.__name__)
    return layer
