"""The training loop: records per epoch, checkpoints that go on to the same bits.

It knows workloads and callbacks by their protocols, and no technique.
"""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import lpkernels
from lpkernels.experiments import records
from lpkernels.experiments.processes import replicas
from lpkernels.experiments.processes.torchrun import ALONE, Processes
from lpkernels.experiments.training import checkpoints
from lpkernels.experiments.training.arithmetic import body_recipe, layer_recipes
from lpkernels.experiments.training.callback import Context
from lpkernels.experiments.training.config import RunConfig
from lpkernels.experiments.training.interrupts import Interrupted, InterruptRequest
from lpkernels.experiments.training.optimizers import build_optimizer, learning_rate
from lpkernels.experiments.training.progress import progress_bar
from lpkernels.experiments.training.step import Step, Tally
from lpkernels.experiments.workloads.registry import find
from lpkernels.experiments.workloads.streams import stream_seed
from lpkernels.experiments.workloads.workload import Workload
from lpkernels.functional import seed_from
from lpkernels.nn import convert

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Trainer"]

#: Called with the steps done and the steps of the whole run.
OnProgress = Callable[[int, int], None]


@dataclass
class Position:
    """Where a run stands: the next step of an epoch, the epoch's examples and seconds so far."""

    epoch: int = 0
    step: int = 0
    seen: int = 0
    seconds: float = 0.0


class Trainer(Context):
    """Trains the network of `config`, and saves everything in `folder`.

    Equal configurations start from the same weights, see the same batches and end, on one machine
    type, with the same bits, also where a run was stopped and resumed: the batches of an epoch
    depend on (seed, epoch) alone, a test draws from a stream of its own, and the checkpoint holds
    weights, optimizer, callbacks, the sums of the epoch and the state of torch's CPU generator,
    which seeds stochastic rounding. On CUDA torch's own layers may choose another algorithm, and
    then float32 bits may differ.

    An update whose gradients are not all finite changes no weight and is counted in skipped_steps.

    Several processes share each batch: rank r takes the r-th part of its examples, the gradients of
    the parts are added in float32, and every rank makes the same update, to the bit. The layers of
    a rank draw from a stream of its own; weight updates and tests draw alike on all. Batch norm
    normalises the examples of a rank, and keeps the mean of the ranks' running statistics. The
    first rank writes records and checkpoints, from which any number of processes goes on.

    Args:
        config: what to train.
        folder: where records.jsonl, checkpoint.pt and the checkpoint before it go; made if absent.
        workload: data, model, loss and metric; found by config.workload if None.
        overwrite: start again where an earlier run's checkpoint lies; else it is a FileExistsError.
        processes: the processes that train together; all of them make this call.
    Raises: ValueError: an unknown workload, or a batch that does not divide by the processes.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: str | Path,
        *,
        workload: Workload | None = None,
        overwrite: bool = False,
        processes: Processes = ALONE,
    ) -> None:
        self.folder = Path(folder)
        if processes.on_first(lambda: checkpoints.has_checkpoint(self.folder)) and not overwrite:
            raise FileExistsError(
                f"{self.folder} holds a run already; resume it (option --resume) or choose another "
                "folder (option --out)"
            )
        self._build(config, workload, processes)
        processes.on_first(self._begin)

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for checkpoint in (self.checkpoint, checkpoints.previous(self.checkpoint)):
            checkpoint.unlink(missing_ok=True)
        fprop = str(body_recipe(self.config.arithmetic).fprop)
        header = records.header(self.config, fprop, self.workload.metric, self.processes)
        self._lines.append(records.line_of(header))
        records.write_lines(self.folder / records.RECORDS, self._lines)

    def _build(self, config: RunConfig, workload: Workload | None, processes: Processes) -> None:
        """Everything as it is before the first step."""
        data = workload if workload is not None else find(config.workload)
        processes.check_batches(config.batch, len(data.train))
        self.config, self.workload, self.processes = config, data, processes
        self.seed, self.batch = config.seed, config.batch
        self.device = processes.device(config.device)
        self.steps = math.ceil(len(data.train) / config.batch)
        self.total_steps = config.epochs * self.steps
        self.position, self.tally = Position(), Tally()
        # The lines of the records, which a checkpoint holds too, and the files that were damaged.
        self._lines: list[str] = []
        self.notices: list[str] = []
        model = data.network(stream_seed(config.seed, "init"))
        model = convert(model, layer_recipes(config.arithmetic, model))
        self.model = replicas.sharded(model.to(self.device), processes, self.device)
        self.optimizer = build_optimizer(
            config.optimizer,
            self.model.named_parameters(),
            device=self.device,
            sharded=processes.sharded,
        )
        self.callbacks = [callback.build() for callback in config.callbacks]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(config.seed, "train"))
            for callback in self.callbacks:
                callback.prepare(self)
            self._rng_state = torch.get_rng_state()
        network = replicas.replicated(self.model, processes)
        self.step = Step(self, network, clip=config.clip)

    @classmethod
    def resume(
        cls, folder: str | Path, *, workload: Workload | None = None, processes: Processes = ALONE
    ) -> "Trainer":
        """The trainer of the run in `folder`, as its last whole checkpoint left it, and with the
        records of that moment; `notices` names the files that were damaged.

        Raises:
            FileNotFoundError: there is no checkpoint in `folder`.
            ValueError: no checkpoint is whole, this version of lpkernels lacks one of its fields or
                callbacks, or the batch does not divide by the number of processes.
        """
        trainer = cls.__new__(cls)
        trainer.folder = Path(folder)
        state, file = processes.on_first(lambda: checkpoints.read_checkpoint(trainer.checkpoint))
        config = RunConfig.from_dict(state["config"], state["version"])
        trainer._build(config, workload, processes)
        trainer._load(state)
        processes.on_first(lambda: trainer._restore(file))
        return trainer

    def _load(self, state: dict[str, Any]) -> None:
        replicas.load_model(self.model, state["model"])
        replicas.load_optimizer(self.optimizer, state["optimizer"])
        for config, callback in zip(self.config.callbacks, self.callbacks, strict=True):
            callback.load_state_dict(state["callbacks"][config.NAME])
        self.position = Position(**state["position"])
        # The sums of all processes, as one of them has them from now on.
        self.tally = Tally(
            {name: self.processes.first * value for name, value in state["tally"].items()}
        )
        self._rng_state, self._lines = state["rng"], list(state["records"])

    def _restore(self, checkpoint: Path) -> None:
        """Makes `checkpoint` the last one, writes its records, and where the run goes on."""
        if checkpoint != self.checkpoint:
            checkpoint.replace(self.checkpoint)
            self.notices.append(
                f"{checkpoints.CHECKPOINT} was damaged or lost: going on from "
                f"{checkpoints.PREVIOUS}, epoch "
                f"{self.position.epoch + 1}, step {self.position.step}"
            )
        if self.position.epoch < self.config.epochs:
            where = {"epoch": self.position.epoch, "step": self.position.step}
            how = {"notices": self.notices, **records.machine(self.config, self.processes)}
            self._lines.append(records.line_of({"type": "resume", **where, **how}))
        records.write_lines(self.folder / records.RECORDS, self._lines)

    @property
    def checkpoint(self) -> Path:
        return self.folder / checkpoints.CHECKPOINT

    @property
    def done(self) -> int:
        """The steps of the run so far."""
        return self.position.epoch * self.steps + self.position.step

    def fit(
        self, *, console: "Console | None" = None, on_progress: OnProgress | None = None
    ) -> records.Run:
        """Trains to the last epoch and returns the records.

        The caller's random state and thread count are as before afterwards.

        Args:
            console: gets a progress bar.
            on_progress: called after every step.
        Raises: Interrupted: ctrl-C was pressed; the state is saved. (A second ctrl-C interrupts
            without saving.)
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(self.config.threads or threads)
        terminal = console if self.processes.first else None
        bar = progress_bar(terminal, self.total_steps, self._progress)
        try:
            with torch.random.fork_rng(devices=[]), InterruptRequest() as stop, bar as renew:
                torch.set_rng_state(self._rng_state)

                def after_step() -> None:
                    renew(self.done == self.total_steps)
                    if on_progress is not None:
                        on_progress(self.done, self.total_steps)

                while self.position.epoch < self.config.epochs:
                    self._epoch(stop, after_step)
                if self.processes.any(stop.requested):
                    raise Interrupted(f"stopped after the last epoch; saved to {self.checkpoint}")
        finally:
            torch.set_num_threads(threads)
        return self.processes.on_first(lambda: records.read_run(self.folder))

    def _progress(self) -> tuple[float, str]:
        """The steps so far, and the words beside the bar: epoch and loss."""
        loss = self.processes.count * self.tally.here("loss") / max(self.position.seen, 1)
        epochs = self.config.epochs
        epoch = f"epoch {min(self.position.epoch + 1, epochs)}/{epochs}"
        return self.done, f"{self.config.name}  {epoch}  loss {loss:.3f}"

    def _epoch(self, stop: InterruptRequest, after_step: Callable[[], None]) -> None:
        """Runs the rest of the current epoch: training steps, test, record, checkpoint."""
        position, start = self.position, time.perf_counter() - self.position.seconds
        plan = self.workload.train.plan(self.seed, position.epoch)
        while position.step < self.steps:
            self._check(stop)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.config.optimizer, self.done, self.total_steps)
            batch = plan(position.step, self.batch)
            self.step(self.done, batch, self._draws(), self.tally)
            replicas.share_buffers(self.model, self.processes)
            position.seen += len(batch[0])
            position.step += 1
            position.seconds = time.perf_counter() - start
            after_step()
        self._check(stop)
        tested = self.evaluate()
        position.seconds = time.perf_counter() - start
        self._finish_epoch(tested)

    def _draws(self) -> AbstractContextManager[None]:
        """Where the layers' draws of this step come from: torch's generator, or the rank's own
        stream, so that ranks round their examples independently and the generators stay alike."""
        if self.processes.count == 1:
            return nullcontext()
        at, rank = self.position, self.processes.rank
        return seed_from(torch.tensor(stream_seed(self.seed, "rank", rank, at.epoch, at.step)))

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """The figures of the workload's test, with the model in evaluation mode.

        They are a function of the weights, the seed and the epoch. Several processes share the test
        by batches: each batch draws from a stream of its own, so that testing more or less often,
        or with more processes, does not change the training. After the last epoch the callbacks'
        further tests have fields of their own, <field>_<name of the test>.
        """
        self.model.eval()
        fields = self._test(nullcontext())
        if self.position.epoch == self.config.epochs - 1:
            further = [callback.further_tests() for callback in self.callbacks]
            for name, context in (item for tests in further for item in tests.items()):
                figures = self._test(context)
                fields |= {f"{field}_{name}": value for field, value in figures.items()}
        return fields

    def _test(self, context: AbstractContextManager[Any]) -> dict[str, float]:
        """One test within the callbacks' contexts and one more, which leaves torch's generator as
        it was."""
        processes, batches = self.processes, self.workload.test
        # By batch: its examples and its sums. A process adds zeros for batches of others.
        rows: list[dict[str, float]] = [{} for _ in batches]
        with torch.random.fork_rng(devices=[]), ExitStack() as stack:
            for callback in self.callbacks:
                stack.enter_context(callback.evaluating())
            stack.enter_context(context)
            for first in range(0, len(batches), processes.count):
                # Sharded processes gather weights together: one without a batch repeats the last.
                number = min(first + processes.rank, len(batches) - 1)
                torch.manual_seed(stream_seed(self.seed, "test", self.position.epoch, number))
                batch = tuple(tensor.to(self.device) for tensor in batches[number])
                sums = self.workload.measure(self.model, batch)
                if first + processes.rank < len(batches):
                    rows[number] = {"": len(batch[0]), **{k: float(v) for k, v in sums.items()}}
        names = ["", *sums]
        values = processes.sums([row.get(name, 0.0) for row in rows for name in names])
        # Rows are added in the order of their batches, whichever process computed them.
        table = torch.tensor(values, dtype=torch.float64).view(len(batches), len(names))
        count, *totals = reduce(torch.add, table).tolist()
        return self.workload.score(dict(zip(sums, totals, strict=True)), int(count))

    def _finish_epoch(self, tested: dict[str, float]) -> None:
        done = self.position
        totals = self.tally.totals(self.processes)
        skipped = int(totals.pop("skipped", 0))
        record: dict[str, Any] = {
            "type": "epoch",
            "epoch": done.epoch + 1,
            **{f"train_{name}": total / done.seen for name, total in totals.items()},
            **tested,
            "lr": self.optimizer.param_groups[0]["lr"],
            "updates": self.steps,
            "skipped_steps": skipped,
        }
        for callback in self.callbacks:
            record |= callback.record()
        record["seconds"] = round(done.seconds, 3)
        path, on_first = self.folder / records.RECORDS, self.processes.on_first
        self._lines.append(on_first(lambda: records.append_record(path, record)))
        for callback in self.callbacks:
            callback.after_epoch(record)
            for name, lines in callback.files().items():
                on_first(partial(self._write_file, name, lines))
        self.position, self.tally = Position(epoch=done.epoch + 1), Tally()
        self.save()

    def _write_file(self, name: str, lines: list[records.Record]) -> None:
        """Writes a callback's own records; their header describes the run too."""
        how = records.machine(self.config, self.processes)
        header = {**lines[0], "config": self.config.to_dict(), **how}
        records.write_records(self.folder / f"{name}.jsonl", [header, *lines[1:]])

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
            "version": lpkernels.__version__,
            "config": self.config.to_dict(),
            "model": replicas.model_state(self.model),
            "optimizer": replicas.optimizer_state(self.optimizer),
            "callbacks": {
                config.NAME: callback.state_dict()
                for config, callback in zip(self.config.callbacks, self.callbacks, strict=True)
            },
            "position": asdict(self.position),
            "tally": self.tally.totals(self.processes),
            "rng": torch.get_rng_state(),
            "records": self._lines,
        }
        self.processes.on_first(lambda: checkpoints.write_checkpoint(self.checkpoint, state))
