"""Products and convolutions of the CPU's kernels, compared with the reference to the bit."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import lpkernels as lp
from lpkernels.arithmetic import Accumulator
from lpkernels.backends import cpu, get
from tests.backends import by_hand
from tests.cases import ConvCase
from tests.support.products import PASSES, ROLE, SEED, assert_pass, assert_product, operand

REFERENCE = get("reference")


def drawn(kind: str, *shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    """Operands of a kind; see tests/support/products.py."""
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(operand(kind, shape, rng)) for shape in shapes]


def spread_values(
    fmt: str, shape: tuple[int, ...], generator: torch.Generator, *spreads: float
) -> Tensor:
    """A batch of values of a format, one for each spread: normally distributed, that many binades
    apart in size, zeros of both signs among them."""
    made = []
    for spread in spreads:
        x = torch.randn(shape, generator=generator)
        x *= torch.exp2(spread * torch.randn(shape, generator=generator))
        x *= (torch.rand(shape, generator=generator) > 0.2).float()
        made.append(lp.quantize(x, fmt))
    return torch.stack(made)


def assert_matmul(
    ways: Iterable[str], a: Tensor, b: Tensor, acc: Accumulator, name: object = "", **more: Any
) -> Tensor:
    """more: bias and initial. Returns: the product."""
    return assert_product(cpu.BACKEND, a, b, acc, name=f"{name}", ways=ways, **more)


def assert_convolution(
    ways: Iterable[str],
    case: ConvCase,
    acc: Accumulator,
    *operands: Tensor,
    passes: Iterable[str] = PASSES,
) -> None:
    """Every pass of a convolution of x, w, the gradient of its result, and perhaps a bias."""
    x, w, grad, bias = operands if len(operands) == 4 else (*operands, None)
    for name in passes:
        assert_pass(cpu.BACKEND, name, case, (x, w, grad, bias), acc, ways=ways)


def tier_of(a: Tensor, b: Tensor, acc: Accumulator) -> str:
    """The tier that accumulates a matrix product, all of it."""
    cpu.BACKEND.take_tiers()
    by_hand.matmul(cpu.BACKEND, a, b, None, acc.to_ints(), SEED, ROLE)
    (tier,) = [name for name, share in cpu.BACKEND.take_tiers().items() if share]
    return tier
