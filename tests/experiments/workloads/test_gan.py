"""The GAN: the gradients that a turn makes, its noise, and its metric, the Fréchet distance."""

import fnmatch

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import lpkernels as lp
from lpkernels.experiments.workloads.config import WorkloadConfig
from lpkernels.experiments.workloads.frechet import frechet_distance, moment_sums
from lpkernels.experiments.workloads.models import Task, build_model
from lpkernels.experiments.workloads.registry import find
from lpkernels.experiments.workloads.workload import Turn, Workload
from tests.support.refusals import refused


@pytest.fixture(scope="module")
def work() -> Workload:
    return find(WorkloadConfig(data="gan", width=4))


def gradients(work: Workload, model: nn.Module, turn: Turn, size: int = 9) -> set[str]:
    """Takes a turn as the trainer does; returns the names of the parameters with gradients."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(fnmatch.fnmatchcase(name, g) for g in turn.parameters))
        parameter.grad = None
    turn.loss(model, work.train.plan(0, 0).batch(0, size)).losses.sum().backward()
    return {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}


@pytest.mark.parametrize("number", [0, 1])
def test_a_turn_has_the_gradients_of_its_network_from_one_call(work: Workload, number: int) -> None:
    torch.manual_seed(0)
    model, turn, calls = work.model(), work.turns[number], []
    model.register_forward_hook(lambda *_: calls.append(1))
    own = {n for n, _ in model.named_parameters() if n.startswith(f"{turn.name}.")}
    assert gradients(work, model, turn) == own
    assert calls == [1]


def test_losses_are_binary_cross_entropies(work: Workload) -> None:
    torch.manual_seed(0)
    model = work.model().eval()
    images, noise = work.train.plan(0, 0).batch(0, 5)
    with torch.no_grad():
        fake = model.discriminator(model.generator(noise))
        real = model.discriminator(images)
        told, fooled = (turn.loss(model, (images, noise)).losses for turn in work.turns)
    one, zero = torch.ones(5), torch.zeros(5)
    expected = bce(real, one, reduction="none") + bce(fake, zero, reduction="none")
    torch.testing.assert_close(told, expected)
    torch.testing.assert_close(fooled, bce(fake, one, reduction="none"))


def test_images_and_noise_that_depends_on_seed_epoch_and_step(work: Workload) -> None:
    images, noise = work.train.plan(0, 0).batch(0, 2000)
    assert (images.shape, noise.shape) == ((1442, 1, 8, 8), (1442, 16))
    assert (float(images.min()), float(images.max())) == (-1, 1)
    assert abs(float(noise.mean())) < 0.05
    assert [len(batch[1]) for batch in work.test] == [256, 99]
    first, again, *others = (
        work.train.plan(seed, epoch).batch(step, 8)[1]
        for seed, epoch, step in ((0, 1, 3), (0, 1, 3), (0, 2, 3), (1, 1, 3), (0, 1, 4))
    )
    assert torch.equal(first, again)
    assert not any(torch.equal(first, other) for other in others)


class Shows(nn.Module):
    """Generates some pictures, or else the images it is shown; its logits are those given."""

    def __init__(self, logit: float, pictures: Tensor | None = None) -> None:
        super().__init__()
        self.logit, self.pictures = logit, pictures

    def forward(self, images: Tensor, noise: Tensor, use: str) -> tuple[Tensor, ...]:
        logits = torch.full((len(images),), self.logit)
        return logits, logits, images if self.pictures is None else self.pictures[: len(images)]


def test_scores_are_near_for_training_images_and_far_for_the_mean(work: Workload) -> None:
    sums: dict[str, Tensor] = {}
    for batch in work.test:
        for name, value in work.measure(Shows(30.0), batch).items():
            sums[name] = sums.get(name, 0) + value.double()
    scores = work.score(sums, 355)
    assert scores["test_frechet_distance"] == pytest.approx(0, abs=1e-6)
    assert scores["test_discriminator_accuracy"] == 0.5
    assert scores["test_loss"] == pytest.approx(30)
    assert work.metric.field in scores
    assert not work.metric.higher
    train = work.train.plan(0, 0).batch(0, 2000)[0]
    near, far = (
        work.score(work.measure(Shows(0.0, pictures), work.test[0]), 256)["test_frechet_distance"]
        for pictures in (train, train.mean(dim=0, keepdim=True).expand_as(train))
    )
    assert near < 2 < 10 < far


@pytest.mark.parametrize("norm", ["", "layer", "none"])
def test_both_networks_are_converted(work: Workload, norm: str) -> None:
    torch.manual_seed(0)
    model = build_model("gan", Task("generation", (1, 8, 8), 16), width=4, norm=norm)
    lp.convert(model, lp.Recipe(input="affine3", weight="affine3"))
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.modules.conv._ConvNd)]
    assert len(layers) == 6
    assert all(type(layer).__module__.startswith("lpkernels") for layer in layers)
    for turn in work.turns:
        assert gradients(work, model, turn)


def test_a_few_steps_bring_the_pictures_nearer(work: Workload) -> None:
    def distance() -> float:
        with torch.no_grad():
            sums = work.measure(model.eval(), work.test[0])
        return work.score(sums, 256)["test_frechet_distance"]

    torch.manual_seed(0)
    model = work.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, betas=(0.5, 0.999))
    before, plan = distance(), work.train.plan(0, 0)
    model.train()
    for step in range(45):
        for turn in work.turns:
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name.startswith(f"{turn.name}."))
            optimizer.zero_grad()
            turn.loss(model, plan.batch(step, 32)).losses.mean().backward()
            optimizer.step()
    assert distance() < 0.8 * before


test_impossible_sizes_are_refused = refused(
    [
        (lambda: build_model("gan", Task("generation", (1, 6, 8), 4), width=2),
         r"sides 4 divides, got width=2 and .* 6 x 8"),
        (lambda: build_model("gan2", Task("generation", (1, 8, 8), 4)),
         r"expected one of gan, .* got 'gan2'"),
    ],
    ValueError,
)  # fmt: skip


def distance(one: Tensor, two: Tensor) -> float:
    return frechet_distance({**moment_sums("a", one), **moment_sums("b", two)}, "a", "b", len(one))


def vectors(seed: int, count: int = 40, features: int = 6) -> Tensor:
    return torch.randn(count, features, generator=torch.Generator().manual_seed(seed))


def test_equal_sets_have_distance_0_and_a_shift_the_square_of_its_length() -> None:
    x, y = vectors(0), vectors(0)
    # Features that never change, as in the corners of images, give covariances without inverse.
    y[:, 2:5] = 1
    for one, two in ((x, x), (x, x.flip(0)), (y, y)):
        assert distance(one, two) == pytest.approx(0, abs=1e-9)
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


def test_covariances_that_do_not_commute_and_sums_that_add_up() -> None:
    # For 2 x 2 matrices, tr (AB)^(1/2) = (tr AB + 2 (det AB)^(1/2))^(1/2).
    x, y = vectors(3, 50, 2), vectors(4, 50, 2) @ torch.tensor([[1.0, 0.5], [0, 2]])
    (m1, c1), (m2, c2) = (
        (z.double().mean(0), torch.cov(z.double().T, correction=0)) for z in (x, y)
    )
    cross = ((c1 @ c2).trace() + 2 * (c1 @ c2).det().sqrt()).sqrt()
    expected = float((m1 - m2).square().sum() + c1.trace() + c2.trace() - 2 * cross)
    assert distance(x, y) == pytest.approx(expected, rel=1e-6)
    assert distance(y, x) == pytest.approx(expected, rel=1e-6)
    x, y = vectors(5), vectors(6)
    parts = [moment_sums("a", part) for part in x.split(13)]
    total = {name: sum(part[name] for part in parts) for name in parts[0]}
    found = frechet_distance({**total, **moment_sums("b", y)}, "a", "b", len(x))
    assert found == pytest.approx(distance(x, y), rel=1e-9)
