"""How the products of a layer take its operands, and how operands are kept (`Recipe.by_product`).

Each product takes each operand as `Taken` says: quantized once for all products, or for this one,
along the axis that it sums. A native product, and one that knows no scales, takes values; others
take codes, whose scales enter the sums.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import Accumulator, Recipe
from lpkernels.arithmetic.by_product import GENERAL, OPERANDS, Taken
from lpkernels.formats.integers import BLOCK, KIND, ROW, TENSOR, InBlock, Ints
from lpkernels.functional._saved import Saved, packs, saved, shared
from lpkernels.functional.layer import Geometry, Sum, sum_of
from lpkernels.functional.running import Delayed, Scales
from lpkernels.functional.scaled import products, saving
from lpkernels.functional.scaled.products import Operand
from lpkernels.functional.storing import seen
from lpkernels.rng import SITE_QUANTIZE

# A quantizer's integers behind its format's.
_MODE = 4

#: What was made of a tensor, by the description that made it.
Made = dict[Any, Any]
# A line along one axis has a scale for each place on the others.
_ONE_SCALE = (
    "a sum over channels and windows has one scale only where the tensor has one ('tensor_e4m3')"
)
# A key of `Made`: the codes will be kept, so they are made first and the values of them.
KEEPS = "keeps"


class Side(NamedTuple):
    """One operand before a product takes it: a tensor of its shape, with the codes or values that
    are made already.

    made: what was made of the tensor.
    operand: of the tensor, or of the product's matrix where the operand lies on it.
    """

    tensor: Tensor
    taken: Taken
    made: Made
    operand: Operand | None = None


class Call(NamedTuple):
    """A call of a layer without its tensors."""

    recipe: Recipe
    geometry: Geometry
    seed: Tensor | None
    backend: str
    scales: Scales | None

    def taken(self, field: str) -> Taken:
        """How the product that a field is of takes the operand."""
        found: Taken = getattr(self.recipe.by_product, field)
        return found

    @property
    def is_bias_plain(self) -> bool:
        """Whether the bias' gradient sums the unquantized output gradient."""
        return self.recipe.by_product is not None and self.recipe.by_product.plain_bias

    def acc(self, product: str) -> Accumulator:
        found: Accumulator = getattr(self.recipe, product)
        return found

    def sum(self, product: str, pair: products.Pair) -> Sum:
        scales = None if self.acc(product).is_native else pair
        return sum_of(self.recipe, product, self.seed, self.backend, scales)

    def parts(self, x: Tensor, taken: Taken, made: Made, where: str = "") -> ops.Parts:
        key = ("parts", *_key(taken), where)
        if key not in made:
            x = self._transformed(x, taken)
            delayed = self.delayed(taken)
            if delayed is not None:
                made[key] = delayed.parts(x, taken.ints, self.seed, taken.role, self.backend)
            else:
                last = (self.seed, taken.role, SITE_QUANTIZE, self.backend)
                made[key] = ops.scaled(x, taken.ints, None, *last)
        found: ops.Parts = made[key]
        return found

    def values(self, x: Tensor, taken: Taken, made: Made, where: str = "") -> Tensor:
        """The values of x's codes; x itself where nothing rounds it."""
        if not taken.ints:
            return self._transformed(x, taken)
        parts = ("parts", *_key(taken), where)
        first = made.get(KEEPS) or self.delayed(taken) is not None
        in_parts = parts in made or (first and _is_block(taken))
        key = ("values", *parts[1:])
        if key not in made and in_parts:
            codes = self.parts(x, taken, made, where)
            made[key] = ops.dequantize(*codes, _format(taken), self.backend)
        elif key not in made:
            y = self._transformed(x, taken)
            last = (self.seed, taken.role, SITE_QUANTIZE, self.backend)
            made[key] = ops.quantize(y, taken.ints, *last)
        found: Tensor = made[key]
        return found

    def delayed(self, taken: Taken) -> Delayed | None:
        found: Delayed | None = getattr(self.scales, taken.role.name.lower(), None)
        return found

    def _transformed(self, x: Tensor, taken: Taken) -> Tensor:
        if taken.transform is not None:
            x = ops.hadamard(x, *taken.transform, taken.along, self.backend)
        seen(x, taken.quantizer, taken.role)
        return x

    def source(self, x: Tensor, field: str, made: Made) -> Tensor:
        """The tensor that codes for one product are made from."""
        if not self.taken(field).from_codes:
            return x
        general = self.taken("weight" if field == "dgrad_weight" else "input")
        if not general.by_matrix:
            return self.values(x, general, made)
        # Of codes along the sum of fprop.
        rows = x if self.geometry.two_activations else x.flatten(0, -2)
        return self.values(rows, general, made).reshape(x.shape)

    def pair(self, product: str, left: Side, right: Side, shape: torch.Size) -> products.Pair:
        """Both operands of a product, as `Geometry.factors`. shape: of the result."""
        sides, acc = (left, right), self.acc(product)
        whole = [self._whole(side, acc) for side in sides]
        tensors = [s.tensor if o is None else o.values for s, o in zip(sides, whole, strict=True)]
        matrices = self.geometry.factors(product, tensors[0], tensors[1], shape)
        done = []
        for side, known, matrix in zip(sides, whole, matrices, strict=True):
            if known is not None:
                done.append(known._replace(values=matrix))
            elif side.operand is not None:
                done.append(side.operand)
            else:
                where = self.where(product, matrix, side.tensor)
                done.append(self.made_of(side, acc, matrix, where))
        return done[0], done[1]

    def where(self, product: str, matrix: Tensor, tensor: Tensor) -> str:
        """Tells the matrices of one tensor apart: of a batch that is broadcast each product has its
        own; others are the tensor's rows."""
        own = self.geometry.two_activations and matrix.shape != tensor.shape
        return product if own else ""

    def _whole(self, side: Side, acc: Accumulator) -> Operand | None:
        """The operand of the tensor as it was given; None where it is one of a matrix."""
        if lies_on_matrix(side.taken, acc):
            return None
        return side.operand or self.made_of(side, acc)

    def made_of(
        self, side: Side, acc: Accumulator, matrix: Tensor | None = None, where: str = ""
    ) -> Operand:
        """The operand of a tensor, or of a matrix of it."""
        x = side.tensor if matrix is None else matrix
        taken = _on_matrix(side.taken) if lies_on_matrix(side.taken, acc) else side.taken
        if not _takes_parts(taken, acc):
            return Operand(self.values(x, taken, side.made, where))
        return _operand(self.parts(x, taken, side.made, where), taken, acc, self.backend)


def _key(taken: Taken) -> tuple[Any, ...]:
    return taken.ints, int(taken.role), taken.along if taken.transform else 0


def _on_matrix(taken: Taken) -> Taken:
    """With blocks along the axis of the sum in the matrix, where they run along the same axis of
    the tensor."""
    ints = taken.ints
    if not _is_block(taken) or taken.by_matrix or ints[InBlock.LINES] > 0:
        return taken
    at = InBlock.AXIS
    return taken._replace(ints=(*ints[:at], taken.along, *ints[at + 1 :]))


def lies_on_matrix(taken: Taken, acc: Accumulator) -> bool:
    """Whether the codes are those of the matrix that a product in acc sums."""
    if taken.by_matrix:
        return True
    if not _takes_parts(taken, acc) or taken.ints[InBlock.LINES] == TENSOR:
        return False
    return acc.takes_scales or taken.ints[InBlock.LINES] == ROW


def _takes_parts(taken: Taken, acc: Accumulator) -> bool:
    """Whether a product in acc takes codes and scales, not values."""
    if not _is_block(taken) or acc.is_native:
        return False
    return acc.takes_scales or products.has_total(taken.ints)


def _is_block(taken: Taken) -> bool:
    return bool(taken.ints) and taken.ints[KIND] == BLOCK


def _operand(parts: ops.Parts, taken: Taken, acc: Accumulator, backend: str) -> Operand:
    """The operand of codes and scales for a product in acc."""
    fmt = _format(taken)
    if not _takes_parts(taken, acc):
        return Operand(ops.dequantize(*parts, fmt, backend))
    if acc.takes_scales:
        return products.operand(parts, fmt, taken.along)
    return products.without_scales(parts, fmt, taken.along, backend)


def _format(taken: Taken) -> Ints:
    return taken.ints[:-_MODE]


class Kept(NamedTuple):
    """An operand kept for backward: the layer's tensor, or codes of a tensor of this shape, which
    are those of values, or of a block format (``in_parts``)."""

    saved: Saved
    shape: torch.Size | None = None
    in_parts: bool = False

    def side(self, layer: Call, field: str, shape: torch.Size, acc: Accumulator) -> Side:
        """The operand that a product in acc reads, of a tensor of this shape."""
        made: Made = {}
        taken = layer.taken(field)
        if self.shape is None:
            return Side(layer.source(self.saved.tensor, field, made), taken, made)
        if not self.in_parts:
            values = self.saved.restored(self.shape)[0]
            return Side(values, taken, made, Operand(values))
        taken = _on_matrix(taken) if lies_on_matrix(taken, acc) else taken
        codes, fmt = self.saved.tensor, _format(taken)
        apart = saving.apart(fmt, len(self.shape))
        if apart and not _takes_parts(taken, acc):
            operand = Operand(ops.unpack(codes, apart, self.shape))
        else:
            parts = saving.unpacked(codes, fmt, self.shape)
            operand = _operand(parts, taken, acc, layer.backend)
        # Of the tensor only the shape is read.
        values = operand.values
        tensor = values if self.shape == shape else values.new_empty(()).expand(shape)
        return Side(tensor, taken, made, operand)


def kept(
    layer: Call, product: str, field: str, x: Tensor, others: tuple[torch.Size, torch.Size],
    made: Made, source: Tensor | None = None,
) -> Kept:  # fmt: skip
    """How x, the right operand of a product, is kept; others: the shapes of the left operand and of
    the result.  made: what was made of x before; source: the tensor that its codes are made from,
    where it is known."""
    taken, acc = layer.taken(field), layer.acc(product)
    if not packs(x) or not taken.ints or (taken.transform and not _is_block(taken)):
        return Kept(Saved(x))
    source, where = layer.source(x, field, made) if source is None else source, ""
    if lies_on_matrix(taken, acc):
        left = x.new_empty(()).expand(others[0])
        _, matrix = layer.geometry.factors(product, left, source, others[1])
        where, source, taken = layer.where(product, matrix, x), matrix, _on_matrix(taken)
    if not _is_block(taken):
        values = layer.values(source, taken, made, where)
        return Kept(saved(values, (), taken.quantizer, x, layer.backend), values.shape)
    if not saving.is_packed(_format(taken)):
        return Kept(Saved(x))
    codes = saving.packed(layer.parts(source, taken, made, where), _format(taken))
    if codes is None:
        return Kept(Saved(x))
    if taken.quantizer is not None and not taken.quantizer.is_stochastic:
        codes = shared(codes, x)
    return Kept(Saved(codes), source.shape, True)


def output_shape(x: Tensor, w: Tensor) -> torch.Size:
    """The shape of y where x has more dimensions than the right operand's matrix."""
    return torch.Size([*x.shape[:-1], w.shape[-2]])


def check(layer: Call, x: Tensor, w: Tensor) -> None:
    """Checks that scales which enter a sum are constant along it, and that runs of transformed
    values fill it."""
    matmuls = layer.geometry.matmuls
    ranks = {"input": x.dim(), "weight": w.dim(), "grad_output": x.dim()}
    for product, fields in OPERANDS.items():
        acc = layer.acc(product)
        for field in fields:
            taken = layer.taken(field)
            if taken.transform is not None:
                _check_runs(layer, product, taken, x, w)
            if taken.by_matrix or not lies_on_matrix(taken, acc):
                continue
            axis, rank = taken.ints[InBlock.AXIS], ranks[GENERAL.get(field, field)]
            last = taken.along == -1 or layer.geometry.two_activations or rank == 2
            along = taken.ints[InBlock.LINES] > 0 or axis % rank == rank + taken.along
            tiles = taken.ints[InBlock.LINES] <= 0 or rank == 2
            if matmuls and last and along and tiles:
                continue
            assert taken.quantizer is not None
            advice = "with axis='k' they do" if matmuls else _ONE_SCALE
            raise ValueError(
                f"{field}={taken.quantizer.fmt}: its scales enter the sum of {product}="
                f"{str(acc)!r}, but do not run along it in {'a matrix' if matmuls else 'an image'}"
                f" of {rank} dimensions; {advice}, or use native sums"
            )


def _check_runs(layer: Call, product: str, taken: Taken, x: Tensor, w: Tensor) -> None:
    if not layer.geometry.matmuls:
        raise ValueError(
            "a Hadamard transform runs along the sum of a matrix product; "
            "leave convolutions to another recipe (exclude= of lp.convert)"
        )
    needed = {"dgrad": x, "wgrad": w}.get(product)
    if needed is not None and not (torch.is_grad_enabled() and needed.requires_grad):
        return
    assert taken.transform is not None
    size, length = taken.transform[0], _length(layer, product, x, w)
    if length % size:
        raise ValueError(
            f"hadamard={size} transforms runs of {size} values along the sum, but {product} sums "
            f"{length}, which {size} does not divide; choose batches that it divides, the last one "
            "too (drop_last=True of a DataLoader), or leave hadamard away"
        )


def _length(layer: Call, product: str, x: Tensor, w: Tensor) -> int:
    """The number of terms of a matmul's sums."""
    if product == "fprop":
        return x.shape[-1]
    if not layer.geometry.two_activations:
        return w.shape[0] if product == "dgrad" else x.shape[:-1].numel()
    summed, result = (w, x) if product == "dgrad" else (x, w)
    batch = torch.broadcast_shapes(x.shape[:-2], w.shape[:-2])
    padded = (1,) * (len(batch) + 2 - result.dim()) + tuple(result.shape)
    length = summed.shape[-2]
    # Sums run over the dimensions in which the result was broadcast, too.
    for n, of_result in zip(batch, padded, strict=False):
        length *= n if of_result != n else 1
    return length
