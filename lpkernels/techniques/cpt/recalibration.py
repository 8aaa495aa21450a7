"""Running statistics gathered again at the precision of the evaluation."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from lpkernels.nn.convert import set_precision
from lpkernels.techniques.cpt.scheduler import PrecisionSetter, attribute_backup

#: Called with the model and a batch of the loader.
Forward = Callable[[nn.Module, Any], object]


def recalibrate(
    model: nn.Module,
    loader: Iterable[Any],
    bits: int | PrecisionSetter | None = None,
    *,
    forward: Forward | None = None,
) -> None:
    """Gathers the running statistics of a model again with the batches of a loader, at fixed bits.

    Batch norms' running means and variances become the plain average over the batches, and layers
    with a reset_range method start their running ranges anew. All other layers are in evaluation
    mode: dropout drops nothing. Afterwards modes, momenta, gradients and random states are as
    before.

    Args:
        loader: batches; of a tuple or list the first entry is the input.
        bits: forward bits of all layers of lpkernels, which keep them afterwards; a scheduler: the
            bits of its `at()`, and afterwards the bits of training again; None: as the model is.
        forward: a function to call with the model and a batch, in place of the model itself.
    Raises: ValueError: no batch, nothing to redo, or a model without a precision to set; after an
        error the statistics are as before.
    """
    modules = with_statistics(model)
    if not modules:
        raise ValueError(
            f"recalibrate: {type(model).__name__} has no running statistics to redo: neither "
            "batch norms nor layers with a running range"
        )
    around: AbstractContextManager[None] = nullcontext()
    if isinstance(bits, PrecisionSetter):
        around = bits.at()
    elif bits is not None:
        set_precision(model, bits, bits)
    buffers = [b for module in modules for b in module.buffers(recurse=False)]
    devices = {b.device for b in (*model.parameters(), *model.buffers()) if b.is_cuda}
    random_states = torch.random.fork_rng(list(devices))
    with around, attribute_backup(model.modules()), torch.no_grad(), random_states:
        model.eval()
        for module in modules:
            module.training = True
            if isinstance(module, _BatchNorm):
                module.reset_running_stats()
                # A momentum of None is the plain average.
                module.momentum = None
            if hasattr(module, "reset_range"):
                module.reset_range()
        batch: Any = None
        for batch in loader:
            (forward or _first)(model, batch)
        if batch is None:
            raise ValueError("recalibrate: expected at least one batch, got an empty loader")
        statistics = [buffer.clone() for buffer in buffers]
    with torch.no_grad():
        for buffer, value in zip(buffers, statistics, strict=True):
            buffer.copy_(value)


@contextmanager
def recalibrated(
    model: nn.Module, loader: Iterable[Any], *, forward: Forward | None = None
) -> Iterator[None]:
    """`recalibrate` at the bits of now, undone at the end of the block."""
    with attribute_backup(model.modules()):
        recalibrate(model, loader, forward=forward)
        yield


def with_statistics(model: nn.Module) -> list[Any]:
    """A model's batch norms with running statistics, and its layers with a running range."""
    able = [m for m in model.modules() if isinstance(m, _BatchNorm) or hasattr(m, "reset_range")]
    # A norm by its arguments, and a layer by its recipe, may gather none.
    return [module for module in able if any(True for _ in module.buffers(recurse=False))]


def _first(model: nn.Module, batch: Any) -> object:
    return model(batch[0] if isinstance(batch, tuple | list) else batch)
