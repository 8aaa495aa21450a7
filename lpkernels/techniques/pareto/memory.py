"""The memory of a training step, by a formula."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, overload

import numpy as np

from lpkernels.formats.checks import checked_int
from lpkernels.techniques.pareto.checks import Floats

COUNTS = ("params", "activations", "inputs", "outputs")


@overload
def training_memory(counts: Mapping[str, int], low_bits: float, high_bits: float) -> float: ...
@overload
def training_memory(counts: Mapping[str, int], low_bits: Floats, high_bits: Floats) -> Floats: ...
def training_memory(counts: Mapping[str, int], low_bits: Any, high_bits: Any) -> Any:
    """Bytes of what a training step keeps: ((P + 2 A) low + (2 P + I + 2 O) high) / 8.

    The weights, and the activations with their gradients, are in the low format; the momentum, the
    master weights, the input, and the logits with their gradients are in the high format. Gradients
    of weights are not counted. The bits of a BlockFormat include its scales. The result is exact in
    float64 below 2^53 bits; codes are packed densely, so bytes may be fractions.

    Args:
        counts: whole numbers of values, with the batch: "params" P, "activations" A, "inputs" I,
            "outputs" O; `count_tensors` counts those of a model.
        low_bits, high_bits: bits per value: numbers, or arrays that broadcast.

    Returns:
        A float, or a float64 array where bits are arrays.

    Raises:
        TypeError, ValueError: counts with another key, without one of these or below zero; bits
            that are not above zero.

    Reference: the code published with Yang et al. 2021 (PEPPP), whose released memory matrix this
    formula fits.
    """
    if not isinstance(counts, Mapping):
        raise TypeError(f"training_memory: counts must be a mapping, got {counts!r}")
    if set(counts) != set(COUNTS):
        raise ValueError(
            f"training_memory: counts must have the keys {', '.join(COUNTS)}; got "
            f"{', '.join(map(str, counts)) or 'none'}"
        )
    found = {
        key: checked_int("training_memory", f"counts[{key!r}]", counts[key], 0) for key in COUNTS
    }
    low, high = (_bits(name, bits) for name, bits in (("low", low_bits), ("high", high_bits)))
    in_low = found["params"] + 2 * found["activations"]
    in_high = 2 * found["params"] + found["inputs"] + 2 * found["outputs"]
    result = (in_low * low + in_high * high) / 8
    return float(result) if result.ndim == 0 else result


def _bits(name: str, value: Any) -> Floats:
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"training_memory: {name}_bits must be numbers, got {value!r}")
    if not (np.isfinite(array) & (array > 0)).all():
        raise ValueError(f"training_memory: {name}_bits must be finite and above 0, got {value!r}")
    return array.astype(np.float64)
