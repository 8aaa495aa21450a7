"""RunningRange: the range that an affine input quantizer takes in evaluation."""

from dataclasses import dataclass

from lpkernels.formats.checks import checked_bool, set_fields

_NAME = "running"
_DEBIASED = "debiased"


@dataclass(frozen=True, init=False)
class RunningRange:
    """An exponential average of the ranges of a layer's inputs in training, for evaluation.

    In training each batch has its own range, and ``average = momentum * average + (1 - momentum) *
    range``, which starts at 0; in evaluation the average is the range. After t batches the average
    has the weight ``1 - momentum^t`` on the batches and the rest on 0, so that early ranges are too
    close to 0; ``debiased`` divides by that weight.

    Text form: ``running:<momentum>[:debiased]``.

    Args:
        momentum: within [0, 1), the weight of the past.
        debiased: whether the average is divided by the weight of its batches.

    Raises:
        TypeError: an argument has the wrong type.  ValueError: momentum out of range.

    Source: Fu et al. 2021, "CPT: Efficient deep neural network training via cyclic precision",
    arXiv 2101.09868, whose published code has momentum 0.9 and starts at 0. Debiasing is ours.
    """

    momentum: float
    debiased: bool

    def __init__(self, momentum: float = 0.9, debiased: bool = False) -> None:
        if isinstance(momentum, bool) or not isinstance(momentum, int | float):
            raise TypeError(
                f"RunningRange: momentum must be a float, got {momentum!r} "
                f"({type(momentum).__name__}); for example 0.9"
            )
        if not 0 <= momentum < 1:
            raise ValueError(
                f"RunningRange: momentum must be at least 0 and below 1, got {momentum}; 0 keeps "
                "the last range only"
            )
        debiased = checked_bool("RunningRange", "debiased", debiased)
        set_fields(self, momentum=float(momentum), debiased=debiased)

    def __str__(self) -> str:
        return f"{_NAME}:{self.momentum!r}" + f":{_DEBIASED}" * self.debiased


def as_running_range(value: RunningRange | str) -> RunningRange:
    """A RunningRange as it is, or of its text form.

    Raises:  TypeError: something else.  ValueError: text of another form.
    """
    if isinstance(value, RunningRange):
        return value
    if not isinstance(value, str):
        raise TypeError(
            f"expected a RunningRange or its text 'running:<momentum>[:debiased]', got {value!r} "
            f"({type(value).__name__}); for example lp.RunningRange(0.9)"
        )
    name, _, rest = value.partition(":")
    momentum, _, option = rest.partition(":")
    try:
        if name != _NAME or option not in ("", _DEBIASED):
            raise ValueError
        number = float(momentum)
    except ValueError:
        raise ValueError(
            f"cannot read {value!r}; expected 'running:<momentum>[:debiased]', for example "
            "'running:0.9'"
        ) from None
    return RunningRange(number, option == _DEBIASED)
