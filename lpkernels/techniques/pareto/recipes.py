"""How a configuration trains, as layers, optimizer and assignments take it; and the memory of a
training step by a formula, from the counts of a model's values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import Module

from lpkernels.arithmetic import (
    NATIVE,
    Accumulator,
    Quantizer,
    Recipe,
    as_accumulator,
)
from lpkernels.formats import Format
from lpkernels.formats.checks import set_fields
from lpkernels.nn.observing import EVERYTHING, Call, Visitor
from lpkernels.nn.observing.observer import trace
from lpkernels.nn.selecting import check_model
from lpkernels.techniques import checks
from lpkernels.techniques._nested import all_tensors
from lpkernels.techniques.assignment import Assignment, Formats, Op, Pins, uniform


@dataclass(frozen=True, init=False)
class TrainingRecipe:
    """A configuration of a FormatSpace as it trains.

    These are in the low format: the activations with their gradients, the weights that layers
    compute with, and the weights' gradients as they enter the optimizer. In the high format are the
    input of the network, the logits with their gradient, and the optimizer's momentum and masters.
    The order is that of QPyTorch's OptimLP: the gradient is unscaled and rounded, the optimizer
    steps on the master, momentum and master are rounded, and the weight is the master in the low
    format.

    Source: the code published with Yang et al. 2021 (PEPPP).

    Args:
        low, high: Quantizers, or formats and their names, which round stochastically, as the
            paper's.
        accumulator: for all three products of a layer; the default is torch's own sums.
        loss_scale: the constant that the loss is multiplied by; the paper's is 1000.

    Raises: TypeError, ValueError: no format or accumulator, a scale that is not above 0.

    >>> from lpkernels.techniques.pareto import TrainingRecipe
    >>> print(TrainingRecipe("e4m3", "fp16"))
    e4m3:stochastic and e5m10:stochastic, loss x 1000
    """

    low: Quantizer
    high: Quantizer
    accumulator: Accumulator
    loss_scale: float

    def __init__(
        self,
        low: Quantizer | Format | str,
        high: Quantizer | Format | str,
        accumulator: Accumulator | str = NATIVE,
        *,
        loss_scale: float = 1000.0,
    ) -> None:
        low, high = (
            fmt if isinstance(fmt, Quantizer) else Quantizer(fmt, "stochastic")
            for fmt in (low, high)
        )
        scale = checks.number("TrainingRecipe: loss_scale", loss_scale, above=0)
        acc = as_accumulator(accumulator)
        set_fields(self, low=low, high=high, accumulator=acc, loss_scale=scale)

    @property
    def sums(self) -> Recipe:
        """The recipe of the layers under `assignment`, which rounds all but the sums inside."""
        return Recipe(fprop=self.accumulator, dgrad=self.accumulator, wgrad=self.accumulator)

    @property
    def masters(self) -> dict[str, Quantizer]:
        """The formats that `lpkernels.techniques.loss_scaling.MasterWeights` takes, by keyword."""
        return {"weight": self.low, "master": self.high, "state": self.high, "grad": self.low}

    def assignment(self, ops: Sequence[Op]) -> Assignment:
        """The precision of every tensor of a network, as data (`lpkernels.techniques.assignment`).

        All tensors are low but for the network's inputs and everything from the result of the last
        GEMM on, with their gradients. Gradients of weights stay float32: `masters` has the format
        in which the optimizer takes them, once they are unscaled. Differs from the paper behind the
        logits, where the paper leaves the loss float32.

        Args:
            ops: as from ``trace(model, loss, batch)``.
        Raises: TypeError, ValueError: Ops that do not fit together, none of them a GEMM; a format
            whose bits depend on the shape, a low one of more bits than the high one.
        """
        gemms = [i for i, op in enumerate(ops) if op.is_gemm]
        if not gemms:
            raise ValueError(
                f"TrainingRecipe.assignment: expected a GEMM, whose result is the logits, among "
                f"{len(ops)} operations; got none"
            )
        inputs = [op.name for op in ops if not op.inputs and not op.params]
        high = [*inputs, *(op.name for op in ops[gemms[-1] :])]
        keys = [f"{name}.{kind}" for name in dict.fromkeys(high) for kind in ("Y", "GY")]
        pair = (self.high, self.low)
        formats = Formats(weight=pair, activation=pair, grad_activation=pair, grad_weight="fp32")
        return uniform(ops, "low", formats=formats, pins=Pins(high=keys))

    def __str__(self) -> str:
        sums = "" if self.accumulator == NATIVE else f", sums in {self.accumulator}"
        return f"{self.low} and {self.high}{sums}, loss x {self.loss_scale:g}"


_COUNTS = ("params", "activations", "inputs", "outputs")


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

    >>> from lpkernels.techniques.pareto import training_memory
    >>> training_memory({"params": 100, "activations": 50, "inputs": 4, "outputs": 2}, 8, 16)
    616.0
    """
    if not isinstance(counts, Mapping):
        raise TypeError(f"training_memory: counts must be a mapping, got {counts!r}")
    if set(counts) != set(_COUNTS):
        raise ValueError(
            f"training_memory: counts must have the keys {', '.join(_COUNTS)}; got "
            f"{', '.join(map(str, counts)) or 'none'}"
        )
    params, activations, inputs, outputs = (
        checks.whole(f"training_memory: counts[{key!r}]", counts[key], 0) for key in _COUNTS
    )
    low = checks.positive("training_memory: low_bits", low_bits)
    high = checks.positive("training_memory: high_bits", high_bits)
    result = (params + 2 * activations) * low + (2 * params + inputs + 2 * outputs) * high
    result = result / 8
    return float(result) if result.ndim == 0 else result


def count_tensors(
    model: Module, *inputs: Any, kwargs: Mapping[str, Any] | None = None
) -> dict[str, int]:
    """The counts that `training_memory` takes, of one forward pass on these inputs.

    The model is left as it was (`nn.observing.observer.trace`); on the meta device it computes
    nothing and allocates nothing.

    Args:
        model: any module whose functions torch shows; it is called with inputs and kwargs, a batch.

    Returns:
        {"params", "activations", "inputs", "outputs"}: numbers of values. Shared parameters count
        once. Inputs and outputs are the floating-point tensors among the arguments and results, at
        any depth. Activations are the other floating-point storages that functions of torch return:
        a view or a result in place is no new one, and tensors inside a function (the scores of a
        fused attention) are not seen.

    Raises:
        TypeError: model is no module.
        NotImplementedError: TorchScript or a compiled module (`lpkernels.nn.observing.observe`).

    Differs from the code published with Yang et al. 2021 (PEPPP), which counts the outputs of every
    module that runs, so that a tensor counts once for each module that returns it.
    """
    check_model("count_tensors", model)
    storages, results = _Storages(), list[Any]()
    hook = model.register_forward_hook(lambda module, args, output: results.append(output))
    try:
        trace(model, storages, *inputs, kwargs=kwargs, operations=EVERYTHING)
    finally:
        hook.remove()
    arguments, outputs = _floating([list(inputs), dict(kwargs or {})]), _floating(results[-1])
    return {
        "params": sum(p.numel() for p in model.parameters()),
        "activations": storages.values(
            without=[*model.parameters(), *model.buffers(), *arguments, *outputs]
        ),
        "inputs": sum(x.numel() for x in arguments),
        "outputs": sum(x.numel() for x in outputs),
    }


class _Storages(Visitor):
    """The storages that functions return. It holds them, so that no other storage gets their
    addresses."""

    def __init__(self) -> None:
        self._sizes: dict[int, tuple[int, Any]] = {}

    def after(self, call: Call, result: Any) -> None:
        for x in _floating(result):
            storage = x.untyped_storage()
            self._sizes[storage._cdata] = storage.nbytes() // x.element_size(), storage

    def values(self, *, without: list[Tensor]) -> int:
        excluded = {x.untyped_storage()._cdata for x in without}
        return sum(n for address, (n, _) in self._sizes.items() if address not in excluded)


def _floating(value: Any) -> list[Tensor]:
    """The floating-point tensors in a value, its lists, tuples and mappings, each object once."""
    tensors = dict.fromkeys(all_tensors({"": value}).values())
    return [x for x in tensors if x.is_floating_point() or x.is_complex()]
