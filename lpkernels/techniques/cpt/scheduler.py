"""Schedulers of precision in a user's own loop: targets, the base that sets them, and the scheduler
by a plan that is made in advance."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeVar

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

KINDS = ("bitops", "accumulator")
_SETTERS = ("set_precision", "set_accumulator")
# The option of PrecisionScheduler that gives each track of a Precision its bits.
_TRACKS = {
    "forward": "bits",
    "backward": "grad_bits",
    "weight": "weight_bits",
    "accumulator": "accumulator_bits",
}


@dataclass(frozen=True)
class Target:
    """A module, an object or a function whose precision a schedule sets.

    name: of the module in its model, "" for a function.
    thing: has set_precision, set_accumulator or both; or is a function.
    rounds: whether there are bits to set: not in a layer whose recipe changes the sums alone.
    """

    name: str
    thing: Any
    rounds: bool = True

    @property
    def is_function(self) -> bool:
        return not _has_setter(self.thing)

    def __str__(self) -> str:
        kind = getattr(self.thing, "__name__", type(self.thing).__name__)
        return f"target {self.name!r} ({kind})" if self.name else f"target {kind}"


def _has_setter(thing: Any) -> bool:
    return any(callable(getattr(thing, setter, None)) for setter in _SETTERS)


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
    named = targets.named_modules() if isinstance(targets, Module) else [("", targets)]
    things = [(name, thing) for name, thing in named if _has_setter(thing)]
    if isinstance(targets, Module):
        # A layer of lpkernels with the recipe of torch's own arithmetic stays so.
        things = [(n, t) for n, t in things if not (isinstance(t, Emulated) and t.recipe.is_torch)]
        if not things:
            raise ValueError(
                f"{label}: no module of {type(targets).__name__} has a precision to set; convert "
                "the model to a recipe that rounds, or give modules with set_precision"
            )
    elif not things and not callable(targets):
        raise TypeError(
            f"{label}: expected a model, an object with set_precision(forward_bits, backward_bits),"
            f" a function of these, or a list of such, got {type(targets).__name__}"
        )
    return [
        Target(name, thing, getattr(thing, "precision", None) != (None, None))
        for name, thing in things or named
    ]


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


class TargetGroup(NamedTuple):
    """Targets that are set together.

    name: the glob of their names, or "".  levels: every precision that may come.  highest: the
    precision of a test.
    """

    name: str
    targets: Sequence[Target]
    levels: Sequence[Precision]
    highest: Precision


class PrecisionSetter(Stateful):
    """Sets the precision of target groups, and remembers the last setting: the base of
    PrecisionScheduler and PFQ."""

    def __init__(
        self,
        groups: Sequence[TargetGroup],
        *,
        eval_bits: int | None,
        formats: Formats | None,
        accumulators: Accumulators = "e8m{bits}",
    ) -> None:
        self.eval_bits = None if eval_bits is None else width("eval_bits", eval_bits)
        self._groups = list(groups)
        levels = [level for group in groups for level in group.levels]
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
        self._try_levels()
        self._now: list[Precision] = []
        # One entry for each open block of `at` and `as_trained`; None stands for `_now`.
        self._blocks: list[list[Precision] | None] = []

    def _try_levels(self) -> None:
        """Sets every precision that may come, and then all attributes of the targets back.

        A plain function is not asked: what it does cannot be undone.

        Raises: ValueError: a target refuses one.
        """
        label = type(self).__name__
        objects = [t.thing for group in self._groups for t in group.targets if not t.is_function]
        with attributes_kept(objects):
            for group in self._groups:
                if group.highest.forward and group.targets:
                    if not any(target.rounds for target in group.targets):
                        raise ValueError(
                            f"{label}: no target{f' of {group.name!r}' if group.name else ''} "
                            "rounds its operands, so that there are no bits to set; give the "
                            "layers such a recipe"
                        )
                for target in group.targets:
                    for level in [*group.levels, _at_bits(group, self.eval_bits)]:
                        self._try(label, target, level)

    def _try(self, label: str, target: Target, level: Precision) -> None:
        try:
            if not target.is_function:
                self._apply(target, level)
            elif level.accumulator is not None:
                raise TypeError("a function takes (forward_bits, backward_bits) alone")
        except (AttributeError, TypeError, ValueError, NotImplementedError) as error:
            bits = {name: n for name, n in level._asdict().items() if n is not None}
            raise ValueError(f"{label}: {target} does not take {bits} bits: {error}") from error

    def _apply(self, target: Target, precision: Precision) -> None:
        thing: Any = target.thing
        accumulator = precision.accumulator
        # Asked for first: without this method nothing is set.
        set_accumulator: Any = None if accumulator is None else thing.set_accumulator
        if precision.forward is not None and target.rounds:
            forward: Any = precision.forward
            if precision.weight is not None:
                forward = (precision.forward, precision.weight)
            options = {} if self._formats is None else {"formats": self._formats}
            setter = thing if target.is_function else thing.set_precision
            setter(forward, precision.backward, **options)
        if accumulator is not None:
            set_accumulator(self._accumulators[accumulator])

    def _move(self, precisions: list[Precision]) -> None:
        """Sets the precision of training from now on; blocks that are open keep theirs. After an
        error it is as before."""
        before, self._now = self._now, precisions
        try:
            self._set()
        except BaseException:
            if before:
                self._now = before
                self._set()
            raise

    def _set(self) -> None:
        """Sets all targets to the precision that holds now."""
        block = self._blocks[-1] if self._blocks else None
        precisions = self._now if block is None else block
        for group, precision in zip(self._groups, precisions, strict=True):
            for target in group.targets:
                self._apply(target, precision)

    @contextmanager
    def _block(self, precisions: list[Precision] | None) -> Iterator[None]:
        self._blocks.append(precisions)
        try:
            self._set()
            yield
        finally:
            self._blocks.pop()
            self._set()

    @property
    def precisions(self) -> list[Precision]:
        """The precision of each target group now: groups of `layers` first, then the others."""
        return list(self._now)

    def get_last_bits(self) -> list[tuple[int | None, int | None]]:
        """(forward, backward) of each group, as get_last_lr of a learning rate's scheduler."""
        return [(precision.forward, precision.backward) for precision in self._now]

    def cost(self, kind: str = "bitops") -> float:
        """The mean cost of the steps so far relative to float32, "bitops" or "accumulator"."""
        raise NotImplementedError(f"{type(self).__name__} must define cost")

    @contextmanager
    def at(self, bits: int | None = None) -> Iterator[None]:
        """The forward pass at fixed bits inside the block, as before after it.

        bits: None is eval_bits, and where that is None each group's own highest. The backward
        pass stays as it is; an accumulator that is scheduled is at its highest.

        Raises: ValueError: bits that a target does not take; all targets are as before then.
        """
        bits = self.eval_bits if bits is None else width("bits", bits)
        inside = [
            _at_bits(group, bits)._replace(backward=now.backward)
            for group, now in zip(self._groups, self._now, strict=True)
        ]
        with self._block(inside):
            yield

    @contextmanager
    def as_trained(self) -> Iterator[None]:
        """Inside the block the bits are those of the last training step, also within a block of
        `at`."""
        with self._block(None):
            yield


def _at_bits(group: TargetGroup, bits: int | None) -> Precision:
    """The highest precision of a group, its forward pass at `bits` unless that is None."""
    highest = group.highest
    if bits is None or highest.forward is None:
        return highest
    return highest._replace(forward=bits, weight=None if highest.weight is None else bits)


def _table(
    label: str, rule: Any, used: Iterable[int | None], read: Callable[[Any], T]
) -> dict[int, T]:
    """The value of each width in use, by a rule: a text with {bits}, a table or a function.

    Raises:
        TypeError: another rule.
        ValueError: a width that the table lacks, a text without {bits}, an unknown name.
    """
    bits_used = sorted({bits for bits in used if bits is not None})
    if isinstance(rule, str):
        if "{bits}" not in rule or rule.count("{") > 1:
            names = f" or a name ({', '.join(TABLES)})" if label == "formats" else ""
            raise ValueError(
                f"{label}: expected a text with {{bits}} in it once, such as 'e8m{{bits}}', a "
                f"table{names}, or a function, got {rule!r}"
            )
        return {bits: read(rule.format(bits=bits)) for bits in bits_used}
    if callable(rule):
        return {bits: read(rule(bits)) for bits in bits_used}
    if not isinstance(rule, Mapping):
        raise TypeError(
            f"{label}: expected a text such as 'e8m{{bits}}', a mapping or a function of the bits, "
            f"got {type(rule).__name__}"
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
        layers: {glob over the names of modules: bits, or a mapping of bits, grad_bits,
            weight_bits, cycles, ... that differ}; the first that matches.
        last_step: the step before the one that the constructor sets.
    Raises:
        TypeError: an argument of another type, or an unknown one.
        ValueError: bits out of order or range, cycles below 1, fewer steps than cycles; a model
            without a precision to set; a target that does not take a width of the schedule; a
            table that lacks one; a glob that matches nothing. Then all attributes of the targets
            are as before.
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
        layers: Mapping[str, Any] | None = None,
        last_step: int = -1,
        **settings: Any,
    ) -> None:
        self.total_steps = checks.whole("total_steps", total_steps, 1)
        self.last_step = checks.whole("last_step", last_step, -1)
        tracks = {"bits": bits, "grad_bits": grad_bits, "weight_bits": weight_bits}
        options = {**tracks, "accumulator_bits": accumulator_bits, **settings}
        differences = {
            glob: own if isinstance(own, Mapping) else {"bits": own}
            for glob, own in (layers or {}).items()
        }
        members = _grouped(find_targets("PrecisionScheduler", targets), differences)
        #: The schedules of each group of layers: {glob, or "" for all others: {track: Schedule}},
        #: where a track is forward, backward, weight or accumulator.
        self.schedules = {
            name: _schedules({**options, **differences.get(name, {})}, self.total_steps)
            for name in members
        }
        groups = []
        for name, tracked in self.schedules.items():
            highest = Precision(**{track: each.highest for track, each in tracked.items()})
            levels = [
                highest._replace(**{track: level})
                for track, schedule in tracked.items()
                for level in range(schedule.bits[0], schedule.highest + 1)
            ]
            groups.append(TargetGroup(name, members[name], levels, highest))
        super().__init__(groups, eval_bits=eval_bits, formats=formats, accumulators=accumulators)
        self._costs_by_kind: dict[str, np.ndarray] = {}
        self.step()

    @property
    def _plans(self) -> dict[str, Any]:
        return {
            name: {track: vars(schedule) for track, schedule in tracked.items()}
            for name, tracked in self.schedules.items()
        }

    def _resume(self) -> None:
        self.step(checks.whole("load_state_dict: last_step", self.last_step, 0))

    def bits_at(self, step: int) -> list[tuple[int | None, int | None]]:
        """(forward, backward) of each group at a step: closed form, nothing changes."""
        return [(p.forward, p.backward) for p in self._at(step)]

    def _at(self, step: int) -> list[Precision]:
        return [
            Precision(**{track: s.bits_at(step, self.total_steps) for track, s in tracked.items()})
            for tracked in self.schedules.values()
        ]

    def step(self, step: int | None = None) -> None:
        """Sets the bits of the next step, or of step number `step`, from 0."""
        number = self.last_step + 1 if step is None else checks.whole("step", step, 0)
        self._move(self._at(number))
        self.last_step = number

    def plan(self, layer: str = "") -> np.ndarray:
        """Forward and backward bits of every step: (total_steps, 2) int64.

        layer: one of the globs of `layers`; "" is the group of all others.

        Raises: ValueError: no such group, or one whose bits are not scheduled.
        """
        tracked = self.schedules.get(layer, {})
        if "forward" not in tracked:
            raise ValueError(
                f"plan: expected a group with bits among {list(self.schedules)}, got {layer!r}"
            )
        columns = [tracked[track].plan(self.total_steps) for track in ("forward", "backward")]
        return np.stack(columns, axis=1)

    def cost(self, kind: str = "bitops") -> float:
        """The mean cost of the steps so far, the current one included, relative to float32.

        kind: "bitops", or "accumulator": significand bits of the additions, where they are
            scheduled. All targets count alike, however large. From total_steps on a step has the
            cost of the highest bits.

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
        """The cost of every step, and of one step after them, as the mean over the targets."""
        if kind in self._costs_by_kind:
            return self._costs_by_kind[kind]
        main = "forward" if checks.choice("kind", kind, KINDS) == "bitops" else "accumulator"
        costs, weights = [], []
        for group, tracked in zip(self._groups, self.schedules.values(), strict=True):
            if main in tracked:
                costs.append(self._costs_of(tracked, kind))
                weights.append(max(1, len(group.targets)))
        if not costs:
            raise ValueError(f"cost: kind={kind!r} needs a schedule of it, got none")
        self._costs_by_kind[kind] = np.average(costs, axis=0, weights=weights)
        return self._costs_by_kind[kind]

    def _costs_of(self, tracked: Mapping[str, Schedule], kind: str) -> list[float]:
        """The costs of one target."""
        wanted = ("forward", "backward", "weight") if kind == "bitops" else ("accumulator",)
        plans = {
            track: [*tracked[track].plan(self.total_steps).tolist(), tracked[track].highest]
            for track in wanted
            if track in tracked
        }
        if kind == "accumulator":
            return [adder_bits(self._accumulators[bits]) for bits in plans["accumulator"]]
        steps = zip(*plans.values(), strict=True)
        return [bitops_of(Precision(**dict(zip(plans, step, strict=True)))) for step in steps]


def _schedules(options: Mapping[str, Any], total: int) -> dict[str, Schedule]:
    """The schedule of each track that has one. options: the bits of tracks, and settings.

    Raises: TypeError, ValueError: wrong settings or bits, or more cycles than `total` steps.
    """
    settings = {name: value for name, value in options.items() if name not in _TRACKS.values()}
    # Other tracks follow the settings of the forward bits.
    base = Schedule((1, 1), **settings)
    tracked: dict[str, Schedule] = {}
    for track, option in _TRACKS.items():
        bits = options[option]
        if bits is None or (track == "backward" and "forward" not in tracked):
            continue
        if track == "weight" and "forward" not in tracked:
            raise ValueError("weight_bits: expected bits of the inputs too, got bits=None")
        if not isinstance(bits, Schedule):
            low, high = widths(option, bits)
            # A constant needs no cycles, and so any number of steps will do.
            bits = Schedule((low, high), 1) if low == high else replace(base, bits=(low, high))
        elif track == "forward":
            base = bits
        bits.check(total)
        tracked[track] = bits
    if not tracked:
        raise ValueError("PrecisionScheduler: expected bits, accumulator_bits or both, got neither")
    return tracked


def _grouped(targets: Sequence[Target], globs: Iterable[str]) -> dict[str, list[Target]]:
    """The targets of each glob over their names, the first that matches, and the rest under "".

    Raises: ValueError: a glob that no target has, or that earlier ones leave none.
    """
    groups: dict[str, list[Target]] = {glob: [] for glob in globs}
    rest: list[Target] = []
    for target in targets:
        glob = next((glob for glob in groups if fnmatchcase(target.name, glob)), None)
        (rest if glob is None else groups[glob]).append(target)
    for glob, members in groups.items():
        if not members:
            shown = ", ".join(repr(target.name) for target in targets[:5])
            raise ValueError(
                f"layers: {glob!r} matches no target that an earlier pattern leaves, got "
                f"{shown}{' ...' if len(targets) > 5 else ''}"
            )
    return {**groups, **({"": rest} if rest or not groups else {})}
