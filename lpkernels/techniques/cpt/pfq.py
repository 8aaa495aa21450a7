"""Progressive fractional quantization: the precision rises where the training loss is flat."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lpkernels.techniques import checks
from lpkernels.techniques.cpt.schedule import Precision, bitops, width
from lpkernels.techniques.cpt.scheduler import PrecisionSetter, Targets

# How many values of the loss are compared, how many are averaged to a scale, and after how many
# turning points the threshold shrinks.
_WINDOW, _FIRST, _SHRINKS = 5, 10, 2


class PFQ(PrecisionSetter):
    """Raises the precision by stages, each time that the training loss has become flat.

    Call `step(loss)` after each training step. L is the mean loss of a period. The scale c is the
    magnitude of the mean of the first ten values of L, or of all before the tenth. A window holds
    the last five values. Where it is full, c is not 0, and no |L_i - L| / c of the other four
    exceeds the threshold, the next step is at the next stage and the window is emptied. The
    threshold is eps, times decay after the first stage, and once more after the second. A period
    with a loss that is NaN or infinite has no value.

    Args:
        targets, eval_bits: as PrecisionScheduler's; None of eval_bits: the last stage's.
        stages: (forward bits, gradient bits), two or more, which do not fall; the default is that
            of the paper for ResNet-74 on CIFAR-100.
        period: training steps between two values of L; published: 400 of 64,000 (CIFAR), an epoch
            (ImageNet).
        eps: above 0. decay: above 0, at most 1. Published: the defaults; the code for CIFAR has
            .15 and .4.
    Raises: TypeError, ValueError: as PrecisionScheduler; no target is changed then.
    Reference: Fu et al. 2020, "FracTrain: fractionally squeezing bit savings both temporally and
        spatially for efficient DNN training", NeurIPS 2020, arXiv 2012.13113, and its code.
        Differs: a loss that is not finite is left out. Precision by layer and input ("DFQ") is
        not here.

    >>> from lpkernels.techniques.cpt import PFQ
    >>> model = lp.convert(torch.nn.Linear(4, 2), "cpt_fu2021")
    >>> scheduler = PFQ(model, period=1)
    >>> for _ in range(6):
    ...     scheduler.step(1.0)
    ...
    >>> model.precision
    Precision(forward=4, backward=6)
    """

    _settings = ("stages", "period", "eps", "decay")
    _progress = ("stage", "window", "first_losses", "period_steps", "sum", "steps", "_bitops")

    def __init__(
        self,
        targets: Targets,
        stages: Sequence[tuple[int, int]] = ((3, 6), (4, 6), (6, 8), (8, 8)),
        *,
        period: int,
        eps: float = 0.05,
        decay: float = 0.3,
        eval_bits: int | None = None,
    ) -> None:
        self.stages = _checked_stages(stages)
        self.period = checks.whole("period", period, 1)
        self.eps = checks.number("eps", eps, above=0)
        self.decay = checks.number("decay", decay, above=0, most=1)
        super().__init__(targets, self.stages, eval_bits)
        #: The number of the stage; the steps so far, in all and in this period.
        self.stage = self.steps = self.period_steps = 0
        #: The last mean losses since the turning point, and the first of the run.
        self.window, self.first_losses = list[float](), list[float]()
        #: The sum of the losses of this period, on the device of the losses.
        self.sum: float | Tensor = 0.0
        # The sum of the costs of all steps.
        self._bitops = 0.0
        self._move(self.stages[0], None)

    @property
    def threshold(self) -> float:
        """How far a loss of the window may lie from the last one, relative to the scale."""
        return math.prod([self.decay] * min(self.stage, _SHRINKS), start=self.eps)

    def step(self, loss: float | Tensor) -> None:
        """Takes the loss of a training step, a number or a tensor of one element. The host waits
        for the tensor's device at the end of a period alone."""
        if isinstance(loss, Tensor):
            if loss.numel() != 1 or loss.is_complex():
                raise ValueError(
                    "step: loss: expected a real number or a tensor of one, got shape "
                    f"{tuple(loss.shape)} {loss.dtype}; take its mean"
                )
            loss = loss.detach().to(torch.float64).reshape(())
        else:
            loss = checks.real("step: loss", loss)
        self.count_step()
        self.sum = self.sum + loss
        if self.is_due:
            self.look(float(self.sum) / self.period)

    def count_step(self) -> None:
        """Adds the cost of a training step at the current bits; `step` does it too. The step's loss
        is then to be added to `sum`."""
        self.steps += 1
        self.period_steps += 1
        self._bitops += bitops(*self.stages[self.stage])

    @property
    def is_due(self) -> bool:
        """Whether the period is complete, so that its mean loss is to be looked at."""
        return self.period_steps == self.period

    def look(self, loss: float) -> None:
        """Takes the mean loss of a whole period; the next period begins."""
        self.sum, self.period_steps = 0.0, 0
        if self.stage == len(self.stages) - 1 or not math.isfinite(loss):
            return
        if len(self.first_losses) < _FIRST:
            self.first_losses.append(loss)
        self.window = [*self.window, loss][-_WINDOW:]
        if len(self.window) == _WINDOW and self._is_flat():
            self.stage, self.window = self.stage + 1, []
            self._move(self.stages[self.stage], self._inside)

    def cost(self) -> float:
        """The mean cost of the steps so far relative to float32, of the current one before any."""
        return self._bitops / self.steps if self.steps else bitops(*self.stages[self.stage])

    def _is_flat(self) -> bool:
        scale = abs(math.fsum(self.first_losses) / len(self.first_losses))
        *older, now = self.window
        return scale > 0 and all(abs(value - now) / scale <= self.threshold for value in older)

    def _resume(self) -> None:
        limits = {"stage": len(self.stages) - 1, "period_steps": self.period, "steps": None}
        for name, most in limits.items():
            checks.whole(f"load_state_dict: {name}", getattr(self, name), 0, most)
        for name in ("window", "first_losses"):
            checks.finite(f"load_state_dict: {name}", getattr(self, name))
        self._move(self.stages[self.stage], self._inside)


def _checked_stages(stages: Any) -> tuple[Precision, ...]:
    """Stages as pairs of bits.  Raises TypeError, ValueError: they are none."""
    try:
        pairs = [(forward, backward) for forward, backward in stages]
    except (TypeError, ValueError) as error:
        form = "pairs (forward bits, gradient bits) such as [(3, 6), (8, 8)]"
        raise TypeError(f"stages: expected {form}, got {stages!r}") from error
    checked = tuple(Precision(width("stages", b), width("stages", g)) for b, g in pairs)
    if len(checked) < 2:
        raise ValueError(
            f"stages: expected two or more, got {pairs}; a constant precision needs no loop"
        )
    if any(list(levels) != sorted(levels) for levels in zip(*checked, strict=True)):
        raise ValueError(f"stages: expected bits that do not fall, got {pairs}; order them")
    return checked
