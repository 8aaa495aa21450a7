"""`diagnose`: a report while a model runs. The report: its rows, the advice that follows from them,
and the file that holds it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from lpkernels import schemas
from lpkernels._table import Tabular, TextTable
from lpkernels.formats import Format
from lpkernels.nn.observing import LAYERS, observe
from lpkernels.nn.observing.operators import Operators
from lpkernels.nn.observing.reporting import Runs
from lpkernels.nn.selecting import check_model
from lpkernels.techniques import checks
from lpkernels.techniques.loss_scaling.diagnosis._counting import EVENTS, Counters, SeenScale
from lpkernels.techniques.loss_scaling.diagnosis._watching import (
    FormatWatcher,
    RecipeWatcher,
    RowKey,
    Watcher,
)
from lpkernels.techniques.loss_scaling.diagnosis.advice import (
    Recommendation,
    format_advice,
    scale_advice,
)
from lpkernels.techniques.loss_scaling.diagnosis.histograms import (
    MARGIN,
    THRESHOLD,
    Counts,
    Histogram,
)
from lpkernels.techniques.loss_scaling.diagnosis.rows import (
    BACKWARD,
    HEAD,
    KINDS,
    RECIPE,
    AskedFormats,
    TensorRow,
    cells,
    float_format,
    formats_by_kind,
    table,
)
from lpkernels.techniques.loss_scaling.scaler import LossScaler

KIND = "diagnosis"
#: Formats that hardware has, and some between, by width.
CANDIDATES = (
    "fp4_e2m1", "fp6_e2m3", "fp6_e3m2", "e4m3fn", "e5m2", "e5m6", "fp16", "bf16", "e6m9", "tf32",
    "fp32",
)  # fmt: skip


class Report(Tabular):
    """The counts, one row for every tensor of every layer; ``print`` shows a table.

    Args:
        rows: layers in the order of their first calls; input, weight, output, then the gradients.
        uncovered: the sentence of that property.
    """

    def __init__(self, rows: Iterable[TensorRow], uncovered: str = "") -> None:
        self._rows, self._uncovered = tuple(rows), uncovered

    @property
    def rows(self) -> tuple[TensorRow, ...]:
        """The rows, in their order."""
        return self._rows

    @property
    def uncovered(self) -> str:
        """A sentence that names the products of the first forward pass without a row; "" if there
        are none."""
        return self._uncovered

    def _found(self) -> tuple[TensorRow, ...]:
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
        candidates: Sequence[Format | str] = CANDIDATES,
        margin: int = MARGIN,
        threshold: float = THRESHOLD,
    ) -> Recommendation:
        """A static scale of the loss, and the narrowest formats, from the histograms alone.

        A model that rounds its gradients shows them as they come through at the present scale.
        Where a gradient holds no number because one before it underflows, or holds infinities or
        NaN, neither a scale nor formats follow: `scale.unseen` counts such gradients, and
        `scale.scale` is the scale to diagnose at again. A model before `convert` needs one
        diagnosis.

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
        formats = [float_format("recommend: candidates", each) for each in candidates]
        if not formats:
            raise ValueError("recommend: candidates: expected at least one format, got none")
        rows = self._found()
        of = None if fmt is None else float_format("recommend: fmt", fmt)
        scale = scale_advice(rows, of, margin, threshold)
        seen = scale is None or scale.unseen is None
        return Recommendation(
            scale,
            format_advice(rows, formats, margin, threshold, gradients=seen),
        )

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as plain values."""
        return [{"type": "tensor", **row.to_dict()} for row in self._found()]

    def state_dict(self) -> dict[str, Any]:
        """The rows so far, as plain values; there may be none."""
        return {"rows": [row.to_dict() for row in self.rows]}

    def records(self, header: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """The lines of `save`."""
        first = {**schemas.header(KIND), **(header or {})}
        if self.uncovered:
            first["uncovered"] = self.uncovered
        return [first, *self.to_dicts()]

    def save(self, path: str | Path, header: Mapping[str, Any] | None = None) -> Path:
        """Writes JSON lines: a header, with what `header` adds, then a line for every row.

        Raises: RuntimeError: nothing was counted yet.
        """
        lines = [json.dumps(each, allow_nan=False) for each in self.records(header)]
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    @staticmethod
    def load(path: str | Path) -> Report:
        """The report of a file that `save` wrote.

        Raises: ValueError: another file, or another schema.
        """
        found = map(json.loads, Path(path).read_text(encoding="utf-8").splitlines())
        lines = schemas.check_all(found, path)
        kind = lines[0].get("kind") if lines else None
        if kind != KIND:
            raise ValueError(f"{path}: expected the records of a diagnosis, got {kind!r}")
        # A run's file has its epochs below.
        rows = (TensorRow.from_dict(line) for line in lines[1:] if line["type"] == "tensor")
        return Report(rows, lines[0].get("uncovered", ""))

    def cells(self) -> list[tuple[str, ...]]:
        """The table as texts, its head first."""
        return [HEAD, *map(cells, self._found())]

    def _table(self) -> TextTable:
        shown = table(self.rows)
        return replace(shown, notes=[*shown.notes, *filter(None, [self.uncovered])])


def merged(rows: Iterable[TensorRow]) -> list[TensorRow]:
    """Rows of the same tensor and format added up, in the order of a report."""
    found: dict[tuple[Any, ...], list[TensorRow]] = {}
    for row in rows:
        found.setdefault((row.layer, row.kind, row.tensor, row.format), []).append(row)
    # A layer that is new in a later part of the rows may have gradients before its values.
    first = [key[0] for key in sorted(found, key=lambda key: key[1] in BACKWARD)]
    layers = {layer: place for place, layer in enumerate(dict.fromkeys(first))}
    order = sorted(found, key=lambda key: (layers[key[0]], KINDS.index(key[1])))
    return [_added(found[key]) for key in order]


def _added(rows: list[TensorRow]) -> TensorRow:
    if len(rows) == 1:
        return rows[0]
    seen = Histogram.sum(row.histogram for row in rows)
    scaled = any(row.unscaled is not row.histogram for row in rows)
    return replace(
        rows[0],
        calls=sum(row.calls for row in rows),
        histogram=seen,
        unscaled=Histogram.sum(row.unscaled for row in rows) if scaled else seen,
        overflow=sum(row.overflow for row in rows),
        underflow=sum(row.underflow for row in rows),
        rounded=next((row.rounded for row in rows if row.rounded), None),
    )


def diagnose(
    model: Module,
    fmt: AskedFormats = RECIPE,
    *,
    scaler: LossScaler | torch.amp.GradScaler | float | None = None,
) -> Diagnosis:
    """Counts underflow and overflow in a model while your own loop trains or tests it.

    The loop runs inside ``with diagnose(model) as report:``. Inside the block the tensors of every
    layer that `convert` knows, and of every product that the model computes, are counted: this
    gives the exponents of the elements, and how many over- and underflow in the format. Calls of a
    shared or repeated module are added up under its first name. A tensor that several layers take
    is in the row of each, but is read once; so is a result that is the next layer's input (the same
    tensor object, not changed in place since). The block may hold any number of steps, forward
    passes without a backward pass, accumulated gradients and no_grad. It may be entered again, and
    adds up.

    With formats of your own, inputs, weights and outputs are counted, and their gradients as
    backward reaches them; biases, masks and tensors that are not floating point are left out. By
    the recipes, every tensor is counted as its quantizer gets it, before it is rounded, also inside
    attention and recurrent layers, whose products after the first are numbered. Overflow inside a
    sum is not seen. Products of the first forward pass that reach torch and have no row are named
    below the table (`uncovered`).

    The diagnosis changes nothing: results, gradients, buffers, random draws and hooks are those of
    a loop without it, also after an error. Counts stay on the device of the tensors, and each
    device is read once when the report is looked at. Stochastic formats are counted as if they
    rounded to nearest even.

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
    return Diagnosis(model, fmt, scaler)


class Diagnosis(Report):
    """The report of `diagnose`. It grows while its block runs and then keeps its counts. Looking at
    it waits for the device.

    Args:
        model, fmt, scaler: as for `diagnose`.
    """

    def __init__(self, model: Module, fmt: AskedFormats, scaler: Any) -> None:
        check_model("diagnose", model)
        super().__init__(())
        # Layers have the names that they have without the wrapper.
        inner: Any = model.module if isinstance(model, DistributedDataParallel) else model
        self._model: Module = inner
        self._scale = SeenScale(scaler)
        self._forward: Counters[RowKey] = Counters()
        self._backward: Counters[RowKey] = Counters()
        # For a scale that changes: all gradients as they were seen, and as they are without the
        # scale. _backward has the gradients of the present pass alone.
        self._seen: Counters[RowKey] = Counters()
        self._unscaled: Counters[RowKey] = Counters()
        self._exponents: dict[torch.device, Tensor] = {}
        counting = (self._forward, self._backward, self._new_pass)
        formats = formats_by_kind(fmt)
        self._watcher: Watcher = (
            RecipeWatcher(*counting) if formats is None else FormatWatcher(formats, *counting)
        )
        self._open: ExitStack | None = None
        self._operators = Operators(Runs())

    @property
    def uncovered(self) -> str:
        """A sentence that names the products of the first forward pass without a row; "" if there
        are none."""
        by_recipe = isinstance(self._watcher, RecipeWatcher)
        return self._operators.uncovered(lambda x: x.emulated if by_recipe else x.told)

    def __enter__(self) -> Diagnosis:
        if self._open is not None:
            raise RuntimeError("diagnose: this block is entered already; make another diagnosis")
        with ExitStack() as stack:
            below = None if self._operators.counts else self._operators
            seen = observe(
                self._model, self._watcher, operations=LAYERS, around=False, operators=below
            )
            stack.enter_context(seen)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        assert self._open is not None
        stack, self._open = self._open, None
        stack.__exit__(*error)

    def _new_pass(self, device: torch.device) -> None:
        """Unscales the counts of the last pass by its scale, then keeps the scale of now for the
        new pass."""
        if self._scale.constant is None:
            self._flush()
            self._exponents[device] = self._scale.exponent(device)

    def _flush(self) -> None:
        if self._exponents:
            minus = {device: -exponent for device, exponent in self._exponents.items()}
            self._backward.move(self._unscaled, minus, self._seen)

    @property
    def rows(self) -> tuple[TensorRow, ...]:
        """The rows as counted so far."""
        self._read()
        return self._rows

    def _read(self) -> None:
        """Adds the counts since the last time; waits for the device."""
        calls = self._watcher.take_calls()
        if not calls:
            return
        forward = self._forward.take()
        if self._scale.constant is None:
            self._flush()
            seen, unscaled = self._seen.take(), self._unscaled.take()
        else:
            seen, unscaled = self._backward.take(), {}
        fresh = [
            self._row(key, count, {**forward, **seen}[key], unscaled.get(key))
            for key, count in calls.items()
        ]
        self._rows = tuple(merged([*self._rows, *fresh]))

    def _row(self, key: RowKey, calls: int, counts: Counts, unscaled: Counts | None) -> TensorRow:
        overflow, underflow, zeros, _ = (int(n) for n in counts[:EVENTS])
        seen = Histogram(counts[EVENTS:], zeros)
        own = seen if unscaled is None else Histogram(unscaled[EVENTS:], zeros)
        if key.kind.startswith("grad_") and self._scale.constant:
            own = seen.shifted(-self._scale.constant)
        if key.float_format is None:
            overflow = underflow = 0
        where = (key.layer, key.kind, key.tensor, key.format)
        return TensorRow(*where, calls, seen, own, overflow, underflow, key.rounded)

    def reduce(self, group: dist.ProcessGroup | None = None) -> Report:
        """The report of all ranks together, on each of them; all ranks must make this call. Without
        torch.distributed it is the report of this process."""
        if not (dist.is_available() and dist.is_initialized()):
            return Report(self.rows, self.uncovered)
        every: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(every, list(self.rows), group=group)
        return Report(merged(row for rows in every for row in rows), self.uncovered)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Adds the rows of a `state_dict` to those counted so far."""
        earlier = [TensorRow.from_dict(row) for row in state["rows"]]
        self._rows = tuple(merged([*earlier, *self.rows]))
