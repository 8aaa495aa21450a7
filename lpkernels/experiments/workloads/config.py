"""The settings of a workload: data, network, and how many of the data."""

from typing import Literal

from pydantic import Field

from lpkernels.experiments.settings import Settings


class NetworkConfig(Settings):
    """A network, and the data that it is for."""

    data: str = Field(
        "digits",
        description="digits, digits32, mnist1d, iris, wine, breast_cancer, fashion-mnist, "
        "fashion-denoise, cifar10, cifar100, text, or module:function, which returns a Workload.",
    )
    data_dir: str = Field(
        "",
        description="Folder of CIFAR's extracted binary files, or of Fashion-MNIST's four files, "
        'plain or .gz; "": Fashion-MNIST as Debian\'s package dataset-fashion-mnist installs it.',
    )
    model: str = Field(
        "",
        description="A name and its depth: resnet8, cnn3, mlp2, lstm1, gpt2, or unet3; "
        '"": the one that the data is usually trained with.',
    )
    width: int = Field(
        0,
        ge=0,
        description="Channels of the first layer; 0: the model's default.",
    )


class WorkloadConfig(NetworkConfig):
    """The workload of a run; `workloads.find` makes it."""

    norm: Literal["", "batch", "layer", "none"] = Field(
        "", description='Normalisation: batch, layer or none; "": the usual one of the model.'
    )
    augment: bool = Field(
        False, description="Shift (CIFAR, Fashion-MNIST: and flip) the training images."
    )
    label_noise: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of the training labels replaced by a random class.",
    )
    train_size: int = Field(
        0,
        ge=0,
        description="Training examples that are used, evenly by class, of text evenly spaced; "
        "0: all.",
    )
    classes: int = Field(0, ge=0, description="Number of classes, the first ones; 0: all.")
