"""Products and convolutions of every kind, for hypothesis to draw: any accumulator, shape, layout
and operand.

A failing example is printed as a `ProductCall` or a `ConvCall`, which a test can call by itself.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

import lpkernels as lp
from lpkernels import ops
from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends import Fused, How, Product, matmul_of
from lpkernels.backends.planning import triton_tiers
from lpkernels.formats import FixedFormat, FloatFormat, Number, TableFormat
from lpkernels.rounding import ROUNDINGS
from tests.backends.zero_sums import FORMATS
from tests.cases import ConvCase
from tests.compare import assert_bit_equal
from tests.numbers import constructed
from tests.support import strategies as descriptions
from tests.support.products import KINDS, PASSES, ROLE, SEED, operand

#: Kinds of operands: those of `operand`, short values whose sums certified tiers take, any bits,
#: and the kinds that depend on the accumulator.
_VALUES = (*KINDS, "rare", "short", "bits", "least", "largest", "exact")


class Values:
    """Operands of kinds for one accumulator, by a generator.

    "least": the products of two such tensors are zeros of both signs and near the least step of one
    of the accumulator's formats, so that they underflow, lie halfway or cancel. "largest": they are
    near the largest value of this format. "exact": the bits of such products and of their sums of
    `length` are about as many as a type or the format has, where tiers begin and end.
    """

    def __init__(self, acc: Accumulator, length: int, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self._fmt = rng.choice([fmt for fmt in (acc.fmt, acc.product, acc.outer) if fmt])
        steps = _precision(self._fmt)
        bits = rng.choice([8, 11, 24, 53, *[steps] * 4]) + rng.integers(-2, 3)
        self._bits = max(int(bits) - length.bit_length(), 2)

    def __call__(self, kind: str, shape: tuple[int, ...], *, added: bool = False) -> Tensor:
        """added: values that are added to products, and have their size."""
        rng = self.rng
        if kind == "bits":
            words = rng.integers(0, 2**32, shape, dtype=np.uint32)
            return torch.from_numpy(words.view(np.float32))
        if kind == "short":
            values = rng.integers(-7, 8, shape) * 2.0 ** rng.integers(-6, 3, shape)
        elif kind in ("least", "largest"):
            # Both factors have half of the product's exponent, so that float32 holds them.
            exponent = np.frexp(_end(self._fmt, kind))[1] // (1 if added else 2)
            exponent += rng.integers(-4, 1)
            values = np.ldexp(rng.choice(_AROUND, shape), exponent)
        elif kind == "exact":
            bits = min(self._bits // 2 + rng.integers(0, 2), 24)
            values = rng.integers(1 - 2**bits, 2**bits, shape) * 2.0 ** rng.integers(-bits, 3)
        else:
            return torch.from_numpy(operand(kind, shape, rng))
        with np.errstate(over="ignore"):
            return torch.from_numpy(values.astype(np.float32))


#: Factors of "least" and "largest".
_AROUND = np.array([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.0, -1.0, 1.5, -1.5, 1.75])


def _end(fmt: Number, kind: str) -> float:
    """The least step or the largest value of a format."""
    if kind == "largest":
        return float(fmt.max)
    if isinstance(fmt, FloatFormat):
        return fmt.min_subnormal if fmt.subnormals else fmt.min_normal
    values = np.abs(fmt.values()) if isinstance(fmt, TableFormat) else 2.0**-fmt.frac_bits
    return float(np.min(values, where=np.asarray(values) > 0, initial=np.inf))


def _precision(fmt: Number) -> int:
    """The bits of a sum that the format holds, about."""
    if isinstance(fmt, FloatFormat):
        return fmt.man_bits + 1
    return fmt.word_bits if isinstance(fmt, FixedFormat) else 8


#: Operands that lie otherwise in memory; one row, or one matrix of a batch, may stand for all.
LAYOUTS = descriptions.LAYOUTS | {
    "expanded": lambda x: x[:1].expand_as(x),
    "columns": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
    "channels inside": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1) if x.dim() > 1 else x,
}
#: The batches of both operands.
_BATCHES = [
    *[((), ())] * 4, ((2,), (2,)), ((1,), (3,)), ((), (3,)), ((2, 2), ()), ((2, 1), (1, 3)),
    ((0,), ()),
]  # fmt: skip


class ProductCall(NamedTuple):
    """A product (m, k) @ (k, n), with the kinds of the operands and how they lie in memory.

    rest: "bias", "initial" or "": what else is added. fused: quantizers of the operands and the
    result, or None. batch: the dimensions before those of the two matrices.
    """

    acc: Accumulator
    sizes: tuple[int, int, int]
    left: str
    right: str
    layout: str
    rest: str
    fused: tuple[Quantizer | None, ...]
    seed: int
    batch: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def product(self) -> Product:
        (m, k, n), (lead, rest) = self.sizes, self.batch
        values = Values(self.acc, k, self.seed)
        operands = ((self.left, (*lead, m, k)), (self.right, (*rest, k, n)))
        a, b = (
            LAYOUTS[self.layout](_fitting(values(kind, shape), self.acc, side, self.seed))
            if math.prod(shape)
            else torch.empty(shape)
            for side, (kind, shape) in enumerate(operands)
        )
        product = matmul_of(a, b)
        bias = values(self.left, (n,), added=True) if self.rest == "bias" else None
        start = values(self.right, tuple(product.shape), added=True)
        return product._replace(bias=bias, initial=start if self.rest == "initial" else None)


def _fitting(x: Tensor, acc: Accumulator, side: int, seed: int) -> Tensor:
    """Of an accumulator with operands of its own, three times in four their values."""
    if not acc.operands or seed % 4 == 0:
        return x
    return lp.quantize(x, acc.operands[side], backend="reference")


def _is_emulated(acc: Accumulator) -> bool:
    """Whether the contract has every bit of the sum, of operands without scales."""
    return acc.order != "native" and acc.chunk != "scale" and acc.group is None


def _around_one(fmt: FloatFormat) -> FloatFormat:
    """The format with the bias that its kind has by default, where float32 has its values."""
    try:
        return replace(fmt, bias=None)
    except ValueError:
        return fmt


def _in_sequence(fmt: Any, rounding: Any, chunk: int | None, outer: Any, product: Any) -> Any:
    outer = outer if chunk else None
    return Accumulator(fmt, rounding, product=product, chunk=chunk, outer=outer)


# Most of the constructors' formats have no value near 1, and certified tiers take sums in sequence
# alone. Half of the calls have accumulators of such tiers, and most have operands for them.
_AROUND_ONE = descriptions.float_formats().map(_around_one)
_CERTIFIED = st.builds(
    _in_sequence, st.sampled_from(FORMATS) | _AROUND_ONE,
    st.just("nearest_even") | st.sampled_from(ROUNDINGS),
    st.none() | st.integers(1, 9), st.none() | _AROUND_ONE, st.none() | st.none() | _AROUND_ONE,
).filter(lambda acc: bool(triton_tiers.tiers(acc.to_ints())))  # fmt: skip
_ACCUMULATORS = constructed.accumulators.filter(_is_emulated) | _CERTIFIED
_QUANTIZERS = st.builds(
    Quantizer, descriptions.float_formats() | descriptions.fixed_formats(),
    st.sampled_from(["nearest_even", "toward_negative", "to_odd"]),
)  # fmt: skip
#: Of the operands and of the result.
NO_FUSED = (None,) * 3
_FUSED = st.just(NO_FUSED) | st.tuples(*[st.none() | st.none() | _QUANTIZERS] * 3)


#: Operands whose products certified tiers make, and end at zeros and at the ends of formats.
_PAIRS = st.sampled_from([(kind, kind) for kind in ("short", "least", "least", "largest", "exact")])


@st.composite
def product_calls(
    draw: st.DrawFn, most: int = 40, accumulators: Sequence[Accumulator] = ()
) -> ProductCall:
    """Products of at most `most` in each dimension, empty ones among them; accumulators: all that
    are drawn, if there are any."""
    acc = draw(st.sampled_from(accumulators) if accumulators else _ACCUMULATORS)
    # The reference makes these sums one by one.
    most = min(most, 9) if acc.has_core else most
    size = st.sampled_from([1, 2, 3, 4, 5, 17, most, 0]) | st.integers(1, most)
    sizes = draw(st.tuples(size, size, size))
    starts = acc.order != "pairwise" or acc.chunk is not None
    # These take other values seldom.
    certified = draw(st.integers(0, 3)) and triton_tiers.tiers(acc.to_ints())
    return ProductCall(
        acc,
        tuple(min(size, most) for size in sizes),
        *draw(_PAIRS if certified else _PAIRS | st.tuples(*[st.sampled_from(_VALUES)] * 2)),
        draw(st.sampled_from(list(LAYOUTS))),
        draw(st.sampled_from(["", "", "bias", *["initial"] * starts])),
        draw(_FUSED),
        draw(st.integers(0, 2**32)),
        draw(st.sampled_from(_BATCHES)),
    )  # fmt: skip


@st.composite
def conv_cases(draw: st.DrawFn, most: int = 6) -> ConvCase:
    """Convolutions of one to three dimensions with an output; most: of the channels of a group."""
    rank = draw(st.integers(1, 3))
    largest = {1: 30, 2: 9, 3: 5}[rank]

    def sizes(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    kernel, stride, padding, dilation = sizes(1, 4), sizes(1, 4), sizes(0, 4), sizes(1, 3)
    spatial = [
        max(size, step * (taps - 1) + 1 - 2 * pad, 1)
        for size, taps, pad, step in zip(sizes(1, largest), kernel, padding, dilation, strict=True)
    ]
    # More groups than a vector has lanes; Triton's interpreter takes a second for such a call.
    groups = draw(st.sampled_from((1, 1, 2, 3, 17) if most > 5 else (1, 1, 2, 3)))
    batch, c_in, c_out = (draw(st.integers(1, high)) for high in (3, min(most, 4), most))
    return ConvCase(
        (batch, groups * c_in, *spatial), (groups * c_out, c_in, *kernel), tuple(stride),
        tuple(padding), tuple(dilation), groups,
    )  # fmt: skip


class ConvCall(NamedTuple):
    """A pass of a convolution of values of one kind, as a `ProductCall` is otherwise."""

    case: ConvCase
    acc: Accumulator
    name: str
    kind: str
    layout: str
    fused: tuple[Quantizer | None, ...]
    seed: int

    def products(self) -> int:
        """About how many there are."""
        return math.prod(self.case.output_shape) * math.prod(self.case.weight_shape[1:])

    def product(self) -> Product:
        case = self.case
        length = case.weight_shape[1] * math.prod(case.weight_shape[2:])
        values = Values(self.acc, length, self.seed)
        shapes = (case.input_shape, case.weight_shape, case.output_shape, case.weight_shape[:1])
        x, w, grad, bias = (
            LAYOUTS[self.layout](_fitting(values(self.kind, shape), self.acc, side, self.seed))
            for side, shape in zip((0, 1, 0, 0), shapes, strict=True)
        )
        conv = ops.Convolution(*case.geometry)
        if self.name == "fprop":
            return ops.fprop_of(x, w, bias, conv)
        if self.name == "dgrad":
            return Product("conv_dgrad", grad, w, case.input_shape, conv)
        return Product("conv_wgrad", x, grad, case.weight_shape, conv)


def conv_calls(most: int = 6, accumulators: Sequence[Accumulator] = ()) -> st.SearchStrategy:
    """Every pass; accumulators: all that are drawn, if there are any."""
    accs = st.sampled_from(accumulators) if accumulators else _ACCUMULATORS
    calls = st.builds(
        ConvCall, conv_cases(most), accs, st.sampled_from(PASSES),
        _PAIRS.map(lambda pair: pair[0]) | st.sampled_from(_VALUES),
        st.sampled_from(list(LAYOUTS)), _FUSED, st.integers(0, 2**32),
    )  # fmt: skip
    return calls.filter(lambda call: not call.acc.has_core or call.products() < _MOST_OF_CORES)


# The products of a convolution that the reference adds one by one in a moment.
_MOST_OF_CORES = 5000


def how_of(call: ProductCall | ConvCall) -> How:
    fused = Fused(*(() if q is None else q.to_ints() for q in call.fused))
    return How(call.acc.to_ints(), SEED, ROLE, fused)


def assert_call(
    backend: Any, call: ProductCall | ConvCall, device: str = "cpu", ways: Any = ("",)
) -> None:
    """The backend's product has the reference's bits. ways: a loop over instruction sets."""
    product, how = call.product(), how_of(call)
    with np.errstate(all="ignore"):
        want = ops.multiply(product, how, "reference")
    there = Product(*(x.to(device) if isinstance(x, Tensor) else x for x in product))
    how = how._replace(seed=SEED.to(device))
    for way in ways:
        assert_bit_equal(backend.multiply(there, how), want, f"{way} {call}")
