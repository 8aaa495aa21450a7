"""A generator of small images and its discriminator, in one module."""

from typing import Literal

import torch
from torch import Tensor, nn

from lpkernels.experiments.workloads.models.family import Size, Task, family
from lpkernels.experiments.workloads.models.norms import norm_layers

#: The purposes of a call of the network.
Use = Literal["discriminator", "generator", "test"]


class Generator(nn.Module):
    """Noise (N, Z) to images (N, C, H, W) within -1..1: a linear layer to a quarter of the height
    and width, then two transposed convolutions that double them. H and W are multiples of 4.
    """

    def __init__(self, noise: int, shape: tuple[int, ...], width: int, norm: str) -> None:
        super().__init__()
        channels, rows, columns = shape
        bias = norm == "none"
        self.stem = nn.Linear(noise, 2 * width * (rows // 4) * (columns // 4), bias=bias)
        self.body = nn.Sequential(
            nn.Unflatten(1, (2 * width, rows // 4, columns // 4)),
            *norm_layers(norm, 2 * width, 2),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=bias),
            *norm_layers(norm, width, 2),
            nn.ReLU(),
        )
        self.head = nn.ConvTranspose2d(width, channels, 4, 2, 1)

    def forward(self, noise: Tensor) -> Tensor:
        return torch.tanh(self.head(self.body(self.stem(noise))))


class Discriminator(nn.Module):
    """Images (N, C, H, W) to logits (N,), positive for real: two convolutions of stride 2, then a
    linear layer. H and W are multiples of 4.
    """

    def __init__(self, shape: tuple[int, ...], width: int, norm: str) -> None:
        super().__init__()
        channels, rows, columns = shape
        self.stem = nn.Conv2d(channels, width, 4, 2, 1)
        self.body = nn.Sequential(
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1, bias=norm == "none"),
            *norm_layers(norm, 2 * width, 2),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
        )
        self.head = nn.Linear(2 * width * (rows // 4) * (columns // 4), 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(self.stem(images))).squeeze(1)


class GAN(nn.Module):
    """Both networks. One call does everything that a turn needs, so that a wrapper of the whole
    sees it.

    Reference: Radford et al. 2016, arXiv 1511.06434 (DCGAN), section 3: batch norm everywhere but
        in the generator's last and the discriminator's first layer, ReLU and leaky ReLU of slope
        0.2. Differs: two levels, for images of 8 x 8, and torch's own first weights.
    """

    def __init__(
        self, noise: int, shape: tuple[int, ...], *, width: int = 16, norm: str = "batch"
    ) -> None:
        super().__init__()
        if width < 1 or shape[1] % 4 or shape[2] % 4:
            raise ValueError(
                f"GAN: expected a width of at least 1 and images whose sides 4 divides, got "
                f"width={width} and images of {shape[1]} x {shape[2]}"
            )
        self.generator = Generator(noise, shape, width, norm)
        self.discriminator = Discriminator(shape, width, norm)

    def forward(self, images: Tensor, noise: Tensor, use: Use) -> tuple[Tensor, ...]:
        """For "discriminator" the logits of `images` and of as many generated ones, from which no
        gradient reaches the generator; for "generator" the logits of generated images; for "test"
        the logits of both and the generated images.
        """
        if use == "generator":
            return (self.discriminator(self.generator(noise)),)
        with torch.no_grad():
            made = self.generator(noise)
        # The two kinds go through apart, so that batch norm normalises each by itself, as DCGAN
        # does.
        real, fake = self.discriminator(images), self.discriminator(made)
        return (real, fake) if use == "discriminator" else (real, fake, made)


@family("gan", "generation", width=16, norms=("batch", "layer", "none"))
def _gan(task: Task, size: Size) -> nn.Module:
    return GAN(task.outputs, task.shape, width=size.width, norm=size.norm or "batch")
