"""The Fréchet distance: closed forms, and sums that may be added by batches."""

import pytest
import torch
from torch import Tensor

from lpkernels.experiments.workloads.frechet import frechet_distance, moment_sums


def distance(one: Tensor, two: Tensor) -> float:
    return frechet_distance({**moment_sums("a", one), **moment_sums("b", two)}, "a", "b", len(one))


def vectors(seed: int, count: int = 40, features: int = 6) -> Tensor:
    return torch.randn(count, features, generator=torch.Generator().manual_seed(seed))


def test_equal_sets_have_distance_0() -> None:
    x = vectors(0)
    assert distance(x, x) == pytest.approx(0, abs=1e-9)
    assert distance(x, x.flip(0)) == pytest.approx(0, abs=1e-9)
    # Features that never change, as in the corners of images, give covariances without inverse.
    x[:, 2:5] = 1
    assert distance(x, x) == pytest.approx(0, abs=1e-9)


def test_a_shift_has_the_square_of_its_length() -> None:
    x, shift = vectors(1), torch.tensor([3.0, 0, 0, 0, 0, -4])
    assert distance(x, x + shift) == pytest.approx(25, rel=1e-5)


def test_commuting_covariances_have_the_distance_of_their_deviations() -> None:
    # Rows +-d_i e_i have mean 0 and covariance diag(d_i^2 / 3), so the distance is
    # sum (d - d')^2 / 3.
    one, two = torch.tensor([1.0, 2, 5]), torch.tensor([4.0, 2, 1])
    x, y = (torch.cat([torch.diag(d), -torch.diag(d)]) for d in (one, two))
    expected = float((one - two).square().sum() / 3)
    assert distance(x, y) == pytest.approx(expected, rel=1e-6)
    # A rotation of both sets changes nothing.
    turn = torch.linalg.qr(vectors(2, 3, 3)).Q
    assert distance(x @ turn, y @ turn) == pytest.approx(expected, rel=1e-5)


def test_covariances_that_do_not_commute() -> None:
    # For 2 x 2 matrices, tr (AB)^(1/2) = (tr AB + 2 (det AB)^(1/2))^(1/2).
    x, y = vectors(3, 50, 2), vectors(4, 50, 2) @ torch.tensor([[1.0, 0.5], [0, 2]])
    (m1, c1), (m2, c2) = (
        (z.double().mean(0), torch.cov(z.double().T, correction=0)) for z in (x, y)
    )
    cross = ((c1 @ c2).trace() + 2 * (c1 @ c2).det().sqrt()).sqrt()
    expected = float((m1 - m2).square().sum() + c1.trace() + c2.trace() - 2 * cross)
    assert distance(x, y) == pytest.approx(expected, rel=1e-6)
    assert distance(y, x) == pytest.approx(expected, rel=1e-6)


def test_sums_add_up() -> None:
    x, y = vectors(5), vectors(6)
    parts = [moment_sums("a", part) for part in x.split(13)]
    total = {name: sum(part[name] for part in parts) for name in parts[0]}
    found = frechet_distance({**total, **moment_sums("b", y)}, "a", "b", len(x))
    assert found == pytest.approx(distance(x, y), rel=1e-9)
