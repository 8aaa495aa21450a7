"""The three runs of the demo."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpkernels.experiments import records
from lpkernels.experiments.sweeps.cells import Folder
from lpkernels.experiments.sweeps.sweep import train_all
from lpkernels.experiments.training.config import RunConfig

if TYPE_CHECKING:
    from rich.console import Console

NAME = "demo"

# Wang et al. 2018 (arXiv 1812.08011): e5m2 operands, e6m9 sums in chunks of 64, 16-bit operands in
# the last layer and for the images, weight updates rounded stochastically to e6m9, one static loss
# scale. Theirs is 1000; 1024 is the power of two next to it, by which float32 gradients are
# multiplied and divided without a rounding.
FP8 = RunConfig.of(
    name="fp8",
    recipe="fp8_wang2018",
    weight_update="e6m9:stochastic",
    loss_scale=1024.0,
)


def demo_configs(*, epochs: int = 8, seed: int = 0) -> list[RunConfig]:
    """One network, seed and data set: in fp32, in FP8, in FP8 with too narrow an accumulator.

    The third run keeps every sum in e5m2 too, the format of the operands, without chunks: a sum
    that has grown to 16 times a product no longer changes when the product is added, and the weight
    gradients of the first layers sum batch * 8 * 8 = 8192 products. Batch norm and the falling
    learning rate repair much of the damage, so that the run learns late and ends well below the
    others, rather than failing.
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
    runs = [RunConfig(name="fp32"), FP8, FP8.replace(name="fp8, 8-bit sums", acc="e5m2")]
    return [run.replace(**shared) for run in runs]


def demo(
    folder: str | Path,
    *,
    epochs: int = 8,
    seed: int = 0,
    resume: bool = False,
    console: "Console | None" = None,
) -> list[records.Run]:
    """Trains the demo's runs one after the other, each a cell of the sweep in `folder`.

    With `resume`, runs that are finished are read and one that was stopped goes on; else all start
    again.

    Raises:
        Interrupted: ctrl-C; what was done so far is saved.
        ValueError: with resume, a run in `folder` was started with another configuration; or the
            folder holds a sweep that is not the demo.
    """
    configs = demo_configs(epochs=epochs, seed=seed)
    if resume:
        _check_options(Path(folder), configs[0])
    return train_all(configs, folder, name=NAME, resume=resume, console=console)


def _check_options(folder: Path, config: RunConfig) -> None:
    spec = Folder(folder).read_spec()
    own = config if spec is None else spec.cells()[0].config
    if own != config:
        raise ValueError(
            f"{folder} holds a run of another configuration ({own.epochs} epochs, "
            f"seed {own.seed}); resume with the options it was started with, or "
            "start again without --resume"
        )
