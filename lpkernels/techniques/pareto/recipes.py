"""How a configuration trains, in the forms that layers, optimizer and assignments take; and the
memory of a training step by a formula, from the counts of a model's values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

from torch import Tensor
from torch.nn import GELU, Module, Sequential

from lpkernels.arithmetic import (
    NATIVE,
    Accumulator,
    Quantizer,
    Recipe,
    as_accumulator,
    as_quantizer,
)
from lpkernels.formats import Format
from lpkernels.formats.checks import set_fields
from lpkernels.nn import FIRST, LAST
from lpkernels.nn.observing import EVERYTHING, Call, Visitor, trace
from lpkernels.nn.policies import REDUCING, Policy
from lpkernels.nn.selecting import check_model
from lpkernels.schemas import line
from lpkernels.techniques import checks, saving
from lpkernels.techniques._nested import all_tensors
from lpkernels.techniques.assignment import Assignment, Formats, Op, Pins, uniform
from lpkernels.techniques.checks import Floats

#: The kind that the file says it is.
KIND = "training recipe"
#: The number that the paper's code multiplies the loss by.
LOSS_SCALE = 1000.0


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
        low, high: formats or their names, which round as `rounding` says; a Quantizer rounds as it
            says itself.
        accumulator: for all three products of a layer; the default is torch's own sums.
        rounding: for formats; the paper's is stochastic.
        loss_scale: the constant that the loss is multiplied by; the paper's is 1000.

    Raises: TypeError, ValueError: no format, rounding or accumulator, a scale that is not above 0.

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
        rounding: str = "stochastic",
        loss_scale: float = LOSS_SCALE,
    ) -> None:
        scale = checks.number("TrainingRecipe: loss_scale", loss_scale, above=0)
        set_fields(
            self,
            low=_quantizer(low, rounding),
            high=_quantizer(high, rounding),
            accumulator=as_accumulator(accumulator),
            loss_scale=scale,
        )

    @property
    def policy(self) -> Policy:
        """The arithmetic of the layers, as ``lpkernels.convert`` and ``set_recipe`` take it.

        Every layer, norms and GELU among them, rounds its inputs and results, and the gradients of
        both; products and statistics inside are float32. So every tensor is rounded in a network
        whose layers are all convertible and have only ReLU, pooling by maximum and views between
        them: from a rounded tensor these make one in the same format. Sums of branches, means and
        activations that are called as functions stay float32 until the next layer reads them:
        `assignment` rounds these too. A model's single layer counts as its last: its input is low.
        """
        low, high = self.low, self.high
        # MasterWeights has rounded them: to nearest, which draws nothing, moves no value of low.
        weight = Quantizer(low.fmt, "nearest_even")

        def layer(input: Quantizer, output: Quantizer) -> Recipe:
            return replace(
                self.sums, input=input, weight=weight, output=output, grad_output=output,
                grad_input=input,
            )  # fmt: skip

        policy = Policy({LAST: layer(low, high), FIRST: layer(high, low)})
        for cls in (*REDUCING, GELU):
            policy[cls] = Recipe(input=low, output=low, grad_output=low, grad_input=low)
        policy["*"] = layer(low, low)
        return policy

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

    def save(self, path: str | Path) -> Path:
        """Writes one JSON object that `load` reads back."""
        texts = {"low": str(self.low), "high": str(self.high), "accumulator": str(self.accumulator)}
        return saving.write(path, {**line(KIND), **texts, "loss_scale": self.loss_scale})

    @classmethod
    def load(cls, path: str | Path) -> TrainingRecipe:
        """The recipe of a file.

        Raises:
            FileNotFoundError: no such file.
            ValueError: not such a recipe, or one of another schema.
        """
        found = saving.read(path, KIND, "a recipe", "TrainingRecipe.save")
        low, high = as_quantizer(found["low"]), as_quantizer(found["high"])
        return cls(low, high, found["accumulator"], loss_scale=found["loss_scale"])


def _quantizer(given: Quantizer | Format | str, rounding: str) -> Quantizer:
    return given if isinstance(given, Quantizer) else Quantizer(given, rounding)


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

    >>> from lpkernels.techniques.pareto import training_memory
    >>> training_memory({"params": 100, "activations": 50, "inputs": 4, "outputs": 2}, 8, 16)
    616.0
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
