"""The memory of a training step by a formula, and the counts of a model's values that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, overload

from torch import Tensor
from torch.nn import Module, Sequential

from lpkernels.nn.observing import EVERYTHING, Call, Visitor, trace
from lpkernels.nn.selecting import check_model
from lpkernels.techniques import checks
from lpkernels.techniques._nested import all_tensors
from lpkernels.techniques.checks import Floats

COUNTS = ("params", "activations", "inputs", "outputs")


@overload
def training_memory(counts: Mapping[str, int], low_bits: float, high_bits: float) -> float: ...
@overload
def training_memory(counts: Mapping[str, int], low_bits: Floats, high_bits: Floats) -> Floats: ...
def training_memory(counts: Mapping[str, int], low_bits: Any, high_bits: Any) -> Any:
    """Bytes that a training step keeps: ((P + 2 A) low + (2 P + I + 2 O) high) / 8.

    The weights, and the activations with their gradients, are in the low format; the momentum, the
    master weights, the input, and the logits with their gradients are in the high format. Gradients
    of weights are not counted. The bits of a BlockFormat include its scales. The result is exact in
    float64 below 2^53 bits; codes are packed densely, so bytes may be fractions.

    Args:
        counts: whole numbers of values, with the batch: "params" P, "activations" A, "inputs" I,
            "outputs" O; `count_tensors` counts those of a model.
        low_bits, high_bits: bits per value: numbers, or arrays that broadcast.

    Returns:
        A float, or a float64 array where bits are arrays.

    Raises:
        TypeError, ValueError: counts with another key, without one of these or below zero; bits
            that are not above zero.

    Reference: the code published with Yang et al. 2021 (PEPPP); this formula fits its released
    memory matrix.
    """
    if not isinstance(counts, Mapping):
        raise TypeError(f"training_memory: counts must be a mapping, got {counts!r}")
    if set(counts) != set(COUNTS):
        raise ValueError(
            f"training_memory: counts must have the keys {', '.join(COUNTS)}; got "
            f"{', '.join(map(str, counts)) or 'none'}"
        )
    found = {
        key: checks.whole(f"training_memory: counts[{key!r}]", counts[key], 0) for key in COUNTS
    }
    low = checks.positive("training_memory: low_bits", low_bits)
    high = checks.positive("training_memory: high_bits", high_bits)
    in_low = found["params"] + 2 * found["activations"]
    in_high = 2 * found["params"] + found["inputs"] + 2 * found["outputs"]
    result = (in_low * low + in_high * high) / 8
    return float(result) if result.ndim == 0 else result


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
            counts once, by its storage. A view or a result in place is no new tensor, and tensors
            inside a function (the scores of a fused attention) are not seen. Parameters, buffers,
            inputs and outputs are no activations.
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
    checks.choice("count_tensors: count", count, ("tensors", "hooked"))
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
    found = dict.fromkeys(all_tensors({"": value}).values())
    return [x for x in found if x.is_floating_point() or x.is_complex()]
