"""The two ends of a model as patterns."""

from __future__ import annotations

from enum import Enum

from torch.nn import Module

from lpkernels.nn import _classes


class Position(Enum):
    """A pattern for the layer at one end of a model: ``lp.nn.FIRST`` or ``lp.nn.LAST``.

    The layers that count are those that multiply by weights of their own: torch.nn.Linear,
    Bilinear, convolutions, transposed ones, MultiheadAttention, recurrent layers and their cells,
    and transformers' Conv1D, converted or not, selected or not. The order is that in which the
    model registers them, ``named_modules``'s; a layer registered twice stands where it comes first.
    That is the order of the calls in most models, but not in all: where a model registers its head
    before its body, name the layer instead. An Embedding multiplies nothing and is not counted, so
    FIRST of a language model is the layer behind it. Products that a forward calls as functions are
    not counted either. An attention or recurrent layer is one layer, with several products.

    A model has one first and one last layer. If it holds several networks, as a GAN does, FIRST is
    in the network registered first and LAST in the last; convert such networks one by one. If a
    model has a single layer, that layer is both.
    """

    FIRST = "first"
    LAST = "last"

    def __repr__(self) -> str:
        return self.name


FIRST = Position.FIRST
LAST = Position.LAST


def ends(model: Module) -> dict[Module, frozenset[Position]]:
    """The first and the last layer of a model, with the positions of each; empty if none counts."""
    found = [module for module in model.modules() if _classes.multiplies(module)]
    if not found:
        return {}
    first, last = found[0], found[-1]
    if first is last:
        return {first: frozenset(Position)}
    return {first: frozenset({FIRST}), last: frozenset({LAST})}
