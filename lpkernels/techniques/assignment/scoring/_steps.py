"""Every tensor of a training step in full precision, and how results follow the parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from lpkernels.nn.observing.tracing import arguments, left_as_found
from lpkernels.techniques.assignment.demotion import demote
from lpkernels.techniques.assignment.grouping import Group, key_of
from lpkernels.techniques.assignment.precisions import Formats
from lpkernels.techniques.assignment.running.assigned import assign
from lpkernels.techniques.assignment.running.trees import changed

Loss = Callable[[Any, Any], Tensor]

# The step as a share of the parameters' norm. The rounding of a result to float32 is then about a
# ten thousandth of the distance that the result moves, and the part that is not linear in the step
# is a thousandth of it.
_STEP = 2.0**-10


class Step:
    """One training step in full precision; the model is left as found.

    tensors: by key. A gradient that is not computed is not there.
    loss: its value; loss_key: the key of that. passed: the keys of gradients that nothing rounds.
    """

    def __init__(
        self, model: Module, loss: Loss, batch: tuple[Any, Any], groups: Sequence[Group]
    ) -> None:
        self._model, self._batch = model, batch
        full = demote(groups, 0.0, formats=Formats.same("fp32"))
        self._assigned = assign(model, loss, full, promote=None, pack=False, counts=False)
        parameters = [p for p in model.parameters() if p.requires_grad]
        with self._running() as (value, self.tensors):
            self.loss_key = next(reversed(self.tensors))
            torch.autograd.grad(value, parameters, allow_unused=True)
            self.loss = float(value.detach())
        (plan,) = self._assigned._plans.values()
        self.passed = plan.passed

    def speeds(self) -> dict[str, Tensor]:
        """Of the results: how fast they change where all parameters go against their gradients.

        The derivative by the learning rate, in float64, from a second forward pass a small step
        further, for few operations and no emulated one have forward derivatives.
        """
        names = dict(self._model.named_parameters())
        gradients = {
            name: self.tensors[key_of(name, "grad_weight")]
            for name in names
            if key_of(name, "grad_weight") in self.tensors
        }
        length = _norm(gradients.values())
        if not length:
            return {}
        lr = _STEP * _norm(names[name] for name in gradients) / length

        def go() -> None:
            for name, gradient in gradients.items():
                names[name].data.sub_(gradient.to(names[name].dtype), alpha=lr)

        with self._running(go) as (_, moved):
            return {
                key: (there.double() - self.tensors[key].double()) / lr
                for key, there in moved.items()
                if key.endswith(".Y")
            }

    @contextmanager
    def _running(
        self, change: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """A forward pass after `change`, and inside it backward: the loss, and all tensors."""
        given, target = self._batch
        args, kwargs = arguments(given)
        found: dict[str, Tensor] = {}

        def told(key: str, before: Tensor, _: Tensor) -> None:
            # Nothing changes the tensor later: the model goes on with the rounded one.
            found[key] = before.detach().float()

        with left_as_found(self._model, [*args, *kwargs.values()]), torch.enable_grad():
            change()
            self._assigned._table.told = told
            yield self._assigned(changed(given, _with_gradient), target), found


def _with_gradient(_: int, x: Tensor) -> Tensor:
    """The network's inputs have a gradient, by which an error in them counts, and may be changed in
    place as before, for they are no leaves."""
    return x.detach().requires_grad_().clone() if x.is_floating_point() else x


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(x.detach().double().square().sum()) for x in tensors))
