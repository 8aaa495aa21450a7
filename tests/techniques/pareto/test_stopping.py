"""Runs that are ended before their last report."""

import numpy as np
import pytest

from lpkernels.techniques.pareto import EarlyStop, final_error
from tests.support.refusals import refused

#: Three finished runs of four reports; from the first report to the last they gain .3, .4 and .2.
FINISHED = [[0.5, 0.4, 0.3, 0.2], [0.7, 0.5, 0.4, 0.3], [0.4, 0.3, 0.25, 0.2]]


def test_the_band_is_what_finished_runs_gained() -> None:
    assert final_error(FINISHED, [0.6]) == pytest.approx((0.3, 0.2, 0.4))
    # From the second report on, the finished runs gain .2, .2 and .1.
    assert final_error(FINISHED, [0.9, 0.6]) == pytest.approx((0.4, 0.4, 0.5))
    # The ends of the band are moved outward to gains that occurred, however narrow the band is.
    assert final_error(FINISHED, [0.6], level=0.01)[1:] == pytest.approx((0.2, 0.4))
    # After the last report nothing is open.
    assert final_error(FINISHED, [0.9, 0.8, 0.7, 0.1]) == (0.1, 0.1, 0.1)


def test_a_band_holds_the_share_of_runs_that_it_names() -> None:
    generator = np.random.default_rng(0)
    starts = generator.normal(0.5, 0.1, (2200, 1))
    gains = generator.normal(0.2, 0.05, (2200, 1))
    curves = np.hstack([starts, starts - gains])
    inside = [
        low <= curve[1] <= high
        for curve in curves[200:]
        for _, low, high in [final_error(curves[:200], curve[:1], level=0.8)]
    ]
    assert np.mean(inside) == pytest.approx(0.8, abs=0.03)


def finish(stop: EarlyStop, index: int, errors: list[float]) -> None:
    run = stop.start(index)
    assert [run.report(error) for error in errors] == [True] * (len(errors) - 1) + [False]
    assert run.ended == "finished" and run.error == errors[-1]


def with_three_finished(memory: float = 25) -> EarlyStop:
    stop = EarlyStop([10, 20, 30, memory], reports=4, least=3)
    for index, errors in enumerate(FINISHED):
        finish(stop, index, errors)
    return stop


def test_a_run_ends_when_its_band_cannot_reach_the_frontier_and_changes_nothing() -> None:
    # No error is known with memory of at most 5, so any error is on the frontier.
    finish(with_three_finished(5), 3, [0.99, 0.98, 0.97, 0.96])
    stop = with_three_finished()
    known = [part.copy() for part in stop.known()]
    run = stop.start(3)
    # With memory of at most 25, the least error known is 0.2. At best this run gains 0.4.
    assert run.report(0.59)
    # From the second report on, it gains at best 0.2.
    assert not run.report(0.41)
    assert run.ended == "hopeless" and run.error == pytest.approx(0.41 - 0.2)
    error = run.error
    for before, after in zip(known, stop.known(), strict=True):
        np.testing.assert_array_equal(before, after)
    finish(stop, 3, [0.5, 0.2, 0.2, 0.1])
    assert run.error == error


def test_none_is_ended_before_enough_have_finished_unless_its_error_is_not_finite() -> None:
    stop = EarlyStop([1, 2, 3], reports=2, least=2)
    run = stop.start(2)
    assert not run.report(float("inf"))
    assert run.ended == "hopeless" and np.isnan(run.error)
    finish(stop, 0, [0.3, 0.1])
    finish(stop, 1, [0.9, 0.9])
    assert not stop.start(2).report(0.9)


WRONG = [
    (lambda: final_error(FINISHED, [0.1] * 5), r"so_far must have 1\.\.4 reports"),
    (lambda: final_error([[0.1, float("nan")]], [0.1]), "finished"),
    (lambda: final_error(FINISHED, [0.1], level=1), "level must be above 0 and below 1"),
    (lambda: EarlyStop([1, 2], reports=0), "reports"),
    (lambda: EarlyStop([1, float("inf")], reports=2), "memory"),
    (lambda: EarlyStop([1, 2], reports=1).start(2), r"configurations in 0\.\.1"),
]
test_wrong_input = refused(WRONG, ValueError)


def test_wrong_reports() -> None:
    run = EarlyStop([1, 2], reports=1).start(0)
    with pytest.raises(TypeError, match="must be a number, got str"):
        run.report("low")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="goes on after 0 of 1 reports"):
        _ = run.error
    assert not run.report(0.5)
    with pytest.raises(ValueError, match=r"is over \(finished\)"):
        run.report(0.4)
