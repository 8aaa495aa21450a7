"""Right before fast: a case is timed only if it gives the reference's bits on a small shape."""

from __future__ import annotations

import torch
from torch import Tensor

from bench import naive
from bench.ops import build
from bench.registry import Case, gate_case
from lpkernels.arithmetic import as_accumulator
from tests.compare import assert_bit_equal

# The least share of the naive loop's results that equal the reference's: the loop's two roundings
# differ from the reference's one now and then, and a mistake in it differs always.
_NAIVE_AGREEMENT = 0.9
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
    if small.op == "matmul" and "naive" in case.baselines and device == "cpu":
        _gate_naive(small, want[0])


def _gate_close(got: Tensor, want: Tensor, where: str) -> None:
    error = float((got - want).abs().mean() / want.abs().mean().clamp(min=1e-30))
    assert error <= _NATIVE_ERROR, f"{where}: {error:.3g} away, expected at most {_NATIVE_ERROR}"


def _gate_naive(case: Case, want: Tensor) -> None:
    """The naive loop computes the same product, except for its own draws and its lack of chunks."""
    acc = as_accumulator(case.spec)
    if naive.why_not() or acc.is_stochastic or acc.chunk is not None:
        return
    got = build(case, "cpu", "reference").baselines["naive"]()
    assert isinstance(got, Tensor)
    agreement = float((got == want).float().mean())
    assert agreement >= _NAIVE_AGREEMENT, (
        f"{case.name}: the naive baseline agrees in {agreement:.0%} of the results, expected at "
        f"least {_NAIVE_AGREEMENT:.0%}"
    )
