"""Schedulers of precision in a user's own loop, and running statistics gathered again at the
precision of a test."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from lpkernels.nn.convert import set_precision
from lpkernels.techniques import checks
from lpkernels.techniques.cpt.schedule import Precision, Schedule, bitops, width, widths
from lpkernels.techniques.state import Stateful

#: A module, an object with set_precision(forward_bits, backward_bits), such a function, or several;
#: None: nothing is set.
Targets = Any
#: (lowest, highest), or one number.
Bits = tuple[int, int] | int


def _targets_by_name(owner: str, targets: Targets) -> dict[str, Any]:
    """All modules, objects and functions whose precision is to be set, by the names that modules
    have in their model and members in their list.

    Raises: TypeError: none of these, nor a list.  ValueError: a model or a list without any.
    """
    if targets is None:
        return {}
    if isinstance(targets, Module):
        # A layer of lpkernels that rounds no operand has no bits.
        members = {
            name: module
            for name, module in targets.named_modules()
            if hasattr(module, "set_precision")
            if getattr(module, "precision", None) != (None, None)
        }
    elif isinstance(targets, list | tuple):
        members = {
            f"{index}.{name}".rstrip("."): target
            for index, member in enumerate(targets)
            for name, target in _targets_by_name(owner, member).items()
        }
    elif callable(targets) or hasattr(targets, "set_precision"):
        return {"": targets}
    else:
        raise TypeError(
            f"{owner}: expected a model, an object with set_precision(forward_bits, backward_bits),"
            f" a function of these, or a list of such, got {type(targets).__name__}"
        )
    if not members:
        raise ValueError(
            f"{owner}: nothing in this {type(targets).__name__} has a precision to set; convert "
            "the model to a recipe that rounds, or give modules with set_precision"
        )
    return members


@contextmanager
def attribute_backup(things: Iterable[Any]) -> Iterator[None]:
    """At its end, after an error too, objects have the attributes that they had at its start, and
    modules their buffers, with their values, and their submodules. Parameters are not touched."""
    tables = [vars(thing) for thing in things if hasattr(thing, "__dict__")]
    buffers = [x for table in tables for x in table.get("_buffers", {}).values()]
    values = [(x, x.clone()) for x in buffers if not (x is None or is_lazy(x))]
    tables += [t[name] for t in tables for name in ("_buffers", "_modules") if name in t]
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, entries in zip(tables, before, strict=True):
            table.clear()
            table.update(entries)
        for buffer, value in values:
            # `data` makes no new version, which a graph that holds the buffer would refuse.
            buffer.data.copy_(value)


class PrecisionSetter(Stateful):
    """Sets the precision of targets: the base of PrecisionScheduler and PFQ.

    levels: every precision that may come, the highest last. The constructor sets each of them, and
    then all attributes of the targets back.
    """

    def __init__(
        self, targets: Targets, levels: Sequence[Precision], eval_bits: int | None
    ) -> None:
        self.eval_bits = levels[-1].forward if eval_bits is None else width("eval_bits", eval_bits)
        self._targets = _targets_by_name(type(self).__name__, targets)
        # Every level is tried. A plain function is not asked: what it does cannot be undone.
        objects = {n: x for n, x in self._targets.items() if hasattr(x, "set_precision")}
        tried = [*levels, levels[-1]._replace(forward=self.eval_bits)]
        with attribute_backup(objects.values()):
            for name, level in product(objects, tried):
                self._apply(name, level)
        #: The precision of the last training step.
        self.precision = levels[0]
        # The precision inside a block of `at`; None outside, and inside `as_trained`.
        self._inside: Precision | None = None

    def _apply(self, name: str, precision: Precision) -> None:
        target = self._targets[name]
        try:
            getattr(target, "set_precision", target)(*precision)
        except (AttributeError, TypeError, ValueError, NotImplementedError) as error:
            kind = getattr(target, "__name__", type(target).__name__)
            label = f"target {name!r} ({kind})" if name else f"target {kind}"
            raise ValueError(
                f"{type(self).__name__}: {label} does not take {precision._asdict()} bits: {error}"
            ) from error

    def _set(self, training: Precision, inside: Precision | None) -> None:
        """Sets the targets to the precision of the open block, or of training where none is."""
        self.precision, self._inside = training, inside
        for name in self._targets:
            self._apply(name, inside or training)

    def _move(self, training: Precision, inside: Precision | None) -> None:
        """As `_set`; after an error everything is as before."""
        before = self.precision, self._inside
        try:
            self._set(training, inside)
        except BaseException:
            self._set(*before)
            raise

    @contextmanager
    def _block(self, inside: Precision | None) -> Iterator[None]:
        outside = self._inside
        self._move(self.precision, inside)
        try:
            yield
        finally:
            self._set(self.precision, outside)

    def at(self, bits: int | None = None) -> AbstractContextManager[None]:
        """The forward pass at fixed bits inside the block, as before after it; the backward pass
        stays as it is.

        bits: None is eval_bits.
        Raises: ValueError: bits that a target does not take; all targets are as before then.
        """
        bits = self.eval_bits if bits is None else width("bits", bits)
        return self._block(self.precision._replace(forward=bits))

    def as_trained(self) -> AbstractContextManager[None]:
        """Inside the block the targets have the bits of the last training step, also within a block
        of `at`."""
        return self._block(None)

    def get_last_bits(self) -> tuple[int, int]:
        """(forward, backward) of the last training step."""
        return self.precision.forward, self.precision.backward


class PrecisionScheduler(PrecisionSetter):
    """Sets the precision of a model's layers at every step, by a plan that is made in advance.

    It works like torch.optim.lr_scheduler: the constructor sets the bits of step 0, and `step()`
    after each optimizer step, skipped or not, sets the bits of the next. From `total_steps` on the
    highest bits stay. A copy of the model has no schedule unless it is a target too;
    `copy.deepcopy` of (model, scheduler) gives the copy a schedule of its own.

    Args:
        targets: a model: all its modules with a method set_precision(forward_bits, backward_bits),
            except layers whose recipe rounds no operand; any object with this method; a function
            (forward_bits, backward_bits), such as one that calls `lpkernels.set_precision` with
            formats; or a list of these. None sets nothing, for plans and costs alone.
        total_steps: of the whole training.
        bits: of the forward operands, (lowest, highest) or a number.
        settings: of the schedule, as of Schedule: cycles=32, profile="cosine", ...
        grad_bits: of the incoming gradients: a number stays; (lowest, highest) follows the
            settings of `bits`.
        eval_bits: of `at()`; None: the highest.
        last_step: the step before the one that the constructor sets.
    Raises: TypeError: an argument of another type, or an unknown one.  ValueError: as Schedule;
        fewer steps than cycles; a model without a precision to set; a target that does not take a
        width of the schedule. Then all attributes of the targets are as before.
    Reference: Fu et al. 2021, arXiv 2101.09868, whose code sets forward bits as `bits` here with
        remainder="partial", and constant backward bits. Differs: of two widths that are equally
        near the even one is taken, where the published float64 formula is off by an ulp.

    >>> from lpkernels.techniques.cpt import PrecisionScheduler
    >>> model = lp.convert(torch.nn.Linear(4, 2), "cpt_fu2021")
    >>> scheduler = PrecisionScheduler(model, 100, bits=(3, 8), cycles=4)
    >>> for _ in range(24):
    ...     scheduler.step()
    ...
    >>> model.precision
    Precision(forward=8, backward=8)
    """

    _settings = ("total_steps", "_plans")
    _progress = ("last_step",)

    def __init__(
        self,
        targets: Targets,
        total_steps: int,
        *,
        bits: Bits,
        grad_bits: Bits = 8,
        eval_bits: int | None = None,
        last_step: int = -1,
        **settings: Any,
    ) -> None:
        self.total_steps = checks.whole("total_steps", total_steps, 1)
        self.last_step = checks.whole("last_step", last_step, -1)
        base = Schedule((1, 1), **settings)
        #: The schedules: forward, backward.
        self.schedules: dict[str, Schedule] = {}
        ranges = {"forward": widths("bits", bits), "backward": widths("grad_bits", grad_bits)}
        for track, (low, high) in ranges.items():
            # A constant needs no cycles, and so any number of steps will do.
            schedule = Schedule((low, high), 1) if low == high else replace(base, bits=(low, high))
            schedule.check(self.total_steps)
            self.schedules[track] = schedule
        forward, backward = (range(s.bits[0], s.bits[1] + 1) for s in self.schedules.values())
        levels = [Precision(n, backward[-1]) for n in forward]
        levels += [Precision(forward[-1], n) for n in backward]
        super().__init__(targets, levels, eval_bits)
        self.step()

    @property
    def _plans(self) -> dict[str, Any]:
        return {track: vars(schedule) for track, schedule in self.schedules.items()}

    def _resume(self) -> None:
        self.step(checks.whole("load_state_dict: last_step", self.last_step, 0))

    def step(self, step: int | None = None) -> None:
        """Sets the bits of the next step, or of step number `step`, from 0."""
        number = self.last_step + 1 if step is None else checks.whole("step", step, 0)
        bits = (schedule.bits_at(number, self.total_steps) for schedule in self.schedules.values())
        self._move(Precision(*bits), self._inside)
        self.last_step = number

    def plan(self) -> np.ndarray:
        """Forward and backward bits of every step: (total_steps, 2) int64."""
        return np.stack([s.plan(self.total_steps) for s in self.schedules.values()], 1)

    def cost(self) -> float:
        """The mean cost (`bitops`) of the steps so far, the current one included; from total_steps
        on a step has the cost of the highest bits."""
        costs, after = self._costs[: self.last_step + 1], self.last_step + 1 - self.total_steps
        return float(np.append(costs, [self.static_cost()] * after).mean())

    def expected_cost(self) -> float:
        """The mean cost of all steps of the plan; see `cost`."""
        return float(self._costs.mean())

    def static_cost(self) -> float:
        """The cost of a step at the highest bits, with which a schedule is compared."""
        return bitops(*(schedule.bits[1] for schedule in self.schedules.values()))

    @cached_property
    def _costs(self) -> np.ndarray:
        """The cost of every step."""
        steps = list(map(tuple, self.plan().tolist()))
        cost_of = {bits: bitops(*bits) for bits in set(steps)}
        return np.array([cost_of[bits] for bits in steps])


#: Called with the model and a batch of the loader.
Forward = Callable[[Module, Any], object]


def recalibrate(
    model: Module,
    loader: Iterable[Any],
    bits: int | PrecisionSetter | None = None,
    *,
    forward: Forward | None = None,
) -> None:
    """Gathers the running statistics of a model again with the batches of a loader, at fixed bits.

    Batch norms' running means and variances become the plain average over the batches, and layers
    with a reset_range method start their running ranges anew. All other layers are in evaluation
    mode: dropout drops nothing. Afterwards modes, momenta, gradients and random states are as
    before.

    Args:
        loader: batches; of a tuple or list the first entry is the input.
        bits: forward bits of all layers of lpkernels, which keep them afterwards; a scheduler: the
            bits of its `at()`, and afterwards the bits of training again; None: as the model is.
        forward: a function to call with the model and a batch, in place of the model itself.
    Raises: ValueError: no batch, nothing to redo, or a model without a precision to set; after an
        error the statistics are as before.
    """
    modules = with_statistics(model)
    if not modules:
        raise ValueError(
            f"recalibrate: {type(model).__name__} has no running statistics to redo: neither "
            "batch norms nor layers with a running range"
        )
    around: AbstractContextManager[None] = nullcontext()
    if isinstance(bits, PrecisionSetter):
        around = bits.at()
    elif bits is not None:
        set_precision(model, bits, bits)
    buffers = [b for module in modules for b in module.buffers(recurse=False)]
    devices = {b.device for b in (*model.parameters(), *model.buffers()) if b.is_cuda}
    random_states = torch.random.fork_rng(list(devices))
    with around, attribute_backup(model.modules()), torch.no_grad(), random_states:
        model.eval()
        for module in modules:
            module.training = True
            if isinstance(module, _BatchNorm):
                module.reset_running_stats()
                # A momentum of None is the plain average.
                module.momentum = None
            if hasattr(module, "reset_range"):
                module.reset_range()
        batch: Any = None
        for batch in loader:
            (forward or _first)(model, batch)
        if batch is None:
            raise ValueError("recalibrate: expected at least one batch, got an empty loader")
        statistics = [buffer.clone() for buffer in buffers]
    with torch.no_grad():
        for buffer, value in zip(buffers, statistics, strict=True):
            buffer.copy_(value)


@contextmanager
def recalibrated(
    model: Module, loader: Iterable[Any], *, forward: Forward | None = None
) -> Iterator[None]:
    """`recalibrate` at the current bits, undone at the end of the block."""
    with attribute_backup(model.modules()):
        recalibrate(model, loader, forward=forward)
        yield


def with_statistics(model: Module) -> list[Any]:
    """A model's batch norms with running statistics, and its layers with a running range."""
    able = [m for m in model.modules() if isinstance(m, _BatchNorm) or hasattr(m, "reset_range")]
    # A norm by its arguments, and a layer by its recipe, may gather none.
    return [module for module in able if any(True for _ in module.buffers(recurse=False))]


def _first(model: Module, batch: Any) -> object:
    return model(batch[0] if isinstance(batch, tuple | list) else batch)
