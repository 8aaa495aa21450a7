"""Layers by their place in a model as patterns: its two ends, gates, calls of functions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

from torch.nn import Module

from lpkernels.nn import _classes


class Position(Enum):
    """A pattern for layers by their place: ``lp.nn.FIRST``, ``LAST``, ``GATES``, ``FUNCTIONS``.

    FUNCTIONS are the products that modules with a forward of their own call as functions, such as
    those of attention, and in a mapping the attention between the projections of
    torch.nn.MultiheadAttention too. GATES are modules that choose experts: the last part of the
    name is "gate", ends in "_gate" or has "router" in it; "gate_proj" of a gated linear unit is
    none. A model may have neither.

    FIRST and LAST are the layers at the ends of a model. The layers that count are those that
    multiply by weights of their own: torch.nn.Linear, Bilinear, convolutions, transposed ones,
    MultiheadAttention, recurrent layers and their cells, and transformers' Conv1D, converted or
    not, selected or not. The order is that in which the model registers them, ``named_modules``'s;
    a layer registered twice stands where it comes first. That is the order of the calls in most
    models, but not in all: where a model registers its head before its body, name the layer
    instead. An Embedding multiplies nothing and is not counted, so FIRST of a language model is the
    layer behind it. Products that a forward calls as functions are not counted either. An attention
    or recurrent layer is one layer, with several products.

    A model has one first and one last layer. If it holds several networks, as a GAN does, FIRST is
    in the network registered first and LAST in the last; convert such networks one by one. If a
    model has a single layer, that layer is both.
    """

    FIRST = "first"
    LAST = "last"
    GATES = "gates"
    FUNCTIONS = "functions"

    def __repr__(self) -> str:
        return self.name


FIRST = Position.FIRST
LAST = Position.LAST
GATES = Position.GATES
FUNCTIONS = Position.FUNCTIONS
_GATE = re.compile(r"(.*\.)?((\w*_)?gate|\w*router\w*)")


def ends(model: Module) -> dict[Module, frozenset[Position]]:
    """The first and the last layer of a model, with the positions of each; empty if none counts."""
    found = [module for module in model.modules() if _classes.multiplies(module)]
    if not found:
        return {}
    first, last = found[0], found[-1]
    if first is last:
        return {first: frozenset({FIRST, LAST})}
    return {first: frozenset({FIRST}), last: frozenset({LAST})}


def gates(names: Iterable[str]) -> frozenset[Position]:
    """GATES for a module that has such a name, else nothing."""
    return frozenset({GATES} if any(map(_GATE.fullmatch, names)) else ())
