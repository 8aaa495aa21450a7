"""score: the cost of each group's demotion. requested: the assignment that a text asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from lpkernels.functional.quantize import quantize
from lpkernels.nn.observing.tracing import arguments, left_as_found
from lpkernels.techniques import checks
from lpkernels.techniques._nested import changed
from lpkernels.techniques.assignment.asking import BASELINES, Request
from lpkernels.techniques.assignment.assignment import Assignment
from lpkernels.techniques.assignment.demotion import Scores, demote
from lpkernels.techniques.assignment.operations import Group, Kind, TensorSpec, group, key_of
from lpkernels.techniques.assignment.precisions import PAPER, Formats
from lpkernels.techniques.assignment.running.assigned import assign
from lpkernels.techniques.assignment.tracing import trace

Loss = Callable[[Any, Any], Tensor]

_BACKWARD: tuple[Kind, ...] = ("grad_activation", "grad_weight")
# Stochastic rounding draws from a generator of its own, so that scores repeat.
_SEED = 0

# The step as a share of the parameters' norm. The rounding of a result to float32 is then about a
# ten thousandth of the distance that the result moves, and the part that is not linear in the step
# is a thousandth of it.
_STEP = 2.0**-10


def score(
    model: Module,
    loss: Loss,
    batch: tuple[Any, Any],
    groups: Sequence[Group],
    formats: Formats = PAPER,
    *,
    lr: float = 0.1,
    loss_scale: float | None = None,
) -> Scores:
    """The cost of each group's demotion: the mean square of the change that it makes to the loss.
    Ours.

    An element that is off by e in low precision, measured from its value in high precision, changes
    the loss by c = s * e, to first order:

    - For a weight or a result, s is the loss's derivative by it, which is backward's gradient.
    - The error of a gradient reaches the weights through the update. An error e of the gradient of
      a result y changes the next loss by lr * e, times how y would move if the parameters went
      along their gradients: s = -lr * (dy / dparameters) gradients. For the gradient of a
      parameter, s = -lr * gradient.

    The score of a group is the sum of c * c over its elements: the variance of the change if the
    errors of elements are independent with a mean of zero, as those of rounding to nearest nearly
    are. It adds over elements, tensors and groups, so the knapsack's sum is the score of the whole
    assignment. The sum of |c| and |sum of c| rank groups worse by how much the loss of other
    batches really changes (made by bench/assignment_scores.py of commit 2c44fe08).

    The loss itself is no cost: nothing is computed from its value, and nothing rounds its gradient.
    Nor is the gradient of the network's input. lr is the learning rate of plain gradient descent,
    without momentum or decay; it weighs errors of gradients against errors of values.

    One forward and one backward pass in full precision give all but how results move, which is a
    second forward pass a small step further. The model, its buffers and gradients and the random
    state are left as found. All tensors of the assignment are held meanwhile, in float32.

    Args:
        model, loss, batch: as for `trace`.
        groups: of `group`, or tied.
        formats: high and low precision.
        lr: the learning rate, above 0.
        loss_scale: the number that multiplies the loss in training, and so the gradients when they
            are rounded. None: the largest power of two at which none overflows, as a dynamic loss
            scale finds it.
    Raises:
        ValueError: groups of another model, loss or batch; a loss that is not finite; a value that
            overflows to infinity in one of the formats; lr or loss_scale out of range.
        NotImplementedError: as `trace`.

    >>> from lpkernels.techniques.assignment import group, score, trace
    >>> model, loss = torch.nn.Linear(4, 2), torch.nn.functional.cross_entropy
    >>> batch = torch.randn(8, 4), torch.arange(8) % 2
    >>> costs = score(model, loss, batch, group(trace(model, loss, batch)))
    >>> sorted(costs.scores)
    [0, 1]
    """
    found = changes(model, loss, batch, groups, formats, lr=lr, loss_scale=loss_scale)
    costs = {key: float(change.square().sum()) for key, change in found}
    return Scores.of(
        groups,
        {each.index: math.fsum(costs.get(t.key, 0.0) for t in each.tensors) for each in groups},
    )


def changes(
    model: Module,
    loss: Loss,
    batch: tuple[Any, Any],
    groups: Sequence[Group],
    formats: Formats = PAPER,
    *,
    lr: float = 0.1,
    loss_scale: float | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """By key, the change c that each element makes, in float64; arguments and errors as of `score`.

    Tensors that change nothing are left out.
    """
    checks.number("score: lr", lr, above=0)
    if loss_scale is not None:
        checks.number("score: loss_scale", loss_scale, above=0)
    step = FullPrecisionStep(model, loss, batch, groups)
    if not math.isfinite(step.loss):
        raise ValueError(f"score: the loss is {step.loss}; take a batch on which it is finite")
    tensors = {tensor.key: tensor for each in groups for tensor in each.tensors}
    if loss_scale is None:
        rounded = {key: x for key, x in step.tensors.items() if key not in step.passed}
        loss_scale = _largest_scale(rounded, tensors, formats)
    for key, slope in _slopes(step, tensors, lr).items():
        error = _error(tensors[key], step.tensors[key], formats, loss_scale)
        yield key, slope.double() * error


def _slopes(
    step: FullPrecisionStep, tensors: Mapping[str, TensorSpec], lr: float
) -> dict[str, Tensor]:
    """By key, for each element: the loss's change for a unit of error; none where that is zero."""
    speeds = step.speeds()
    found: dict[str, Tensor] = {}
    costless = {step.loss_key, *step.passed}
    for key in (key for key in step.tensors if key not in costless):
        kind, name = tensors[key].kind, key.rpartition(".")[0]
        if kind == "grad_activation":
            speed = speeds.get(key_of(name, "activation"))
            slope = None if speed is None else lr * speed
        elif kind == "grad_weight":
            slope = -lr * step.tensors[key].double()
        else:
            gradient: Kind = "grad_activation" if kind == "activation" else "grad_weight"
            slope = step.tensors.get(key_of(name, gradient))
        if slope is not None:
            found[key] = slope
    return found


def _error(tensor: TensorSpec, values: Tensor, formats: Formats, loss_scale: float) -> Tensor:
    """For each element, its value in low precision less its value in high precision."""
    scale = loss_scale if tensor.kind in _BACKWARD else 1.0
    high, low = (_rounded(values * scale, tensor, formats, low) for low in (False, True))
    found = (low - high) / scale
    if not bool(found.isfinite().all()):
        what = f" times the loss scale {scale:g}" if tensor.kind in _BACKWARD else ""
        raise ValueError(
            f"score: {tensor.key!r}{what} is not finite in {formats.of(tensor.kind, True)} or "
            f"{formats.of(tensor.kind, False)}; take formats that hold it or saturate"
            f"{', or a smaller loss_scale' if what else ''}"
        )
    return found


def _rounded(values: Tensor, tensor: TensorSpec, formats: Formats, low: bool) -> Tensor:
    quantizer = formats.of(tensor.kind, low)
    own = torch.Generator("cpu").manual_seed(_SEED) if quantizer.is_stochastic else None
    return quantize(values, quantizer, generator=own).double()


def _largest_scale(
    values: Mapping[str, Tensor], tensors: Mapping[str, TensorSpec], formats: Formats
) -> float:
    """The largest power of two at which no gradient is beyond its formats' largest value."""
    room = math.inf
    for key, gradient in values.items():
        kind = tensors[key].kind
        most = float(gradient.abs().max()) if gradient.numel() else 0.0
        if kind in _BACKWARD and most and math.isfinite(most):
            for low in (False, True):
                # An affine format has no largest value: it takes the range of each tensor.
                room = min(room, float(getattr(formats.of(kind, low).fmt, "max", room)) / most)
    return 2.0 ** math.floor(math.log2(room)) if math.isfinite(room) else 1.0


class FullPrecisionStep:
    """One training step in full precision; the model is left as found.

    tensors: by key. A gradient that is not computed is not there.
    loss: the loss's value. loss_key: the key of this value. passed: the keys of gradients that
        nothing rounds.
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


def requested(
    request: Request,
    model: Module,
    loss: Loss,
    batch: tuple[Any, Any],
    *,
    lr: float = 0.1,
    scores: Scores | Mapping[int, float] | None = None,
) -> Assignment:
    """The assignment of this model, loss and batch.

    lr: of `score`, for an order by sensitivity. scores: the result of `score`, if it is there
        already.
    Raises: as `trace`, `demote`, `Assignment.load` and `score` do.
    """
    ops = trace(model, loss, batch)
    if request.rule in BASELINES:
        return BASELINES[request.rule](ops, formats=request.formats)
    groups = group(ops)
    if request.rule == "file":
        return Assignment.load(Path(request.file), groups)
    if not request.needs_scores:
        scores = None
    elif scores is None:
        scores = score(model, loss, batch, groups, request.formats, lr=lr)
    return demote(
        groups, request.ratio, bits=request.bits, order=request.order, seed=request.seed,
        formats=request.formats, scores=scores,
    )  # fmt: skip
