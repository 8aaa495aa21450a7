"""Student's t against scipy."""

import math

import pytest
from scipy import stats

from lpkernels.experiments.sweeps.student import critical_t, two_sided_p
from tests.loops import each

DEGREES = (1, 2, 3, 4, 5, 9, 30, 99, 1000)


@each("dof", DEGREES)
def test_two_sided_p_is_that_of_scipy_far_into_the_tails(dof: int) -> None:
    for t in (0.0, 0.01, 0.5, 1.0, 2.0, 3.0, 10.0, 40.0, 1e6):
        expected = 2 * stats.t.sf(t, dof)
        assert two_sided_p(t, dof) == pytest.approx(expected, rel=1e-10, abs=1e-290)
        assert two_sided_p(-t, dof) == two_sided_p(t, dof)


@each("t", [1e-12, 1e-8, 0.3, 7.0])
def test_two_sided_p_of_one_and_two_degrees_is_the_closed_form(t: float) -> None:
    # This holds near zero too, where scipy loses digits.
    assert two_sided_p(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), rel=1e-13)
    assert two_sided_p(t, 2) == pytest.approx(1 - t / math.hypot(t, math.sqrt(2)), rel=1e-13)


def test_two_sided_p_of_an_infinite_t_is_zero() -> None:
    assert two_sided_p(math.inf, 4) == 0.0
    assert two_sided_p(1e200, 4) == 0.0


@each("dof", DEGREES)
def test_critical_t_is_the_quantile_of_scipy(dof: int) -> None:
    for level in (0.01, 0.5, 0.8, 0.95, 0.99, 0.9999):
        assert critical_t(level, dof) == pytest.approx(stats.t.ppf((1 + level) / 2, dof), rel=1e-10)
