"""requested: the assignment of a network that a Request asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.nn import Module

from lpkernels.techniques.assignment.asking import BASELINES, Request
from lpkernels.techniques.assignment.assignment import Assignment
from lpkernels.techniques.assignment.demotion import demote
from lpkernels.techniques.assignment.grouping import group
from lpkernels.techniques.assignment.scoring._steps import Loss
from lpkernels.techniques.assignment.scoring.scoring import score
from lpkernels.techniques.assignment.sensitivity import Scores
from lpkernels.techniques.assignment.tracing import trace


def requested(
    request: Request,
    model: Module,
    loss: Loss,
    batch: tuple[Any, Any],
    *,
    lr: float = 0.1,
    scores: Scores | Mapping[int, float] | None = None,
) -> Assignment:
    """The assignment of this model, loss and batch.

    lr: of `score`, for an order by sensitivity. scores: those, if they are there already.
    Raises: as `trace`, `demote`, `Assignment.load` and `score` do.
    """
    ops = trace(model, loss, batch)
    if request.rule in BASELINES:
        return BASELINES[request.rule](ops, formats=request.formats)
    groups = group(ops)
    if request.rule == "file":
        return Assignment.load(Path(request.file), groups)
    if not request.needs_scores:
        scores = None
    elif scores is None:
        scores = score(model, loss, batch, groups, request.formats, lr=lr)
    return demote(
        groups, request.ratio, bits=request.bits, order=request.order, seed=request.seed,
        formats=request.formats, scores=scores,
    )  # fmt: skip
