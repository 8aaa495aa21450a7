"""Integer accumulators that cannot overflow: bounds on the l1 norm of the weights.

Source: Colbert et al. 2023, "A2Q: accumulator-aware quantization with guaranteed overflow
avoidance", arXiv 2308.13504, and Colbert et al. 2024, "A2Q+", arXiv 2401.10432. Differs: the
largest unsigned input is 2^N - 1 in both bounds, so each is the tightest there is; A2Q takes 2^N.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lpkernels.formats.checks import checked_int


def max_l1_norm(
    accumulator_bits: int,
    input_bits: int,
    *,
    signed_inputs: bool = False,
    zero_centred: bool = False,
) -> int:
    """The largest l1 norm of integer weights whose sums of products never leave the accumulator.

    With inputs of N bits and a signed accumulator of P, whatever the inputs, the order of the sum
    and the signs of the weights:

        unsigned inputs, any weights             (2^(P-1) - 1) / (2^N - 1)
        unsigned inputs, weights that sum to 0   (2^P - 2) / (2^N - 1)        A2Q+
        signed inputs, any weights               (2^(P-1) - 1) / 2^(N-1)      A2Q

    rounded down. With a larger norm (by 2 where weights sum to 0) some weights overflow.

    Args:
        accumulator_bits: P, 2..62: ``FixedFormat(P, frac_bits)``.
        input_bits:       N, 1..62, the sign included where there is one.
        signed_inputs:    inputs -2^(N-1) .. 2^(N-1) - 1 in place of 0 .. 2^N - 1.
        zero_centred:     the weights sum to zero. Gains nothing known for signed inputs: refused.

    Raises:
        TypeError, ValueError: as above.

    >>> from lpkernels.arithmetic import max_l1_norm
    >>> max_l1_norm(16, 8)
    128
    """
    most = 2 ** (checked_int("max_l1_norm", "accumulator_bits", accumulator_bits, 2, 62) - 1) - 1
    size = _largest_input(input_bits, signed_inputs)
    if zero_centred and signed_inputs:
        raise ValueError(
            "max_l1_norm: zero_centred=True is the bound for unsigned inputs, got "
            "signed_inputs=True; pass one of them"
        )
    return (2 * most if zero_centred else most) // size


def bits_without_overflow(
    weights: ArrayLike, input_bits: int, *, signed_inputs: bool = False
) -> NDArray[np.int64]:
    """The fewest bits of a signed accumulator that no sum of these weights leaves, with any inputs.

    This holds whatever the inputs and the order: it is computed from the worst partial sum itself,
    not from a bound on it. So it allows all weights that `max_l1_norm` allows, and some others.

    Args:
        weights: integers (..., K), one sum along the last dimension each.
        input_bits, signed_inputs: as in `max_l1_norm`.
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
    size = _largest_input(input_bits, signed_inputs)
    up, down = _one_sided(codes)
    least = -(2 ** (input_bits - 1)) if signed_inputs else 0
    most = size - 1 if signed_inputs else size
    needed = [
        1 + max(1, (p * most - n * least).bit_length(), (n * most - p * least - 1).bit_length())
        for p, n in zip(map(int, up.flat), map(int, down.flat), strict=True)
    ]
    return np.array(needed, dtype=np.int64).reshape(up.shape)


def _one_sided(codes: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The sums of the positive codes and of the magnitudes of the negative ones."""
    largest = max(abs(int(codes.max())), abs(int(codes.min()))) if codes.size else 0
    # int64 where no sum of codes overflows it.
    exact = codes.astype(np.int64 if largest * codes.shape[-1] < 2**63 else object)
    up = np.maximum(exact, 0).sum(axis=-1, initial=0)
    down = np.maximum(-exact, 0).sum(axis=-1, initial=0)
    return np.asarray(up), np.asarray(down)


def _largest_input(input_bits: int, signed_inputs: bool) -> int:
    """The largest magnitude of an input."""
    bits = checked_int("bounds of sums", "input_bits", input_bits, 1, 62)
    return 2 ** (bits - 1) if signed_inputs else 2**bits - 1
