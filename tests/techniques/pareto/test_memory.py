"""The memory formula."""

from __future__ import annotations

import numpy as np
import pytest

from lpkernels.techniques.pareto import FormatSpace, training_memory
from tests.loops import each

COUNTS = {"params": 1000, "activations": 500, "inputs": 64, "outputs": 10}


def test_memory_is_that_of_the_formula():
    assert training_memory(COUNTS, 8, 16) == 6168
    assert isinstance(training_memory(COUNTS, 8, 16), float)
    # A block format costs its scales too.
    space = FormatSpace(["block32_e2m1"], ["bf16"])
    assert space.low_bits.tolist() == [4.25]


def test_memory_of_a_space_has_few_distinct_values():
    space = FormatSpace.peppp()
    memory = training_memory(COUNTS, space.low_bits, space.high_bits)
    assert memory.shape == (99,) and memory.dtype == np.float64
    assert len(np.unique(list(zip(space.low_bits, space.high_bits, strict=True)), axis=0)) == 35
    assert memory[0] == training_memory(COUNTS, 5, 14)
    assert memory[98] == training_memory(COUNTS, 9, 20) == memory.max()


@each("key", COUNTS)
def test_memory_counts_each_tensor_in_its_format(key: str):
    more = COUNTS | {key: COUNTS[key] + 8}
    low = training_memory(more, 2, 1) - training_memory(COUNTS, 2, 1)
    high = training_memory(more, 1, 2) - training_memory(COUNTS, 1, 2)
    both = training_memory(more, 1, 1) - training_memory(COUNTS, 1, 1)
    want = {"params": (1, 2), "activations": (2, 0), "inputs": (0, 1), "outputs": (0, 2)}[key]
    assert (low - both, high - both) == want


WRONG = [
    ({"params": 1}, 8, ValueError, "keys params, activations, inputs, outputs; got params"),
    (COUNTS | {"params": -1}, 8, ValueError, r"counts\['params'\] must be at least 0"),
    (COUNTS | {"params": 1.5}, 8, TypeError, "must be an int"),
    ([1, 2, 3, 4], 8, TypeError, "counts must be a mapping"),
    (COUNTS, 0, ValueError, "low_bits must be finite and above 0, got 0"),
    (COUNTS, "8", TypeError, "low_bits must be numbers"),
    (COUNTS, [8, np.inf], ValueError, "low_bits must be finite"),
]


@each("counts, bits, error, match", WRONG)
def test_wrong_counts_and_bits_are_refused(counts, bits, error, match):
    with pytest.raises(error, match=match):
        training_memory(counts, bits, 16)
