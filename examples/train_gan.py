"""Train a generator of 8 x 8 digits against a discriminator, both with FP8 operands.

A step has two updates, so the loop is its own. The Frechet distance compares the pixels of both.

    python examples/train_gan.py --epochs 40 --recipe fp8_wang2018
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import softplus

import lpkernels as lp
from lpkernels.techniques.loss_scaling import LossScaler

NOISE, WIDTH = 16, 16


def networks() -> tuple[nn.Module, nn.Module]:
    """DCGAN (arXiv 1511.06434) in two levels."""
    generator = nn.Sequential(
        nn.Linear(NOISE, 8 * WIDTH, bias=False), nn.Unflatten(1, (2 * WIDTH, 2, 2)),
        nn.BatchNorm2d(2 * WIDTH), nn.ReLU(),
        nn.ConvTranspose2d(2 * WIDTH, WIDTH, 4, 2, 1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU(),
        nn.ConvTranspose2d(WIDTH, 1, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip
    discriminator = nn.Sequential(
        nn.Conv2d(1, WIDTH, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(WIDTH, 2 * WIDTH, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * WIDTH),
        nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(8 * WIDTH, 1),
    )  # fmt: skip
    return generator, discriminator


def frechet(x: Tensor, y: Tensor) -> float:
    """|m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)) of two sets of vectors."""
    (m1, c1), (m2, c2) = ((z.mean(0), z.T.cov(correction=0)) for z in (x.double(), y.double()))
    values, vectors = torch.linalg.eigh(c1)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    cross = torch.linalg.eigvalsh(root @ c2 @ root).clamp_min(0).sqrt().sum()
    return float((m1 - m2).square().sum() + c1.trace() + c2.trace() - 2 * cross)


def main() -> float:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--recipe", default="fp8_wang2018")
    options = parser.parse_args()
    images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8 - 1

    torch.manual_seed(0)
    generator, discriminator = (lp.convert(net, lp.recipe(options.recipe)) for net in networks())
    players = [
        (net, torch.optim.Adam(net.parameters(), lr=5e-4, betas=(0.5, 0.999)), LossScaler())
        for net in (discriminator, generator)
    ]
    for epoch in range(options.epochs):
        for index in torch.randperm(len(images)).split(64):
            for net, optimizer, scaler in players:
                fakes = generator(torch.randn(len(index), NOISE))
                if net is discriminator:
                    real, fake = discriminator(images[index]), discriminator(fakes.detach())
                    loss = (softplus(-real) + softplus(fake)).mean()
                else:
                    loss = softplus(-discriminator(fakes)).mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        with torch.no_grad():
            fakes = generator(torch.randn(len(images), NOISE))
        distance = frechet(images.flatten(1), fakes.flatten(1))
        print(f"epoch {epoch + 1}  Frechet distance {distance:.2f}")
    return distance


if __name__ == "__main__":
    main()
