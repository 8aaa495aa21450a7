"""The protocol of every backend: the methods of an adapter, and the record of a product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from lpkernels.arithmetic.products import Convolution, output_size
from lpkernels.formats.grids import grid_shape, tensor_scale_shape
from lpkernels.formats.integers import Ints
from lpkernels.rng import SITE_QUANTIZE, Role

#: A tensor in a block format: codes, the scales of its blocks, and the scale of the tensor or those
#: of its lines.
Parts: TypeAlias = tuple[Tensor, Tensor, Tensor]


class Fused(NamedTuple):
    """Quantizers that a product applies itself, as integers; () leaves a tensor as it is.

    It applies them to its two operands as it reads them, and to its result (bias included) before
    it is stored. No such quantizer draws random bits or takes a scale
    from its tensor.
    """

    left: Ints = ()
    right: Ints = ()
    result: Ints = ()


NOT_FUSED = Fused()

#: The kinds of products, which are also their names as operations (`Backend.unsupported`). Their
#: positions are those of lpk::bound::ProductKind in csrc/module/products.h.
KINDS = ("matmul", "conv_fprop", "conv_dgrad", "conv_wgrad")


class Product(NamedTuple):
    """A product to be made: its kind and its two float32 tensors, of any strides, on one device.

        kind         left                  right                    shape, of the result
        matmul       (..., M, K)           (..., K, N)              (..., M, N), broadcast
        conv_fprop   x (N, C, *)           w (C_out, C / groups, *) y (N, C_out, *)
        conv_dgrad   grad_output, as y     w                        as x
        conv_wgrad   x                     grad_output, as y        as w

    A convolution has one to three spatial dimensions. ``bias``, of a matmul (N,), of a fprop
    (C_out,), is one more addition in the outermost accumulator. ``initial``, of a matmul and of the
    result's shape, is where its outermost sums start; never beside a bias. Both are float32.
    ``totals`` are the scales of tensors, rows and columns: the left one (..., M) or (1,), the right
    one (..., N) or (1,), float32, None for ones. The sums are multiplied by the rounded product of
    both, and rounded to float32; never beside a bias.
    """

    kind: str
    left: Tensor
    right: Tensor
    shape: Sequence[int]
    conv: Convolution | None = None
    bias: Tensor | None = None
    initial: Tensor | None = None
    totals: tuple[Tensor | None, Tensor | None] | None = None

    def images(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The shapes of x, w and y of a convolution."""
        shape = tuple(self.shape)
        if self.kind == "conv_fprop":
            return self.left.shape, self.right.shape, shape
        if self.kind == "conv_dgrad":
            return shape, self.right.shape, self.left.shape
        return self.left.shape, shape, self.right.shape


class How(NamedTuple):
    """How a product is summed: ``Accumulator.to_ints()``, seed and role of its draws, and the
    quantizers that it applies itself."""

    acc: Ints
    seed: Tensor | None = None
    role: int = Role.DIRECT
    fused: Fused = NOT_FUSED


class Scales(NamedTuple):
    """The scales of a matmul's operands, for an accumulator that `takes_scales`.

    left: (..., M, segments), float32, the scale of every `left_size` products of a row of the left
    operand; right: (..., N, segments), of a column of the right one. Their leading dimensions
    broadcast to the operand's. A size of 0 means one segment. float32: whether a scale is of the
    format fp32, so that products of scales are rounded (`Accumulator.scale_order`). least: the
    least exponent that a scale of a group counts with (`Accumulator.group`).
    """

    left: Tensor
    right: Tensor
    left_size: int
    right_size: int
    float32: bool
    least: int = -127


_NO_BATCH = torch.Size(())


def broadcast_batch(a: Tensor, b: Tensor) -> torch.Size:
    """The leading dimensions of a @ b.

    Raises: ValueError: they do not broadcast.
    """
    if a.dim() == b.dim() == 2:
        return _NO_BATCH
    left, right = a.shape[:-2], b.shape[:-2]
    return left if left == right else broadcast_shapes(left, right)


def broadcast_shapes(*shapes: Sequence[int]) -> torch.Size:
    """torch.broadcast_shapes, which would import torch's symbolic shapes for a second.

    Raises: ValueError: two sizes differ and neither is 1.
    """
    sizes = [1] * max(map(len, shapes))
    for shape in shapes:
        for i, size in enumerate(shape, len(sizes) - len(shape)):
            if size != 1 and size != sizes[i]:
                if sizes[i] != 1:
                    raise ValueError(f"{', '.join(map(str, shapes))} do not broadcast")
                sizes[i] = size
    return torch.Size(sizes)


def matmul_of(
    a: Tensor, b: Tensor, bias: Tensor | None = None, initial: Tensor | None = None
) -> Product:
    """(..., M, K) times (..., K, N), leading dimensions broadcast."""
    if a.dim() == b.dim() == 2:
        shape: Sequence[int] = (a.size(0), b.size(1))
    else:
        shape = (*broadcast_batch(a, b), a.shape[-2], b.shape[-1])
    return Product("matmul", a, b, shape, None, bias, initial)


def fprop_of(x: Tensor, w: Tensor, bias: Tensor | None, conv: Convolution) -> Product:
    """x (N, C, *) convolved with w (C_out, C / groups, *); the size of y follows from conv."""
    spatial = output_size(x.shape[2:], w.shape[2:], *conv[:3])
    return Product("conv_fprop", x, w, (x.shape[0], w.shape[0], *spatial), conv, bias)


class Rounding(NamedTuple):
    """A tensor to be rounded, and the tensors to which the results go.

    x: float16, bfloat16, float32 or float64, any strides, not empty.
    quantizer: ``Quantizer.to_ints()``.
    seed, role, site: of the draws; the seed is None where nothing is stochastic.
    out: of x's shape, any strides, of a dtype that holds every value of the format. It does not
        overlap x, or is x itself where the format takes no scale. None writes no values, and then
        there are counts or parts.
    counts: int64, contiguous, `COUNTS` or `COUNTS` + `BINS` elements on x's device, to which the
        counts of `reference.counting` are added.
    limits: float64, contiguous, on x's device. Of an affine format the low and the high end of
        every slice, (2, slices), NaN for a slice that becomes NaN; None: the ends of the tensor's
        own finite values. Of a block format with a scale of the whole tensor one element in place
        of its largest finite magnitude; NaN, an infinity and a negative number make everything NaN,
        except under the steps "te" of one scale a tensor, which is 1 then.
    parts: contiguous float32 tensors, in place of out, for the codes of a block format (x's shape),
        the scales of its blocks (`formats.grids.grid_shape`) and the tensor's scale (0-d, 1 if the
        format has none). A block that is NaN has codes 0 and a NaN scale.
    """

    x: Tensor
    quantizer: Ints
    seed: Tensor | None = None
    role: int = Role.DIRECT
    site: int = SITE_QUANTIZE
    out: Tensor | None = None
    counts: Tensor | None = None
    limits: Tensor | None = None
    parts: Parts | None = None


def new_parts(shape: Sequence[int], fmt: Ints, device: torch.device) -> Parts:
    """The parts of a tensor of this shape in a block format, not yet written; the scale of a tensor
    or a line without elements, which no backend gets, is 1."""
    kind: Any = {"dtype": torch.float32, "device": device}
    scale = torch.empty(grid_shape(shape, fmt), **kind)
    of_lines = tensor_scale_shape(shape, fmt)
    t = torch.ones(of_lines, **kind) if 0 in shape else torch.empty(of_lines, **kind)
    return torch.empty(shape, **kind), scale, t


# How many counts `reference.counting` makes (overflow, underflow, zeros, nonfinite), and how many
# bins of exponents may follow them.
COUNTS = 4
BINS = 256


class UpdateTensors(NamedTuple):
    """The tensors that an update reads and changes: of each kind there is one for every parameter,
    or none.

    All are contiguous, on one device, and of one dtype within a kind. gradients, weights: float32,
    float16 or bfloat16. masters: float32, float16, bfloat16, or 1-D uint8 codes of 8, 16 or 32 bits
    as `Backend.pack` makes them; none where the weights are the masters. first, second: states,
    kept in the same ways, as many kinds as the step has. steps: 0-d float32, how many steps were
    made, of Adam alone. counts: (2,) int64, asked and unchanged.
    """

    gradients: Sequence[Tensor]
    weights: Sequence[Tensor]
    masters: Sequence[Tensor] = ()
    first: Sequence[Tensor] = ()
    second: Sequence[Tensor] = ()
    steps: Sequence[Tensor] = ()
    counts: Sequence[Tensor] = ()


class Update(NamedTuple):
    """An optimizer's step of every parameter.

    positions: of each parameter among all; it draws by ``rng.derive_seed(seed, position + 1)``.
    origins: for each parameter, the index of its first element in the whole parameter if it is a
        part.
    rounding, numbers: of `arithmetic.UpdateRounding` and of the step.
    begins: states are not read.
    seed: 0-d int64, of the step. skips: 0-d bool; where it is true nothing changes, and nobody
        waits to know. scale: 0-d float32, of the gradients. These three lie on the tensors' device
        or are None.
    """

    tensors: UpdateTensors
    positions: Sequence[int]
    origins: Sequence[int]
    rounding: Ints
    numbers: tuple[float, ...]
    begins: bool
    seed: Tensor | None = None
    skips: Tensor | None = None
    scale: Tensor | None = None


class DrawKey(NamedTuple):
    """The key of the draws of a matrix: element (i, j) draws in row ``row + i`` and column
    ``col + j``, at a site (`lpkernels.rng`), in the addition k."""

    row: int
    col: int
    site: int
    k: int


class Backend(Protocol):
    """The methods of an adapter. All tensors are already checked.

    Formats come as the tuples of integers that their ``to_ints`` gives. A seed is a 0-d int64
    tensor, on the CPU or on the device, or None where nothing is stochastic; the adapter derives
    the stream from it with ``rng.derive_seed(seed, role)``.
    Operands are float32 with any strides; results are new, contiguous float32 tensors on the
    operands' device. ``How.acc`` has order "native" only in `accumulate`, or with chunks where the
    backend ``sums_native``; one that lacks another order, or blocks, raises NotImplementedError.

    ``fuses`` says whether `multiply` honours ``How.fused``, and ``fuses_tables`` whether it does so
    for quantizers that round to tables; where it does not, it is only called with `NOT_FUSED`.
    ``joins_passes`` says whether one call does the work of several: `pack` takes a quantizer or
    parts, `unpack` gives parts, and `multiply` takes totals.
    """

    name: str
    fuses: bool
    fuses_tables: bool
    joins_passes: bool
    sums_native: bool

    def available(self) -> bool:
        """Whether this backend can run in this process."""
        ...

    def why_not(self) -> str:
        """The reason it cannot run, and the remedy; "" if it can."""
        ...

    def unsupported(self, op: str, device: torch.device) -> str:
        """Why it has no `op` for tensors on `device`; "" if it has.

        op is the name of a method or the kind of a product. `quantize` is "quantize_affine" and
        "quantize_block" for these formats, "quantize_counting" for others with counts or limits,
        and "scaled" with parts; `unpack` of parts is "dequantize", `pack` with a scale
        "pack_scaled". Behind the kind of a product stands "_ordered" for trees, compensated sums
        and aligned blocks, "_operands" for blocks aligned by their operands, and "_cores" for
        blocks that are added exactly or by an adder of AMD's matrix cores. Products with
        scales are "matmul_grouped" where scales belong to groups, else "matmul_scaled", behind
        which stand "_drawn" where inner sums are stochastic, then "_ordered" or "_cores". A name
        ends in "_table" where a format, or the element of one, is a TableFormat; the formats of
        fused quantizers do not count.
        """
        ...

    def quantize(self, rounding: Rounding) -> None:
        """Rounds every value of a tensor, counts if there are counts, and writes the results."""
        ...

    def multiply(self, product: Product, how: How, scales: Scales | None = None) -> Tensor:
        """The result of product, summed and rounded as how says.

        scales: of a matmul of codes, without a bias and with nothing fused, by
        `reference.grouped_products` where the accumulator has groups, else by
        `reference.scaled_products`.
        """
        ...

    def accumulate(self, total: Tensor, addend: Tensor, how: How, key: DrawKey) -> None:
        """total = round(total + addend) in the outer format, in place.

        total is (rows, cols) and contiguous, addend broadcasts to it.
        """
        ...

    def matmul_events(
        self, product: Product, how: How, rows: Tensor
    ) -> tuple[Tensor, tuple[int, ...]]:
        """The sums of a matmul (M, K) @ (K, N) of finite operands, and the counts of the events in
        them, as `reference.events.Events` holds both.

        rows: (M,) int64, contiguous, on the CPU: the row keys of the draws.
        """
        ...

    def pack(
        self, x: Tensor | Parts, fmt: Ints, quantizer: Ints = (), scale: Tensor | None = None
    ) -> Tensor:
        """The codes of float32 x, dense, as a 1-D uint8 tensor.

        quantizer: to this format, without scales and draws; it rounds x first. scale: x holds the
        codes of a block format that is packed `block_by_block`, and this the scales of its blocks.
        x may be the parts of a tensor in a block format whose scales all have codes. The bytes are
        then the scale of the tensor if the format has one, all scales, all elements.

        Raises: ValueError: a value that fmt does not hold; the message names it.
        """
        ...

    def unpack(
        self, codes: Tensor | Parts, fmt: Ints, shape: Sequence[int], parts: Parts | None = None
    ) -> Tensor:
        """The float32 values of codes; of the parts of a block format their product, rounded once.

        parts: `new_parts`, to be written from the codes that `pack` gives of parts; the elements
        are returned.
        """
        ...

    def hadamard(self, x: Tensor, size: int, signs: Ints, axis: int) -> Tensor:
        """`reference.hadamard.hadamard`: every run of size values along axis, transformed and
        rounded to bfloat16.

        x: float16, bfloat16 or float32, any strides, not empty, of a length along axis that size
        divides. size: 16, 32, 64 or 128. signs: size numbers 1 or -1.
        """
        ...

    def update(self, update: Update) -> None:
        """`reference.updates.update` of every parameter where it lies; its counts and steps grow.

        Values are kept as codes only in a format that has a code for each of them.
        """
        ...
