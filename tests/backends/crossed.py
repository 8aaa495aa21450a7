"""Products and convolutions of every kind, for hypothesis to draw: any accumulator, shape, layout
and operand.

A failing example is printed as a `ProductCall` or a `ConvCall`, which a test can call by itself.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import Accumulator, Quantizer
from lpkernels.backends import Fused, How, Product, matmul_of
from lpkernels.formats import FloatFormat
from lpkernels.rounding import ROUNDINGS
from tests.cases import ConvCase
from tests.compare import assert_bit_equal
from tests.numbers import constructed
from tests.support import strategies as descriptions
from tests.support.products import KINDS, PASSES, ROLE, SEED, operand

#: Kinds of operands: those of `operand`, short values whose sums certified tiers take, any bits.
_VALUES = (*KINDS, "rare", "short", "bits")


def _values(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Tensor:
    if kind == "bits":
        words = rng.integers(0, 2**32, shape, dtype=np.uint32)
        return torch.from_numpy(words.view(np.float32))
    if kind == "short":
        short = rng.integers(-7, 8, shape) * 2.0 ** rng.integers(-6, 3, shape)
        return torch.from_numpy(short.astype(np.float32))
    return torch.from_numpy(operand(kind, shape, rng))


class ProductCall(NamedTuple):
    """A product (m, k) @ (k, n), with the kinds of the operands and how they lie in memory.

    rest: "bias", "initial" or "": what else is added. fused: quantizers of the operands and the
    result, or None.
    """

    acc: Accumulator
    sizes: tuple[int, int, int]
    left: str
    right: str
    layout: str
    rest: str
    fused: tuple[Quantizer | None, ...]
    seed: int

    def product(self) -> Product:
        rng, (m, k, n) = np.random.default_rng(self.seed), self.sizes
        a, b = (
            descriptions.LAYOUTS[self.layout](_values(rng, kind, shape))
            if k
            else torch.empty(shape)
            for kind, shape in ((self.left, (m, k)), (self.right, (k, n)))
        )
        bias = _values(rng, self.left, (n,)) if self.rest == "bias" else None
        initial = _values(rng, self.right, (m, n)) if self.rest == "initial" else None
        return matmul_of(a, b, bias, initial)

    def how(self, device: str = "cpu") -> How:
        fused = Fused(*(() if q is None else q.to_ints() for q in self.fused))
        return How(self.acc.to_ints(), SEED.to(device), ROLE, fused)


def _is_emulated(acc: Accumulator) -> bool:
    """Whether the contract has every bit of the sum, of operands without scales."""
    return acc.order != "native" and acc.chunk != "scale" and acc.group is None


def _around_one(fmt: FloatFormat) -> FloatFormat:
    """The format with the bias that its kind has by default, where float32 has its values."""
    try:
        return replace(fmt, bias=None)
    except ValueError:
        return fmt


# Most of the constructors' formats have no value near 1, and certified tiers take sums in sequence
# of short values alone. Half of the calls have such accumulators, and half such operands.
_AROUND_ONE = descriptions.float_formats().map(_around_one)
_IN_SEQUENCE = st.builds(
    Accumulator, _AROUND_ONE, st.just("nearest_even") | st.sampled_from(ROUNDINGS),
    product=st.none() | _AROUND_ONE, chunk=st.none() | st.integers(1, 9),
)  # fmt: skip
_ACCUMULATORS = constructed.accumulators.filter(_is_emulated) | _IN_SEQUENCE
_QUANTIZERS = st.builds(
    Quantizer, descriptions.float_formats() | descriptions.fixed_formats(),
    st.sampled_from(["nearest_even", "toward_negative", "to_odd"]),
)  # fmt: skip


@st.composite
def product_calls(draw: st.DrawFn, most: int = 40) -> ProductCall:
    """Products of at most `most` in each dimension, empty ones among them."""
    acc = draw(_ACCUMULATORS)
    sizes = draw(st.tuples(*[st.sampled_from([1, 2, 3, 5, 17, most]) | st.integers(0, most)] * 3))
    starts = acc.order != "pairwise" or acc.chunk is not None
    return ProductCall(
        acc,
        tuple(min(size, most) for size in sizes),
        *draw(st.just(("short", "short")) | st.tuples(*[st.sampled_from(_VALUES)] * 2)),
        draw(st.sampled_from(list(descriptions.LAYOUTS))),
        draw(st.sampled_from(["", "", "bias", *["initial"] * starts])),
        draw(st.just((None,) * 3) | st.tuples(*[st.none() | _QUANTIZERS] * 3)),
        draw(st.integers(0, 2**32)),
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
    groups = draw(st.sampled_from((1, 1, 2, 3, 17)))
    batch, c_in, c_out = (draw(st.integers(1, high)) for high in (3, min(most, 4), most))
    return ConvCase(
        (batch, groups * c_in, *spatial), (groups * c_out, c_in, *kernel), tuple(stride),
        tuple(padding), tuple(dilation), groups,
    )  # fmt: skip


class ConvCall(NamedTuple):
    """A pass of a convolution of values of one kind."""

    case: ConvCase
    acc: Accumulator
    name: str
    kind: str
    seed: int

    def product(self) -> Product:
        rng, case = np.random.default_rng(self.seed), self.case
        shapes = (case.input_shape, case.weight_shape, case.output_shape, case.weight_shape[:1])
        x, w, grad, bias = (_values(rng, self.kind, shape) for shape in shapes)
        conv = ops.Convolution(*case.geometry)
        if self.name == "fprop":
            return ops.fprop_of(x, w, bias, conv)
        if self.name == "dgrad":
            return Product("conv_dgrad", grad, w, case.input_shape, conv)
        return Product("conv_wgrad", x, grad, case.weight_shape, conv)

    def how(self, device: str = "cpu") -> How:
        return How(self.acc.to_ints(), SEED.to(device), ROLE)


def conv_calls(accumulators: Sequence[Accumulator] = (), most: int = 6) -> st.SearchStrategy:
    """Every pass; accumulators: some that are drawn as often as all others together."""
    accs = _ACCUMULATORS
    if accumulators:
        accs = st.sampled_from(accumulators) | accs
    return st.builds(
        ConvCall, conv_cases(most), accs, st.sampled_from(PASSES),
        st.just("short") | st.sampled_from(_VALUES), st.integers(0, 2**32),
    )  # fmt: skip


def assert_call(
    backend: Any, call: ProductCall | ConvCall, device: str = "cpu", ways: Any = ("",)
) -> None:
    """The backend's product has the reference's bits. ways: a loop over instruction sets."""
    product = call.product()
    with np.errstate(all="ignore"):
        want = ops.multiply(product, call.how(), "reference")
    there = Product(*(x.to(device) if isinstance(x, Tensor) else x for x in product))
    for way in ways:
        assert_bit_equal(backend.multiply(there, call.how(device)), want, f"{way} {call}")
