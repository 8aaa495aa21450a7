"""The open-loop scheduler: bits of every step, set in a user's own loop."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lpkernels.formats.elsewhere import nearest
from lpkernels.techniques import checks
from lpkernels.techniques.cpt.schedule import Profile, Schedule, widths
from lpkernels.techniques.cpt.setter import PrecisionSetter, TargetGroup
from lpkernels.techniques.cpt.targets import Accumulators, Formats, Targets, find_targets, grouped
from lpkernels.techniques.cpt.tracks import KINDS, Precision, Tracks, costs

#: (lowest, highest), one number, or a schedule with settings of its own.
Bits = tuple[int, int] | int | Schedule


class PrecisionScheduler(PrecisionSetter):
    """Sets the precision of a model's layers at every step, by a plan that is made in advance.

    It works like torch.optim.lr_scheduler: the constructor sets the bits of step 0, and `step()`
    after each optimizer step sets the bits of the next. A step that the optimizer skipped counts as
    any other: call `step()` all the same. From `total_steps` on the highest bits stay. A loop is in
    docs/cyclic-precision.md.

    Args:
        targets: a model: all its modules with a method set_precision(forward_bits, backward_bits),
            except layers with the recipe of torch's own arithmetic; any object with this method; a
            function (forward_bits, backward_bits); or a list of these.
        total_steps: of the whole training.
        bits: of the forward operands, (lowest, highest), a number, or a Schedule. None: only
            accumulators are scheduled.
        cycles, profile, form, reflection, remainder, warmup: of the schedule; see Schedule.
        grad_bits: of the incoming gradients: a number stays; (lowest, highest) follows the
            settings of `bits`.
        weight_bits: of the weights where they differ from `bits`, which are then the inputs' alone;
            for targets that take forward_bits=(input, weight).
        accumulator_bits: mantissa bits of the sums; for targets with set_accumulator(accumulator).
        accumulators: the accumulator of each number of accumulator_bits: a text with {bits}, a
            table, or a function.
        eval_bits: of `at()`; None: the highest.
        formats: the format of each width, for targets whose set_precision takes formats=: a
            table {bits: format}, a text with {bits}, or a name of cpt.TABLES. The targets' own
            rule if None.
        layers: {glob over the names of modules: bits, or a mapping of bits, grad_bits,
            weight_bits, cycles, ... that differ}; the first that matches.
        last_step: the step before the one that the constructor sets.
    Raises:
        TypeError: an argument of another type.
        ValueError: bits out of order or range, cycles below 1, fewer steps than cycles; a model
            without a precision to set; a target that does not take a width of the schedule; a
            table that lacks one; a glob that matches nothing. No target is changed then.
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

    _settings = ("total_steps", "_schedules")
    _progress = ("last_step",)

    def __init__(
        self,
        targets: Targets,
        total_steps: int,
        *,
        bits: Bits | None,
        cycles: int = 32,
        profile: Profile = "cosine",
        form: str = "repeated",
        reflection: str = "horizontal",
        remainder: str = "stretch",
        warmup: int = 0,
        grad_bits: Bits = 8,
        weight_bits: Bits | None = None,
        accumulator_bits: Bits | None = None,
        accumulators: Accumulators = "e8m{bits}",
        eval_bits: int | None = None,
        formats: Formats | None = None,
        layers: Mapping[str, Any] | None = None,
        last_step: int = -1,
    ) -> None:
        # This checks the settings alone: its bits stand in for the bits of each track.
        settings = Schedule((1, 1), cycles, profile, form, reflection, remainder, warmup)
        given = {"bits": bits, "grad_bits": grad_bits, "weight_bits": weight_bits}
        given["accumulator_bits"] = accumulator_bits
        self.total_steps = checks.whole("total_steps", total_steps, 1)
        self.last_step = checks.whole("last_step", last_step, -1)
        own = {glob: _layer(glob, each) for glob, each in (layers or {}).items()}
        groups = [
            TargetGroup(name, members, _tracks(settings, {**given, **own.get(name, {})}))
            for name, members in grouped(
                "PrecisionScheduler", find_targets("PrecisionScheduler", targets), own
            ).items()
        ]
        for group in groups:
            group.tracks.check(self.total_steps)
        super().__init__(groups, eval_bits=eval_bits, formats=formats, accumulators=accumulators)
        self._costs_by_kind: dict[str, np.ndarray] = {}
        self.step()

    def bits_at(self, step: int) -> list[tuple[int | None, int | None]]:
        """(forward, backward) of each group at a step: closed form, nothing changes."""
        return [(p.forward, p.backward) for p in self._at(step)]

    def _at(self, step: int) -> list[Precision]:
        return [group.tracks.at(step, self.total_steps) for group in self._groups]

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
        found = [group.tracks for group in self._groups if group.name == layer]
        if not found or found[0].forward is None or found[0].backward is None:
            names = [group.name for group in self._groups]
            raise ValueError(f"plan: expected a group with bits among {names}, got {layer!r}")
        columns = (found[0].forward, found[0].backward)
        return np.stack([each.plan(self.total_steps) for each in columns], axis=1)

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
        if kind not in self._costs_by_kind:
            self._costs_by_kind[kind] = self._costs(checks.choice("kind", kind, KINDS))
        return self._costs_by_kind[kind]

    def _costs(self, kind: str) -> np.ndarray:
        track = "forward" if kind == "bitops" else "accumulator"
        groups = [group for group in self._groups if getattr(group.tracks, track) is not None]
        if not groups:
            raise ValueError(f"cost: kind={kind!r} needs a schedule of it, got none")
        found = [costs(g.tracks, self.total_steps, kind, self._accumulators) for g in groups]
        return np.average(found, axis=0, weights=[len(g.targets) for g in groups])

    @property
    def _schedules(self) -> list[dict[str, Any]]:
        return [{"layer": group.name, **group.tracks.to_dict()} for group in self._groups]

    def _resume(self) -> None:
        self.step(checks.whole("load_state_dict: last_step", self.last_step, 0))


_LISTED = "help(PrecisionScheduler) lists all"
_OWN = ("bits", "grad_bits", "weight_bits", "accumulator_bits")
_SETTINGS = ("cycles", "profile", "form", "reflection", "remainder", "warmup", "shuffled", "seed")


def _layer(glob: str, given: Any) -> dict[str, Any]:
    """The settings that differ for the layers of a glob, as a mapping."""
    if not isinstance(given, Mapping):
        return {"bits": given}
    others = sorted(set(given) - set(_OWN) - set(_SETTINGS))
    if others:
        raise ValueError(
            f"layers: {glob!r}: expected {nearest(others[0], _OWN + _SETTINGS, _LISTED)}, got "
            f"{', '.join(others)}"
        )
    return dict(given)


def _tracks(settings: Schedule, given: Mapping[str, Any]) -> Tracks:
    settings = settings.replace(**{k: v for k, v in given.items() if k in _SETTINGS})
    bits, accumulator = given["bits"], given["accumulator_bits"]
    if bits is None and accumulator is None:
        raise ValueError("PrecisionScheduler: expected bits, accumulator_bits or both, got neither")
    forward = _track(settings, "bits", bits)
    return Tracks(
        forward,
        None if forward is None else _track(forward, "grad_bits", given["grad_bits"]),
        None if forward is None else _track(forward, "weight_bits", given["weight_bits"]),
        _track(settings if forward is None else forward, "accumulator_bits", accumulator),
    )


def _track(settings: Schedule, label: str, bits: Bits | None) -> Schedule | None:
    if bits is None or isinstance(bits, Schedule):
        return bits
    low, high = widths(label, bits)
    # A constant needs no cycles, and so any number of steps will do.
    return Schedule((low, high), 1) if low == high else settings.replace(bits=(low, high))
