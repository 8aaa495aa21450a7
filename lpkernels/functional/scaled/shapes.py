"""Checks of a layer's shapes, for products that read codes of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import Recipe
from lpkernels.arithmetic.by_product import GENERAL, OPERANDS, Reading
from lpkernels.formats.integers import InBlock

if TYPE_CHECKING:
    from lpkernels.functional.layer import Geometry

# A line along one axis has a scale for each place on the others.
_ONE_SCALE = (
    "a sum over channels and windows has one scale only where the tensor has one ('tensor_e4m3')"
)


def check(geometry: Geometry, recipe: Recipe, x: Tensor, w: Tensor) -> None:
    """Checks that scales which enter a sum are constant along it, and that runs of transformed
    values fill it."""
    matmuls = geometry.matmuls
    ranks = {"input": x.dim(), "weight": w.dim(), "grad_output": x.dim()}
    for product, fields in OPERANDS.items():
        readings: tuple[Reading, Reading] = getattr(recipe.readings, product)
        for field, reading in zip(fields, readings, strict=True):
            if reading.transform is not None:
                _check_runs(geometry, product, reading, x, w)
            if reading.along_k or not reading.on_matrix:
                continue
            axis, rank = reading.ints[InBlock.AXIS], ranks[GENERAL.get(field, field)]
            is_known = reading.along == -1 or geometry.two_activations or rank == 2
            along = reading.ints[InBlock.LINES] > 0 or axis % rank == rank + reading.along
            tiles = reading.ints[InBlock.LINES] <= 0 or rank == 2
            if matmuls and is_known and along and tiles:
                continue
            assert reading.quantizer is not None
            advice = "with axis='k' they do" if matmuls else _ONE_SCALE
            acc = str(getattr(recipe, product))
            raise ValueError(
                f"{field}={reading.quantizer.fmt}: its scales enter the sum of {product}={acc!r}, "
                f"but do not run along it in {'a matrix' if matmuls else 'an image'} of {rank} "
                f"dimensions; {advice}, or use native sums"
            )


def check_steps(
    geometry: Geometry, recipe: Recipe, rows: int, weights: Sequence[Tensor | None]
) -> None:
    """`check` of the weights of the steps of a recurrent layer with so many rows in all steps, and
    that wgrad has codes if it needs them."""
    acc = recipe.wgrad
    if acc.group is not None and not all(reading.own for reading in recipe.readings.wgrad):
        raise ValueError(
            f"wgrad={str(acc)!r} takes codes with scales, and the steps of a recurrent layer share "
            "none with it; give wgrad_input and wgrad_grad_output, or blocks with axis='k'"
        )
    for w in weights:
        if w is not None:
            check(geometry, recipe, w.detach().new_empty(()).expand(rows, w.shape[1]), w)


def _check_runs(geometry: Geometry, product: str, reading: Reading, x: Tensor, w: Tensor) -> None:
    if not geometry.matmuls:
        raise ValueError(
            "a Hadamard transform runs along the sum of a matrix product; "
            "leave convolutions to another recipe (exclude= of lp.convert)"
        )
    needed = {"dgrad": x, "wgrad": w}.get(product)
    if needed is not None and not (torch.is_grad_enabled() and needed.requires_grad):
        return
    assert reading.transform is not None
    size, length = reading.transform[0], _length(geometry, product, x, w)
    if length % size:
        raise ValueError(
            f"hadamard={size} transforms runs of {size} values along the sum, but {product} sums "
            f"{length}, which {size} does not divide; choose batches that it divides, the last one "
            "too (drop_last=True of a DataLoader), or leave hadamard away"
        )


def _length(geometry: Geometry, product: str, x: Tensor, w: Tensor) -> int:
    """The number of terms of a matmul's sums."""
    if product == "fprop":
        return x.shape[-1]
    if not geometry.two_activations:
        return w.shape[0] if product == "dgrad" else x.shape[:-1].numel()
    summed, result = (w, x) if product == "dgrad" else (x, w)
    batch = ops.broadcast_shapes(x.shape[:-2], w.shape[:-2])
    padded = (1,) * (len(batch) + 2 - result.dim()) + tuple(result.shape)
    length = summed.shape[-2]
    # Sums run over the dimensions in which the result was broadcast, too.
    for n, of_result in zip(batch, padded, strict=False):
        length *= n if of_result != n else 1
    return length
