"""Functions without products under a Recipe: softmax and norms, which have sums, and embedding, the
look-up in a table of weights.

A norm is

    forward     xq = input(x);  mean = sum(xq) / K;  d = xq - mean;  var = sum(d d) / K
                xhat = d / sqrt(var + eps);  y = output(xhat weight(w) + bias(b))
    backward    g = grad_output(dy);  h = g w;  dw = grad_weight(sum(g xhat));  db = sum(g)
                dx = grad_input((h - sum(h) / K - xhat sum(h xhat) / K) / sqrt(var + eps))

The forward sums are in fprop, the sums of dx in dgrad, and the sums of dw and db in wgrad.
Everything else is float32's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lpkernels.arithmetic import NO_PRODUCT, PRODUCTS, TORCH, Ranks, Recipe
from lpkernels.functional import _checks, seeds
from lpkernels.functional.call import Call, Sum
from lpkernels.functional.dtypes import narrowed, result_dtype, widened
from lpkernels.functional.layer import keep_places
from lpkernels.functional.recording import apply, first_order
from lpkernels.functional.torch_calls import no_product, own
from lpkernels.ops import matmul_of
from lpkernels.recipes import as_recipe
from lpkernels.rng import Role


def _sums(how: Sum, x: Tensor) -> Tensor:
    """(R, K) to (R,): the terms x * 1 of each row, in order."""
    if how.is_native:
        return x.sum(1)
    ones = x.new_ones(x.shape[1], 1)
    with no_product():
        return how.of(matmul_of(x, ones)).reshape(-1)


def _dots(how: Sum, a: Tensor, b: Tensor) -> Tensor:
    """(R, K) and (R, K) to (R,): the products a * b of each row, exact or rounded as the sum says,
    in order."""
    if how.is_native:
        return (a * b).sum(1)
    left, right = a.unsqueeze(1), b.unsqueeze(2)
    with no_product():
        return how.of(matmul_of(left, right)).reshape(-1)


def _rows(x: Tensor) -> Tensor:
    """x, which is not empty, with a row for each sum, the last dimension."""
    return x.reshape(-1, x.shape[-1])


class _Softmax(torch.autograd.Function):
    differentiable, layer = "second_formulas.of_softmax", "softmax"

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dim: int, recipe: Recipe, seed: Tensor | None, backend: str
    ) -> Tensor:
        call = Call.of(recipe, seed, backend, x)
        xq = call.rounded(x, "input")
        moved = xq.movedim(dim, -1)
        e = torch.exp(moved - moved.amax(-1, keepdim=True))
        total = _sums(call.sum("fprop"), _rows(e))
        y = e / total.reshape(*e.shape[:-1], 1)
        if ctx.needs_input_grad[0]:
            keep_places(ctx, x)
        ctx.save_for_backward(y, seed)
        ctx.dim, ctx.recipe, ctx.backend, ctx.hook = dim, recipe, backend, call.hook
        result = y.movedim(-1, dim)
        result = result.clone() if recipe.output is None else call.rounded(result, "output")
        return result

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        y, seed = ctx.saved_tensors
        call = Call.of(ctx.recipe, seed, ctx.backend, dy, y)
        g = call.rounded(dy, "grad_output").movedim(ctx.dim, -1)
        along = _dots(call.sum("dgrad"), _rows(g), _rows(y))
        dx = (y * (g - along.reshape(*y.shape[:-1], 1))).movedim(-1, ctx.dim)
        return call.rounded(dx, "grad_input"), None, None, None, None


def softmax(
    input: Tensor,
    dim: int,
    *,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """``torch.nn.functional.softmax`` with its tensors and its sums rounded as a recipe says.

        e = exp(x - max(x));   y = e / sum(e);   dx = y (dy - sum(dy y))

    The first sum is in the recipe's fprop, the second, of products, in dgrad; `input`, `output`,
    `grad_output` and `grad_input` round what they name, and the gradient reads y before `output`.
    Everything else is float32's. Dtypes, recipe, generator and backend are as in ``linear``.

    Args:
        input: any shape.
        dim: the axis of the sums, as there,
            https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.softmax.html.
        recipe, generator, backend: as in ``linear``.

    Returns: the shape of input.
    Raises: as ``linear``; IndexError: a dim that input does not have.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch or not input.numel():
        return own(F.softmax, input, dim)
    _checks.operands("softmax", input=input)
    _checks.no_matmul("softmax", recipe, "fprop", "dgrad")
    if not -max(input.dim(), 1) <= dim < max(input.dim(), 1):
        raise IndexError(f"softmax: dim={dim}, but input has shape {tuple(input.shape)}")
    ranks = Ranks("softmax", input.dim(), output=input.dim(), no_k=NO_PRODUCT)
    seed = seeds.seed_of_call("softmax", recipe, generator, backend, ranks)
    x = widened(input) if input.dim() else widened(input).reshape(1)
    y = apply(_Softmax, x, dim, recipe, seed, backend)
    return narrowed(y.reshape(input.shape), result_dtype(input))


@dataclass(frozen=True)
class _Normalisation:
    """How a tensor is normalised, and how its elements share weights.

    Elements in one row of ``rows`` (R, K) share a mean and a variance. Elements in one row of
    ``channels`` (C, T) share a weight. One of the three kinds of layers:
        "trailing"   the last ``dims`` dimensions; a weight for each of their K elements
        "groups"     (N, C, ...) in ``groups`` groups of channels; a weight for each channel
        "channels"   (N, C, ...) over all but C; a weight for each channel
    """

    kind: str
    eps: float
    dims: int = 0
    groups: int = 0
    centred: bool = True

    def rows(self, x: Tensor) -> Tensor:
        if self.kind == "channels":
            return self.channels(x)
        if self.kind == "groups":
            return x.reshape(x.shape[0] * self.groups, -1)
        return x.reshape(-1, x.shape[x.dim() - self.dims :].numel())

    def unrowed(self, rows: Tensor, shape: torch.Size) -> Tensor:
        """The inverse of ``rows``."""
        if self.kind != "channels":
            return rows.reshape(shape)
        return rows.reshape(shape[1], shape[0], *shape[2:]).transpose(0, 1)

    def channels(self, x: Tensor) -> Tensor:
        if self.kind == "trailing":
            return self.rows(x).t()
        return x.transpose(0, 1).reshape(x.shape[1], -1)

    def spread(self, w: Tensor, x: Tensor) -> Tensor:
        """The weights as a tensor that multiplies x."""
        return w if self.kind == "trailing" else w.reshape(-1, *[1] * (x.dim() - 2))


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
    weight and bias are sums over the leading dimensions, in wgrad. The quantizers round what they
    name. Everything else is float32's: division, square root, the products with weight and scale.

    Args:
        input: (..., *normalized_shape); dtypes as in ``linear``.
        normalized_shape, eps: as there,
            https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.layer_norm.html.
        weight, bias: of normalized_shape, or None.
        recipe, generator, backend: as in ``linear``.

    Returns: the shape of input; the dtype as in ``linear``.
    Raises: as ``linear``; ValueError: an accumulator for products of scaled operands.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch or not input.numel():
        return own(F.layer_norm, input, normalized_shape, weight, bias, eps)
    how = _Normalisation("trailing", eps, dims=len(normalized_shape))
    _check("layer_norm", input, weight, bias, normalized_shape)
    return _normalised("layer_norm", input, weight, bias, how, recipe, generator, backend)[0]


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
    """``torch.nn.functional.rms_norm`` under a recipe: ``layer_norm`` without mean and bias.

    Args:
        input, normalized_shape, weight, recipe, generator, backend: as in ``layer_norm``.
        eps: added to the mean square; None is float32's machine epsilon, for 16-bit input too, as
            there, https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.rms_norm.html
            (torch before 2.7 took the 16-bit epsilon, which is large beside small inputs).

    Returns, Raises: as ``layer_norm``.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch or not input.numel():
        return own(F.rms_norm, input, normalized_shape, weight, eps)
    _check("rms_norm", input, weight, None, normalized_shape)
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    how = _Normalisation("trailing", eps, dims=len(normalized_shape), centred=False)
    return _normalised("rms_norm", input, weight, None, how, recipe, generator, backend)[0]


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
    """``torch.nn.functional.group_norm`` under a recipe: ``layer_norm`` where (channels of a group,
    positions) share a mean and (n, positions) a weight.

    Args:
        input: (N, C, ...).
        num_groups: a divisor of C.
        weight, bias: (C,) or None.
        eps: as there, https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.group_norm.html.
        recipe, generator, backend: as in ``layer_norm``.

    Returns, Raises: as ``layer_norm``.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch or not input.numel():
        return own(F.group_norm, input, num_groups, weight, bias, eps)
    _check("group_norm", input, weight, bias)
    if num_groups < 1 or input.shape[1] % num_groups:
        raise ValueError(
            f"group_norm: num_groups={num_groups} with {input.shape[1]} channels; expected a "
            "divisor of them"
        )
    how = _Normalisation("groups", eps, groups=num_groups)
    return _normalised("group_norm", input, weight, bias, how, recipe, generator, backend)[0]


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
    """``torch.nn.functional.batch_norm`` under a recipe: ``layer_norm`` where (n, positions) of a
    channel share a mean and a weight.

    Args:
        input: (N, C, ...).
        running_mean, running_var: (C,) or None, changed in place where `training`, from the sums in
            fprop, with `momentum`. Without training they are used as they are, so that
            neither the forward pass nor the input's gradient has sums.
        weight, bias: (C,) or None.
        training, momentum, eps: as there,
            https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.batch_norm.html.
        recipe, generator, backend: as in ``layer_norm``.

    Returns: as ``layer_norm``.
    Raises: as ``layer_norm``; ValueError: one value per channel in training, or no running
        statistics without it.
    """
    recipe = as_recipe(recipe)
    if recipe.is_torch or not input.numel():
        return own(
            F.batch_norm, input, running_mean, running_var, weight, bias, training, momentum, eps
        )
    _check("batch_norm", input, weight, bias)
    count = input.numel() // input.shape[1]
    if training and count == 1:
        raise ValueError(
            "batch_norm: expected more than 1 value per channel when training, got input of shape "
            f"{tuple(input.shape)}"
        )
    statistics = None
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError("batch_norm: expected running_mean and running_var unless training")
        statistics = (running_mean.float(), running_var.float())
    how = _Normalisation("channels", eps)
    y, mean, var = _normalised(
        "batch_norm", input, weight, bias, how, recipe, generator, backend, statistics
    )
    if training and running_mean is not None:
        _update(running_mean, mean, momentum)
    if training and running_var is not None:
        _update(running_var, var * (count / (count - 1)), momentum)
    return y


def _update(running: Tensor, value: Tensor, momentum: float) -> None:
    with torch.no_grad():
        running.mul_(1 - momentum).add_(value.to(running.dtype), alpha=momentum)


def _check(
    function: str,
    x: Tensor,
    w: Tensor | None,
    b: Tensor | None,
    trailing: Sequence[int] | None = None,
) -> None:
    """x (..., *trailing) with a weight and a bias of this shape, or (N, C, ...) and (C,)."""
    weights = {"weight": w, "bias": b}
    _checks.operands(function, input=x, **{name: t for name, t in weights.items() if t is not None})
    sizes = [tuple(t.shape) for t in (w, b) if t is not None]
    if trailing is None:
        fits, shape, expected = x.dim() > 1, tuple(x.shape[1:2]), "(N, C, ...), and (C,)"
    else:
        shape = tuple(trailing)
        fits = len(shape) > 0 and tuple(x.shape[-len(shape) :]) == shape
        expected = f"(..., *{shape}), and {shape}"
    if not fits or set(sizes) - {shape}:
        raise ValueError(
            f"{function}: input has shape {tuple(x.shape)}, weight and bias {sizes}; expected "
            f"{expected} for each"
        )


def _normalised(
    function: str,
    x: Tensor,
    w: Tensor | None,
    b: Tensor | None,
    how: _Normalisation,
    recipe: Recipe,
    generator: torch.Generator | Tensor | None,
    backend: str,
    statistics: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, and the mean and variance of each row; x is not empty.

    statistics: a mean and a variance for each row, which are used and not computed.
    """
    _checks.no_matmul(function, recipe, *PRODUCTS)
    weight, bias = (None if t is None else t.dim() for t in (w, b))
    ranks = Ranks(function, x.dim(), weight, bias, x.dim(), NO_PRODUCT)
    seed = seeds.seed_of_call(function, recipe, generator, backend, ranks)
    wide_w, wide_b = (None if t is None else widened(t) for t in (w, b))
    x_wide, (mean, var) = widened(x), statistics or (None, None)
    y, mean, var = apply(_Normalise, x_wide, wide_w, wide_b, mean, var, how, recipe, seed, backend)
    return narrowed(y, result_dtype(x, w, b)), mean, var


class _Normalise(torch.autograd.Function):
    differentiable, layer = "second_formulas.of_norm", "a norm"

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor | None,
        b: Tensor | None,
        mean: Tensor | None,
        var: Tensor | None,
        how: _Normalisation,
        recipe: Recipe,
        seed: Tensor | None,
        backend: str,
    ) -> tuple[Tensor, ...]:
        call = Call.of(recipe, seed, backend, x, w, b, mean, var)
        rows, total = how.rows(call.rounded(x, "input")), call.sum("fprop")
        ctx.has_statistics = mean is not None and var is not None
        if mean is None or var is None:
            count = rows.shape[1]
            mean = rows.new_zeros(rows.shape[0])
            if how.centred:
                mean = _sums(total, rows) / count
            d = rows - mean[:, None]
            var = _dots(_second(total), d, d) / count
        else:
            mean, var = mean.clone(), var.clone()
            d = rows - mean[:, None]
        scale = torch.rsqrt(var + how.eps)
        xhat = how.unrowed(d * scale[:, None], x.shape)
        y, wq = xhat, None
        if w is not None:
            wq = call.rounded(w, "weight")
            y = y * how.spread(wq, x)
        if b is not None:
            y = y + how.spread(call.rounded(b, "bias"), x)
        needs_x, needs_w, *_ = ctx.needs_input_grad
        keep_places(ctx, x if needs_x else None, w if needs_w else None)
        ctx.save_for_backward(xhat, scale, wq, seed)
        ctx.how, ctx.recipe, ctx.backend, ctx.hook = how, recipe, backend, call.hook
        ctx.b_shape = None if b is None else b.shape
        ctx.mark_non_differentiable(mean, var)
        y = call.rounded(y, "output")
        return y.clone() if y is xhat else y, mean, var

    @staticmethod
    @first_order
    def backward(ctx: Any, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        xhat, scale, w, seed = ctx.saved_tensors
        how, call = ctx.how, Call.of(ctx.recipe, seed, ctx.backend, dy, xhat, scale, w)
        dx = dw = db = None
        g, total = call.rounded(dy, "grad_output"), call.sum("wgrad")
        if ctx.needs_input_grad[1]:
            dw = _dots(total, how.channels(g), how.channels(xhat))
            dw = call.rounded(dw.reshape(w.shape), "grad_weight")
        if ctx.needs_input_grad[2]:
            of_bias = total._replace(role=Role.GRAD_BIAS)
            db = _sums(of_bias, how.channels(g)).reshape(ctx.b_shape)
        if ctx.needs_input_grad[0]:
            h = how.rows(g if w is None else g * how.spread(w, g))
            if not ctx.has_statistics:
                h = _centred(h, how.rows(xhat), how, call.sum("dgrad"))
            dx = call.rounded(how.unrowed(h * scale[:, None], g.shape), "grad_input")
        return dx, dw, db, None, None, None, None, None, None


def _second(total: Sum) -> Sum:
    """The second of two sums in one accumulator, with draws of its own."""
    return total._replace(seed=seeds.seed_of_product(total.seed, 1))


def _centred(h: Tensor, xhat: Tensor, how: _Normalisation, total: Sum) -> Tensor:
    """h without the part that would change the mean and the variance of its row."""
    count = h.shape[1]
    result = h - xhat * (_dots(_second(total), h, xhat) / count)[:, None]
    if how.centred:
        result = result - (_sums(total, h) / count)[:, None]
    return result


class _RoundedBothWays(torch.autograd.Function):
    """x by the quantizer of a field of a recipe, its gradient by that of the field grad_<field>."""

    differentiable = ""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, field: str, recipe: Recipe, seed: Tensor | None, backend: str
    ) -> Tensor:
        ctx.save_for_backward(seed)
        call = Call.of(recipe, seed, backend, x)
        ctx.hook, ctx.field = call.hook, f"grad_{field}"
        ctx.recipe, ctx.backend = recipe, backend
        y = call.rounded(x, field)
        return x.clone() if y is x else y

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (seed,) = ctx.saved_tensors
        call = Call.of(ctx.recipe, seed, ctx.backend, grad)
        return call.rounded(grad, ctx.field), None, None, None, None


def _rounded(x: Tensor, field: str, recipe: Recipe, seed: Tensor | None, backend: str) -> Tensor:
    """x by the quantizer of a field, its gradient by that of grad_<field>; x if both are None."""
    if getattr(recipe, field) is None and getattr(recipe, f"grad_{field}") is None:
        return x
    return apply(_RoundedBothWays, x, field, recipe, seed, backend)


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    recipe: Recipe | str = TORCH,
    generator: torch.Generator | Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """``torch.nn.functional.embedding`` of a rounded table.

    There are no products. The recipe's `weight` rounds the table, `output` rounds the rows that
    were looked up, `grad_output` rounds their gradient, and `grad_weight` rounds the table's
    gradient, which is summed in float32 in torch's order. A recipe with none of these four is
    torch's own function.

    Args:
        input: indices, any shape, int32 or int64.
        weight: (rows, features); dtypes as in ``linear``.
        padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse: as there,
            https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.embedding.html.
            max_norm scales the rows of weight itself, in place, before they are rounded.
        recipe, generator, backend: as in ``linear``.

    Returns: (*input.shape, features), with the dtype of weight as in ``linear``.
    Raises: as ``linear``; NotImplementedError: sparse with a recipe that rounds grad_weight.
    """
    recipe = as_recipe(recipe)
    used = (recipe.weight, recipe.output, recipe.grad_output, recipe.grad_weight)
    lookup = partial(F.embedding, norm_type=norm_type, scale_grad_by_freq=scale_grad_by_freq)
    if all(quantizer is None for quantizer in used):
        return lookup(input, weight, padding_idx, max_norm, sparse=sparse)
    _checks.operands("embedding", weight=weight)
    _checks.no_matmul("embedding", recipe)
    if sparse and recipe.grad_weight is not None:
        raise NotImplementedError(
            "embedding: sparse=True with a recipe that rounds grad_weight; leave one of them away: "
            "only dense gradients are rounded"
        )
    ranks = Ranks("embedding", weight=2, output=input.dim() + 1, no_k=NO_PRODUCT)
    seed = seeds.seed_of_call("embedding", recipe, generator, backend, ranks)
    if max_norm is not None:
        with torch.no_grad():
            torch.embedding_renorm_(weight, input.contiguous(), max_norm, norm_type)
    table = _rounded(widened(weight), "weight", recipe, seed, backend)
    y = lookup(input, table, padding_idx, sparse=sparse)
    y = _rounded(y, "output", recipe, seed, backend)
    return narrowed(y, result_dtype(weight))
