"""The report: its rows, the advice that follows from them, and the file that holds it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lpkernels import schemas
from lpkernels.formats import Format
from lpkernels.techniques import checks
from lpkernels.techniques.loss_scaling.diagnosis._formats import BACKWARD, KINDS, float_format
from lpkernels.techniques.loss_scaling.diagnosis.advice import (
    Recommendation,
    format_advice,
    scale_advice,
)
from lpkernels.techniques.loss_scaling.diagnosis.histograms import Histogram
from lpkernels.techniques.loss_scaling.diagnosis.rows import HEAD, TensorRow, cells, text
from lpkernels.techniques.loss_scaling.diagnosis.rules import MARGIN, THRESHOLD

KIND = "diagnosis"
#: Formats that hardware has, and some between, by width.
CANDIDATES = (
    "fp4_e2m1", "fp6_e2m3", "fp6_e3m2", "e4m3fn", "e5m2", "e5m6", "fp16", "bf16", "e6m9", "tf32",
    "fp32",
)  # fmt: skip


class Report:
    """The counts, one row for every tensor of every layer; ``print`` shows a table.

    rows: layers in the order of their first calls; input, weight, output, then the gradients.
    """

    def __init__(self, rows: Iterable[TensorRow]) -> None:
        self._rows = tuple(rows)

    @property
    def rows(self) -> tuple[TensorRow, ...]:
        return self._rows

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

        Raises: ValueError: another file, or a later schema.
        """
        found = map(json.loads, Path(path).read_text(encoding="utf-8").splitlines())
        lines = schemas.all_current(found, path)
        kind = lines[0].get("kind") if lines else None
        if kind != KIND:
            raise ValueError(f"{path}: expected the records of a diagnosis, got {kind!r}")
        return Report(TensorRow.from_dict(line) for line in lines[1:])

    def cells(self) -> list[tuple[str, ...]]:
        """The table as texts, its head first."""
        return [HEAD, *map(cells, self._found())]

    def __str__(self) -> str:
        return text(self.rows)


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
