"""The trainer: SGD on images, records per epoch, checkpoints that go on to the same bits."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lpkernels.experiments import records
from lpkernels.experiments.processes.replicas import (
    like,
    load_optimizer,
    local,
    model_state,
    optimizer_state,
    share_buffers,
    spread,
    whole,
)
from lpkernels.experiments.processes.torchrun import ALONE, Processes
from lpkernels.experiments.training.checkpoints import CHECKPOINT, read_checkpoint, write_checkpoint
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.interrupts import Interrupted, InterruptRequest
from lpkernels.experiments.training.precision import body_recipe, layer_recipes, weight_quantizer
from lpkernels.experiments.training.progress import progress
from lpkernels.experiments.workloads.images import ImageData, load, plan_epoch, stream_seed
from lpkernels.experiments.workloads.models import build_model
from lpkernels.functional import quantize, seed_from
from lpkernels.nn import convert

if TYPE_CHECKING:
    from rich.console import Console


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

    Several processes share each batch: rank r takes the r-th part of its images, the gradients of
    the parts are added in float32, and every rank makes the same update, to the bit. The layers of
    each rank draw from a stream of its own, (seed, rank, epoch, step); weight updates and tests
    draw alike on all. Batch norm normalises the images of a rank, and keeps the mean of the ranks'
    running statistics. The first rank writes records and checkpoints, which are those of one
    process: a run may be resumed with another number of processes.

    Args:
        config: what to train.
        folder: where records.jsonl and checkpoint.pt go; made if absent.
        data: the data set, loaded from config if None.
        overwrite: start again where an earlier run's checkpoint lies; else that is a
            FileExistsError.
        processes: those that train together, of which all make this call.
    Raises: ValueError: the batch does not divide by the number of processes.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: str | Path,
        *,
        data: ImageData | None = None,
        overwrite: bool = False,
        processes: Processes = ALONE,
    ) -> None:
        self.config, self.processes = config, processes
        self.folder = Path(folder)
        self.checkpoint = self.folder / CHECKPOINT
        if processes.on_first(self.checkpoint.exists) and not overwrite:
            raise FileExistsError(
                f"{self.folder} holds a run already; resume it (option --resume) or choose another "
                "folder (option --out)"
            )
        self._build(data)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(config.seed, "train"))
            self._round_weights()
            self._rng_state = torch.get_rng_state()
        processes.on_first(self._begin)

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.checkpoint.unlink(missing_ok=True)
        header = records.header(self.config, str(body_recipe(self.config).fprop), self.processes)
        records.write_records(self.folder / records.RECORDS, [header])

    def _build(self, data: ImageData | None, state: dict[str, Any] | None = None) -> None:
        """Data, model and optimizer, those of a checkpoint if there is one."""
        config = self.config
        self.device = self.processes.device(config.device)
        self.data = data if data is not None else load(config.data, config.data_dir)
        self.processes.check_batches(config.batch, len(self.data.train_labels))
        self.weight_quantizer = weight_quantizer(config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(config.seed, "init"))
            self.model = build_model(
                config.model, self.data.shape[0], self.data.classes, width=config.width
            )
        if state is not None:
            self.model.load_state_dict(state["model"])
        self.model = convert(self.model, layer_recipes(config)).to(self.device)
        self.network = spread(self.model, self.processes, self.device)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
        if state is not None:
            load_optimizer(self.optimizer, state["optimizer"])
        self.steps = math.ceil(len(self.data.train_labels) / config.batch)
        self.position = Position()

    @classmethod
    def resume(
        cls, folder: str | Path, *, data: ImageData | None = None, processes: Processes = ALONE
    ) -> "Trainer":
        """The trainer of the run in `folder`, where its last checkpoint left it.

        Raises:
            FileNotFoundError: there is no checkpoint in `folder`.
            ValueError: the run's batch does not divide by the number of processes.
        """
        path = Path(folder) / CHECKPOINT
        state = processes.on_first(lambda: read_checkpoint(path))
        trainer = cls.__new__(cls)
        trainer.config, trainer.processes = RunConfig.from_dict(state["config"]), processes
        trainer.folder, trainer.checkpoint = Path(folder), path
        trainer._build(data, state)
        trainer.position = Position(**state["position"])
        trainer._rng_state = state["rng"]
        processes.on_first(trainer._cut_records)
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
            kept.append({"type": "resume", **where, **records.machine(self.config, self.processes)})
        records.write_records(path, kept)

    def fit(self, *, console: "Console | None" = None) -> records.Run:
        """Trains to the last epoch and returns the records; `console` gets a progress bar.

        The caller's random state and thread count are as before afterwards.

        Raises: Interrupted: ctrl-C was pressed; the state is saved. (A second ctrl-C interrupts
            without saving.)
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(self.config.threads or threads)
        console = console if self.processes.first else None
        try:
            with (
                torch.random.fork_rng(devices=[]),
                InterruptRequest() as stop,
                progress(console, self.config.name, self.total_steps) as show,
            ):
                torch.set_rng_state(self._rng_state)
                while self.position.epoch < self.config.epochs:
                    self._epoch(stop, show)
                if self.processes.any(stop.requested):
                    raise Interrupted(f"stopped after the last epoch; saved to {self.checkpoint}")
        finally:
            torch.set_num_threads(threads)
        return self.processes.on_first(lambda: records.read_run(self.folder))

    def _epoch(self, stop: InterruptRequest, show: Callable[[int, str], None]) -> None:
        """What is left of the current epoch: training steps, test, record, checkpoint."""
        start = time.perf_counter()
        before = self.position.seconds
        plan = plan_epoch(self.data, self.config.seed, self.position.epoch, self.config.augment)
        while self.position.step < self.steps:
            self._check(stop)
            self._step(*plan.batch(self.data, self.position.step, self.config.batch))
            self.position.step += 1
            self.position.seconds = before + time.perf_counter() - start
            show(*self._progress())
        self._check(stop)
        test_loss, test_accuracy = self.evaluate()
        self.position.seconds = before + time.perf_counter() - start
        self._finish_epoch(test_loss, test_accuracy)

    def _progress(self) -> tuple[int, str]:
        """Steps done, and what the progress bar says."""
        at = self.position
        loss = at.loss / max(at.seen, 1)
        note = f"epoch {at.epoch + 1}/{self.config.epochs}  loss {loss:.3f}"
        return at.epoch * self.steps + at.step, note

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
        path = self.folder / records.RECORDS
        self.processes.on_first(lambda: records.append_record(path, record))
        self.position = Position(epoch=done.epoch + 1)
        self.save()

    def _step(self, images: Tensor, labels: Tensor) -> None:
        """One forward, backward and update; adds to the sums of the epoch."""
        config, processes = self.config, self.processes
        count, share = len(labels), processes.share(len(labels))
        images, labels = images[share].to(self.device), labels[share].to(self.device)
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = cosine_lr(
                config.lr, self.position.epoch * self.steps + self.position.step, self.total_steps
            )
        self.optimizer.zero_grad()
        with self._draws():
            output = self.network(images)
        losses = cross_entropy(output, labels, reduction="none")
        # The share of this process in the mean over the batch: what its layers send backward is
        # what one process would. The processes' gradients are averaged, and their sum is wanted.
        loss = losses.sum() / count
        (loss * config.loss_scale).backward()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        torch._foreach_div_(gradients, config.loss_scale / processes.count)
        infinite = processes.any(not all_finite([local(g) for g in gradients]))
        if not infinite:
            self.optimizer.step()
            self._round_weights()
        share_buffers(self.model, processes)
        # In float64, where the sum hardly depends on how the batch is shared.
        here = [losses.detach().double().sum(), (output.argmax(dim=1) == labels).sum()]
        total, correct = processes.sums([float(x) for x in here])
        self.position.skipped += infinite
        self.position.loss += total
        self.position.correct += int(correct)
        self.position.seen += count

    def _draws(self) -> AbstractContextManager[None]:
        """Where the layers' draws of this step come from: torch's generator, or the rank's own
        stream, so that ranks round their images independently and the generators stay alike."""
        if self.processes.count == 1:
            return nullcontext()
        at, rank = self.position, self.processes.rank
        seed = stream_seed(self.config.seed, "rank", rank, at.epoch, at.step)
        return seed_from(torch.tensor(seed))

    @property
    def total_steps(self) -> int:
        return self.config.epochs * self.steps

    @torch.no_grad()
    def _round_weights(self) -> None:
        if self.weight_quantizer is None:
            return
        for parameter in self.model.parameters():
            # A draw belongs to an element of the whole tensor.
            rounded = quantize(whole(parameter.detach()), self.weight_quantizer)
            parameter.copy_(like(rounded, parameter))

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Mean loss and accuracy on the test images.

        A function of the weights, the seed and the epoch, which several processes share by batches:
        each batch draws from a stream of its own, so that testing more or less often, or with more
        processes, does not change the training.
        """
        self.model.eval()
        images, labels = (x.split(256) for x in (self.data.test_images, self.data.test_labels))
        loss, correct = [0.0] * len(labels), [0.0] * len(labels)
        rank, count = self.processes.rank, self.processes.count
        with torch.random.fork_rng(devices=[]):
            for first in range(0, len(labels), count):
                # Sharded processes gather weights together: one without a batch repeats the last.
                number = min(first + rank, len(labels) - 1)
                torch.manual_seed(
                    stream_seed(self.config.seed, "test", self.position.epoch, number)
                )
                output = self.model(self.data.normalise(images[number]).to(self.device)).cpu()
                if first + rank < len(labels):
                    loss[number] = float(cross_entropy(output, labels[number], reduction="sum"))
                    correct[number] = float((output.argmax(dim=1) == labels[number]).sum())
        sums = self.processes.sums([*loss, *correct])
        total = len(self.data.test_labels)
        return sum(sums[: len(labels)]) / total, sum(sums[len(labels) :]) / total

    def _check(self, stop: InterruptRequest) -> None:
        if not self.processes.any(stop.requested):
            return
        self.save()
        raise Interrupted(
            f"stopped in epoch {self.position.epoch + 1} of {self.config.epochs} "
            f"after step {self.position.step} of {self.steps}; saved to {self.checkpoint}"
        )

    def save(self) -> None:
        """Writes the checkpoint; the file is replaced at once, and so is whole at any moment.
        All processes make this call."""
        state: dict[str, Any] = {
            "config": self.config.to_dict(),
            "model": model_state(self.model),
            "optimizer": optimizer_state(self.optimizer),
            "position": asdict(self.position),
            "rng": torch.get_rng_state(),
        }
        self.processes.on_first(lambda: write_checkpoint(self.checkpoint, state))


def cosine_lr(peak: float, step: int, total: int) -> float:
    """Half a cosine from `peak` at step 0 to 0 at step `total`."""
    return peak * 0.5 * (1 + math.cos(math.pi * step / total))


def all_finite(tensors: list[Tensor]) -> bool:
    """Whether no element of any of `tensors` is infinite or NaN."""
    return bool(torch.stack([torch.isfinite(t).all() for t in tensors]).all())
