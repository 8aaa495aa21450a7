"""The cpu backend's products in groups with scales: instruction sets, shapes, threads, flushing."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lpkernels.arithmetic import MODELS, as_accumulator
from lpkernels.backends import How, Scales, cpu, matmul_of
from tests.backends.cpu_products import REFERENCE
from tests.compare import assert_bit_equal
from tests.support.processor import Isas, Threads, flushed

BACKEND = cpu.BACKEND
NARROW = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
WIDE = torch.tensor([0, 2.0**-9, 2.0**-7, 0.0625, 1.125, 9.0, 240.0, 448.0])
NARROW_SUM = {"fmt": "e5m6", "rounding": "to_odd", "least_exponent": None}


def chosen(values: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    signs = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    return values[torch.randint(0, len(values), shape, generator=generator)] * signs


def operands(
    name: str, left: tuple[int, ...], right: tuple[int, ...], length: int
) -> tuple[Tensor, Tensor, Scales]:
    """Codes with scales far apart, beside each other, zero, and NaN."""
    generator = torch.Generator().manual_seed(length)
    codes = WIDE if name == "model_b200_mxf8" else NARROW
    a = chosen(codes, (*left, length), generator)
    b = chosen(codes, (*right[:-1], length, right[-1]), generator)
    size = 16 if name == "model_b200_nvf4" else 32
    parts = []
    for shape in (left, right):
        powers = torch.randint(-4, 4, (*shape, -(-length // size)), generator=generator)
        scale = 2.0**powers * (1.625 if size == 16 else 1)
        if size == 32 and length:
            scale[..., 0, -1] = 2.0**-127
        if size == 16 and length:
            scale[..., 0, 0], scale[..., 1, -1] = 0.0, 2.0**-9
        parts.append(scale)
    if length:
        parts[0][..., -1, 0] = torch.nan
    return a, b, Scales(*parts, size, size, False, -6 if size == 16 else -127)


SHAPES = [((3,), (5,), 20), ((70,), (37,), 130), ((2, 3, 5), (18,), 96), ((2, 1, 4), (3, 17), 70),
          ((4,), (2, 16), 33), ((3,), (4,), 0)]  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_shapes(name: str, shapes: tuple[Any, Any, int], isas: Isas) -> None:
    a, b, scales = operands(name, *shapes)
    plain = matmul_of(a, b)
    start = torch.randn(tuple(plain.shape), generator=torch.Generator().manual_seed(1))
    for acc in (as_accumulator(name), replace(as_accumulator(name), **NARROW_SUM)):
        how = How(acc.to_ints())
        for product in (plain, plain._replace(initial=start)):
            want = REFERENCE.multiply(product, how, scales)
            for isa in isas:
                assert_bit_equal(BACKEND.multiply(product, how, scales), want, isa)
                with flushed():
                    got = BACKEND.multiply(product, how, scales)
                assert_bit_equal(got, want, f"{isa}, flushed")


def test_strides_segments_and_threads(threads: Threads) -> None:
    acc = as_accumulator("fp32:toward_zero:block=12:aligned_bits=30:operands=fp4_e2m1:group=4")
    generator = torch.Generator().manual_seed(2)
    a, b = chosen(NARROW, (50, 130), generator).t(), chosen(NARROW, (40, 50), generator).t()
    rows = 2.0 ** torch.randint(-9, 9, (130, 7), generator=generator)
    for right_size, segments in ((0, 1), (12, 5), (20, 3)):
        cols = 2.0 ** torch.randint(-9, 9, (40, segments), generator=generator)
        product, scales = matmul_of(a, b), Scales(rows, cols, 8, right_size, False)
        want = REFERENCE.multiply(product, How(acc.to_ints()), scales)
        for count in threads:
            got = BACKEND.multiply(product, How(acc.to_ints()), scales)
            assert_bit_equal(got, want, f"{right_size} {count}")
