"""Integer accumulators that cannot overflow: the bits that the sums of given weights need."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lpkernels.formats.checks import checked_int


def bits_without_overflow(
    weights: ArrayLike, input_bits: int, *, signed_inputs: bool = False
) -> NDArray[np.int64]:
    """The fewest bits of a signed accumulator that no sum of these weights leaves, with any inputs.

    This holds whatever the inputs and the order: it is computed from the worst partial sum itself,
    not from a bound on it. So it allows all weights that the bounds on their l1 norm allow (Colbert
    et al. 2023, "A2Q: accumulator-aware quantization with guaranteed overflow avoidance", arXiv
    2308.13504; 2024, "A2Q+", arXiv 2401.10432), and some others.

    Args:
        weights: integers (..., K), one sum along the last dimension each.
        input_bits: N, 1..62, the sign included where there is one.
        signed_inputs: inputs -2^(N-1) .. 2^(N-1) - 1 in place of 0 .. 2^N - 1.
    Returns: int64 array of the leading dimensions; at least 2.
    Raises:  TypeError: weights are not integers.  ValueError: bits out of range.

    >>> from lpkernels.arithmetic import bits_without_overflow
    >>> bits_without_overflow([[64, -64], [127, 127]], 8)
    array([15, 17])
    """
    codes = np.asarray(weights)
    if codes.dtype.kind not in "iu":
        raise TypeError(
            f"bits_without_overflow: weights must be integers, got {codes.dtype}; pass the codes, "
            "weight / scale, as int64"
        )
    bits = checked_int("bits_without_overflow", "input_bits", input_bits, 1, 62)
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed_inputs else (0, 2**bits - 1)
    largest = max(abs(int(codes.max())), abs(int(codes.min()))) if codes.size else 0
    # int64 where no sum of codes overflows it.
    exact = codes.astype(np.int64 if largest * codes.shape[-1] < 2**63 else object)
    positive = np.asarray(np.maximum(exact, 0).sum(axis=-1, initial=0))
    negative = np.asarray(np.maximum(-exact, 0).sum(axis=-1, initial=0))
    needed = [
        1 + max(1, (p * most - n * least).bit_length(), (n * most - p * least - 1).bit_length())
        for p, n in zip(map(int, positive.flat), map(int, negative.flat), strict=True)
    ]
    return np.array(needed, dtype=np.int64).reshape(positive.shape)
