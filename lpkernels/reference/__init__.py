"""The definition of right results, and a vectorised twin that gives the same.

``exact`` computes one output element at a time in Python rationals: slow, obvious, the definition
every backend is compared with. ``twin`` computes all outputs at once in NumPy, looping only over k;
tests prove it equal to ``exact`` to the bit, and the ``reference`` backend runs it. Both offer
quantize and matmul on NumPy arrays. ``twin`` alone has convolutions and products of scaled
operands: tests gather their operands and compare them with the exact sums. No torch here.
"""

from lpkernels.reference import exact, twin

__all__ = ["exact", "twin"]
