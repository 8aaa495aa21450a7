"""`diagnose`: counts of underflow and overflow in a model, tensor by tensor, and the scale and the
formats that follow.

Source: Micikevicius et al. 2017, "Mixed precision training", arXiv 1710.03740, section 3.2.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from lpkernels import schemas
from lpkernels._table import Tabular, TextTable
from lpkernels.arithmetic import Quantizer, as_quantizer
from lpkernels.formats import FloatFormat, Format
from lpkernels.formats.elsewhere import nearest
from lpkernels.nn.observing import LAYERS, observe
from lpkernels.nn.observing.operators import Operators
from lpkernels.nn.selecting import check_model
from lpkernels.techniques import checks
from lpkernels.techniques.loss_scaling.advice import (
    MARGIN,
    THRESHOLD,
    Recommendation,
    recommend,
)
from lpkernels.techniques.loss_scaling.counting import CountingVisitor
from lpkernels.techniques.loss_scaling.rows import COLUMNS, TensorRow, merged
from lpkernels.techniques.loss_scaling.scaler import LossScaler, scale

# The kinds that a format can be asked for; biases are counted only where a recipe rounds them.
_ASKED = ("input", "weight", "output", "grad_output", "grad_input", "grad_weight")
_RECIPE = "recipe"
_KIND = "diagnosis"
#: Formats that hardware has, and some between, by width.
_CANDIDATES = (
    "fp4_e2m1", "fp6_e2m3", "fp6_e3m2", "e4m3fn", "e5m2", "e5m6", "fp16", "bf16", "e6m9", "tf32",
    "fp32",
)  # fmt: skip


def _float_format(label: str, value: Any) -> FloatFormat:
    try:
        fmt = as_quantizer(value).fmt
    except (TypeError, ValueError) as error:
        raise type(error)(f"{label}: {error}") from error
    if not isinstance(fmt, FloatFormat):
        raise ValueError(
            f"{label}: expected a format with an exponent, whose range is the same for all "
            f"tensors, got {fmt}; a FloatFormat such as fp16 or e5m2, or {_RECIPE!r}"
        )
    return fmt


def formats_by_kind(
    fmt: Format | Quantizer | str | Mapping[str, Any],
) -> dict[str, FloatFormat] | None:
    """The formats by kind that `diagnose` counts in; None: those of the layers' recipes.

    Raises: TypeError, ValueError: an unknown kind, or a format without exponents.
    """
    if isinstance(fmt, Mapping):
        unknown = [kind for kind in fmt if kind not in _ASKED]
        if unknown or not fmt:
            listed = nearest(unknown[:1], _ASKED, "help(diagnose) lists all")
            raise ValueError(
                f"diagnose: fmt: expected formats by {listed}; got "
                f"{', '.join(map(str, unknown)) or 'an empty mapping'}"
            )
        formats = {kind: value for kind, value in fmt.items() if value is not None}
        return {kind: _float_format(f"diagnose: fmt: {kind}", x) for kind, x in formats.items()}
    if fmt == _RECIPE:
        return None
    return dict.fromkeys(_ASKED, _float_format("diagnose: fmt", fmt))


class Report(Tabular):
    """The counts, one row for every tensor of every layer; ``print`` shows a table.

    Args:
        rows: layers in the order of their first calls; input, weight, output, then the gradients.
        uncovered: a sentence that names the products of the first forward pass without a row; "" if
            there are none.
    """

    def __init__(self, rows: Iterable[TensorRow], uncovered: str = "") -> None:
        self._rows, self.uncovered = tuple(rows), uncovered

    @property
    def rows(self) -> tuple[TensorRow, ...]:
        """The rows, in their order."""
        return self._rows

    def _counted(self) -> tuple[TensorRow, ...]:
        rows = self.rows
        if not rows:
            raise RuntimeError(
                "diagnose: nothing was counted yet; run the model, and its backward pass, inside "
                "`with diagnose(model) as report:`; without a fmt only what a recipe rounds is "
                'counted: a plain model needs one, as diagnose(model, "fp16")'
            )
        return rows

    def recommend(
        self,
        fmt: Format | str | None = None,
        *,
        candidates: Sequence[Format | str] = _CANDIDATES,
        margin: int = MARGIN,
        threshold: float = THRESHOLD,
    ) -> Recommendation:
        """A static scale of the loss, and the narrowest formats, from the histograms alone.

        A model that rounds its gradients shows them as they come through at the present scale.
        Where a gradient holds no number because one before it underflows, or holds infinities or
        NaN, neither a scale nor formats follow: `scale.unseen` says so, and `scale.scale` is the
        scale to diagnose at again. A model before `convert` needs one diagnosis.

        Args:
            fmt: the format of all gradients, in place of those that they were counted for.
            candidates: float formats. For every kind the narrowest of them is looked for.
            margin: binades that stay free above the top of the largest gradient's binade. That top
                is up to a binade above the gradient: 1 leaves one to two.
            threshold: how large a part of the sum of a tensor's magnitudes may be lost.
        Raises:
            RuntimeError: nothing was counted yet.
            TypeError, ValueError: a format without exponent, no candidate, a margin below 0, a
                threshold outside of 0..1.
        """
        checks.whole("recommend: margin", margin, 0)
        checks.number("recommend: threshold", threshold, least=0, below=1)
        formats = [_float_format("recommend: candidates", value) for value in candidates]
        if not formats:
            raise ValueError("recommend: candidates: expected at least one format, got none")
        own = None if fmt is None else _float_format("recommend: fmt", fmt)
        return recommend(self._counted(), own, formats, margin=margin, threshold=threshold)

    def state_dict(self) -> dict[str, Any]:
        """The rows so far, as plain values; there may be none."""
        return {"rows": [row.to_dict() for row in self.rows]}

    def records(self) -> list[dict[str, Any]]:
        """The lines of `save`: a header, then the rows as plain values."""
        uncovered = {"uncovered": self.uncovered} if self.uncovered else {}
        rows = [{"type": "tensor", **row.to_dict()} for row in self._counted()]
        return [{**schemas.header(_KIND), **uncovered}, *rows]

    def save(self, path: str | Path) -> Path:
        """Writes JSON lines: a header, then a line for every row.

        Raises: RuntimeError: nothing was counted yet.
        """
        lines = [json.dumps(record, allow_nan=False) for record in self.records()]
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    @staticmethod
    def load(path: str | Path) -> Report:
        """The report of a file that `save` wrote.

        Raises: ValueError: another file, or another schema.
        """
        records = map(json.loads, Path(path).read_text(encoding="utf-8").splitlines())
        lines = schemas.check_all(records, path)
        kind = lines[0].get("kind") if lines else None
        if kind != _KIND:
            raise ValueError(f"{path}: expected the records of a diagnosis, got {kind!r}")
        # A run's file has its epochs below.
        rows = (TensorRow.from_dict(line) for line in lines[1:] if line["type"] == "tensor")
        return Report(rows, lines[0].get("uncovered", ""))

    def cells(self) -> list[tuple[str, ...]]:
        """The table as texts, its head first."""
        rows = self._counted()
        return [tuple(COLUMNS), *(tuple(cell(row) for cell in COLUMNS.values()) for row in rows)]

    def _table(self) -> TextTable:
        notes = [self.uncovered] if self.uncovered else []
        if not self.rows:
            return TextTable([], notes=["nothing was counted yet", *notes])
        # The first three columns are words.
        return TextTable(self.cells(), range(3), notes, rule=True)


def diagnose(
    model: Module,
    fmt: Format | Quantizer | str | Mapping[str, Any] = _RECIPE,
    *,
    scaler: LossScaler | torch.amp.GradScaler | float | None = None,
) -> Diagnosis:
    """Counts underflow and overflow in a model while your own loop trains or tests it.

    The loop runs inside ``with diagnose(model) as report:``. Inside the block the tensors of every
    layer that `convert` knows, and of every product that the model computes, are counted: their
    elements' exponents, and how many over- and underflow in the format. Calls of a shared module
    are added up under its first name. A tensor that several layers take is in the row of each, but
    is read once. The block may hold any number of steps and be entered again; it adds up.

    With formats of your own, inputs, weights and outputs are counted, and their gradients as
    backward reaches them; biases, masks and tensors that are not floating point are left out. By
    the recipes, every tensor is counted as its quantizer gets it, before it is rounded, also inside
    attention and recurrent layers, whose products after the first are numbered. Overflow inside a
    sum is not seen. Stochastic formats are counted as if they rounded to nearest even.

    Results, gradients, buffers, random draws and hooks are those of a loop without the diagnosis,
    also after an error. Each device is read once when the report is looked at.

    Args:
        model: any module, converted or not; under DDP or FSDP2 the one inside or the wrapper.
        fmt: "recipe": the tensors that each layer's recipe rounds, in its formats; a float format,
            its name or a Quantizer: all tensors in that one; or {kind: format}: only tensors of
            these kinds, which are input, weight, output, grad_output, grad_input and grad_weight. A
            tensor without a format is not read.
        scaler: the scaler, or the number, that multiplies the loss: the rows then have the
            gradients as seen, scaled, and unscaled. A dynamic scale is taken as it is when each
            backward pass reaches the first gradient. The exponents of a scale that is no power of
            two may be one too high.

    Returns: a `Diagnosis`, for `with`.
    Raises:
        TypeError, ValueError: model is no Module; no such format or kind; a format without
            exponents, as FixedFormat, AffineFormat and BlockFormat (in a recipe they are shown
            without shares); a scaler of another type.
        NotImplementedError: on entering: TorchScript or a compiled module.
    Reference: Micikevicius et al. 2017, arXiv 1710.03740, section 3.2 and figure 3, histograms of
        gradients. The rows, the rules and how they are counted are ours.

    >>> from lpkernels.techniques.loss_scaling import diagnose
    >>> model = torch.nn.Linear(4, 2)
    >>> with diagnose(model, "e4m3fn") as report:
    ...     model(torch.full((1, 4), 1e-4)).sum().backward()
    ...
    >>> [(row.kind, row.underflow) for row in report.rows]
    [('input', 4), ('weight', 0), ('output', 0), ('grad_output', 0), ('grad_weight', 8)]
    """
    check_model("diagnose", model)
    return Diagnosis(model, CountingVisitor(formats_by_kind(fmt), _multiplication(scaler)))


def _multiplication(scaler: Any) -> Callable[[Tensor], Tensor] | None:
    """Multiplies a tensor by the loss scale, of a number or a scaler; None: there is no scale."""
    if isinstance(scaler, torch.amp.GradScaler):
        return scaler.scale if scaler.is_enabled() else None
    if scaler is None:
        return None
    number = scale("diagnose: scaler", scaler)
    return lambda x: x * number


class Diagnosis(Report):
    """The report of `diagnose`. It grows while its block runs and then keeps its counts. Looking at
    it waits for the device."""

    def __init__(self, model: Module, visitor: CountingVisitor) -> None:
        super().__init__(())
        # Layers have the names that they have without the wrapper.
        inner: Any = model.module if isinstance(model, DistributedDataParallel) else model
        self._model: Module = inner
        self._visitor, self._operators = visitor, Operators()
        self._open: ExitStack | None = None

    def __enter__(self) -> Diagnosis:
        if self._open is not None:
            raise RuntimeError("diagnose: this block is entered already; make another diagnosis")
        operators = None if self._operators.counts else self._operators
        options: dict[str, Any] = {"operations": LAYERS, "around": False, "operators": operators}
        with ExitStack() as stack:
            stack.enter_context(observe(self._model, self._visitor, **options))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        assert self._open is not None
        stack, self._open = self._open, None
        stack.__exit__(*error)
        by_recipe = self._visitor.formats is None
        self.uncovered = self._operators.uncovered(lambda x: x.emulated if by_recipe else x.told)

    @property
    def rows(self) -> tuple[TensorRow, ...]:
        """The rows as counted so far; waits for the device."""
        return merged([*self._rows, *self._visitor.rows()])

    def reduce(self, group: dist.ProcessGroup | None = None) -> Report:
        """The report of all ranks together, on each of them; all ranks must make this call. Without
        torch.distributed it is the report of this process."""
        if not (dist.is_available() and dist.is_initialized()):
            return Report(self.rows, self.uncovered)
        rows: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(rows, list(self.rows), group=group)
        return Report(merged(row for part in rows for row in part), self.uncovered)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Adds the rows of a `state_dict` to those counted so far."""
        self._rows = merged([*self._rows, *map(TensorRow.from_dict, state["rows"])])
