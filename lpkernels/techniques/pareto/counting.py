"""How many values a model stores in a forward pass, counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import Module, Sequential

from lpkernels.formats.checks import checked_choice
from lpkernels.nn.observing import EVERYTHING, Call, Visitor, trace
from lpkernels.nn.selecting import check_model


def count_tensors(
    model: Module,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    count: str = "tensors",
) -> dict[str, int]:
    """The counts that `training_memory` takes, of one forward pass on these inputs.

    The model is left as it was (`lpkernels.nn.observing.trace`); on the meta device it computes
    nothing and allocates nothing.

    Args:
        model: any module whose functions torch shows; it is called with inputs and kwargs, a batch.
        count: how activations are counted.
            "tensors": each floating-point tensor that a function of torch makes in the forward pass
            counts once, by its storage. A view or a result in place is no new tensor, and what a
            function makes inside itself (the scores of a fused attention) is not seen. Parameters,
            buffers, inputs and outputs are no activations.
            "hooked": they are counted as the paper counts them: the outputs of every module that
            runs, for each of its runs. Sequential is left out, the model itself is among the
            modules, and its outputs are subtracted. That counts a tensor once for each module that
            returns it.

    Returns:
        {"params", "activations", "inputs", "outputs"}: numbers of values. Shared parameters count
        once, and so do parameters that do not require a gradient. Inputs and outputs are the
        floating-point tensors among the arguments and results, at any depth.

    Raises:
        TypeError, ValueError: model is no module, or an unknown count.
        NotImplementedError: TorchScript or a compiled module (`lpkernels.nn.observing.observe`).
    """
    check_model("count_tensors", model)
    checked_choice("count_tensors", "count", count, ("tensors", "hooked"))
    given = _floating([list(inputs), dict(kwargs or {})])
    made, modules = _Made(), _Outputs()
    hooks = [module.register_forward_hook(modules) for module in model.modules()]
    try:
        trace(model, made, *inputs, kwargs=kwargs, operations=EVERYTHING)
    finally:
        for hook in hooks:
            hook.remove()
    results = modules.last
    outputs = sum(x.numel() for x in results)
    if count == "hooked":
        activations = modules.total - outputs
    else:
        held = [*model.parameters(), *model.buffers(), *given, *results]
        activations = made.values(without=held)
    return {
        "params": sum(p.numel() for p in model.parameters()),
        "activations": activations,
        "inputs": sum(x.numel() for x in given),
        "outputs": outputs,
    }


class _Made(Visitor):
    """The storages that functions return. It holds them, so that no other storage gets their
    addresses."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._held: list[Any] = []

    def after(self, call: Call, result: Any) -> None:
        for x in _floating(result):
            storage = x.untyped_storage()
            if storage._cdata not in self._sizes:
                self._held.append(storage)
            size = storage.nbytes() // x.element_size()
            self._sizes[storage._cdata] = size

    def values(self, *, without: list[Tensor]) -> int:
        known = {x.untyped_storage()._cdata for x in without}
        return sum(size for address, size in self._sizes.items() if address not in known)


class _Outputs:
    """A forward hook: it sums what modules return, and keeps the last result, the model's own."""

    def __init__(self) -> None:
        self.total, self.last = 0, list[Tensor]()

    def __call__(self, module: Module, inputs: Any, output: Any) -> None:
        self.last = _floating(output)
        if not isinstance(module, Sequential):
            self.total += sum(x.numel() for x in self.last)


def _floating(value: Any) -> list[Tensor]:
    """The floating-point tensors in a value, its lists, tuples and mappings, each object once."""
    found: dict[int, Tensor] = {}
    _collect(value, found)
    return list(found.values())


def _collect(value: Any, found: dict[int, Tensor]) -> None:
    if isinstance(value, Tensor):
        if value.is_floating_point() or value.is_complex():
            found[id(value)] = value
    elif isinstance(value, Mapping):
        for each in value.values():
            _collect(each, found)
    elif isinstance(value, list | tuple):
        for each in value:
            _collect(each, found)
