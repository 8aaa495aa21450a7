"""Schedulers of precision in a user's own loop: targets, the base that sets them, and the scheduler
by a plan that is made in advance."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
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
    bitops_of,
    width,
    widths,
)
from lpkernels.techniques.state import Stateful

T = TypeVar("T")

#: A module, an object with set_precision(forward_bits, backward_bits), such a function, or several;
#: None: nothing is set.
Targets = Any
#: Widths to formats: a table, a text with {bits} in it such as "fixed{bits}_f4", a function, or a
#: name of TABLES.
Formats = Mapping[int, Format | str] | Callable[[int], Format | str] | str
#: Mantissa bits to accumulators: a table, a text with {bits} in it, or a function.
Accumulators = Mapping[int, Accumulator | str] | Callable[[int], Accumulator | str] | str
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

_TRACKS = Precision._fields


@dataclass(frozen=True)
class Target:
    """A module, an object or a function whose precision a schedule sets.

    name: of the module in its model, "" for a function.
    thing: has set_precision, set_accumulator or both; or is a function.
    """

    name: str
    thing: Any

    @property
    def is_function(self) -> bool:
        return not _has_setter(self.thing)

    @cached_property
    def rounds(self) -> bool:
        """Whether there are bits to set: not in a layer whose recipe changes the sums alone."""
        return getattr(self.thing, "precision", None) != (None, None)

    def __str__(self) -> str:
        kind = getattr(self.thing, "__name__", type(self.thing).__name__)
        return f"target {self.name!r} ({kind})" if self.name else f"target {kind}"


def _has_setter(thing: Any) -> bool:
    return any(hasattr(thing, setter) for setter in ("set_precision", "set_accumulator"))


def find_targets(label: str, targets: Targets) -> list[Target]:
    """All targets, by the names that their modules have.

    Raises:
        TypeError: neither a module, an object with set_precision, a function, nor several.
        ValueError: a model in which nothing has a precision to set, or an empty list.
    """
    if targets is None:
        return []
    if isinstance(targets, list | tuple):
        members = [
            replace(target, name=f"{index}.{target.name}".rstrip("."))
            for index, member in enumerate(targets)
            for target in find_targets(label, member)
        ]
        if not members:
            raise ValueError(f"{label}: expected at least one target, got none")
        return members
    if isinstance(targets, Module):
        # A layer of lpkernels with the recipe of torch's own arithmetic stays so.
        layers = [
            Target(name, module)
            for name, module in targets.named_modules()
            if _has_setter(module) and not (isinstance(module, Emulated) and module.recipe.is_torch)
        ]
        if not layers:
            raise ValueError(
                f"{label}: no module of {type(targets).__name__} has a precision to set; convert "
                "the model to a recipe that rounds, or give modules with set_precision"
            )
        return layers
    if not (_has_setter(targets) or callable(targets)):
        raise TypeError(
            f"{label}: expected a model, an object with set_precision(forward_bits, backward_bits),"
            f" a function of these, or a list of such, got {type(targets).__name__}"
        )
    return [Target("", targets)]


@contextmanager
def attributes_kept(things: Iterable[Any]) -> Iterator[None]:
    """At its end, after an error too, objects have the attributes that they had at its start, and
    modules their buffers, with their values, and their submodules."""
    kept = []
    for attributes in (vars(thing) for thing in things if hasattr(thing, "__dict__")):
        tables = [attributes.get(name, {}) for name in ("_buffers", "_modules")]
        values = [(x, x.clone()) for x in tables[0].values() if not (x is None or is_lazy(x))]
        kept.append(([(table, dict(table)) for table in (attributes, *tables)], values))
    try:
        yield
    finally:
        for before, values in kept:
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
        accumulators: Accumulators = "e8m{bits}",
    ) -> None:
        self.eval_bits = None if eval_bits is None else width("eval_bits", eval_bits)
        self._targets = find_targets(type(self).__name__, targets)
        self._highest = levels[-1]
        self._formats: Mapping[int, Format] | None = None
        if formats is not None:
            by_name = TABLES.get(formats, formats) if isinstance(formats, str) else formats
            used = {bits for level in levels for bits in (level.forward, level.weight)}
            # The backward pass may have a rule of its own; only a pattern gives its widths too.
            if isinstance(by_name, str):
                used |= {level.backward for level in levels}
            self._formats = _table("formats", by_name, used | {self.eval_bits}, as_format)
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
        if self._highest.forward is not None and self._targets:
            if not any(target.rounds for target in self._targets):
                raise ValueError(
                    f"{type(self).__name__}: no target rounds its operands, so that there are no "
                    "bits to set; give the layers such a recipe"
                )
        objects = [target for target in self._targets if not target.is_function]
        with attributes_kept([target.thing for target in objects]):
            for target, level in product(objects, levels):
                self._apply(target, level)

    def _apply(self, target: Target, precision: Precision) -> None:
        thing: Any = target.thing
        forward, backward, weight, accumulator = precision
        try:
            # Asked for first: without this method nothing is set.
            set_accumulator: Any = None if accumulator is None else thing.set_accumulator
            if forward is not None and target.rounds:
                setter = thing if target.is_function else thing.set_precision
                options = {} if self._formats is None else {"formats": self._formats}
                setter(forward if weight is None else (forward, weight), backward, **options)
            if accumulator is not None:
                set_accumulator(self._accumulators[accumulator])
        except (AttributeError, TypeError, ValueError, NotImplementedError) as error:
            bits = {name: n for name, n in precision._asdict().items() if n is not None}
            raise ValueError(
                f"{type(self).__name__}: {target} does not take {bits} bits: {error}"
            ) from error

    def _set(self) -> None:
        """Sets all targets to the precision that holds now."""
        for target in self._targets:
            self._apply(target, self.precision if self._inside is None else self._inside)

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
    """The value of each width in use, by a rule: a text with {bits}, a table or a function.

    Raises:
        TypeError: another rule.
        ValueError: a width that the table lacks, a text without {bits}, an unknown name.
    """
    bits_used = sorted({bits for bits in used if bits is not None})
    if isinstance(rule, str) and rule.count("{") == rule.count("{bits}") == 1:
        return {bits: read(rule.format(bits=bits)) for bits in bits_used}
    if callable(rule):
        return {bits: read(rule(bits)) for bits in bits_used}
    if not isinstance(rule, Mapping):
        names = f" or a name ({', '.join(TABLES)})" if label == "formats" else ""
        raise (ValueError if isinstance(rule, str) else TypeError)(
            f"{label}: expected a text with {{bits}} in it once, such as 'e8m{{bits}}', a table "
            f"{{bits: ...}}, a function of the bits{names}, got {rule!r}"
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
        settings: of the schedule, as of Schedule: cycles=32, profile="cosine", form="repeated",
            reflection="horizontal", remainder="stretch", warmup=0, ...
        grad_bits: of the incoming gradients: a number stays; (lowest, highest) follows the
            settings of `bits`.
        weight_bits: of the weights where they differ from `bits`, which are then the inputs' alone;
            for targets that take forward_bits=(input, weight).
        accumulator_bits: mantissa bits of the sums; for targets with set_accumulator(accumulator).
        accumulators: the accumulator of each number of accumulator_bits: a text with {bits}, a
            table, or a function.
        eval_bits: of `at()`; None: the highest.
        formats: the format of each width, for targets whose set_precision takes formats=: a
            table {bits: format}, a text with {bits}, a function, or a name of cpt.TABLES. The
            targets' own rule if None.
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
    >>> model.precision
    Precision(forward=3, backward=8)
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
        accumulators: Accumulators = "e8m{bits}",
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
        self._costs_by_kind: dict[str, np.ndarray] = {}
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

    def plan(self) -> np.ndarray:
        """Forward and backward bits of every step: (total_steps, 2) int64.

        Raises: ValueError: accumulators alone are scheduled.
        """
        if "forward" not in self.schedules:
            raise ValueError("plan: expected a schedule of bits, got accumulator_bits alone")
        columns = [self.schedules[track].plan(self.total_steps) for track in _TRACKS[:2]]
        return np.stack(columns, axis=1)

    def cost(self, kind: str = "bitops") -> float:
        """The mean cost of the steps so far, the current one included, relative to float32.

        kind: "bitops", or "accumulator": significand bits of the additions, where they are
            scheduled. From total_steps on a step has the cost of the highest bits.

        Raises: ValueError: another kind, or one that is not scheduled.
        """
        steps = self._step_costs(kind)
        done = self.last_step + 1
        beyond = max(0, done - self.total_steps)
        return float((steps[:-1][:done].sum() + beyond * steps[-1]) / done)

    def expected_cost(self, kind: str = "bitops") -> float:
        """The mean cost of all steps of the plan; see `cost`."""
        return float(self._step_costs(kind)[:-1].mean())

    def static_cost(self, kind: str = "bitops") -> float:
        """The cost of a step at the highest bits, with which a schedule is compared."""
        return float(self._step_costs(kind)[-1])

    def _step_costs(self, kind: str) -> np.ndarray:
        """The cost of every step, and of one step after them."""
        if kind not in self._costs_by_kind:
            by_bits = checks.choice("kind", kind, ("bitops", "accumulator")) == "bitops"
            plans = {
                track: [*schedule.plan(self.total_steps).tolist(), schedule.highest]
                for track, schedule in self.schedules.items()
                if by_bits != (track == "accumulator")
            }
            if not plans:
                raise ValueError(f"cost: kind={kind!r} needs a schedule of it, got none")
            steps = zip(*plans.values(), strict=True)
            bits = (Precision(**dict(zip(plans, step, strict=True))) for step in steps)
            self._costs_by_kind[kind] = np.array([self._cost_of(precision) for precision in bits])
        return self._costs_by_kind[kind]

    def _cost_of(self, precision: Precision) -> float:
        if precision.accumulator is None:
            return bitops_of(precision)
        return adder_bits(self._accumulators[precision.accumulator])


def _schedules(tracks: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Schedule]:
    """The schedule of each track that has bits. tracks: bits by the names of arguments."""
    # Other tracks follow the settings of the forward bits.
    base = Schedule((1, 1), **settings)
    if isinstance(tracks["bits"], Schedule):
        base = tracks["bits"]
    schedules: dict[str, Schedule] = {}
    for track, (option, bits) in zip(_TRACKS, tracks.items(), strict=True):
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
