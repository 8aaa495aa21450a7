"""The settings of a run's workload: data, model, and how many of the data."""

import re
from dataclasses import dataclass
from typing import ClassVar

from lpkernels.experiments.settings import Section, one_of, setting


def _share(value: float) -> None:
    if not value <= 1:
        raise ValueError(f"expected a share of 0 to 1, got {value}")


def _classes(value: int) -> None:
    if value == 1:
        raise ValueError(f"expected at least 2, or 0 for all, got {value}")


@dataclass(frozen=True)
class WorkloadConfig(Section):
    """The workload of a run; `workloads.find` makes it."""

    TITLE: ClassVar[str] = "Workload"

    data: str = setting(
        "digits",
        "digits, digits32, mnist1d, iris, wine, breast_cancer, fashion-mnist, fashion-denoise, "
        "cifar10, cifar100, text, or module:function, which returns a Workload.",
    )
    data_dir: str = setting(
        "",
        "Folder of CIFAR's extracted binary files, or of Fashion-MNIST's four files, plain or .gz; "
        '"": Fashion-MNIST as Debian\'s package dataset-fashion-mnist installs it.',
    )
    model: str = setting(
        "",
        'A name and its depth: resnet8, cnn3, mlp2, lstm1, gpt2, or unet3; "": the one that '
        "the data is usually trained with.",
    )
    depth: int = setting(0, "Depth of the model; 0: that of its name.", least=0)
    width: int = setting(
        0, "Channels of the first layer (of lee-... percent); 0: the model's default.", least=0
    )
    norm: str = setting(
        "",
        'Normalisation: batch, layer or none; "": the usual one of the model.',
        check=one_of("batch", "layer", "none"),
    )
    augment: bool = setting(False, "Shift (CIFAR, Fashion-MNIST: and flip) the training images.")
    label_noise: float = setting(
        0.0,
        "Share of the training labels replaced by a class drawn from all.",
        least=0.0,
        check=_share,
    )
    train_size: int = setting(
        0,
        "Training examples kept, as many of each class as can be, of text evenly; 0: all.",
        least=0,
    )
    classes: int = setting(0, "Classes kept, the first so many; 0: all.", least=0, check=_classes)

    def network(self, usual: str = "") -> str:
        """The model's name with its depth; `usual` is the name where the run has none.

        Raises: ValueError: `depth` is another than the name's own.
        """
        name = self.model or usual
        parts = re.fullmatch(r"([a-z]+)(\d*)(_\w+)?", name)
        if not self.depth or parts is None:
            return name
        if self.model and parts[2] not in ("", str(self.depth)):
            raise ValueError(f"depth: {self.model} has depth {parts[2]}, got {self.depth}")
        return f"{parts[1]}{self.depth}{parts[3] or ''}"
