"""Runs of values whose Hadamard transforms are hard to round."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Runs = NDArray[np.float32]


def floats(rng: np.random.Generator, shape: tuple[int, int], fields: tuple[int, int]) -> Runs:
    """Random signs and fractions, and exponent fields in a range."""
    field = rng.integers(*fields, shape).astype(np.uint32)
    sign, fraction = (rng.integers(0, n, shape).astype(np.uint32) for n in (2, 2**23))
    return (sign << np.uint32(31) | field << np.uint32(23) | fraction).view(np.float32)


def hard_runs(size: int, signs: Sequence[int]) -> Iterator[tuple[str, Runs]]:
    """Named arrays (runs, size)."""
    rng = np.random.default_rng(size)
    shape = (3, size)
    normal = rng.standard_normal(shape).astype(np.float32)
    yield "normal", normal
    yield "bfloat16", (normal.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    yield "integers", rng.integers(-9, 10, shape).astype(np.float32)
    yield "halves", (rng.integers(-1, 2, shape) * np.float32(2.0**-134)).astype(np.float32)
    for name, fields in {
        "every exponent": (0, 255), "some exponents": (100, 140), "subnormal": (0, 2),
        "near subnormal": (0, 20), "huge": (250, 255),
    }.items():  # fmt: skip
        yield name, floats(rng, shape, fields)
    powers = floats(rng, shape, (0, 255)).view(np.uint32) & np.uint32(0xFF800000)
    yield "powers of two", powers.view(np.float32)
    yield "cancelling", _cancelling(rng, size)
    yield "special", _special(normal)
    yield "middles", np.stack(list(_middles(size, signs)))


def _cancelling(rng: np.random.Generator, size: int) -> Runs:
    x = np.zeros((4, size), np.float32)
    x[:, 0] = rng.standard_normal(4)
    x[:, 5] = -x[:, 0]
    x[0, 7], x[1, 9], x[2, 3], x[2, 4] = 2.0**-140, -(2.0**-149), 2.0**-110, 2.0**-133
    return x


def _special(normal: Runs) -> Runs:
    x = np.concatenate((normal, normal))
    x[0, 3], x[1, 2], x[2, 1], x[2, 5] = np.inf, np.nan, np.inf, -np.inf
    x[3], x[4], x[5] = 0.0, -0.0, np.copysign(np.inf, normal[2])
    return x


def _middles(size: int, signs: Sequence[int]) -> Iterator[Runs]:
    """Runs whose first sum, in units of 2^-149, is beside or at the middle between two results."""
    steps = size.bit_length() - 1
    for odd in (257, 363, 511):
        for power in (31, 64, 150, 230):
            # The middle's square, times the size.
            square = odd**2 << 2 * power + steps % 2
            for total in (math.isqrt(square) + i for i in (-1, 0, 1)):
                x = np.zeros(size, np.float32)
                for i in range(-(-total.bit_length() // 24)):
                    part = total >> 24 * i & (2**24 - 1)
                    x[i] = math.ldexp(signs[i] * part, 24 * i - 149)
                yield x
