"""Delayed scales of a model's layers: their update after a step, and values to start with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lpkernels.arithmetic import TORCH, DelayedScaling
from lpkernels.functional.running import largest, next_scales, note
from lpkernels.nn.ranges_and_scales import KeptScales, OneInput, scales_of
from lpkernels.nn.selecting import check_model

#: Called with the model and a batch.
Forward = Callable[[nn.Module, Any], object]


def is_leaf(module: nn.Module) -> bool:
    """Whether a module has no module inside but its scales."""
    return all(isinstance(child, KeptScales) for child in module.children())


class _Row(NamedTuple):
    """A role of a layer; most is M 2^-margin of its format."""

    scales: KeptScales
    role: str
    scaling: DelayedScaling
    most: float
    history: Tensor
    scale: Tensor


def _layers(model: nn.Module) -> list[tuple[OneInput, KeptScales]]:
    pairs: list[Any] = [(module, scales_of(module)) for module in model.modules()]
    return [(module, scales) for module, scales in pairs if scales is not None]


def _rows(model: nn.Module) -> Iterator[_Row]:
    for layer, scales in _layers(model):
        scaling = layer.recipe.scaling
        for role in scales.roles:
            most = scaling.most(getattr(layer.recipe, role).fmt)
            history, scale = scales.of(role)
            yield _Row(scales, role, scaling, most, history, scale)


@torch.no_grad()
def update_scales(model: nn.Module, group: Any = None) -> None:
    """Gives the delayed scales of a model their next values; call it after the backward pass.

    `lpkernels.DelayedScaling` has the rule, and docs/layers.md, "Delayed scaling", what becomes of
    processes, accumulated gradients and recomputed passes. Every process makes this call, with one
    all_reduce unless reduce is False. Under DistributedDataParallel, which copies the first
    process's buffers before a pass, all passes of an accumulated gradient but the last are in
    no_sync(). A model without delayed scales stays as it is.

    Args:
        model: any module.
        group: a process group of torch.distributed; None is all processes.

    Raises:  TypeError: model is no Module.

    Source: TransformerEngine, reduce_and_update_fp8_tensors, which updates as an autocast ends.

    >>> model = lp.convert(torch.nn.Linear(4, 2), "te_delayed")
    >>> model(torch.full((8, 4), 3.0)).sum().backward()
    >>> lp.nn.update_scales(model)  # 448 / 3, for inputs in e4m3fn
    >>> model.scaling.input_scale
    tensor(149.3333)
    """
    check_model("update_scales", model)
    rows = list(_rows(model))
    shared = [row.history for row in rows if row.scaling.reduce]
    if shared and dist.is_available() and dist.is_initialized():
        if dist.get_world_size(group) > 1:
            _reduce(shared, group)
    groups: dict[Any, list[_Row]] = {}
    for row in rows:
        groups.setdefault((row.scaling, row.history.device), []).append(row)
    for (scaling, device), group_rows in groups.items():
        histories, scales = [row.history for row in group_rows], [row.scale for row in group_rows]
        before = torch.stack(scales)
        most = torch.tensor([row.most for row in group_rows], dtype=torch.float32, device=device)
        after, updated = next_scales(torch.stack(histories), before, most, scaling)
        torch._foreach_copy_(histories, list(after))
        torch._foreach_copy_(scales, list(updated))
        for row, scale in zip(group_rows, before, strict=True):
            row.scales.before.setdefault(row.role, scale)
    for _, layer_scales in _layers(model):
        layer_scales.waits, layer_scales.is_updated = False, True


def _reduce(histories: list[Tensor], group: Any) -> None:
    """The largest h[0] of all processes becomes h[0]; NaN is above all."""
    device = histories[0].device
    newest = torch.stack([history[0].to(device) for history in histories])
    newest = torch.where(newest.isnan(), torch.nan, newest)
    # The integers of floats that are not negative have their order, and NaN comes last.
    dist.all_reduce(newest.view(torch.int32), dist.ReduceOp.MAX, group=group)
    for history, value in zip(histories, newest, strict=True):
        history[0] = value


def calibrate(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    forward: Forward | None = None,
    group: Any = None,
) -> None:
    """Finds delayed scales of inputs and weights to start with, where the first step has S = 1.

    The layers with delayed scales compute as torch's own, and note the largest magnitudes; the
    batches together are one step, after which the scales are updated. Those of gradients stay. The
    model is in evaluation mode and uncompiled meanwhile; modes, parameters and random states are as
    before afterwards.

    Args:
        model: a model that computes by a recipe with `scaling`.
        batches: of a tuple or list the first entry is the input.
        forward: a function to call with the model and a batch, in place of the model itself.
        group: as for `update_scales`; every process makes this call.

    Raises:
        TypeError: model is no Module.
        ValueError: no layer has delayed scales, or there is no batch. After an error the scales are
            as before.

    Source: TransformerEngine's fp8_autocast(calibrating=True), which computes in higher precision
    and collects the largest magnitudes. Differs: it notes gradients too where one goes backward.
    """
    check_model("calibrate", model)
    if not isinstance(batches, Iterable):
        raise TypeError(
            f"calibrate: batches must be an iterable of the model's inputs, got {batches!r}; pass "
            "a list of tensors or a DataLoader"
        )
    layers = _layers(model)
    if not layers:
        raise ValueError(
            f"calibrate: {type(model).__name__} has no layer with delayed scales; convert it with "
            "a recipe that has scaling=lp.DelayedScaling()"
        )
    inputs: dict[nn.Module, Tensor] = {}

    def notes(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], y: object) -> None:
        (x,) = args[:1] or list(kwargs.values())[:1]
        magnitude = largest(x)
        inputs[layer] = torch.maximum(inputs.get(layer, magnitude), magnitude)

    with _as_torch(model, layers, notes):
        count = 0
        for batch in batches:
            count += 1
            if forward is not None:
                forward(model, batch)
            else:
                model(batch[0] if isinstance(batch, tuple | list) else batch)
    if not count:
        raise ValueError("calibrate: expected at least one batch, got none")
    for layer, scales in layers:
        if layer in inputs:
            values = {"input": inputs[layer], "weight": largest(_local(layer.weight))}
            for role in values.keys() & scales.roles:
                note(scales.of(role)[0], values[role])
    update_scales(model, group)


def _local(weight: Any) -> Tensor:
    """A process's shard of a weight: update_scales takes the largest of all."""
    shard: Tensor = weight.to_local() if hasattr(weight, "to_local") else weight
    return shard


@contextmanager
def _as_torch(
    model: nn.Module, layers: list[tuple[OneInput, KeptScales]], hook: Callable[..., None]
) -> Iterator[None]:
    """A context in which the model evaluates, the layers compute by torch, and the hook runs after
    each call of theirs."""
    devices = {b.device for b in (*model.parameters(), *model.buffers()) if b.is_cuda}
    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(setattr, module, "training", module.training)
        for layer, _ in layers:
            plain = layer._build(TORCH, ())
            stack.callback(vars(layer).update, {name: vars(layer)[name] for name in plain})
            vars(layer).update(plain)
            stack.callback(layer.register_forward_hook(hook, with_kwargs=True).remove)
        model.eval()
        with torch.random.fork_rng(devices=list(devices)), torch.no_grad(), uncompiled():
            yield


def uncompiled() -> AbstractContextManager[object]:
    """A context in which compiled models run as they are, and see modes and changes of layers."""
    # Nothing is compiled before the compiler was imported.
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance("force_eager")
