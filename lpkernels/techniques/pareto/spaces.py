"""The configurations of a study, a product of formats; the errors measured in them; how one of them
trains, and the memory that its training step keeps."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from lpkernels.arithmetic import Quantizer
from lpkernels.formats import FloatFormat, Format, as_format
from lpkernels.formats.checks import set_fields
from lpkernels.nn.observing import EVERYTHING, Call, Visitor, observe
from lpkernels.nn.observing.observer import left_as_found
from lpkernels.nn.observing.visiting import all_tensors
from lpkernels.nn.selecting import check_model
from lpkernels.techniques import checks
from lpkernels.techniques.assignment import Assignment, Formats, Op, Pins, uniform
from lpkernels.techniques.checks import Floats

Configuration = tuple[Format, Format]

# Exponent bits and mantissa bits of the paper's formats, in the order of its columns.
_PEPPP_LOW = tuple((e, m) for e in (3, 4, 5) for m in (1, 2, 3, 4) if (e, m) != (5, 4))
_PEPPP_HIGH = tuple((e, m) for e in (6, 7, 8) for m in (7, 9, 11))
# The columns of a file of errors.
_FIELDS = ("task", "configuration", "error")


@dataclass(frozen=True, init=False)
class FormatSpace(Sequence[Configuration]):
    """A sequence of every (low, high), the low format outermost.

    A network computes with values in the format `low` and keeps values in the format `high`. The
    i-th configuration is ``space[i]``, and column i of an error matrix.

    low, high: formats or their names.
    Raises: TypeError, ValueError: a format that does not exist; a list without entries; an entry
        twice, also under two names.

    >>> from lpkernels.techniques.pareto import FormatSpace
    >>> space = FormatSpace(["e4m3", "e5m2"], ["bf16", "fp32"])
    >>> len(space), space.names[1]
    (4, 'e4m3 e8m23')
    """

    low: tuple[Format, ...]
    high: tuple[Format, ...]

    def __init__(self, low: Sequence[Format | str], high: Sequence[Format | str]) -> None:
        for name, formats in {"low": low, "high": high}.items():
            if isinstance(formats, str) or not isinstance(formats, Sequence):
                raise TypeError(f"FormatSpace: {name} must be a list, got {formats!r}")
            axis = tuple(map(as_format, formats))
            if not axis or len(set(axis)) < len(axis):
                raise ValueError(f"FormatSpace: {name} must be distinct formats, got {formats!r}")
            set_fields(self, **{name: axis})

    @classmethod
    def peppp(cls) -> FormatSpace:
        """The paper's 99 configurations: 11 low formats of 5 to 9 bits, 9 high ones of 14 to 20.

        e3m1 .. e3m4, e4m1 .. e4m4, e5m1 .. e5m3, each with e6m7 .. e8m11, the low format outermost.
        All saturate ("e3m1_sat"): in three exponent bits, overflow to infinity would end training.
        Source: Yang, Wu, Chakraborty, Udell, De Sa 2021, "How low can we go: trading memory for
        error in low-precision training", and the code published with it.
        """
        axes = (_PEPPP_LOW, _PEPPP_HIGH)
        low, high = ([FloatFormat(*bits, overflow="saturate") for bits in axis] for axis in axes)
        return cls(low, high)

    def __len__(self) -> int:
        return len(self._configurations)

    def __getitem__(self, index: Any) -> Any:
        return self._configurations[index]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The configurations as texts: "low high"."""
        return tuple(f"{low} {high}" for low, high in self)

    @property
    def low_bits(self) -> Floats:
        """(configurations,) bits per value of the low format."""
        return np.array([float(low.bits) for low, _ in self])

    @property
    def high_bits(self) -> Floats:
        """(configurations,) bits per value of the high format."""
        return np.array([float(high.bits) for _, high in self])

    def __str__(self) -> str:
        return " x ".join(" ".join(map(str, axis)) for axis in (self.low, self.high))

    @cached_property
    def _configurations(self) -> tuple[Configuration, ...]:
        return tuple(product(self.low, self.high))


@dataclass(frozen=True, init=False, eq=False)
class ErrorMatrix:
    """Errors of tasks x configurations x seeds.

    Args:
        names: of the configurations, the columns: a list of texts, or a FormatSpace.
        tasks: names of the rows.
        errors: (tasks, configurations, seeds), or without seeds; NaN where nothing was measured.

    Raises: TypeError, ValueError: another shape, an infinite error, a name twice.

    >>> from lpkernels.techniques.pareto import ErrorMatrix
    >>> ErrorMatrix(["fp8", "fp16"], ["task"], [[[0.4, 0.5], [0.3, 0.3]]]).mean
    array([[0.45, 0.3 ]])
    """

    names: tuple[str, ...]
    tasks: tuple[str, ...]
    errors: Floats

    def __init__(
        self, names: FormatSpace | Sequence[str], tasks: Sequence[str], errors: Any
    ) -> None:
        names = _distinct("names", names.names if isinstance(names, FormatSpace) else names)
        tasks = _distinct("tasks", tasks)
        shape = len(tasks), len(names)
        e = checks.numbers("ErrorMatrix: errors (tasks, configurations, seeds)", errors)
        e = checks.numbers("ErrorMatrix: errors", e, (*shape, *e.shape[2:3]))
        e = e if e.ndim == 3 else e[:, :, None]
        if np.isinf(e).any():
            raise ValueError("ErrorMatrix: errors must be finite, or NaN where missing; got inf")
        e.flags.writeable = False
        set_fields(self, names=names, tasks=tasks, errors=e)

    @property
    def mean(self) -> Floats:
        """(tasks, configurations): over the measured seeds, NaN where there is none."""
        return mean_over_seeds(self.errors)

    def for_space(self, label: str, space: FormatSpace) -> ErrorMatrix:
        """The matrix with its columns in the order of the space. label: begins the error.

        Raises: ValueError: the names of the columns are not those of the space.
        """
        others = [name for name in self.names if name not in space.names]
        missing = [name for name in space.names if name not in self.names]
        if others or missing:
            difference = f"it has no {missing[0]!r}" if missing else f"it has {others[0]!r}"
            raise ValueError(
                f"{label}: its errors are of other configurations: {difference}; its columns must "
                f"be called {space.names[0]!r} to {space.names[-1]!r}"
            )
        order = [self.names.index(name) for name in space.names]
        return ErrorMatrix(space, self.tasks, self.errors[:, order])

    def save(self, path: str | Path) -> Path:
        """Writes a CSV with a line for every error: task, configuration and error, which is empty
        where nothing was measured."""
        path = Path(path)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(_FIELDS)
            for i, j, seed in np.ndindex(self.errors.shape):
                error = float(self.errors[i, j, seed])
                writer.writerow([self.tasks[i], self.names[j], "" if np.isnan(error) else error])
        return path

    @classmethod
    def load(cls, path: str | Path) -> ErrorMatrix:
        """The matrix of a CSV with the columns task, configuration and error, as `save` writes it;
        other columns are not read. Tasks and configurations are in the order of their first lines;
        several lines of one task and configuration are its seeds; a missing line is a missing
        error.

        Raises: OSError: the file cannot be read.  ValueError: another file, a text in place of a
            number.
        """
        cells: dict[tuple[str, str], list[float]] = {}
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            lines = csv.DictReader(file, strict=True)
            try:
                for line in lines:
                    task, name, error = (line[field] for field in _FIELDS)
                    cells.setdefault((task, name), []).append(float(error) if error else np.nan)
            except (KeyError, ValueError, csv.Error) as error:
                raise ValueError(
                    f"{path}, line {lines.line_num}: expected a CSV of {','.join(_FIELDS)}: {error}"
                ) from error
        tasks, names = (list(dict.fromkeys(cell[axis] for cell in cells)) for axis in (0, 1))
        most = max(map(len, cells.values()), default=0)
        errors = np.full((len(tasks), len(names), most), np.nan)
        for (task, name), seeds in cells.items():
            errors[tasks.index(task), names.index(name), : len(seeds)] = seeds
        try:
            return cls(names, tasks, errors)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error


def mean_over_seeds(errors: Floats) -> Floats:
    """The mean of the measured errors over the last axis; NaN where there is none."""
    counts = (~np.isnan(errors)).sum(axis=-1)
    return np.where(counts > 0, np.nansum(errors, axis=-1) / np.maximum(counts, 1), np.nan)


def _distinct(label: str, names: Any) -> tuple[str, ...]:
    """Checked names, at least one, none empty and none twice."""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"ErrorMatrix: {label} must be a list of names, got {names!r}")
    wrong = [name for i, name in enumerate(names) if not name or name in names[:i]]
    if wrong or not names:
        got = repr(wrong[0]) if wrong else "none"
        raise ValueError(f"ErrorMatrix: {label} must be distinct and not empty, got {got}")
    return tuple(names)


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
        loss_scale: the constant that the loss is multiplied by; the paper's is 1000.

    Raises: TypeError, ValueError: no format, a scale that is not above 0.

    >>> from lpkernels.techniques.pareto import TrainingRecipe
    >>> print(TrainingRecipe("e4m3", "fp16"))
    e4m3:stochastic and e5m10:stochastic, loss x 1000
    """

    low: Quantizer
    high: Quantizer
    loss_scale: float

    def __init__(
        self,
        low: Quantizer | Format | str,
        high: Quantizer | Format | str,
        *,
        loss_scale: float = 1000.0,
    ) -> None:
        low, high = (
            fmt if isinstance(fmt, Quantizer) else Quantizer(fmt, "stochastic")
            for fmt in (low, high)
        )
        scale = checks.number("TrainingRecipe: loss_scale", loss_scale, above=0)
        set_fields(self, low=low, high=high, loss_scale=scale)

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

        Args: ops: as from ``trace(model, loss, batch)``.
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
        return uniform(ops, formats=formats, pins=Pins(high=keys))

    def __str__(self) -> str:
        return f"{self.low} and {self.high}, loss x {self.loss_scale:g}"


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

    Returns: a float, or a float64 array where bits are arrays.
    Raises: TypeError, ValueError: counts with another key, without one of these or below zero; bits
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
    p, a, i, o = (checks.whole(f"training_memory: counts[{k!r}]", counts[k], 0) for k in _COUNTS)
    low = checks.positive("training_memory: low_bits", low_bits)
    high = checks.positive("training_memory: high_bits", high_bits)
    result = ((p + 2 * a) * low + (2 * p + i + 2 * o) * high) / 8
    return float(result) if result.ndim == 0 else result


def count_tensors(
    model: Module, *inputs: Any, kwargs: Mapping[str, Any] | None = None
) -> dict[str, int]:
    """The counts that `training_memory` takes, of one forward pass on these inputs.

    The model is left as it was; on the meta device it computes nothing and allocates nothing.

    Args:
        model: any module whose functions torch shows; it is called with inputs and kwargs, a batch.

    Returns: {"params", "activations", "inputs", "outputs"}: numbers of values. Shared parameters
        count once. Inputs and outputs are the floating-point tensors among the arguments and
        results, at any depth. Activations are the other floating-point storages that functions of
        torch return: a view or a result in place is no new one, and tensors inside a function (the
        scores of a fused attention) are not seen.

    Raises: TypeError: model is no module.  NotImplementedError: TorchScript or a compiled module
        (`lpkernels.nn.observing.observe`).
    Differs from the code published with Yang et al. 2021 (PEPPP), which counts the outputs of every
    module that runs, so that a tensor counts once for each module that returns it.
    """
    check_model("count_tensors", model)
    storages, keywords = _Storages(), dict(kwargs or {})
    with (
        left_as_found(model, [*inputs, *keywords.values()]),
        torch.no_grad(),
        observe(model, storages, operations=EVERYTHING),
    ):
        results = model(*inputs, **keywords)
    arguments, outputs = _floating([list(inputs), keywords]), _floating(results)
    others = {
        x.untyped_storage()._cdata
        for x in (*model.parameters(), *model.buffers(), *arguments, *outputs)
    }
    return {
        "params": sum(p.numel() for p in model.parameters()),
        "activations": sum(n for key, (n, _) in storages.sizes.items() if key not in others),
        "inputs": sum(x.numel() for x in arguments),
        "outputs": sum(x.numel() for x in outputs),
    }


class _Storages(Visitor):
    """The storages that functions return, by address, with their numbers of values. A storage is
    held, so that no other gets its address."""

    def __init__(self) -> None:
        self.sizes: dict[int, tuple[int, Any]] = {}

    def after(self, call: Call, result: Any) -> None:
        for x in _floating(result):
            storage = x.untyped_storage()
            self.sizes[storage._cdata] = storage.nbytes() // x.element_size(), storage


def _floating(value: Any) -> list[Tensor]:
    """The floating-point tensors in a value, its lists, tuples and mappings, each object once."""
    tensors = dict.fromkeys(all_tensors({"": value}).values())
    return [x for x in tensors if x.is_floating_point() or x.is_complex()]
