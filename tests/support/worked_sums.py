"""Sums that are worked out by hand, made by the exact way."""

from lpkernels.arithmetic import accumulator
from lpkernels.reference import exact

#: The key of the sum's draws.
KEY = {"row": 3, "col": 4, "seed": 5}


def assert_sum(acc: str, products: list, want: float, **options: float) -> None:
    """The sum of the products has the bits of ``want``; a product that is None is an absent tap."""
    got = exact.accumulate(products, accumulator(acc), **KEY, **options)
    assert repr(got) == repr(float(want)), acc
