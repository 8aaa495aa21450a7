"""The trainer: SGD on images, records per epoch, checkpoints that go on to the same bits."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lpkernels.experiments import records
from lpkernels.experiments.config import RunConfig
from lpkernels.experiments.data import ImageData, load, plan_epoch, stream_seed
from lpkernels.experiments.interrupts import Interrupted, InterruptRequest
from lpkernels.experiments.models import build_model
from lpkernels.experiments.precision import body_recipe, layer_recipes, weight_quantizer
from lpkernels.functional import quantize
from lpkernels.nn import convert

if TYPE_CHECKING:
    from rich.console import Console

CHECKPOINT = "checkpoint.pt"


@dataclass
class Position:
    """Where a run stands: the next step of the current epoch, and the epoch's sums so far."""

    epoch: int = 0
    step: int = 0
    loss: float = 0.0
    correct: int = 0
    seen: int = 0
    skipped: int = 0
    seconds: float = 0.0


class Trainer:
    """Trains the network of `config`, keeping everything in `folder`.

    Equal configurations start from the same weights, see the same batches and end, on one machine
    type, with the same bits. A run that was stopped and resumed ends with the bits of one that was
    not: order and augmentation of an epoch depend on (seed, epoch) alone, evaluation draws from a
    stream of its own, and the checkpoint holds weights, optimizer, the sums of the epoch and the
    state of torch's CPU generator, from which stochastic rounding takes its seeds. On CUDA torch's
    own layers may choose another algorithm, and then float32 bits may differ.

    A step whose gradients are not all finite changes no weight and is counted in skipped_steps.

    Args:
        config: what to train.
        folder: where records.jsonl and checkpoint.pt go; made if absent.
        data: the data set, loaded from config if None.
        overwrite: start again where an earlier run's checkpoint lies; else that is a
            FileExistsError.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: str | Path,
        *,
        data: ImageData | None = None,
        overwrite: bool = False,
    ) -> None:
        self.config = config
        self.folder = Path(folder)
        self.checkpoint = self.folder / CHECKPOINT
        if self.checkpoint.exists() and not overwrite:
            raise FileExistsError(
                f"{self.folder} holds a run already; resume it (option --resume) or choose another "
                "folder (option --out)"
            )
        self._build(data)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(config.seed, "train"))
            self._round_weights()
            self._rng_state = torch.get_rng_state()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.checkpoint.unlink(missing_ok=True)
        first = records.header(config, str(body_recipe(config).fprop))
        records.write_records(self.folder / records.RECORDS, [first])

    def _build(self, data: ImageData | None) -> None:
        config = self.config
        self.data = data if data is not None else load(config.data, config.data_dir)
        self.weight_quantizer = weight_quantizer(config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(config.seed, "init"))
            self.model = build_model(
                config.model, self.data.shape[0], self.data.classes, width=config.width
            )
        self.model = convert(self.model, layer_recipes(config)).to(config.device)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
        self.steps = math.ceil(len(self.data.train_labels) / config.batch)
        self.position = Position()

    @classmethod
    def resume(cls, folder: str | Path, *, data: ImageData | None = None) -> "Trainer":
        """The trainer of the run in `folder`, where its last checkpoint left it.

        Raises: FileNotFoundError: there is no checkpoint in `folder`.
        """
        path = Path(folder) / CHECKPOINT
        if not path.is_file():
            raise FileNotFoundError(
                f"expected a checkpoint at {str(path)!r}; a run saves one per epoch and on ctrl-C"
            )
        state = torch.load(path, weights_only=True)
        trainer = cls.__new__(cls)
        trainer.config = RunConfig.from_dict(state["config"])
        trainer.folder, trainer.checkpoint = Path(folder), path
        trainer._build(data)
        trainer.model.load_state_dict(state["model"])
        trainer.optimizer.load_state_dict(state["optimizer"])
        trainer.position = Position(**state["position"])
        trainer._rng_state = state["rng"]
        trainer._cut_records()
        return trainer

    def _cut_records(self) -> None:
        """Drops the records of epochs the checkpoint does not hold; notes where the run goes on."""
        path = self.folder / records.RECORDS
        kept = [
            r
            for r in records.read_records(path)
            if r["type"] != "epoch" or r["epoch"] <= self.position.epoch
        ]
        if self.position.epoch < self.config.epochs:
            where = {"epoch": self.position.epoch, "step": self.position.step}
            kept.append(
                {"type": "resume", **where, "environment": records.environment(self.config.device)}
            )
        records.write_records(path, kept)

    def fit(self, *, console: "Console | None" = None) -> records.Run:
        """Trains to the last epoch and returns the records; `console` gets a progress bar.

        The caller's random state and thread count are as before afterwards.

        Raises: Interrupted: ctrl-C was pressed; the state is saved. (A second ctrl-C interrupts
            without saving.)
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(self.config.threads or threads)
        try:
            with (
                torch.random.fork_rng(devices=[]),
                InterruptRequest() as stop,
                self._progress(console) as show,
            ):
                torch.set_rng_state(self._rng_state)
                while self.position.epoch < self.config.epochs:
                    self._epoch(stop, show)
                if stop.requested:
                    raise Interrupted(f"stopped after the last epoch; saved to {self.checkpoint}")
        finally:
            torch.set_num_threads(threads)
        return records.read_run(self.folder)

    def _epoch(self, stop: InterruptRequest, show: Callable[[], None]) -> None:
        """What is left of the current epoch: training steps, test, record, checkpoint."""
        start = time.perf_counter()
        before = self.position.seconds
        plan = plan_epoch(self.data, self.config.seed, self.position.epoch, self.config.augment)
        while self.position.step < self.steps:
            self._check(stop)
            self._step(*plan.batch(self.data, self.position.step, self.config.batch))
            self.position.step += 1
            self.position.seconds = before + time.perf_counter() - start
            show()
        self._check(stop)
        test_loss, test_accuracy = self.evaluate()
        self.position.seconds = before + time.perf_counter() - start
        self._finish_epoch(test_loss, test_accuracy)

    def _finish_epoch(self, test_loss: float, test_accuracy: float) -> None:
        done = self.position
        record = {
            "type": "epoch",
            "epoch": done.epoch + 1,
            "train_loss": done.loss / done.seen,
            "train_accuracy": done.correct / done.seen,
            "test_loss": test_loss,
            "test_accuracy": test_accuracy,
            "lr": self.optimizer.param_groups[0]["lr"],
            "skipped_steps": done.skipped,
            "seconds": round(done.seconds, 3),
        }
        records.append_record(self.folder / records.RECORDS, record)
        self.position = Position(epoch=done.epoch + 1)
        self.save()

    def _step(self, images: Tensor, labels: Tensor) -> None:
        """One forward, backward and update; adds to the sums of the epoch."""
        config = self.config
        images, labels = images.to(config.device), labels.to(config.device)
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = cosine_lr(
                config.lr, self.position.epoch * self.steps + self.position.step, self.total_steps
            )
        self.optimizer.zero_grad()
        output = self.model(images)
        loss = cross_entropy(output, labels)
        (loss * config.loss_scale).backward()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        torch._foreach_div_(gradients, config.loss_scale)
        if all_finite(gradients):
            self.optimizer.step()
            self._round_weights()
        else:
            self.position.skipped += 1
        self.position.loss += float(loss.detach()) * len(labels)
        self.position.correct += int((output.argmax(dim=1) == labels).sum())
        self.position.seen += len(labels)

    @property
    def total_steps(self) -> int:
        return self.config.epochs * self.steps

    @torch.no_grad()
    def _round_weights(self) -> None:
        if self.weight_quantizer is None:
            return
        for parameter in self.model.parameters():
            parameter.copy_(quantize(parameter, self.weight_quantizer))

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Mean loss and accuracy on the test images.

        A function of the weights, the seed and the epoch: it draws from a stream of its own, so
        that testing more or less often does not change the training.
        """
        self.model.eval()
        loss, correct = 0.0, 0
        images, labels = self.data.test_images, self.data.test_labels
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(self.config.seed, "test", self.position.epoch))
            for x, y in zip(images.split(256), labels.split(256), strict=True):
                output = self.model(self.data.normalise(x).to(self.config.device)).cpu()
                loss += float(cross_entropy(output, y, reduction="sum"))
                correct += int((output.argmax(dim=1) == y).sum())
        return loss / len(labels), correct / len(labels)

    def _check(self, stop: InterruptRequest) -> None:
        if not stop.requested:
            return
        self.save()
        raise Interrupted(
            f"stopped in epoch {self.position.epoch + 1} of {self.config.epochs} "
            f"after step {self.position.step} of {self.steps}; saved to {self.checkpoint}"
        )

    def save(self) -> None:
        """Writes the checkpoint; the file is replaced at once, and so is whole at any moment."""
        state: dict[str, Any] = {
            "config": self.config.to_dict(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "position": asdict(self.position),
            "rng": torch.get_rng_state(),
        }
        temporary = self.checkpoint.with_suffix(".tmp")
        torch.save(state, temporary)
        temporary.replace(self.checkpoint)

    @contextmanager
    def _progress(self, console: "Console | None") -> Iterator[Callable[[], None]]:
        """A progress bar over all steps on `console`; yields what to call after each."""
        if console is None:
            yield lambda: None
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(self.config.name, total=self.total_steps, note="")

            def show() -> None:
                at = self.position
                loss = at.loss / max(at.seen, 1)
                note = f"epoch {at.epoch + 1}/{self.config.epochs}  loss {loss:.3f}"
                bar.update(task, completed=at.epoch * self.steps + at.step, note=note)

            yield show


def cosine_lr(peak: float, step: int, total: int) -> float:
    """Half a cosine from `peak` at step 0 to 0 at step `total`."""
    return peak * 0.5 * (1 + math.cos(math.pi * step / total))


def all_finite(tensors: list[Tensor]) -> bool:
    """Whether no element of any of `tensors` is infinite or NaN."""
    return bool(torch.stack([torch.isfinite(t).all() for t in tensors]).all())
