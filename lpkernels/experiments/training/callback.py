"""A callback, by which a technique takes part in training, and the settings that it is made from.

The trainer calls the hooks of a run's callbacks and knows nothing else of them. Within one step:

    around_step(step)        in order, around all that follows
    before_step(step)        in order
    forward pass, loss
    scale_loss(loss)         in order
    backward pass            the gradients of several processes are added, then
    after_backward()         in reverse order: what scaled last is undone first
    gradient clipping        the trainer's own
    step(optimizer)          in order, until one takes the step itself; else the trainer steps
    after_step(ran)          in order
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from lpkernels.experiments.processes.torchrun import Processes
from lpkernels.experiments.settings import Settings
from lpkernels.experiments.workloads.workload import Batch, Loss, Workload

__all__ = ["Callback", "CallbackConfig", "Context", "register"]


@dataclass(eq=False)
class Context:
    """A run as its step and its callbacks see it.

    model, optimizer: to train with. `Callback.prepare` may change or replace them; later they are
        what the last callback left.
    workload: data, model, loss and metric.  seed, batch, total_steps: of the run.
    processes: the processes that train it.  device: of the model.
    callbacks: of the run, in the order in which they are called.
    """

    model: nn.Module
    optimizer: Optimizer
    workload: Workload
    seed: int
    batch: int
    total_steps: int
    processes: Processes
    device: str
    callbacks: "Sequence[Callback]" = ()

    @cached_property
    def sample(self) -> Batch:
        """The first batch of the run, on its device."""
        return next(self.batches())

    def batches(self) -> Iterator[Batch]:
        """The batches of the first epoch on the run's device, without a short last one."""
        train = self.workload.train
        plan = train.plan(self.seed, 0)
        for step in range(max(1, len(train) // self.batch)):
            yield tuple(tensor.to(self.device) for tensor in plan(step, self.batch))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of a batch, a scalar, which a step makes small."""
        return self.workload.loss(model, batch).losses.mean()


class Callback:
    """A technique as the trainer sees it. Every hook here does nothing: override what you need.

    `state_dict` returns a callback's own state: tensors and plain values, saved with the run's
    checkpoint. State in the model and in the optimizer is saved with these.
    """

    #: The attribute whose own state is the callback's, under its name; "" without one.
    STATE: ClassVar[str] = ""

    def prepare(self, context: Context) -> None:
        """Changes, wraps or replaces `context.model` and `context.optimizer`.

        Called once, before a checkpoint is loaded; sharded parameters (FSDP2) are sharded already,
        DDP wraps the model afterwards. Its draws come from torch's generator.
        """

    def losses(self, loss: Loss) -> Loss:
        """The loss of a step as this callback computes it. Called after `prepare`."""
        return loss

    def around_step(self, step: int) -> AbstractContextManager[Any]:
        """A context around step number `step` of the run, from 0; the test is outside."""
        return nullcontext()

    def before_step(self, step: int) -> None:
        """Called before the forward pass of step number `step` of the run, from 0."""

    def scale_loss(self, loss: Tensor) -> Tensor:
        """The scalar whose gradients are computed."""
        return loss

    def after_backward(self) -> None:
        """Called with the gradients of an update in place; undoes `scale_loss`."""

    def step(self, optimizer: Optimizer) -> Tensor | None:
        """The update, if this callback makes it: a 0-d tensor on the device, true if it ran.

        None leaves it to the next callback or to the trainer, which skips an update whose
        gradients are not all finite.
        """
        return None

    def after_step(self, ran: Tensor) -> None:
        """Called after the update; `ran` is a 0-d bool tensor, which is better not read here."""

    def evaluating(self) -> AbstractContextManager[Any]:
        """A context around a test: another precision, averaged weights."""
        return nullcontext()

    def further_tests(self) -> Mapping[str, AbstractContextManager[Any]]:
        """By name, a context around each further test after the last epoch, within `evaluating()`.

        The record then has its fields too, as test_accuracy_<name>.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The callback's own state, from which `load_state_dict` goes on."""
        return {self.STATE: getattr(self, self.STATE).state_dict()} if self.STATE else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` returned."""
        if self.STATE:
            getattr(self, self.STATE).load_state_dict(state[self.STATE])

    def record(self) -> dict[str, Any]:
        """Plain values for the record of the epoch that ends; the names are the callback's own."""
        return {}

    def after_epoch(self, record: dict[str, Any]) -> None:
        """Called with the whole record of the epoch that ended, by all processes, before it is
        saved in the checkpoint."""

    def files(self) -> dict[str, list[dict[str, Any]]]:
        """Records of the run so far, a header first, by the name of a file <name>.jsonl in its
        folder, which they replace after every epoch. All processes make this call."""
        return {}


class CallbackConfig(Settings):
    """The settings of one kind of callback. Its defaults mean that the run has no such callback.

    A subclass declares fields whose names no other section uses; `register` makes it known to
    configurations, records, checkpoints and the command line.
    """

    #: The callback's name in records, checkpoints and specifications, and its place among others.
    NAME: ClassVar[str] = ""
    ORDER: ClassVar[int] = 50

    def build(self) -> Callback:
        """The callback of a run with these settings."""
        raise NotImplementedError(f"{type(self).__name__} must define build()")


#: By name, in the order in which the callbacks of a run are called.
CALLBACKS: dict[str, type[CallbackConfig]] = {}

C = TypeVar("C", bound=CallbackConfig)


def register(name: str, *, order: int) -> Callable[[type[C]], type[C]]:
    """Registers a CallbackConfig under `name`, as a class decorator.

    Args:
        name: in records, checkpoints and specifications.
        order: callbacks of a run are called in this order, then by name. A schedule of precisions
            has 10, a callback that changes the model 30, that replaces the optimizer 70, a loss
            scale 75, a callback that changes the updated weights 90, that only looks on 95.
    Raises: ValueError: another callback has that name.
    """

    def decorate(config: type[C]) -> type[C]:
        if name in CALLBACKS and CALLBACKS[name].__qualname__ != config.__qualname__:
            raise ValueError(f"register: a callback called {name!r} exists already")
        config.NAME, config.ORDER = name, order
        CALLBACKS[name] = config
        for kind in sorted(CALLBACKS.values(), key=lambda kind: (kind.ORDER, kind.NAME)):
            CALLBACKS[kind.NAME] = CALLBACKS.pop(kind.NAME)
        return config

    return decorate
