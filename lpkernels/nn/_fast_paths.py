"""torch's containers that read the weights of their layers, where these layers are emulated.

In evaluation torch computes a TransformerEncoderLayer by one function of its layers' weights, and a
TransformerEncoder makes a nested tensor of padded sequences for that function. An attribute of the
container switches each of these paths off. MultiheadAttention and LinearCrossEntropyLoss have a
linear layer that they never call. An emulated layer can get into a container in many ways, without
a call of `convert` on the container, so a container looks for such layers each time it is called.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Module

from lpkernels.nn.emulated import Emulated
from lpkernels.nn.layers import MultiheadAttention

_SWITCHES: dict[type[Module], str] = {
    torch.nn.TransformerEncoderLayer: "activation_relu_or_gelu",
    torch.nn.TransformerEncoder: "use_nested_tensor",
}
# Where a container keeps the value of its switch meanwhile.
_KEPT = "_value_without_lpkernels"

# The class of a container: its layer that it never calls, and what to do instead.
_UNCALLED: dict[type[Module], tuple[str, str]] = {
    torch.nn.MultiheadAttention: (
        "out_proj", "convert the attention, whose recipe is that of out_proj too",
    ),
}  # fmt: skip
if hasattr(torch.nn, "LinearCrossEntropyLoss"):
    _UNCALLED[torch.nn.LinearCrossEntropyLoss] = (
        "linear", "take a loss of the output of an emulated layer (cross_entropy)",
    )  # fmt: skip


def uncalled_layers(model: Module) -> dict[Module, str | None]:
    """The layers whose weights a container reads without a call, each with why it stays torch's.
    out_proj has no reason: its product has the recipe of the attention."""
    layers: dict[Module, str | None] = {}
    for container in model.modules():
        for kind, (attribute, _) in _UNCALLED.items():
            if isinstance(container, kind) and _is_own(container, kind):
                why = f"torch.nn.{kind.__name__} reads its weight and never calls it"
                layer = getattr(container, attribute)
                layers[layer] = None if kind is torch.nn.MultiheadAttention else why
    return layers


def set_fast_paths(model: Module) -> None:
    """Switches the fast path off in a container with an emulated layer; in others puts back its
    switch."""
    for container in model.modules():
        for kind, switch in _SWITCHES.items():
            if isinstance(container, kind):
                _set_switch(container, switch)


def _set_switch(container: Module, switch: str) -> None:
    if _has_emulated(container):
        if not hasattr(container, _KEPT):
            setattr(container, _KEPT, getattr(container, switch))
        setattr(container, switch, False)
    elif _KEPT in vars(container):
        setattr(container, switch, vars(container).pop(_KEPT))


def _has_emulated(module: Module) -> bool:
    """Whether a module below this one is emulated; faster than a loop over module.modules()."""
    below = [child for child in module._modules.values() if child is not None]
    return any([isinstance(child, Emulated) or _has_emulated(child) for child in below])


def _is_own(container: Module, kind: type[Module]) -> bool:
    """Whether the container has the forward that calls no layer, and no user's."""
    return type(container).forward in (kind.forward, MultiheadAttention.forward)


def _check(container: Any) -> None:
    for kind, switch in _SWITCHES.items():
        if isinstance(container, kind) and getattr(container, switch):
            _set_switch(container, switch)
    for kind, (attribute, advice) in _UNCALLED.items():
        layer = container._modules.get(attribute) if isinstance(container, kind) else None
        if isinstance(layer, Emulated) and _is_own(container, kind):
            raise ValueError(
                f"{kind.__name__} reads the weight of {attribute} and never calls it, so that the "
                f"recipe of this {type(layer).__name__} would do nothing; make {attribute} a layer "
                f"of torch.nn (lp.revert), and {advice}"
            )


def _checked_call(self: Any, *args: Any, **kwargs: Any) -> Any:
    _check(self)
    return Module.__call__(self, *args, **kwargs)


for _container in (*_SWITCHES, *_UNCALLED):
    _container.__call__ = _checked_call  # type: ignore[method-assign]
