"""The runs behind the commands: one training run, and the three runs of the demo."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpkernels.experiments import records
from lpkernels.experiments.training.checkpoints import CHECKPOINT, read_config
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.trainer import Trainer
from lpkernels.experiments.workloads.images import ImageData, load

if TYPE_CHECKING:
    from rich.console import Console

# Wang et al. 2018 (arXiv 1812.08011): e5m2 operands, e6m9 sums in chunks of 64, weight updates
# rounded stochastically to e6m9, 16-bit operands in the last layer and for the images, one static
# loss scale. Theirs is 1000; 1024 is the power of two next to it, by which float32 gradients are
# multiplied and divided without a rounding.
FP8 = RunConfig(
    name="fp8",
    recipe="fp8_wang2018",
    edge="e6m9",
    weight_update="e6m9:stochastic",
    loss_scale=1024.0,
)


def demo_configs(*, epochs: int = 8, seed: int = 0) -> list[RunConfig]:
    """One network, seed and data set: in fp32, in FP8, in FP8 with too narrow an accumulator.

    The third run keeps every sum in e5m2 too, the format of the operands, without chunks: a sum
    that has grown to 16 times a product absorbs it no more, and the weight gradients of the first
    layers sum batch * 8 * 8 = 8192 products. Batch norm and the falling learning rate repair much
    of the damage, so that the run learns late and ends well below the others, rather than failing.
    """
    shared: dict[str, Any] = {
        "model": "resnet14",
        "width": 16,
        "data": "digits",
        "epochs": epochs,
        "batch": 128,
        "seed": seed,
        "augment": True,
    }
    runs = [
        RunConfig(name="fp32"),
        FP8,
        dataclasses.replace(FP8, name="fp8, 8-bit sums", acc="e5m2"),
    ]
    return [dataclasses.replace(run, **shared) for run in runs]


def demo(
    folder: str | Path,
    *,
    epochs: int = 8,
    seed: int = 0,
    resume: bool = False,
    console: "Console | None" = None,
) -> list[records.Run]:
    """Trains the demo's runs one after the other, each in its own folder below `folder`.

    With `resume`, runs that are finished are read and one that was stopped goes on; else all start
    again.

    Raises:
        Interrupted: ctrl-C; what was done so far is saved.
        ValueError: with resume, a run in `folder` was started with another configuration.
    """
    data = load("digits")
    runs = []
    for number, config in enumerate(demo_configs(epochs=epochs, seed=seed), start=1):
        place = Path(folder) / f"{number}-{config.name.replace(', ', '-').replace(' ', '-')}"
        trainer = trainer_of(config, place, data, resume=resume)
        runs.append(trainer.fit(console=console))
    return runs


def trainer_of(config: RunConfig, folder: Path, data: ImageData, *, resume: bool) -> Trainer:
    """The trainer of a run: with `resume` where its checkpoint left it, else from the start.

    Raises: ValueError: with resume, `folder` holds a run of another configuration.
    """
    if resume and (folder / CHECKPOINT).is_file():
        own = read_config(folder)
        if own != config:
            raise ValueError(
                f"{folder} holds a run of another configuration ({own.epochs} epochs, "
                f"seed {own.seed}); resume with the options it was started with, or "
                "start again without --resume"
            )
        return Trainer.resume(folder, data=data)
    return Trainer(config, folder, data=data, overwrite=True)
