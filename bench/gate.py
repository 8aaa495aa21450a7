"""Right before fast: a case is timed only if it gives the reference's bits on a small shape."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.ops import build
from bench.registry import Case, gate_case
from tests.compare import assert_bit_equal

# The most mean error over mean size, for sums that are as right in another order: a few FP8
# gradients are rounded the other way.
_NATIVE_ERROR = 0.05


def gate(case: Case, device: str, backend: str) -> None:
    """Raises AssertionError, with the first element that differs, if `backend` is not right."""
    small = gate_case(case)
    with torch.random.fork_rng():
        got = build(small, device, backend).run()
        want = build(small, device, "reference").run()
    assert len(got) == len(want), f"{small.name}: {len(got)} results, expected {len(want)}"
    for number, (one, other) in enumerate(zip(got, want, strict=True)):
        where = f"{small.name} on {backend}, result {number}"
        if case.exact:
            assert_bit_equal(one, other, where)
        else:
            _gate_close(one.cpu(), other.cpu(), where)


def _gate_close(got: Tensor, want: Tensor, where: str) -> None:
    error = float((got - want).abs().mean() / want.abs().mean().clamp(min=1e-30))
    assert error <= _NATIVE_ERROR, f"{where}: {error:.3g} away, expected at most {_NATIVE_ERROR}"
