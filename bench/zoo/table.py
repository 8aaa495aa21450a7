"""The rows of the table: each model with the emulated share and the products of torch."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import torch

import lpkernels as lp
from bench.zoo.models import ZOO, Kind

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "layers.md"
METHODS = ("fp8_wang2018", "nvfp4")
#: The rows of the page stand between these lines.
BEGIN, END = "<!-- zoo: python -m bench.zoo --write -->", "<!-- end of zoo -->"


def trained(kind: Kind, method: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The model converted by the method's name, after one step of training, and its batch.

    Raises: ValueError: the loss or a gradient is not finite.
    """
    torch.manual_seed(0)
    model, batch = kind.build(), kind.batch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lp.convert(model, method)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    with kind.context():
        output = model(*batch)
    loss = kind.loss(output, *batch)
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if not all(bool(x.isfinite().all()) for x in (loss, *gradients)):
        raise ValueError(f"{method}: the loss or a gradient is not finite")
    optimizer.step()
    return model, batch


def summary_of(kind: Kind, method: str) -> lp.nn.Summary:
    model, batch = trained(kind, method)
    with kind.context():
        return lp.nn.summary(model, *batch, backward=True)


def cells(summary: lp.nn.Summary) -> list[str]:
    """The share of the forward pass, of both passes, and what stays torch's own in them."""
    forward = lp.nn.Summary(tuple(row for row in summary.rows if row.gemm == "fprop"))
    left: Counter[str] = Counter()
    for row in summary.rows:
        if not row.emulated:
            left[f"{row.module} {row.product}"] += row.macs or 0
    names = [f"{name} {macs / summary.macs:.1%}" for name, macs in left.most_common() if macs]
    names += [f"{row.product}, not counted" for row in summary.not_counted]
    return [percent(forward.share), percent(summary.share), ", ".join(names)]


def percent(share: float) -> str:
    """100.0% is said of everything alone."""
    return f"{share if share == 1 else min(share, 0.999):.1%}"


def row(name: str) -> str:
    """The line of a model."""
    found = [cells(summary_of(ZOO[name], method)) for method in METHODS]
    return f"| {' | '.join([name, *found[0], *found[1]])} |"


def split(page: str, first: str = BEGIN, last: str = END) -> tuple[str, list[str], str]:
    """The page in front of the rows between two comments, the rows, and the page behind them.

    Raises: ValueError: the page lacks one of the comments.
    """
    before, begin, behind = page.partition(first)
    table, end, after = behind.partition(last)
    if not begin or not end:
        raise ValueError(f"expected the lines {first} and {last} around a table")
    head, rule, *lines = table.strip().split("\n")
    return "\n".join([before + first, "", head, rule, ""]), lines, "\n\n" + last + after


def written(page: str) -> str:
    """The page with the rows of today."""
    before, _, after = split(page)
    return before + "\n".join(map(row, ZOO)) + after
