"""Slices and curvature of losses whose shape is known; the model stays as it is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lpkernels as lp
from lpkernels.experiments.measuring import landscape
from lpkernels.experiments.measuring.landscape import loss_slice, loss_surface, sharpness
from lpkernels.report.landscapes import plot_slices, plot_surfaces
from tests.compare import assert_bit_equal
from tests.loops import rows
from tests.support.refusals import refused


class Quadratic(nn.Module):
    """Half of w' diag(curvatures) w, with the weights in rows of two."""

    def __init__(self, *curvatures: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.w = nn.Parameter(torch.randn(len(curvatures) // 2, 2, generator=generator))
        self.register_buffer("curvatures", torch.tensor(curvatures))

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * (self.curvatures.view_as(self.w) * self.w**2).sum() * x.mean()


def value(model: nn.Module, batch: Any) -> Tensor:
    return model(batch[0])


ONES = [(torch.ones(4),)]


@rows(
    "curvatures, expected",
    ((1.0, 3.0, 7.0, 2.0), 7.0),
    # The dominant curvature is negative.
    ((1.0, -9.0, 4.0, 2.0), 4.0), ((-1.0, -9.0, -4.0, -2.0), -1.0), ((0.0, 0.0, 0.0, 0.0), 0.0),
)  # fmt: skip
def test_sharpness_of_a_quadratic(curvatures: tuple[float, ...], expected: float) -> None:
    found = sharpness(Quadratic(*curvatures), value, ONES, tolerance=1e-9)
    assert found.eigenvalue == pytest.approx(expected, abs=1e-4)
    assert found.converged


def test_sharpness_weights_batches_by_their_examples_and_says_when_it_stops_early() -> None:
    batches = [(torch.ones(3),), (torch.full((1,), 5.0),)]
    found = sharpness(Quadratic(1.0, 3.0, 7.0, 2.0), value, batches, tolerance=1e-9)
    assert found.eigenvalue == pytest.approx(7.0 * (3 * 1 + 1 * 5) / 4, rel=1e-6)
    short = sharpness(Quadratic(6.9, 3.0, 7.0, 2.0), value, ONES, iterations=2, tolerance=1e-12)
    assert (short.converged, short.iterations) == (False, 2)


def test_sharpness_is_that_of_the_whole_hessian() -> None:
    model = network()
    twin, ((x, y),) = landscape.exact_copy(model), data()
    own = dict(twin.named_parameters())

    def of_vector(vector: Tensor) -> Tensor:
        parts = vector.split([p.numel() for p in own.values()])
        given = {n: part.view(own[n].shape) for n, part in zip(own, parts, strict=True)}
        return nn.functional.cross_entropy(torch.func.functional_call(twin, given, x.double()), y)

    flat = torch.cat([p.detach().flatten() for p in own.values()])
    expected = torch.linalg.eigvalsh(torch.func.hessian(of_vector)(flat))[-1].item()
    found = sharpness(model, cross_entropy, data(), iterations=2000, tolerance=1e-9)
    assert found.eigenvalue == pytest.approx(expected, rel=1e-4)


def network() -> nn.Module:
    torch.manual_seed(0)
    # The functions are smooth: a network with ReLU has only the Hessian of its pieces.
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.BatchNorm1d(5), nn.Linear(5, 3))
    return lp.convert(model, lp.recipe("hfp8_sun2019"))


def data() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(12, 4, generator=generator), torch.arange(12) % 3)]


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_directions_have_the_norm_of_each_filter_and_a_slice_of_a_quadratic_is_a_parabola() -> None:
    weights = [torch.randn(3, 2, 2, dtype=torch.float64), torch.randn(3, dtype=torch.float64)]
    weights[0][1] = 0
    first, second = landscape.filter_normalised(weights, 1), landscape.filter_normalised(weights, 2)
    torch.testing.assert_close(first[0].flatten(1).norm(dim=1), weights[0].flatten(1).norm(dim=1))
    assert not first[0][1].any() and not first[1].any()
    assert torch.equal(first[0], landscape.filter_normalised(weights, 1)[0])
    assert not torch.equal(first[0], second[0])
    model = Quadratic(1.0, 3.0, 7.0, 2.0)
    found = loss_slice(model, value, ONES, radius=2.0, points=5, seed=3)
    w = model.w.detach().double()
    (d,) = landscape.filter_normalised([w], 3)
    curvatures = model.curvatures.double().view_as(w)
    expected = [0.5 * (curvatures * (w + a * d) ** 2).sum().item() for a in found.at]
    assert found.at.tolist() == [-2, -1, 0, 1, 2]
    assert found.losses == pytest.approx(expected)


def test_a_surface_crosses_at_the_weights() -> None:
    model = network()
    surface = loss_surface(model, cross_entropy, data(), radius=0.5, points=3, seed=4)
    along = loss_slice(model, cross_entropy, data(), radius=0.5, points=3, seed=8)
    across = loss_slice(model, cross_entropy, data(), radius=0.5, points=3, seed=9)
    assert surface.losses[:, 1] == pytest.approx(along.losses)
    assert surface.losses[1] == pytest.approx(across.losses)
    exact = cross_entropy(landscape.exact_copy(model), (data()[0][0].double(), data()[0][1]))
    assert surface.losses[1, 1] == float(exact.detach())


def test_the_model_and_the_random_state_stay() -> None:
    model = network().train()
    model(data()[0][0]).sum().backward()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    state = torch.get_rng_state()
    loss_slice(model, cross_entropy, data(), points=3)
    sharpness(model, cross_entropy, data(), iterations=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training and model[0].recipe == lp.recipe("hfp8_sun2019")
    for name, tensor in model.state_dict().items():
        assert_bit_equal(tensor, before[name])
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        assert p.grad is not None and torch.equal(p.grad, gradient)


NOWHERE = Path("unused.png")
test_wrong_input = refused(
    [
        (lambda: loss_slice(network(), value, []), "batches: expected at least one, got none"),
        (lambda: loss_slice(network(), value, ONES, points=4), "an odd number from 3 on, got 4"),
        (lambda: loss_surface(network(), value, ONES, radius=0.0), "a positive number, got 0.0"),
        (lambda: sharpness(network(), value, ONES, iterations=0), "at least one iteration"),
        (lambda: plot_slices({"a": []}, NOWHERE), "expected at least one slice"),
        (lambda: plot_surfaces({}, NOWHERE), "expected at least one surface"),
    ],
    ValueError,
)


def test_pictures(tmp_path: Path) -> None:
    at = np.linspace(-1, 1, 5)
    slices = [landscape.LossSlice(at, factor * at**2 + 0.1) for factor in (1, 2)]
    assert plot_slices({"a": slices, "b": []}, tmp_path / "a.png").stat().st_size > 1000
    surface = loss_surface(Quadratic(1.0, 2.0), value, ONES, points=5)
    both = {"one": surface, "two": surface}
    assert plot_surfaces(both, tmp_path / "b.png", title="x").stat().st_size > 1000
