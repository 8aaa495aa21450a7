"""One call of a layer without its tensors, and how its products are summed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import PRODUCTS, QUANTIZERS, Recipe
from lpkernels.arithmetic.by_product import Reading
from lpkernels.arithmetic.integers import InQuantizer, exchanged, sums_by_scale
from lpkernels.functional.operands import Operand, Pair, Source
from lpkernels.functional.recording import RoundingHook, current_rounding_hook
from lpkernels.functional.scaled import products
from lpkernels.functional.torch_calls import native_sum, torchs
from lpkernels.ops import (
    DISPATCHED,
    NOT_FUSED,
    Fused,
    How,
    Ints,
    Operators,
    Product,
    Row,
    matmul_of,
    operators_for,
)
from lpkernels.rng import SITE_OUTPUT, SITE_QUANTIZE, Role

if TYPE_CHECKING:
    from lpkernels.functional.running import Delayed, Scales


class Sum(NamedTuple):
    """How a layer's product is summed, by which backend, and which quantizers it applies itself.

    ``acc`` holds the integers of the accumulator, and ``is_native`` says whether it is torch's own.
    ``seed`` is a 0-d int64 tensor or None, ``backend`` a backend's name or "auto". ``fused`` and
    ``operands`` are for the two tensors in the order of the product's arguments. ``operands`` are
    those whose scales enter the sum; None where no operand has scales. ``emulated`` is False of a
    native product whose tensors the recipe leaves as they are. ``run`` holds the operators.
    """

    acc: Ints
    is_native: bool = False
    seed: Tensor | None = None
    role: Role = Role.DIRECT
    backend: str = "auto"
    fused: Fused = NOT_FUSED
    operands: Pair | None = None
    emulated: bool = True
    run: Operators = DISPATCHED

    def by_torch(self, x: Tensor) -> AbstractContextManager[Any]:
        """The context in which torch makes a native product of x."""
        return native_sum(x, self.role, self.emulated)

    def of(self, product: Product) -> Tensor:
        """The product, by torch itself where the sums are its own."""
        if self.is_native:
            if self.run.direct and not torch.is_autocast_enabled("cpu"):
                return torchs(product)
            with self.by_torch(product.left):
                return torchs(product)
        how = How(self.acc, self.seed, self.role, self.fused)
        if self.operands is None:
            return self.run.multiply(product, how, self.backend)
        return products.multiply(product, self.operands, how, self.backend, self.run)

    def swapped(self) -> Sum:
        """The same sum for a product that takes its two tensors in the other order."""
        left, right, result = self.fused
        operands = None if self.operands is None else self.operands[::-1]
        return self._replace(fused=Fused(right, left, result), operands=operands)

    def exchanged(self) -> Sum:
        """The same sum for a product whose factors are written the other way round."""
        acc = self.acc.exchanged() if isinstance(self.acc, Row) else exchanged(self.acc)
        return self._replace(acc=acc)

    def rounding(self, result: Ints) -> Sum:
        """The same product with another quantizer of its result, or () for none."""
        return self._replace(fused=self.fused._replace(result=result))

    def add_bias(self, y: Tensor, b: Tensor, channels: int) -> Tensor:
        """y + b, rounded: the last addition of this sum; the product has left y unrounded."""
        acc = self.acc
        if self.operands is not None and sums_by_scale(acc):
            acc = products.one_chunk(acc)
        result = self.fused.result
        return self.run.add_bias(y, b, channels, acc, self.seed, self.role, self.backend, result)


_ROLES = {field: Role[field.upper()] for field in QUANTIZERS}
_PRODUCT_ROLES = {name: Role[name.upper()] for name in PRODUCTS}


class Call(NamedTuple):
    """One call of a layer without its tensors: the arithmetic, and the operators that make it.

    ``hook`` is shown the tensors before they are rounded; ``scales`` are the delayed ones of the
    layer.
    """

    recipe: Recipe
    seed: Tensor | None
    backend: str
    run: Operators = DISPATCHED
    hook: RoundingHook | None = None
    scales: Scales | None = None

    @classmethod
    def of(cls, recipe: Recipe, seed: Tensor | None, backend: str, *tensors: Tensor | None) -> Call:
        """The call of a function of these tensors, under the rounding hook of this moment."""
        run = operators_for(*tensors, seed)
        return cls(recipe, seed, backend, run, current_rounding_hook())

    def seeded(self, seed: Tensor | None) -> Call:
        """The same call with another seed."""
        return self._replace(seed=seed)

    def rounded(self, x: Tensor, field: str) -> Tensor:
        """A tensor by the quantizer of this field of the recipe, in a new tensor; x itself where
        the recipe has none."""
        quantizer = getattr(self.recipe, field)
        if quantizer is None:
            return x
        role = _ROLES[field]
        if self.hook is not None:
            self.hook(x, quantizer, role)
        site = SITE_OUTPUT if field == "output" else SITE_QUANTIZE
        return self.run.quantize(x, quantizer.to_ints(), self.seed, role, site, self.backend)

    def sum(self, product: str, operands: Pair | None = None, result: Ints = ()) -> Sum:
        """The sum of "fprop", "dgrad" or "wgrad", which rounds its result by the quantizer
        `result`."""
        recipe, fused = self.recipe, NOT_FUSED
        if operands is not None:
            fused = Fused(operands[0].quantizer, operands[1].quantizer, result)
            operands = operands if recipe.readings.by_product else None
        acc, native = recipe.sums[product], getattr(recipe, product).is_native
        role, emulated = _PRODUCT_ROLES[product], product in recipe.emulated
        return Sum(acc, native, self.seed, role, self.backend, fused, operands, emulated, self.run)

    def bias_gradient(self, rows: Operand) -> Tensor:
        """Column sums (C,) of rows (T, C), each term g * 1 exact, in wgrad's accumulator over T in
        order."""
        if self.recipe.wgrad.is_native:
            return rows.values.sum(0)
        ones = Operand(rows.values.new_ones(1, rows.values.shape[0]))
        operands = (ones, rows) if self.recipe.readings.by_product else None
        # g, the left factor of wgrad, stands on the right.
        acc, fused = self.recipe.sums["bias"], Fused(right=rows.quantizer)
        role = Role.GRAD_BIAS
        how = Sum(acc, False, self.seed, role, self.backend, fused, operands, True, self.run)
        return how.of(matmul_of(ones.values, rows.values)).reshape(-1)

    def delayed(self, reading: Reading) -> Delayed | None:
        """The delayed scale of an operand, where its recipe has one."""
        return getattr(self.scales, reading.role.name.lower(), None)

    def parts(self, source: Source, reading: Reading, x: Tensor, key: str, ints: Ints) -> ops.Parts:
        """x, the tensor of a source or a matrix of it, as codes and scales."""
        if key not in source.parts:
            if reading.transform is not None or self.hook is not None:
                x = self._transformed(x, reading)
            delayed = None if self.scales is None else self.delayed(reading)
            if delayed is None:
                source.parts[key] = self.run.scaled(
                    x, ints, None, self.seed, reading.role, SITE_QUANTIZE, self.backend
                )
            else:
                source.parts[key] = delayed.parts(x, ints, self.seed, reading.role, self.backend)
        return source.parts[key]

    def values(self, source: Source, reading: Reading, x: Tensor, key: str, ints: Ints) -> Tensor:
        """The values of x's codes; x itself where nothing rounds it."""
        if not ints:
            return self._transformed(x, reading)
        if key in source.values:
            return source.values[key]
        from_parts = key in source.parts or (source.keeps and reading.is_block)
        if not from_parts and self.scales is not None:
            from_parts = self.delayed(reading) is not None
        if from_parts:
            parts = self.parts(source, reading, x, key, ints)
            values = self.run.dequantize(*parts, ints[InQuantizer.FORMAT], self.backend)
        else:
            if reading.transform is not None or self.hook is not None:
                x = self._transformed(x, reading)
            values = self.run.quantize(
                x, ints, self.seed, reading.role, SITE_QUANTIZE, self.backend
            )
        source.values[key] = values
        return values

    def _transformed(self, x: Tensor, reading: Reading) -> Tensor:
        if reading.transform is not None:
            x = ops.hadamard(x, *reading.transform, reading.along, self.backend)
        if self.hook is not None and reading.quantizer is not None:
            self.hook(x, reading.quantizer, reading.role)
        return x

    def operand(self, source: Source, reading: Reading, x: Tensor, product: str = "") -> Operand:
        """The operand of x: the tensor of a source, or its matrix if the codes are the matrix's.

        product: of two activations. Of a batch that is broadcast each product has a matrix of its
        own; others are the tensor's rows.
        """
        key, ints = reading.key, reading.ints
        if reading.as_is:
            if self.hook is not None and key not in source.values:
                # A tensor is shown once, whatever number of products reads it.
                source.values[key] = self._transformed(x, reading)
            return Operand(x, reading.fused)
        if reading.on_matrix:
            key, ints = reading.matrix_key, reading.matrix_ints
            if product and x.shape != source.tensor.shape:
                key += product
        if not reading.in_parts:
            return Operand(self.values(source, reading, x, key, ints))
        parts = self.parts(source, reading, x, key, ints)
        return self.in_parts(parts, reading, ints[InQuantizer.FORMAT])

    def in_parts(self, parts: ops.Parts, reading: Reading, fmt: Ints) -> Operand:
        """The operand of codes and scales, as the product of a reading takes it."""
        if not reading.in_parts:
            return Operand(self.run.dequantize(*parts, fmt, self.backend))
        if reading.by_scale:
            return products.operand(parts, fmt, reading.along)
        return products.without_scales(parts, fmt, reading.along, self.backend, self.run)
