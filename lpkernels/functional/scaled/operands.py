"""The operands of a layer's products that read codes of their own (`Recipe.by_product`).

Each product reads each operand as a `Reading` says: quantized once for all products, or for this
one, along the axis that it sums. A native product, and one that knows no scales, takes values;
others take codes, whose scales enter the sums.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic.by_product import GENERAL, OPERANDS, Reading
from lpkernels.arithmetic.integers import InQuantizer
from lpkernels.formats.integers import InBlock, Ints
from lpkernels.functional._saved import Saved, packs, saved, shared
from lpkernels.functional.layer import Call, Geometry
from lpkernels.functional.running import Delayed
from lpkernels.functional.scaled import products, saving
from lpkernels.functional.scaled.products import Operand, Pair
from lpkernels.rng import SITE_QUANTIZE

# A line along one axis has a scale for each place on the others.
_ONE_SCALE = (
    "a sum over channels and windows has one scale only where the tensor has one ('tensor_e4m3')"
)


class Source:
    """A tensor of a layer, with the codes and the values that were made of it already.

    keeps: whether its codes will be kept for backward, so that values are made of them.
    operand: what was kept of the tensor, or of the product's matrix where the codes lie on it.
    """

    def __init__(self, tensor: Tensor, *, keeps: bool = False, operand: Operand | None = None):
        self.tensor, self.keeps, self.operand = tensor, keeps, operand
        self.parts: dict[str, ops.Parts] = {}
        self.values: dict[str, Tensor] = {}

    def release(self, reading: Reading) -> None:
        """Frees what was made for one product where the next reads codes of its own, so that they
        lie in the same memory: pages that are new to the process cost more than their rounding."""
        if reading.own and not reading.from_codes:
            self.parts.clear()
            self.values.clear()


class Products(NamedTuple):
    """The products of one call of a layer, without its tensors."""

    geometry: Geometry
    call: Call

    def reading(self, field: str) -> Reading:
        """How the product that a field is of reads the operand."""
        result: Reading = getattr(self.call.recipe.by_product, field)
        return result

    def readings(self, product: str) -> tuple[Reading, Reading]:
        """How a product reads its two operands."""
        by_product, (left, right) = self.call.recipe.by_product, OPERANDS[product]
        return getattr(by_product, left), getattr(by_product, right)

    @property
    def is_bias_plain(self) -> bool:
        """Whether the bias' gradient sums the unquantized output gradient."""
        by_product = self.call.recipe.by_product
        return by_product is not None and by_product.plain_bias

    def delayed(self, reading: Reading) -> Delayed | None:
        """The delayed scale of an operand, where its recipe has one."""
        return getattr(self.call.scales, reading.role.name.lower(), None)

    def parts(
        self, source: Source, reading: Reading, x: Tensor, where: str, ints: Ints
    ) -> ops.Parts:
        """x, the tensor of a source or a matrix of it, as codes and scales."""
        if where not in source.parts:
            call = self.call
            if reading.transform is not None or call.sees is not None:
                x = self._transformed(x, reading)
            delayed = None if call.scales is None else self.delayed(reading)
            if delayed is None:
                source.parts[where] = call.run.scaled(
                    x, ints, None, call.seed, reading.role, SITE_QUANTIZE, call.backend
                )
            else:
                source.parts[where] = delayed.parts(x, ints, call.seed, reading.role, call.backend)
        return source.parts[where]

    def values(self, source: Source, reading: Reading, x: Tensor, where: str, ints: Ints) -> Tensor:
        """The values of x's codes; x itself where nothing rounds it."""
        if not ints:
            return self._transformed(x, reading)
        if where in source.values:
            return source.values[where]
        call = self.call
        from_parts = where in source.parts or (source.keeps and reading.is_block)
        if not from_parts and call.scales is not None:
            from_parts = self.delayed(reading) is not None
        if from_parts:
            parts = self.parts(source, reading, x, where, ints)
            values = call.run.dequantize(*parts, ints[InQuantizer.FORMAT], call.backend)
        else:
            if reading.transform is not None or call.sees is not None:
                x = self._transformed(x, reading)
            values = call.run.quantize(
                x, ints, call.seed, reading.role, SITE_QUANTIZE, call.backend
            )
        source.values[where] = values
        return values

    def _transformed(self, x: Tensor, reading: Reading) -> Tensor:
        if reading.transform is not None:
            x = ops.hadamard(x, *reading.transform, reading.along, self.call.backend)
        if self.call.sees is not None and reading.quantizer is not None:
            self.call.sees(x, reading.quantizer, reading.role)
        return x

    def of_codes(self, x: Tensor, field: str, source: Source) -> Tensor:
        """The tensor that the codes of one product are made from: x, or the values of fprop's codes
        of it."""
        if not self.reading(field).from_codes:
            return x
        general = self.reading("weight" if field == "dgrad_weight" else "input")
        if not general.along_k:
            return self.values(source, general, x, general.key, general.ints)
        # Of codes along the sum of fprop.
        rows = x if self.geometry.two_activations else x.flatten(0, -2)
        return self.values(source, general, rows, general.key, general.ints).reshape(x.shape)

    def pair(self, product: str, left: Source, right: Source, shape: torch.Size) -> Pair:
        """Both operands of a product, as `Geometry.factors`. shape: of the result."""
        of_left, of_right = self.readings(product)
        first = None if of_left.on_matrix else left.operand or self.operand(left, of_left)
        second = None if of_right.on_matrix else right.operand or self.operand(right, of_right)
        matrices = self.geometry.factors(
            product,
            left.tensor if first is None else first.values,
            right.tensor if second is None else second.values,
            shape,
        )
        if first is not None:
            first = first._replace(values=matrices[0])
        else:
            first = left.operand or self.operand(left, of_left, matrices[0], product)
        if second is not None:
            second = second._replace(values=matrices[1])
        else:
            second = right.operand or self.operand(right, of_right, matrices[1], product)
        return first, second

    def key(self, source: Source, reading: Reading, matrix: Tensor, product: str) -> str:
        """Tells the codes of one tensor's matrices apart: of a batch that is broadcast each product
        has a matrix of its own; others are the tensor's rows."""
        if self.geometry.two_activations and matrix.shape != source.tensor.shape:
            return reading.matrix_key + product
        return reading.matrix_key

    def operand(
        self, source: Source, reading: Reading, matrix: Tensor | None = None, product: str = ""
    ) -> Operand:
        """The operand of a tensor, or of the matrix that a product sums."""
        x, ints, key = source.tensor, reading.ints, reading.key
        if reading.on_matrix:
            ints, key = reading.matrix_ints, reading.matrix_key
        if matrix is not None:
            x = matrix
            if self.geometry.two_activations:
                key = self.key(source, reading, matrix, product)
        if not reading.in_parts:
            return Operand(self.values(source, reading, x, key, ints))
        parts = self.parts(source, reading, x, key, ints)
        return self.in_parts(parts, reading, ints[InQuantizer.FORMAT])

    def in_parts(self, parts: ops.Parts, reading: Reading, fmt: Ints) -> Operand:
        """The operand of codes and scales, as the product of a reading takes it."""
        call = self.call
        if not reading.in_parts:
            return Operand(call.run.dequantize(*parts, fmt, call.backend))
        if reading.by_scale:
            return products.operand(parts, fmt, reading.along)
        return products.without_scales(parts, fmt, reading.along, call.backend, call.run)


class Kept(NamedTuple):
    """An operand kept for backward: the layer's tensor, or codes of a tensor of this shape, which
    are those of values, or of a block format (``in_parts``)."""

    saved: Saved
    shape: torch.Size | None = None
    in_parts: bool = False

    def source(self, layer: Products, field: str, shape: torch.Size) -> Source:
        """The operand that a product reads, of a tensor of this shape."""
        reading, run = layer.reading(field), layer.call.run
        if self.shape is None:
            source = Source(self.saved.tensor)
            tensor = layer.of_codes(source.tensor, field, source)
            return source if tensor is source.tensor else Source(tensor)
        if not self.in_parts:
            values = self.saved.restored(layer.call, self.shape)[0]
            return Source(values, operand=Operand(values))
        ints = reading.matrix_ints if reading.on_matrix else reading.ints
        codes, fmt = self.saved.tensor, ints[InQuantizer.FORMAT]
        apart = saving.apart(fmt, len(self.shape))
        if apart and not reading.in_parts:
            operand = Operand(run.unpack(codes, apart, self.shape))
        else:
            parts = saving.unpacked(run, codes, fmt, self.shape)
            operand = layer.in_parts(parts, reading, fmt)
        # Of the tensor only the shape is read.
        values = operand.values
        tensor = values if self.shape == shape else values.new_empty(()).expand(shape)
        return Source(tensor, operand=operand)


def kept(
    layer: Products,
    product: str,
    field: str,
    source: Source,
    others: tuple[torch.Size, torch.Size],
    codes_of: Tensor | None = None,
) -> Kept:
    """How the right operand of a product is kept.

    others: the shapes of the left operand and of the result. codes_of: the tensor that the
    operand's codes are made from, where it is known.
    """
    reading, x, call = layer.reading(field), source.tensor, layer.call
    if not reading.ints or (reading.transform and not reading.is_block) or not packs(x):
        return Kept(Saved(x))
    tensor = layer.of_codes(x, field, source) if codes_of is None else codes_of
    ints, key = reading.ints, reading.key
    if reading.on_matrix:
        left = x.new_empty(()).expand(others[0])
        _, tensor = layer.geometry.factors(product, left, tensor, others[1])
        ints, key = reading.matrix_ints, layer.key(source, reading, tensor, product)
    if not reading.is_block:
        values = layer.values(source, reading, tensor, key, ints)
        return Kept(saved(call, values, (), reading.quantizer, x), values.shape)
    fmt = ints[InQuantizer.FORMAT]
    if not saving.is_packed(fmt):
        return Kept(Saved(x))
    parts = layer.parts(source, reading, tensor, key, ints)
    codes = saving.packed(call.run, parts, fmt, call.backend)
    if codes is None:
        return Kept(Saved(x))
    if reading.quantizer is not None and not reading.quantizer.is_stochastic:
        codes = shared(codes, x)
    return Kept(Saved(codes), tensor.shape, True)


def output_shape(x: Tensor, w: Tensor) -> torch.Size:
    """The shape of y where x has more dimensions than the right operand's matrix."""
    return torch.Size([*x.shape[:-1], w.shape[-2]])


def check(layer: Products, x: Tensor, w: Tensor) -> None:
    """Checks that scales which enter a sum are constant along it, and that runs of transformed
    values fill it."""
    matmuls = layer.geometry.matmuls
    ranks = {"input": x.dim(), "weight": w.dim(), "grad_output": x.dim()}
    for product, fields in OPERANDS.items():
        for field in fields:
            reading = layer.reading(field)
            if reading.transform is not None:
                _check_runs(layer, product, reading, x, w)
            if reading.along_k or not reading.on_matrix:
                continue
            axis, rank = reading.ints[InBlock.AXIS], ranks[GENERAL.get(field, field)]
            last = reading.along == -1 or layer.geometry.two_activations or rank == 2
            along = reading.ints[InBlock.LINES] > 0 or axis % rank == rank + reading.along
            tiles = reading.ints[InBlock.LINES] <= 0 or rank == 2
            if matmuls and last and along and tiles:
                continue
            assert reading.quantizer is not None
            advice = "with axis='k' they do" if matmuls else _ONE_SCALE
            acc = str(getattr(layer.call.recipe, product))
            raise ValueError(
                f"{field}={reading.quantizer.fmt}: its scales enter the sum of {product}={acc!r}, "
                f"but do not run along it in {'a matrix' if matmuls else 'an image'} of {rank} "
                f"dimensions; {advice}, or use native sums"
            )


def _check_runs(layer: Products, product: str, reading: Reading, x: Tensor, w: Tensor) -> None:
    if not layer.geometry.matmuls:
        raise ValueError(
            "a Hadamard transform runs along the sum of a matrix product; "
            "leave convolutions to another recipe (exclude= of lp.convert)"
        )
    needed = {"dgrad": x, "wgrad": w}.get(product)
    if needed is not None and not (torch.is_grad_enabled() and needed.requires_grad):
        return
    assert reading.transform is not None
    size, length = reading.transform[0], _length(layer, product, x, w)
    if length % size:
        raise ValueError(
            f"hadamard={size} transforms runs of {size} values along the sum, but {product} sums "
            f"{length}, which {size} does not divide; choose batches that it divides, the last one "
            "too (drop_last=True of a DataLoader), or leave hadamard away"
        )


def _length(layer: Products, product: str, x: Tensor, w: Tensor) -> int:
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
