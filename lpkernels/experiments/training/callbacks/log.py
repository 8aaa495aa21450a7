"""A log of a run's figures beside its records, for TensorBoard."""

from typing import Annotated, Any

from pydantic import Field

from lpkernels.experiments.settings import Option, checked
from lpkernels.experiments.training.callback import Callback, CallbackConfig, Context, register


def _folder(text: str) -> str:
    """The folder of "tensorboard:DIR".  Raises: ValueError: text of another form."""
    kind, _, folder = text.partition(":")
    if kind != "tensorboard" or not folder:
        raise ValueError(f"expected tensorboard:DIR, the folder of a log, got {text!r}")
    return folder


@register("log", order=95)
class LogConfig(CallbackConfig):
    """The settings of a log."""

    log: Annotated[str, checked(_folder), Option("--log-to")] = Field(
        "",
        description="Also write the figures of every epoch to a folder: tensorboard:DIR, one for "
        "each run.",
    )

    def build(self) -> Callback:
        return TensorBoard(_folder(self.log))


class TensorBoard(Callback):
    """Writes each number in the record of an epoch as a scalar, with the epoch as its step.

    Raises: ModuleNotFoundError: TensorBoard is not installed.
    """

    def __init__(self, folder: str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ModuleNotFoundError(
                'log needs tensorboard: pip install "lpkernels[frameworks]"'
            ) from error
        self._folder, self._open = folder, SummaryWriter
        # Opened when there is something to write, by the first of several processes.
        self._writer: Any = None

    def prepare(self, context: Context) -> None:
        self._first = context.processes.first

    def after_epoch(self, record: dict[str, Any]) -> None:
        if not self._first:
            return
        epoch = record["epoch"]
        if self._writer is None:
            # A resumed run may make an epoch again that was written before it was stopped.
            self._writer = self._open(self._folder, purge_step=epoch)
        for name, value in record.items():
            if name != "epoch" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, epoch)
        self._writer.flush()
