"""Normalising layers under a Recipe."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels.arithmetic import NO_PRODUCT, PRODUCTS, TORCH, Ranks, Recipe, check_axes
from lpkernels.functional import _checks, seeds
from lpkernels.functional._normalisation import Normalisation, normalised
from lpkernels.functional.layer import widened
from lpkernels.functional.torch_calls import own
from lpkernels.recipes import as_recipe


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """``torch.nn.functional.layer_norm`` with its tensors and its sums rounded as a recipe says.

        mean = sum(x) / K;   var = sum((x - mean)^2) / K;   y = (x - mean) / sqrt(var + eps) * w + b

    K elements, row-major, share a mean. Both sums are in the recipe's fprop, with the products x *
    1 and (x - mean)(x - mean). The two sums of the input's gradient are in dgrad. The gradients of
    weight and bias are sums over the leading dimensions, in wgrad. `input`, `weight`, `bias`,
    `output`, `grad_output`, `grad_input` and `grad_weight` round what they name. Everything else is
    float32's: division, square root, the products with weight and scale.

    Args:
        input: (..., *normalized_shape), float32, float16 or bfloat16 (widened exactly).
        normalized_shape, eps: as there,
            https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.layer_norm.html.
        weight, bias: of normalized_shape, or None; dtypes as input's.
        recipe, generator, backend: as in ``linear``. One seed is drawn per call.

    Returns:
        The shape of input, float32.

    Raises:
        TypeError, ValueError, NotImplementedError: as ``linear``; an accumulator for products of
            scaled operands.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch or not input.numel():
        return own(F.layer_norm, input, normalized_shape, weight, bias, eps)
    how = Normalisation("trailing", eps, dims=len(normalized_shape))
    _check_trailing("layer_norm", input, normalized_shape, weight, bias)
    return _normalised("layer_norm", input, weight, bias, how, recipe, generator, backend)


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """``torch.nn.functional.rms_norm`` under a recipe: as ``layer_norm`` without mean and bias.

    Args:
        input, normalized_shape, weight: as in ``layer_norm``.
        eps: added to the mean square; None is float32's machine epsilon, for 16-bit input too, as
            there, https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.rms_norm.html
            (torch before 2.7 took the 16-bit epsilon, which is large beside small inputs).
        recipe, generator, backend: as in ``linear``. One seed is drawn per call.

    Returns, Raises: as ``layer_norm``.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch or not input.numel():
        return own(F.rms_norm, input, normalized_shape, weight, eps)
    _check_trailing("rms_norm", input, normalized_shape, weight, None)
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    how = Normalisation("trailing", eps, dims=len(normalized_shape), centred=False)
    return _normalised("rms_norm", input, weight, None, how, recipe, generator, backend)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """``torch.nn.functional.group_norm`` under a recipe: as ``layer_norm``, where (channels of a
    group, positions) share a mean and (n, positions) a weight.

    Args:
        input: (N, C, ...); dtypes as in ``layer_norm``.
        num_groups: a divisor of C.
        weight, bias: (C,) or None.
        eps: as there, https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.group_norm.html.
        recipe, generator, backend: as in ``linear``. One seed is drawn per call.

    Returns, Raises: as ``layer_norm``.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch or not input.numel():
        return own(F.group_norm, input, num_groups, weight, bias, eps)
    _check_channels("group_norm", input, weight, bias)
    if num_groups < 1 or input.shape[1] % num_groups:
        raise ValueError(
            f"group_norm: num_groups={num_groups} with {input.shape[1]} channels; expected a "
            "divisor of them"
        )
    how = Normalisation("groups", eps, groups=num_groups)
    return _normalised("group_norm", input, weight, bias, how, recipe, generator, backend)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """``torch.nn.functional.batch_norm`` under a recipe: as ``layer_norm``, where (n, positions)
    of a channel share a mean and a weight.

    Args:
        input: (N, C, ...); dtypes as in ``layer_norm``.
        running_mean, running_var: (C,) or None, changed in place where `training`, from the sums in
            fprop, with `momentum`. Without training they are used as they are, so that
            neither the forward pass nor the input's gradient has sums.
        weight, bias: (C,) or None.
        training, momentum, eps: as there,
            https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.batch_norm.html.
        recipe, generator, backend: as in ``linear``. One seed is drawn per call.

    Returns: as ``layer_norm``.
    Raises: as ``layer_norm``; ValueError: one value per channel in training, or no running
        statistics without it.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch or not input.numel():
        stats = (running_mean, running_var)
        return own(F.batch_norm, input, *stats, weight, bias, training, momentum, eps)
    _check_channels("batch_norm", input, weight, bias)
    count = input.numel() // input.shape[1]
    if training and count == 1:
        raise ValueError(
            "batch_norm: expected more than 1 value per channel when training, got input of shape "
            f"{tuple(input.shape)}"
        )
    given = None
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError("batch_norm: expected running_mean and running_var unless training")
        given = (running_mean.float(), running_var.float())
    how = Normalisation("channels", eps)
    call = (how, recipe, generator, backend)
    y, mean, var = _all("batch_norm", input, weight, bias, *call, given)
    if training and running_mean is not None:
        _update(running_mean, mean, momentum)
    if training and running_var is not None:
        _update(running_var, var * (count / (count - 1)), momentum)
    return y


def _update(running: Tensor, value: Tensor, momentum: float) -> None:
    with torch.no_grad():
        running.mul_(1 - momentum).add_(value.to(running.dtype), alpha=momentum)


def _normalised(
    function: str,
    x: Tensor,
    w: Tensor | None,
    b: Tensor | None,
    how: Normalisation,
    recipe: Recipe,
    generator: torch.Generator | Tensor | None,
    backend: str,
) -> Tensor:
    return _all(function, x, w, b, how, recipe, generator, backend, None)[0]


def _all(
    function: str,
    x: Tensor,
    w: Tensor | None,
    b: Tensor | None,
    how: Normalisation,
    recipe: Recipe,
    generator: torch.Generator | Tensor | None,
    backend: str,
    given: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    _checks.call(function, backend, generator)
    _checks.no_matmul(function, recipe, *PRODUCTS)
    if recipe.axes:
        weight, bias = (None if t is None else t.dim() for t in (w, b))
        check_axes(recipe, Ranks(function, x.dim(), weight, bias, x.dim(), NO_PRODUCT))
    seed = seeds.seed_for(recipe.is_stochastic, generator)
    w, b = (None if t is None else widened(t) for t in (w, b))
    return normalised(widened(x), w, b, how, recipe, seed, backend, given)


def _check_operands(function: str, x: Tensor, w: Tensor | None, b: Tensor | None) -> None:
    given = {"input": x, "weight": w, "bias": b}
    _checks.operands(function, **{name: t for name, t in given.items() if t is not None})


def _check_trailing(
    function: str, x: Tensor, shape: Sequence[int], w: Tensor | None, b: Tensor | None
) -> None:
    _check_operands(function, x, w, b)
    expected = tuple(shape)
    sizes = [tuple(t.shape) for t in (w, b) if t is not None]
    if not expected or tuple(x.shape[-len(expected) :]) != expected or set(sizes) - {expected}:
        raise ValueError(
            f"{function}: input has shape {tuple(x.shape)}, weight and bias {sizes}; expected "
            f"(..., *{expected}), and {expected} for each"
        )


def _check_channels(function: str, x: Tensor, w: Tensor | None, b: Tensor | None) -> None:
    _check_operands(function, x, w, b)
    sizes = [tuple(t.shape) for t in (w, b) if t is not None]
    if x.dim() < 2 or set(sizes) - {(x.shape[1],)}:
        raise ValueError(
            f"{function}: input has shape {tuple(x.shape)}, weight and bias {sizes}; expected (N, "
            "C, ...), and (C,) for each"
        )
