"""Convolutions of short values on the CPU, and sums that depend on the place of a product."""

from collections.abc import Iterable

import torch
from torch import Tensor

from lpkernels.arithmetic import Accumulator
from tests.cases import ConvCase, accumulators_named
from tests.support.cpu_products import assert_convolution

#: Sums for which a product's place matters and sums for which it does not, with zeros of both
#: signs.
SUMS = accumulators_named("""
    e6m9 e5m4:toward_negative e5m10:product=e4m3 e6m9_chunk7 e5m6:stochastic
    e5m6:product=e4m3:product_rounding=stochastic:bits=16 fixed12_f6_wrap
""")
#: Sums in which positions count, in every way: chunks that a phase of a stride leaves empty or that
#: end within a block, draws of sums, of products and of the outer sums, zeros of both signs.
POSITIONED = accumulators_named("""
    e6m9_chunk1 e6m9_chunk4:outer=e4m3 e6m9_chunk64 e5m10_chunk2:outer=e5m2
    e5m2_chunk3:toward_negative:outer=e4m3 e5m3_chunk5:to_odd:outer=e4m2none_nosub_sat
    fp32_chunk3:outer=e5m4 e5m4_chunk3:stochastic:outer=e5m2 e5m4:stochastic:bits=13:philox
    e5m4:stochastic:bits=24 e6m9_chunk6:product=e4m2:product_rounding=stochastic:bits=3
    e5m6:stochastic:product=e4m2:product_rounding=stochastic:bits=5 fixed10_f4_chunk4
    fixed10_f4_wrap_chunk2:outer=fixed9_f3
""")


def short_values(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    """Multiples of 2^-4 with three significant bits, as quantised operands have, some of them 0."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for shape in shapes:
        x = torch.randint(-7, 8, shape, generator=generator).float()
        made.append(x * torch.exp2(torch.randint(-4, 1, shape, generator=generator).float()))
    return made


def assert_drawn(ways: Iterable[str], case: ConvCase, acc: Accumulator, seed: int = 0) -> None:
    """Every pass of a convolution of short values, with a bias, gives the reference's bits."""
    shapes = (case.input_shape, case.weight_shape, case.output_shape, case.weight_shape[:1])
    assert_convolution(ways, case, acc, *short_values(*shapes, seed=seed))
