"""The closed-loop scheduler: precision rises when the loss stops falling."""

import math
from collections.abc import Mapping
from typing import Any

from lpkernels.techniques import checks
from lpkernels.techniques.cpt.schedule import Schedule, widths
from lpkernels.techniques.cpt.setter import ClosedLoopSetter, TargetGroup
from lpkernels.techniques.cpt.targets import Accumulators, Formats, Targets, find_targets
from lpkernels.techniques.cpt.tracks import KINDS, Precision, Tracks

_MODES = ("min", "max")
_THRESHOLD_MODES = ("rel", "abs")
# The fields that change in a run, and those that must be the same where it goes on.
_SEEN = ("rises", "best", "bad", "cooling", "steps")
_SETTINGS = ("increment", "patience", "threshold", "threshold_mode", "mode", "cooldown")


class PrecisionOnPlateau(ClosedLoopSetter):
    """Starts at the lowest precision and raises it when a metric stops improving.

    It has the interface and the rule of torch.optim.lr_scheduler.ReduceLROnPlateau: call
    `step(metric)` after each epoch or interval; after more than `patience` calls in a row without
    improvement the bits rise by `increment`, to the highest at most. A metric that is NaN is no
    improvement. While the loss falls by more than the threshold, however slowly, the bits cannot
    rise; `PFQ` is the published loop, which rises where the loss has become flat.

    Args:
        targets, grad_bits, accumulators, eval_bits, formats: as PrecisionScheduler's.
        bits: (lowest, highest) of the forward operands; None: only accumulators.
        accumulator_bits: (lowest, highest) mantissa bits, which rise by the same increments.
        increment: bits by which precision rises.
        mode, patience, threshold, threshold_mode, cooldown: as ReduceLROnPlateau's.
    Raises: TypeError, ValueError: as PrecisionScheduler; no target is changed then.
    Reference: ours. The open-loop schedules of Fu et al. 2021 (arXiv 2101.09868) do not look at the
        loss.
    """

    def __init__(
        self,
        targets: Targets,
        *,
        bits: tuple[int, int] | None,
        grad_bits: int = 8,
        accumulator_bits: tuple[int, int] | None = None,
        accumulators: Accumulators = "e8m{bits}",
        increment: int = 1,
        mode: str = "min",
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        eval_bits: int | None = None,
        formats: Formats | None = None,
    ) -> None:
        if bits is None and accumulator_bits is None:
            raise ValueError("PrecisionOnPlateau: expected bits or accumulator_bits, got neither")
        self.bits = None if bits is None else widths("bits", bits)
        self.increment = checks.whole("increment", increment, 1)
        self.mode = checks.choice("mode", mode, _MODES)
        self.patience = checks.whole("patience", patience, 0)
        self.threshold = checks.number("threshold", threshold, least=0)
        names = _THRESHOLD_MODES
        self.threshold_mode = checks.choice("threshold_mode", threshold_mode, names)
        self.cooldown = checks.whole("cooldown", cooldown, 0)
        # Only their widths count: the metric decides where the precision stands.
        tracks = Tracks(
            None if self.bits is None else Schedule(self.bits, 1),
            None if self.bits is None else Schedule(widths("grad_bits", grad_bits), 1),
            accumulator=None
            if accumulator_bits is None
            else Schedule(widths("accumulator_bits", accumulator_bits), 1),
        )
        found = find_targets("PrecisionOnPlateau", targets)
        super().__init__(
            TargetGroup("", found, tracks),
            eval_bits=eval_bits,
            formats=formats,
            accumulators=accumulators,
        )
        self._tracks = tracks
        self.rises, self.bad, self.cooling = 0, 0, 0
        self.best = math.inf if mode == "min" else -math.inf
        self._rise()

    def _rise(self) -> None:
        """Sets the precision after so many rises."""
        self._move([Precision(**{name: self._risen(name) for name in Precision._fields})])

    def _risen(self, name: str) -> int | None:
        schedule: Schedule | None = getattr(self._tracks, name)
        if schedule is None or name == "backward":
            return None if schedule is None else schedule.highest
        return min(schedule.lowest + self.rises * self.increment, schedule.highest)

    @property
    def at_highest(self) -> bool:
        """Whether there is nothing left to rise to."""
        return self._now == [self._tracks.highest]

    def step(self, metric: float, *, steps: int = 1) -> None:
        """Looks at a metric, a number or a tensor of one element, and raises the precision if need
        be.

        steps: how many training steps were made since the last call, for `cost`.
        """
        self.count(steps)
        self.look(metric)

    def look(self, metric: float) -> None:
        """`step`, where `count` was told the training steps."""
        value = float(metric)
        if self._improves(value):
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        if self.cooling > 0:
            self.cooling, self.bad = self.cooling - 1, 0
        if self.bad > self.patience:
            self.cooling, self.bad = self.cooldown, 0
            self.rises += not self.at_highest
        self._rise()

    def _improves(self, value: float) -> bool:
        by = self.threshold if self.mode == "max" else -self.threshold
        bound = self.best * (1 + by) if self.threshold_mode == "rel" else self.best + by
        return value > bound if self.mode == "max" else value < bound

    def state_dict(self) -> dict[str, Any]:
        """Plain values: the metrics seen, the present precision, and the settings."""
        seen = {name: getattr(self, name) for name in _SEEN}
        settings = {name: getattr(self, name) for name in _SETTINGS}
        return {**seen, **self._sums, "bits": self._tracks.to_dict(), **settings}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on where the state was saved, and sets its precision.

        Raises: TypeError, ValueError: no such state, or one of other settings; nothing changes.
        """
        self._check_state(state_dict, changing=(*_SEEN, *KINDS))
        rises, bad, cooling = (
            checks.whole(f"load_state_dict: {name}", state_dict[name], 0)
            for name in ("rises", "bad", "cooling")
        )
        best = checks.real("load_state_dict: best", state_dict["best"])
        self.steps, self._sums = self._counted(state_dict)
        self.rises, self.best, self.bad, self.cooling = rises, best, bad, cooling
        self._rise()
