"""The delayed scales of a layer, in buffers. The module's name stands in pickles."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from lpkernels.functional.recording import is_in_backward
from lpkernels.functional.running import Delayed, Scales

# The module in a layer with delayed scales that has their buffers.
SCALING = "scaling"


@contextmanager
def kept_in_float32(buffers: dict[str, Tensor | None], names: Sequence[str]) -> Iterator[None]:
    """A context around a module's `_apply`. Buffers of these names whose dtype it changes get the
    values from before, on the device to which it moved them."""
    before = {name: buffers[name] for name in names if name in buffers}
    yield
    for name, old in before.items():
        moved = buffers[name]
        if moved is not None and old is not None and moved.dtype != torch.float32:
            buffers[name] = old.to(moved.device)


class KeptScales(torch.nn.Module):
    """The delayed scales of a layer (`lpkernels.DelayedScaling`): of each role that its recipe
    rounds, the buffers ``<role>_history`` (history,) and ``<role>_scale`` (), in float32."""

    def __init__(self, roles: Sequence[str], history: int, device: torch.device | str) -> None:
        super().__init__()
        self.roles = tuple(roles)
        # The scales before the last update, from then until the layer's next call in training.
        self.before: dict[str, Tensor] = {}
        # Whether a backward pass came since the last update; whether the user updates, or knows.
        self.waits = self.is_updated = False
        for role in roles:
            start = torch.ones(history + 1, dtype=torch.float32, device=device)
            self.register_buffer(f"{role}_history", torch.zeros_like(start[1:]))
            self.register_buffer(f"{role}_scale", start[0].clone())

    def of(self, role: str) -> tuple[Tensor, Tensor]:
        """The history and the scale of a role."""
        return self.get_buffer(f"{role}_history"), self.get_buffer(f"{role}_scale")

    def of_training(self) -> tuple[dict[str, Tensor], bool, bool]:
        """A copy of what a call in training changes beside the buffers."""
        return dict(self.before), self.waits, self.is_updated

    def of_call(self, training: bool) -> Scales:
        """The scales that a call of the layer rounds with. In training it notes the largest
        magnitudes."""
        compiled = torch.compiler.is_compiling()
        again = not compiled and is_in_backward()
        if training and not (again or compiled):
            self.before.clear()
            self._warn()
        delayed: dict[str, Delayed] = {}
        for role in self.roles:
            history, scale = self.of(role)
            # A recomputation rounds as the call that it repeats, and notes nothing again.
            scale = self.before.get(role, scale) if again else scale
            notes = training and (role == "grad_output" or not again)
            # The backward pass may come after an update.
            scale = scale.clone() if role == "grad_output" else scale
            delayed[role] = Delayed(scale, history if notes else None)
        after = self._after_backward if training and not compiled else None
        return Scales(
            delayed.get("input"), delayed.get("weight"), delayed.get("grad_output"), after
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> KeptScales:
        """The buffers move with the layer, and stay in float32 where its dtype changes."""
        with kept_in_float32(self._buffers, tuple(self._buffers)):
            super()._apply(fn, recurse)
        return self

    def _after_backward(self) -> None:
        self.waits = True

    def _warn(self) -> None:
        if self.waits and not self.is_updated:
            self.is_updated = True
            warnings.warn(
                "a layer with delayed scaling goes forward again after a backward pass, and its "
                "scales were never updated; call lpkernels.nn.update_scales(model) after backward",
                stacklevel=5,
            )


def kept_scales(module: torch.nn.Module) -> KeptScales | None:
    """The delayed scales of a layer; None of any other module."""
    kept = module._modules.get(SCALING)
    return kept if isinstance(kept, KeptScales) else None
