"""Where the random draws of a stochastic call come from.

One call takes one 64-bit seed; every draw inside it is a function of that seed and of the draw's
position (`lpkernels.rng`). So the bits do not depend on the backend, the device, the number of
threads or the layout.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from lpkernels import ops
from lpkernels.arithmetic import Ranks, Recipe, check_axes
from lpkernels.functional import _checks


def _signed(value: int) -> int:
    """The int64 with the 64 bits of value."""
    return value - (value >> 63 << 64)


# The constants of lpkernels.rng.
_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MULTIPLIERS = (_signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB))

# Above every Role.
_NO_ROLE = 15


class _Source:
    """The tensor of one `seed_from` block and how many calls have used it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.calls = 0

    def next(self) -> Tensor:
        self.calls += 1
        return derived_seed(self.tensor, self.calls)


class _Sources(threading.local):
    """The open `seed_from` blocks of this thread, innermost last."""

    def __init__(self) -> None:
        self.stack: list[_Source] = []


_sources = _Sources()


def seed_for(needs: bool, generator: torch.Generator | Tensor | None) -> Tensor | None:
    """The seed of one call: a 0-d int64 tensor, or None, and nothing is drawn, if it needs none.

    generator: a torch.Generator on the CPU, which is advanced by one draw; a 0-d int64 tensor, the
        seed itself; or None: the innermost `seed_from` block, else torch's default CPU generator.
    """
    if not needs:
        return None
    if generator is None:
        return _sources.stack[-1].next() if _sources.stack else ops.draw_seed()
    if isinstance(generator, Tensor):
        return generator
    return torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator)


def seed_of_call(
    function: str,
    recipe: Recipe,
    generator: torch.Generator | Tensor | None,
    backend: str,
    *ranks: Ranks,
) -> Tensor | None:
    """`seed_for` of a call under a recipe, whose last arguments are checked first.

    ranks: of the tensors that the recipe's quantizers with an axis meet.
    """
    _checks.call(function, backend, generator)
    if recipe.axes:
        check_axes(recipe, *ranks)
    return seed_for(recipe.is_stochastic, generator)


def seed_of_product(seed: Tensor | None, index: int) -> Tensor | None:
    """The seed of one of several products of a call. The first (index 0) has the call's seed
    itself, the others have ``rng.derive_seed(seed, 15 + index)``: no role derives these."""
    if seed is None or index == 0:
        return seed
    return derived_seed(seed, _NO_ROLE + index)


def derived_seed(seed: Tensor, key: int | Tensor) -> Tensor:
    """``rng.derive_seed(seed, key)`` of int64 seeds on their device, for which nobody waits.

    key: not 0; an int or an int64 tensor on the seed's device, broadcast with it.
    """
    keys = key if isinstance(key, Tensor) else torch.full_like(seed, key)
    # The product is a tensor's, which wraps modulo 2^64.
    return _mix64(seed + keys * _GOLDEN)


@contextmanager
def seed_from(tensor: Tensor) -> Iterator[None]:
    """Inside the block, every stochastic call without a generator takes its seed from `tensor`.

    The i-th such call of the block, i from 1, has the seed ``rng.derive_seed(tensor, i)``, so calls
    differ from each other, and entering a block again with the same value repeats them. The seed is
    computed by torch operations on the tensor's device: in a CUDA graph captured inside the block,
    new values copied into `tensor` give new draws at each replay. Blocks nest, the innermost
    counts; a block belongs to the thread that entered it. Activation checkpointing computes a
    function again during backward: enter the block inside that function.

    Args:
        tensor: 0-d int64, on the CPU or on the device of the operands.
    Raises: TypeError, ValueError: it is not.

    >>> x = torch.full((4,), 1.1)
    >>> seed = torch.tensor(7)
    >>> with lp.seed_from(seed):
    ...     first = lp.quantize(x, "e5m2", "stochastic")
    ...
    >>> with lp.seed_from(seed):
    ...     torch.equal(lp.quantize(x, "e5m2", "stochastic"), first)
    ...
    True
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"seed_from: expected a 0-d int64 tensor, got {type(tensor).__name__}; "
            "torch.tensor(seed) makes one of a Python int"
        )
    _checks.generator("seed_from", tensor)
    _sources.stack.append(_Source(tensor))
    try:
        yield
    finally:
        _sources.stack.pop()


def _shifted(z: Tensor, bits: int) -> Tensor:
    """z >> bits of an unsigned 64-bit integer; torch's shift of int64 repeats the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix64(z: Tensor) -> Tensor:
    """`rng.mix64` on an int64 tensor; sums and products wrap modulo 2^64."""
    z = (z ^ _shifted(z, 30)) * _MULTIPLIERS[0]
    z = (z ^ _shifted(z, 27)) * _MULTIPLIERS[1]
    return z ^ _shifted(z, 31)
