"""Which tensors of a function of torch are inputs, and which are weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

_LEFT = frozenset("input input1 input2 data mat1 batch1 query key value hx".split())
_RIGHT = frozenset(
    "weight other mat2 batch2 vec w_ih w_hh in_proj_weight out_proj_weight q_proj_weight "
    "k_proj_weight v_proj_weight".split()
)
# In these functions "input" is the addend of their product.
_ADDING = ("addmm", "baddbmm", "addbmm", "addmv")
_NUMBER = re.compile(r"\.?\d+$")


@lru_cache(maxsize=4096)
def operands(operation: str, given: Sequence[tuple[str, int]]) -> tuple[tuple[str, str, str], ...]:
    """(argument's name, "input" or "weight", what a row shows of the name) of each tensor that is
    multiplied.

    given: names and numbers of dimensions of the floating-point arguments.
    """
    kinds = {name: _kind_of(operation, name, dimensions) for name, dimensions in given}
    found = []
    for kind in ("input", "weight"):
        names = [name for name in kinds if kinds[name] == kind]
        found += [(name, kind, name if len(names) > 1 else "") for name in names]
    return tuple(found)


def _kind_of(operation: str, name: str, dimensions: int) -> str:
    """ "input" or "weight"; "" for biases, masks and everything that no product multiplies."""
    if name == "input" and operation in _ADDING:
        return ""
    bare = _NUMBER.sub("", name)
    if bare == "params":
        # A recurrent layer has its biases among its weights.
        return "weight" if dimensions > 1 else ""
    if bare in _RIGHT:
        return "weight"
    # torch gives some arguments no name, but a number.
    return "input" if bare in _LEFT or not bare else ""
