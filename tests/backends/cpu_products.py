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
from tests.compare import assert_bit_equal
from tests.support.products import operand

REFERENCE = get("reference")
SEED = torch.tensor(1234567890123456789)
ROLE = 3
PASSES = ("conv_fprop", "conv_dgrad", "conv_wgrad")


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


def assert_same(ways: Iterable[str], op: str, *args: Any, name: object = "", **rest: Any) -> Tensor:
    """In every way the cpu backend gives the reference's result; this one reads contiguous copies.

    ways: a loop over it chooses one after the other, as `Isas` and `Threads` do. op: a method of
        the backends.
    Returns: the result.
    """
    plain = [x.contiguous() if isinstance(x, Tensor) else x for x in args]
    want = by_hand.call(REFERENCE, op, *plain, **rest)
    for way in ways:
        assert_bit_equal(by_hand.call(cpu.BACKEND, op, *args, **rest), want, f"{way} {op} {name}")
    return want


def assert_matmul(
    ways: Iterable[str],
    a: Tensor,
    b: Tensor,
    acc: Accumulator,
    name: object = "",
    *,
    bias: Tensor | None = None,
    initial: Tensor | None = None,
) -> Tensor:
    call = (a, b, bias, acc.to_ints(), SEED, ROLE)
    return assert_same(ways, "matmul", *call, initial=initial, name=f"{name} {acc}")


def conv_calls(
    case: ConvCase, acc: Accumulator, x: Tensor, w: Tensor, grad: Tensor, bias: Tensor | None = None
) -> dict[str, tuple[Any, ...]]:
    """The arguments of the passes of a convolution, by the names of the backends' methods."""
    tail = (*case.geometry, acc.to_ints(), SEED, ROLE)
    return {
        "conv_fprop": (x, w, bias, *tail),
        "conv_dgrad": (grad, w, list(x.shape), *tail),
        "conv_wgrad": (x, grad, list(w.shape), *tail),
    }


def assert_convolution(
    ways: Iterable[str],
    case: ConvCase,
    acc: Accumulator,
    *operands: Tensor,
    passes: Iterable[str] = PASSES,
) -> None:
    """Every pass of a convolution of x, w, the gradient of its result, and perhaps a bias."""
    calls = conv_calls(case, acc, *operands)
    for op in passes:
        assert_same(ways, op, *calls[op], name=f"{case} {acc}")


def tier_of(a: Tensor, b: Tensor, acc: Accumulator) -> str:
    """The tier that accumulates a matrix product, all of it."""
    cpu.BACKEND.take_tiers()
    by_hand.matmul(cpu.BACKEND, a, b, None, acc.to_ints(), SEED, ROLE)
    (tier,) = [name for name, share in cpu.BACKEND.take_tiers().items() if share]
    return tier
