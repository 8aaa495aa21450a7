"""The loss around trained weights: slices along normalised directions, and the top curvature.

Everything here works on a copy of the model in float64 and torch's own arithmetic: in emulated
arithmetic the loss is a staircase, and its second derivatives say nothing about the valley.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lpkernels.nn import revert

__all__ = ["LossSlice", "LossSurface", "Sharpness", "loss_slice", "loss_surface", "sharpness"]

#: Tensors that belong together; the first dimension of each counts the examples.
Batch = tuple[Tensor, ...]
#: The mean loss of a batch, a scalar.
Loss = Callable[[nn.Module, Any], Tensor]
Direction = list[Tensor]


@dataclass(frozen=True)
class LossSlice:
    """The loss along a line through the weights.

    at: (points,) the multiples of the direction that were added. losses: (points,) the losses.
    """

    at: np.ndarray
    losses: np.ndarray


@dataclass(frozen=True)
class LossSurface:
    """The loss on a plane through the weights.

    at: (points,) the multiples of each direction that were added.
    losses: (points, points), at `at[i]` times the first direction and `at[j]` times the second.
    """

    at: np.ndarray
    losses: np.ndarray


@dataclass(frozen=True)
class Sharpness:
    """The largest eigenvalue of the Hessian of the loss.

    eigenvalue: its estimate. iterations: how many there were.
    converged: whether the estimate moved by less than the tolerance in the last iteration.
    """

    eigenvalue: float
    iterations: int
    converged: bool


def exact_copy(model: nn.Module) -> nn.Module:
    """The model in float64 and torch's own arithmetic, in evaluation mode; the model stays."""
    twin = revert(copy.deepcopy(model)).double().eval()
    twin.zero_grad(set_to_none=True)
    return twin.requires_grad_(True)


def filter_normalised(parameters: Sequence[Tensor], seed: int) -> Direction:
    """A random direction in which each filter has the norm of its weights.

    The direction is Gaussian, and is scaled for each index of the first dimension of a parameter of
    two or more dimensions. Biases and the weights of norms, which have one dimension, do not move.
    The same seed gives the same direction for parameters of the same shapes, except for the scale.

    Args: parameters: float64 tensors, of any device.
    Reference: Li et al. 2018, "Visualizing the loss landscape of neural nets", arXiv 1712.09913,
        section 4.
    """
    generator = torch.Generator().manual_seed(seed)
    direction = []
    for parameter in parameters:
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        drawn = drawn.to(parameter.device)
        if parameter.dim() < 2:
            direction.append(torch.zeros_like(parameter))
            continue
        rows, weights = drawn.flatten(1), parameter.detach().flatten(1)
        scale = weights.norm(dim=1) / rows.norm(dim=1).clamp_min(torch.finfo(rows.dtype).tiny)
        direction.append((rows * scale[:, None]).view_as(parameter))
    return direction


def loss_slice(
    model: nn.Module,
    loss: Loss,
    batches: Sequence[Any],
    *,
    radius: float = 1.0,
    points: int = 41,
    seed: int = 0,
) -> LossSlice:
    """The loss along one filter-normalised direction, at `points` places from -radius to radius.

    Args:
        model: any, also a converted one; it stays as it is.
        loss: the mean loss of a batch.
        batches: tuples of tensors, weighted by their examples; floating ones become float64.
        radius: 1 adds as much noise as there is weight.
        points: odd, so that the weights themselves are one of them.
        seed: of the direction.
    Raises: ValueError: no batch, an even number of points or fewer than 3, a radius that is not
        positive.
    """
    at, twin, data = _prepared(model, batches, radius, points)
    base = [p.detach().clone() for p in twin.parameters()]
    direction = filter_normalised(base, seed)
    losses = [_at(twin, base, [(float(a), direction)], loss, data) for a in at]
    return LossSlice(at, np.array(losses))


def loss_surface(
    model: nn.Module,
    loss: Loss,
    batches: Sequence[Any],
    *,
    radius: float = 1.0,
    points: int = 21,
    seed: int = 0,
) -> LossSurface:
    """The loss on the plane of two filter-normalised directions.

    It takes points * points passes over the batches.

    Args:
        model, loss, batches, radius, points, seed: as of `loss_slice`.
    Raises: ValueError: as `loss_slice`.
    """
    at, twin, data = _prepared(model, batches, radius, points)
    base = [p.detach().clone() for p in twin.parameters()]
    # Slices have neighbouring seeds; the second direction here must not be the first one of another
    # slice.
    first, second = filter_normalised(base, 2 * seed), filter_normalised(base, 2 * seed + 1)
    losses = [
        [_at(twin, base, [(float(a), first), (float(b), second)], loss, data) for b in at]
        for a in at
    ]
    return LossSurface(at, np.array(losses))


def sharpness(
    model: nn.Module,
    loss: Loss,
    batches: Sequence[Any],
    *,
    iterations: int = 200,
    tolerance: float = 1e-4,
    seed: int = 0,
) -> Sharpness:
    """The largest eigenvalue of the Hessian of the mean loss, by power iteration.

    Power iteration finds the eigenvalue of largest magnitude. Where this is negative, the Hessian
    is shifted by it and iterated again: then the largest eigenvalue dominates.

    Args:
        model, loss, batches: as of `loss_slice`; the loss must be twice differentiable.
        iterations: at most so many, each a pass over the batches, forward and backward twice.
        tolerance: relative change of the estimate at which it ends.
        seed: of the first vector.
    Raises: ValueError: no batch, or a number out of range.
    """
    if iterations < 1 or not tolerance > 0:
        raise ValueError(
            "sharpness: expected at least one iteration and a positive tolerance, got "
            f"{iterations} and {tolerance}"
        )
    twin, data = exact_copy(model), _checked(batches)
    found = _power(twin, loss, data, iterations, tolerance, seed, shift=0.0)
    if found.eigenvalue >= 0:
        return found
    least = found.eigenvalue
    above = _power(twin, loss, data, iterations, tolerance, seed, shift=least)
    count = found.iterations + above.iterations
    return Sharpness(above.eigenvalue + least, count, found.converged and above.converged)


def _power(
    model: nn.Module,
    loss: Loss,
    data: list[Batch],
    iterations: int,
    tolerance: float,
    seed: int,
    shift: float,
) -> Sharpness:
    """The dominant eigenvalue of the Hessian minus shift times the identity."""
    generator = torch.Generator().manual_seed(seed)
    parameters = list(model.parameters())
    vector = [
        torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.device)
        for p in parameters
    ]
    estimate = 0.0
    for iteration in range(1, iterations + 1):
        norm = _dot(vector, vector) ** 0.5
        if norm == 0:
            # The Hessian maps the vector to zero: the loss is flat here.
            return Sharpness(0.0, iteration, True)
        vector = [v / norm for v in vector]
        product = _hessian_product(model, loss, data, parameters, vector)
        product = [h - shift * v for h, v in zip(product, vector, strict=True)]
        before, estimate = estimate, _dot(vector, product)
        vector = product
        if iteration > 1 and abs(estimate - before) <= tolerance * abs(estimate):
            return Sharpness(estimate, iteration, True)
    return Sharpness(estimate, iterations, False)


def _hessian_product(
    model: nn.Module,
    loss: Loss,
    data: list[Batch],
    parameters: list[nn.Parameter],
    vector: Direction,
) -> Direction:
    total = [torch.zeros_like(p) for p in parameters]
    examples = sum(len(batch[0]) for batch in data)
    for batch in data:
        value = loss(model, batch) * (len(batch[0]) / examples)
        gradients = torch.autograd.grad(
            value, parameters, create_graph=True, materialize_grads=True
        )
        along = sum((g * v).sum() for g, v in zip(gradients, vector, strict=True))
        assert isinstance(along, Tensor)
        if not along.requires_grad:
            continue
        products = torch.autograd.grad(along, parameters, materialize_grads=True)
        for sum_, product in zip(total, products, strict=True):
            sum_ += product.detach()
    return total


def _dot(a: Direction, b: Direction) -> float:
    return float(sum((x * y).sum().item() for x, y in zip(a, b, strict=True)))


def _prepared(
    model: nn.Module, batches: Sequence[Any], radius: float, points: int
) -> tuple[np.ndarray, nn.Module, list[Batch]]:
    if points < 3 or points % 2 == 0:
        raise ValueError(f"points: expected an odd number from 3 on, got {points}")
    if not 0 < radius < float("inf"):
        raise ValueError(f"radius: expected a positive number, got {radius}")
    data = _checked(batches)
    return np.linspace(-radius, radius, points), exact_copy(model), data


def _checked(batches: Sequence[Any]) -> list[Batch]:
    if not batches:
        raise ValueError("batches: expected at least one, got none")
    return [tuple(t.double() if t.is_floating_point() else t for t in batch) for batch in batches]


@torch.no_grad()
def _at(
    model: nn.Module,
    base: list[Tensor],
    moves: list[tuple[float, Direction]],
    loss: Loss,
    data: list[Batch],
) -> float:
    """The mean loss with the weights moved by multiples of directions."""
    for index, parameter in enumerate(model.parameters()):
        parameter.copy_(base[index])
        for by, direction in moves:
            parameter.add_(direction[index], alpha=by)
    examples = sum(len(batch[0]) for batch in data)
    return sum(float(loss(model, batch)) * len(batch[0]) for batch in data) / examples
