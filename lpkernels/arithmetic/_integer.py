"""Integer accumulators that cannot overflow: bounds on the l1 norm of the weights.

Source: Colbert et al. 2023, "A2Q: accumulator-aware quantization with guaranteed overflow
avoidance", arXiv 2308.13504, and Colbert et al. 2024, "A2Q+", arXiv 2401.10432. Differs: the
largest unsigned input is 2^N - 1 in both bounds, so each is the tightest there is; A2Q takes 2^N.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lpkernels.formats._checks import checked_int

_MAX_BITS = 62


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

    rounded down. A larger norm (by 2 where weights sum to 0) overflows for some weights of it.

    Args:
        accumulator_bits: P, 2..62: ``FixedFormat(P, frac_bits)``.
        input_bits:       N, 1..62, the sign included where there is one.
        signed_inputs:    inputs -2^(N-1) .. 2^(N-1) - 1 in place of 0 .. 2^N - 1.
        zero_centred:     the weights sum to zero. Gains nothing known for signed inputs: refused.

    Raises:
        TypeError, ValueError: as above.
    """
    most = _most_positive(accumulator_bits)
    size = _largest_input(input_bits, signed_inputs)
    if zero_centred and signed_inputs:
        raise ValueError(
            "max_l1_norm: zero_centred=True is the bound for unsigned inputs, got "
            "signed_inputs=True; pass one of them"
        )
    return (2 * most if zero_centred else most) // size


def never_overflows(
    weights: ArrayLike, accumulator_bits: int, input_bits: int, *, signed_inputs: bool = False
) -> NDArray[np.bool_]:
    """Whether a sum of these weights with any inputs, in any order, stays in the accumulator.

    The worst partial sum itself, not a bound: true wherever max_l1_norm allows the weights, and for
    some others.

    Args:
        weights: integers (..., K), one sum along the last dimension each.
    Returns: bool array of the leading dimensions.
    Raises:  TypeError: weights are not integers.  ValueError: bits out of range.
    """
    codes = np.asarray(weights)
    if codes.dtype.kind not in "iu":
        raise TypeError(
            f"never_overflows: weights must be integers, got {codes.dtype}; pass the codes, "
            "weight / scale, as int64"
        )
    most = _most_positive(accumulator_bits)
    size = _largest_input(input_bits, signed_inputs)
    # Python's integers: no sum of codes overflows here.
    exact = codes.astype(object)
    up = np.maximum(exact, 0).sum(axis=-1, initial=0)
    down = np.maximum(-exact, 0).sum(axis=-1, initial=0)
    least = -(2 ** (input_bits - 1)) if signed_inputs else 0
    highest = up * (size - 1 if signed_inputs else size) - down * least
    lowest = up * least - down * (size - 1 if signed_inputs else size)
    return np.asarray((highest <= most) & (lowest >= -most - 1), dtype=bool)


def _most_positive(accumulator_bits: int) -> int:
    bits = checked_int("accumulator", "accumulator_bits", accumulator_bits, 2, _MAX_BITS)
    return 2 ** (bits - 1) - 1


def _largest_input(input_bits: int, signed_inputs: bool) -> int:
    """The largest magnitude of an input."""
    bits = checked_int("accumulator", "input_bits", input_bits, 1, _MAX_BITS)
    return 2 ** (bits - 1) if signed_inputs else 2**bits - 1
