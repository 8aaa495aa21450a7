"""Schedulers of precision in a user's own loop: targets, the base that sets them, and the scheduler
by a plan that is made in advance."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import Any, TypeVar

import numpy as np
from torch.nn import Module
from torch.nn.parameter import is_lazy

from lpkernels.arithmetic import Accumulator, as_accumulator
from lpkernels.formats import Format, as_format
from lpkernels.nn.emulated import Emulated
from lpkernels.techniques import checks
from lpkernels.techniques.cpt.schedule import (
    Precision,
    Schedule,
    adder_bits,
    bitops,
    width,
    widths,
)
from lpkernels.techniques.state import Stateful

T = TypeVar("T")

#: A module, an object with set_precision(forward_bits, backward_bits), such a function, or several;
#: None: nothing is set.
Targets = Any
#: Widths to formats: a table, a text with {bits} in it such as "fixed{bits}_f4", or a name of
#: TABLES.
Formats = Mapping[int, Format | str] | str
#: (lowest, highest), one number, or a schedule with settings of its own.
Bits = tuple[int, int] | int | Schedule

#: Tables of formats by name. float: for each width a format without codes for infinity, as wide in
#: range as its neighbours; 4, 6 and 8 bits are the types of OCP MX and E4M3.
TABLES: Mapping[str, Mapping[int, str]] = {
    "float": {
        3: "e2m0_sat",
        4: "fp4_e2m1",
        5: "e2m2_sat",
        6: "fp6_e3m2",
        7: "e3m3_sat",
        8: "e4m3fn_sat",
    }
}


def _is_function(target: Any) -> bool:
    return not any(hasattr(target, setter) for setter in ("set_precision", "set_accumulator"))


def _rounds(target: Any) -> bool:
    """Whether there are bits to set: not in a layer whose recipe changes the sums alone."""
    return getattr(target, "precision", None) != (None, None)


def find_targets(label: str, targets: Targets) -> dict[str, Any]:
    """All modules, objects and functions whose precision is to be set, by the names that modules
    have in their model and members in their list.

    Raises:
        TypeError: neither a module, an object with set_precision, a function, nor several.
        ValueError: a model in which nothing has a precision to set, or an empty list.
    """
    if targets is None:
        return {}
    if isinstance(targets, list | tuple):
        members = {
            f"{index}.{name}".rstrip("."): target
            for index, member in enumerate(targets)
            for name, target in find_targets(label, member).items()
        }
        if not members:
            raise ValueError(f"{label}: expected at least one target, got none")
        return members
    if isinstance(targets, Module):
        # A layer of lpkernels with the recipe of torch's own arithmetic stays so.
        layers = {
            name: module
            for name, module in targets.named_modules()
            if not _is_function(module)
            if not (isinstance(module, Emulated) and module.recipe.is_torch)
        }
        if not layers:
            raise ValueError(
                f"{label}: no module of {type(targets).__name__} has a precision to set; convert "
                "the model to a recipe that rounds, or give modules with set_precision"
            )
        return layers
    if _is_function(targets) and not callable(targets):
        raise TypeError(
            f"{label}: expected a model, an object with set_precision(forward_bits, backward_bits),"
            f" a function of these, or a list of such, got {type(targets).__name__}"
        )
    return {"": targets}


@contextmanager
def attributes_kept(things: Iterable[Any]) -> Iterator[None]:
    """At its end, after an error too, objects have the attributes that they had at its start, and
    modules their buffers, with their values, and their submodules."""
    backups = []
    for attributes in (vars(thing) for thing in things if hasattr(thing, "__dict__")):
        tables = [attributes.get(name, {}) for name in ("_buffers", "_modules")]
        values = [(x, x.clone()) for x in tables[0].values() if not (x is None or is_lazy(x))]
        backups.append(([(table, dict(table)) for table in (attributes, *tables)], values))
    try:
        yield
    finally:
        for before, values in backups:
            for table, entries in before:
                table.clear()
                table.update(entries)
            for buffer, value in values:
                # `data` makes no new version, which a graph that holds the buffer would refuse.
                buffer.data.copy_(value)


class PrecisionSetter(Stateful):
    """Sets the precision of targets, and remembers the last setting: the base of
    PrecisionScheduler and PFQ.

    levels: every precision that may come, the highest last.
    """

    def __init__(
        self,
        targets: Targets,
        levels: Sequence[Precision],
        *,
        eval_bits: int | None,
        formats: Formats | None,
        accumulators: Mapping[int, Accumulator | str] | str = "e8m{bits}",
    ) -> None:
        self.eval_bits = None if eval_bits is None else width("eval_bits", eval_bits)
        self._targets = find_targets(type(self).__name__, targets)
        self._rounding = {name for name, target in self._targets.items() if _rounds(target)}
        self._highest = levels[-1]
        self._formats: Mapping[int, Format] | None = None
        if formats is not None:
            rule = TABLES.get(formats, formats) if isinstance(formats, str) else formats
            used = {bits for level in levels for bits in (level.forward, level.weight)}
            # The backward pass may have a rule of its own; only a pattern gives its widths too.
            if isinstance(rule, str):
                used |= {level.backward for level in levels}
            self._formats = _table("formats", rule, used | {self.eval_bits}, as_format)
        self._accumulators = _table(
            "accumulators", accumulators, {level.accumulator for level in levels}, as_accumulator
        )
        self._try([*levels, self._at_bits(self.eval_bits)])
        #: The precision of the last training step.
        self.precision = Precision()
        # The precision inside a block of `at`; None outside, and inside `as_trained`.
        self._inside: Precision | None = None

    def _at_bits(self, bits: int | None) -> Precision:
        """The highest precision, its forward pass at `bits` unless that is None."""
        highest = self._highest
        if bits is None or highest.forward is None:
            return highest
        return highest._replace(forward=bits, weight=None if highest.weight is None else bits)

    def _try(self, levels: Sequence[Precision]) -> None:
        """Sets every one of the levels, and then all attributes of the targets back.

        A plain function is not asked: what it does cannot be undone.

        Raises: ValueError: a target refuses one.
        """
        if self._highest.forward is not None and self._targets and not self._rounding:
            raise ValueError(
                f"{type(self).__name__}: no target rounds its operands, so that there are no bits "
                "to set; give the layers such a recipe"
            )
        objects = {name: x for name, x in self._targets.items() if not _is_function(x)}
        with attributes_kept(objects.values()):
            for name, level in product(objects, levels):
                self._apply(name, level)

    def _apply(self, name: str, precision: Precision) -> None:
        target = self._targets[name]
        forward, backward, weight, accumulator = precision
        try:
            # Asked for first: without this method nothing is set.
            set_accumulator: Any = None if accumulator is None else target.set_accumulator
            if forward is not None and name in self._rounding:
                setter = target if _is_function(target) else target.set_precision
                options = {} if self._formats is None else {"formats": self._formats}
                setter(forward if weight is None else (forward, weight), backward, **options)
            if accumulator is not None:
                set_accumulator(self._accumulators[accumulator])
        except (AttributeError, TypeError, ValueError, NotImplementedError) as error:
            bits = {track: n for track, n in precision._asdict().items() if n is not None}
            kind = getattr(target, "__name__", type(target).__name__)
            label = f"target {name!r} ({kind})" if name else f"target {kind}"
            raise ValueError(
                f"{type(self).__name__}: {label} does not take {bits} bits: {error}"
            ) from error

    def _set(self) -> None:
        """Sets all targets to the precision that holds now."""
        for name in self._targets:
            self._apply(name, self.precision if self._inside is None else self._inside)

    def _move(self, precision: Precision) -> None:
        """Sets the precision of training from now on; a block that is open keeps its own. After an
        error it is as before."""
        before, self.precision = self.precision, precision
        try:
            self._set()
        except BaseException:
            self.precision = before
            self._set()
            raise

    @contextmanager
    def _block(self, inside: Precision | None) -> Iterator[None]:
        outside, self._inside = self._inside, inside
        try:
            self._set()
            yield
        finally:
            self._inside = outside
            self._set()

    def at(self, bits: int | None = None) -> AbstractContextManager[None]:
        """The forward pass at fixed bits inside the block, as before after it.

        bits: None is eval_bits, and where that is None the highest. The backward pass stays as it
        is; an accumulator that is scheduled is at its highest.

        Raises: ValueError: bits that a target does not take; all targets are as before then.
        """
        bits = self.eval_bits if bits is None else width("bits", bits)
        return self._block(self._at_bits(bits)._replace(backward=self.precision.backward))

    def as_trained(self) -> AbstractContextManager[None]:
        """Inside the block the bits are those of the last training step, also within a block of
        `at`."""
        return self._block(None)

    def get_last_bits(self) -> tuple[int | None, int | None]:
        """(forward, backward) of the last training step, None where they are not scheduled."""
        return self.precision.forward, self.precision.backward


def _table(
    label: str, rule: Any, used: Iterable[int | None], read: Callable[[Any], T]
) -> dict[int, T]:
    """The value of each width in use, by a rule: a text with {bits}, or a table.

    Raises:
        TypeError: another rule.
        ValueError: a width that the table lacks, a text without {bits}, an unknown name.
    """
    bits_used = sorted({bits for bits in used if bits is not None})
    if isinstance(rule, str) and rule.count("{") == rule.count("{bits}") == 1:
        return {bits: read(rule.format(bits=bits)) for bits in bits_used}
    if not isinstance(rule, Mapping):
        names = f" or a name ({', '.join(TABLES)})" if label == "formats" else ""
        raise (ValueError if isinstance(rule, str) else TypeError)(
            f"{label}: expected a text with {{bits}} in it once, such as 'e8m{{bits}}', a table "
            f"{{bits: ...}}{names}, got {rule!r}"
        )
    missing = [bits for bits in bits_used if bits not in rule]
    if missing:
        raise ValueError(
            f"{label}: the table lacks {', '.join(map(str, missing))} of the scheduled bits, got "
            f"{', '.join(map(str, sorted(rule)))}; add the missing widths"
        )
    return {int(bits): read(value) for bits, value in rule.items()}


class PrecisionScheduler(PrecisionSetter):
    """Sets the precision of a model's layers at every step, by a plan that is made in advance.

    It works like torch.optim.lr_scheduler: the constructor sets the bits of step 0, and `step()`
    after each optimizer step sets the bits of the next. A step that the optimizer skipped counts as
    any other: call `step()` all the same. From `total_steps` on the highest bits stay. A loop is in
    docs/cyclic-precision.md.

    Args:
        targets: a model: all its modules with a method set_precision(forward_bits, backward_bits),
            except layers with the recipe of torch's own arithmetic; any object with this method; a
            function (forward_bits, backward_bits); or a list of these. None sets nothing, for plans
            and costs alone.
        total_steps: of the whole training.
        bits: of the forward operands, (lowest, highest), a number, or a Schedule. None: only
            accumulators are scheduled.
        settings: of the schedule, as of Schedule: cycles=32, profile="cosine", ...
        grad_bits: of the incoming gradients: a number stays; (lowest, highest) follows the
            settings of `bits`.
        weight_bits: of the weights where they differ from `bits`, which are then the inputs' alone;
            for targets that take forward_bits=(input, weight).
        accumulator_bits: mantissa bits of the sums; for targets with set_accumulator(accumulator).
        accumulators: the accumulator of each number of accumulator_bits: a text with {bits}, or a
            table.
        eval_bits: of `at()`; None: the highest.
        formats: the format of each width, for targets whose set_precision takes formats=: a
            table {bits: format}, a text with {bits}, or a name of cpt.TABLES. The targets' own rule
            if None.
        last_step: the step before the one that the constructor sets.
    Raises:
        TypeError: an argument of another type, or an unknown one.
        ValueError: bits out of order or range, cycles below 1, fewer steps than cycles; a model
            without a precision to set; a target that does not take a width of the schedule; a
            table that lacks one. Then all attributes of the targets are as before.
    Reference: Fu et al. 2021, arXiv 2101.09868, whose code sets forward bits as `bits` here with
        remainder="partial", and constant backward bits.
    Differs: where the exact value lies halfway between two widths the even one is taken; the
        published float64 formula is off by an ulp there for some bits.

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
        bits: Bits | None,
        grad_bits: Bits = 8,
        weight_bits: Bits | None = None,
        accumulator_bits: Bits | None = None,
        accumulators: Mapping[int, Accumulator | str] | str = "e8m{bits}",
        eval_bits: int | None = None,
        formats: Formats | None = None,
        last_step: int = -1,
        **settings: Any,
    ) -> None:
        self.total_steps = checks.whole("total_steps", total_steps, 1)
        self.last_step = checks.whole("last_step", last_step, -1)
        tracks = {"bits": bits, "grad_bits": grad_bits, "weight_bits": weight_bits}
        tracks["accumulator_bits"] = accumulator_bits
        #: The schedules by track: forward, backward, weight, accumulator.
        self.schedules = _schedules(tracks, settings)
        for schedule in self.schedules.values():
            schedule.check(self.total_steps)
        highest = Precision(**{track: s.highest for track, s in self.schedules.items()})
        levels = [
            highest._replace(**{track: level})
            for track, schedule in self.schedules.items()
            for level in range(schedule.bits[0], schedule.highest + 1)
        ]
        super().__init__(
            targets, levels, eval_bits=eval_bits, formats=formats, accumulators=accumulators
        )
        self.step()

    @property
    def _plans(self) -> dict[str, Any]:
        return {track: vars(schedule) for track, schedule in self.schedules.items()}

    def _resume(self) -> None:
        self.step(checks.whole("load_state_dict: last_step", self.last_step, 0))

    def step(self, step: int | None = None) -> None:
        """Sets the bits of the next step, or of step number `step`, from 0."""
        number = self.last_step + 1 if step is None else checks.whole("step", step, 0)
        bits = {n: s.bits_at(number, self.total_steps) for n, s in self.schedules.items()}
        self._move(Precision(**bits))
        self.last_step = number

    @cached_property
    def _steps(self) -> list[Precision]:
        """The precision of every step, and of one step after them."""
        plans = {
            track: [*schedule.plan(self.total_steps).tolist(), schedule.highest]
            for track, schedule in self.schedules.items()
        }
        steps = zip(*plans.values(), strict=True)
        return [Precision(**dict(zip(plans, step, strict=True))) for step in steps]

    def plan(self) -> np.ndarray:
        """Forward and backward bits of every step: (total_steps, 2) int64.

        Raises: ValueError: accumulators alone are scheduled.
        """
        if "forward" not in self.schedules:
            raise ValueError("plan: expected a schedule of bits, got accumulator_bits alone")
        return np.array([precision[:2] for precision in self._steps[:-1]], np.int64)

    def cost(self, kind: str = "bitops") -> float:
        """The mean cost of the steps so far, the current one included, relative to float32.

        kind: "bitops", or "accumulator": significand bits of the additions, where they are
            scheduled. From total_steps on a step has the cost of the highest bits.

        Raises: ValueError: another kind, or one that is not scheduled.
        """
        steps = np.minimum(np.arange(self.last_step + 1), self.total_steps)
        return float(self._costs(kind)[steps].mean())

    def expected_cost(self, kind: str = "bitops") -> float:
        """The mean cost of all steps of the plan; see `cost`."""
        return float(self._costs(kind)[:-1].mean())

    def static_cost(self, kind: str = "bitops") -> float:
        """The cost of a step at the highest bits, with which a schedule is compared."""
        return float(self._costs(kind)[-1])

    def _costs(self, kind: str) -> np.ndarray:
        """The cost of every step, and of one step after them."""
        by_bits = checks.choice("kind", kind, ("bitops", "accumulator")) == "bitops"
        if ("forward" if by_bits else "accumulator") not in self.schedules:
            raise ValueError(f"cost: kind={kind!r} needs a schedule of it, got none")

        def cost(forward: Any, backward: Any, weight: Any, accumulator: Any) -> float:
            if by_bits:
                return bitops(forward, backward, weight_bits=weight)
            return adder_bits(self._accumulators[accumulator])

        costs = {precision: cost(*precision) for precision in set(self._steps)}
        return np.array([costs[precision] for precision in self._steps])


def _schedules(tracks: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Schedule]:
    """The schedule of each track that has bits. tracks: bits by the names of arguments."""
    # Other tracks follow the settings of the forward bits.
    base = Schedule((1, 1), **settings)
    if isinstance(tracks["bits"], Schedule):
        base = tracks["bits"]
    schedules: dict[str, Schedule] = {}
    for track, (option, bits) in zip(Precision._fields, tracks.items(), strict=True):
        if bits is None or (track == "backward" and not schedules):
            continue
        if track == "weight" and not schedules:
            raise ValueError("weight_bits: expected bits of the inputs too, got bits=None")
        if not isinstance(bits, Schedule):
            low, high = widths(option, bits)
            # A constant needs no cycles, and so any number of steps will do.
            bits = Schedule((low, high), 1) if low == high else replace(base, bits=(low, high))
        schedules[track] = bits
    if not schedules:
        raise ValueError("PrecisionScheduler: expected bits, accumulator_bits or both, got neither")
    return schedules
