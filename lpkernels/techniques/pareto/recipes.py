"""How a configuration trains, in the forms that layers, optimizer and assignments take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch.nn import GELU

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
from lpkernels.nn.policies import REDUCING, Policy
from lpkernels.schemas import line
from lpkernels.techniques import checks, saving
from lpkernels.techniques.assignment import Assignment, Formats, Op, Pins, uniform

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
            ValueError: not such a recipe, or one of a later schema.
        """
        found = saving.read(path, KIND, "a recipe", "TrainingRecipe.save")
        low, high = as_quantizer(found["low"]), as_quantizer(found["high"])
        return cls(low, high, found["accumulator"], loss_scale=found["loss_scale"])


def _quantizer(given: Quantizer | Format | str, rounding: str) -> Quantizer:
    return given if isinstance(given, Quantizer) else Quantizer(given, rounding)
