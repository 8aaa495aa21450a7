"""RunningRange and DelayedScaling: ranges and scales that layers keep of earlier tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lpkernels.arithmetic._quantizer import Quantizer
from lpkernels.arithmetic.text import PlainValues, options_of, read_options, written_options
from lpkernels.formats import BlockFormat, Format
from lpkernels.formats.checks import checked_bool, checked_choice, checked_int, set_fields

_RUNNING = "running"
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
        return f"{_RUNNING}:{self.momentum!r}" + f":{_DEBIASED}" * self.debiased


def as_running_range(value: RunningRange | str) -> RunningRange:
    """`value` itself if it is a RunningRange, else the one of that text form.

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
        if name != _RUNNING or option not in ("", _DEBIASED):
            raise ValueError
        number = float(momentum)
    except ValueError:
        raise ValueError(
            f"cannot read {value!r}; expected 'running:<momentum>[:debiased]', for example "
            "'running:0.9'"
        ) from None
    return RunningRange(number, option == _DEBIASED)


_DELAYED = "delayed"
_FORM = f"'{_DELAYED}[:history=<n>][:max|:most_recent][:margin=<n>][:local]'"
_LOCAL = "local"
ALGORITHMS = ("max", "most_recent")
#: The roles whose tensors have a history in a layer; the tensors of a Recipe's three quantizers.
SCALED_ROLES = ("input", "weight", "grad_output")
_MAX_HISTORY = 1 << 20
# M 2^-margin stays a normal float32 for every element.
_MAX_MARGIN = 64


@dataclass(frozen=True, init=False)
class DelayedScaling(PlainValues):
    """Scales of whole tensors from the largest magnitudes of the steps before.

    A layer whose Recipe has this `scaling` keeps two buffers for each role (input, weight,
    grad_output) that the recipe rounds: ``scaling.<role>_history`` h (history,), zeros at first,
    and ``scaling.<role>_scale`` S (), 1 at first. A tensor x of the role becomes the codes
    ``q = round(clamp(x * S, -M, M))`` with the scale ``s = 1 / S``, both in float32, where M is the
    element's largest value or the format's target; in training, h[0] becomes
    ``max(h[0], max |x|)``. Hardware reads x once. After the backward pass
    `lpkernels.nn.update_scales` gives S its next value:

        a = max of h, or h[0] for "most_recent"
        S = M 2^-margin / a, at most the largest float32, if 0 < a < inf; else S stays
        h is rolled by one place, its oldest value is dropped, and h[0] = 0

    A role with h[0] = 0, which no call has used since, stays as it is. An infinity counts as a
    largest magnitude, NaN too: S stays until it has left the window.

    Text form: ``delayed:history=<n>:<algorithm>[:margin=<n>][:local]``, which :meth:`parse` reads.

    Args:
        history:   1..2^20, the number of largest magnitudes in the window.
        algorithm: "max" or "most_recent".
        margin:    0..64, the powers of two that are left free above the largest magnitude.
        reduce:    whether update_scales takes the largest h[0] of all processes, where
                   torch.distributed runs; False is ``:local`` in the text.

    Raises:  TypeError, ValueError: an argument of the wrong type or out of range.

    Source: TransformerEngine, DelayedScaling (common/recipe, delayed_scaling.cu). Its kernel for
    many tensors leaves a history with h[0] = 0 alone, as here. Differs: the kernel skips NaN; here
    NaN keeps S, as in its Python path. It updates as the autocast ends; here update_scales says
    when.
    """

    history: int
    algorithm: str
    margin: int
    reduce: bool

    def __init__(
        self, history: int = 1024, algorithm: str = "max", margin: int = 0, reduce: bool = True
    ) -> None:
        owner = "DelayedScaling"
        set_fields(
            self,
            history=checked_int(owner, "history", history, 1, _MAX_HISTORY),
            algorithm=checked_choice(owner, "algorithm", algorithm, ALGORITHMS),
            margin=checked_int(owner, "margin", margin, 0, _MAX_MARGIN),
            reduce=checked_bool(owner, "reduce", reduce),
        )

    def most(self, fmt: Format) -> float:
        """M 2^-margin of a BlockFormat, which the largest magnitude is mapped to."""
        assert isinstance(fmt, BlockFormat)
        most = fmt.element.max if fmt.target is None else fmt.target
        return float(most * 2.0**-self.margin)

    def __str__(self) -> str:
        return ":".join((_DELAYED, *written_options(self, _OPTIONS)))

    @staticmethod
    def parse(text: str) -> DelayedScaling:
        """The DelayedScaling of a text form: ``DelayedScaling.parse(str(d)) == d``.

        Raises:  TypeError: not a str.  ValueError: text of another form.
        """
        if not isinstance(text, str):
            raise TypeError(
                f"expected a DelayedScaling or its text {_FORM}, got {text!r} "
                f"({type(text).__name__}); for example lp.DelayedScaling()"
            )
        name, *parts = text.split(":")
        if name != _DELAYED:
            raise ValueError(f"cannot read {text!r}; expected {_FORM}")
        return DelayedScaling(**read_options(text, parts, _OPTIONS))


def as_scaling(value: DelayedScaling | str) -> DelayedScaling:
    """`value` itself if it is a DelayedScaling, else the one of that text form.

    Raises:  TypeError: something else.  ValueError: text of another form.
    """
    return value if isinstance(value, DelayedScaling) else DelayedScaling.parse(value)


def check_scaling(quantizers: Mapping[str, Quantizer | None]) -> None:
    """Checks that the quantizers of a recipe can have delayed scales.

    Args:
        quantizers: all of the recipe, by field.

    Raises:  ValueError: they cannot.
    """
    given = {name: its for name, its in quantizers.items() if its is not None}
    advice = "use one scale a tensor, such as 'tensor_e4m3', or leave scaling away"
    for name in SCALED_ROLES:
        its = given.get(name)
        if its is not None and not _has_one_scale(its):
            raise ValueError(
                f"Recipe: scaling is for formats with one fp32 scale a tensor, got {name}={its}; "
                f"{advice}"
            )
    if not any(name in given for name in SCALED_ROLES):
        raise ValueError(
            f"Recipe: scaling is for input, weight and grad_output, and none is rounded; {advice}"
        )
    for name in ("dgrad_weight", "wgrad_input", "wgrad_grad_output"):
        if name in given:
            raise ValueError(
                f"Recipe: scaling gives every product the same codes of a tensor, got {name}="
                f"{given[name]}; leave {name} away, or scaling"
            )


def _has_one_scale(quantizer: Quantizer) -> bool:
    fmt = quantizer.fmt
    if not isinstance(fmt, BlockFormat) or quantizer.hadamard is not None:
        return False
    return fmt.block_size == "tensor" and fmt.scale == "fp32" and fmt.rule == "nearest"


# The history and the algorithm are always written: no field has this default.
_ALWAYS = object()
_OPTIONS = options_of(
    DelayedScaling,
    history={"default": _ALWAYS},
    algorithm={"default": _ALWAYS, "alone": ALGORITHMS.__contains__, "shown": "an algorithm"},
    reduce={
        "alone": _LOCAL.__eq__,
        "read": lambda word: word != _LOCAL,
        "write": lambda value: _LOCAL,
        "shown": f"{_LOCAL!r}",
    },
)
