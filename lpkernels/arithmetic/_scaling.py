"""RunningRange and DelayedScaling: ranges and scales that layers keep of earlier tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from lpkernels.arithmetic._quantizer import Quantizer
from lpkernels.arithmetic.text import (
    Option,
    PlainValues,
    number,
    options_of,
    read_options,
    written_options,
)
from lpkernels.formats import BlockFormat, Format
from lpkernels.formats.checks import checked_bool, checked_choice, checked_int, set_fields

#: The roles whose tensors have a history in a layer; the tensors of a Recipe's three quantizers.
SCALED_ROLES = ("input", "weight", "grad_output")
_ALGORITHMS = ("max", "most_recent")
_MAX_HISTORY = 1 << 20
# M 2^-margin stays a normal float32 for every element.
_MAX_MARGIN = 64

T = TypeVar("T", bound="_Worded")


class _Worded(PlainValues):
    """A description whose text is a word and options: ``delayed:history=4:max``."""

    _word: ClassVar[str]
    _options: ClassVar[dict[str, Option]]

    def __str__(self) -> str:
        return ":".join((self._word, *written_options(self, self._options)))

    @classmethod
    def parse(cls: type[T], text: str) -> T:
        """The description of a text form: ``kind.parse(str(x)) == x``.

        Raises:  TypeError: not a str.  ValueError: text of another form.
        """
        word, *parts = text.split(":") if isinstance(text, str) else ("",)
        if word != cls._word:
            kind = ValueError if isinstance(text, str) else TypeError
            raise kind(
                f"expected a {cls.__name__} or its text, such as {str(cls())!r}, got {text!r} "
                f"({type(text).__name__})"
            )
        return cls(**read_options(text, parts, cls._options))

    @classmethod
    def of(cls: type[T], value: T | str) -> T:
        """`value` itself if it is such a description, else the one of that text; as `parse`."""
        return value if isinstance(value, cls) else cls.parse(value)  # type: ignore[arg-type]


@dataclass(frozen=True)
class RunningRange(_Worded):
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

    momentum: float = 0.9
    debiased: bool = False
    _word = "running"

    def __post_init__(self) -> None:
        momentum: Any = self.momentum
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
        checked_bool("RunningRange", "debiased", self.debiased)
        set_fields(self, momentum=float(momentum))


@dataclass(frozen=True)
class DelayedScaling(_Worded):
    """Scales of whole tensors from the largest magnitudes of the steps before.

    A layer whose Recipe has this `scaling` keeps two buffers for each role (input, weight,
    grad_output) that the recipe rounds: ``scaling.<role>_history`` h (history,), the largest
    magnitudes of the steps before, zeros at first, and ``scaling.<role>_scale`` S (), 1 at first,
    by which a tensor of the role becomes codes. Hardware reads the tensor once. After the backward
    pass `lpkernels.nn.update_scales` gives S its next value, which follows from h
    (docs/contract.md, "Delayed scales"). An infinity counts as a largest magnitude, NaN too: S
    stays until it has left the window.

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

    history: int = 1024
    algorithm: str = "max"
    margin: int = 0
    reduce: bool = True
    _word = "delayed"

    def __post_init__(self) -> None:
        owner = "DelayedScaling"
        set_fields(
            self,
            history=checked_int(owner, "history", self.history, 1, _MAX_HISTORY),
            algorithm=checked_choice(owner, "algorithm", self.algorithm, _ALGORITHMS),
            margin=checked_int(owner, "margin", self.margin, 0, _MAX_MARGIN),
            reduce=checked_bool(owner, "reduce", self.reduce),
        )

    def most(self, fmt: Format) -> float:
        """M 2^-margin of a BlockFormat, which the largest magnitude is mapped to."""
        assert isinstance(fmt, BlockFormat)
        most = fmt.element.max if fmt.target is None else fmt.largest
        return float(most * 2.0**-self.margin)


# A text always gives these fields: no field has this default.
_ALWAYS = object()
RunningRange._options = options_of(
    RunningRange,
    momentum={"default": _ALWAYS, "alone": lambda word: word != "debiased", "read": number,
              "write": repr, "shown": "a momentum"},
    debiased={"alone": "debiased".__eq__, "read": "debiased".__eq__, "write": lambda _: "debiased",
              "shown": "'debiased'"},
)  # fmt: skip
DelayedScaling._options = options_of(
    DelayedScaling,
    history={"default": _ALWAYS},
    algorithm={"default": _ALWAYS, "alone": _ALGORITHMS.__contains__, "shown": "an algorithm"},
    reduce={"alone": "local".__eq__, "read": "local".__ne__, "write": lambda _: "local",
            "shown": "'local'"},
)  # fmt: skip


def check_scaling(quantizers: Mapping[str, Quantizer | None]) -> None:
    """Checks that the quantizers of a recipe, by field, can have delayed scales.

    Raises:  ValueError: they cannot.
    """
    rounded = {name: quantizer for name, quantizer in quantizers.items() if quantizer is not None}
    wrong = [
        f"{name}={rounded[name]}"
        for name in (*SCALED_ROLES, "dgrad_weight", "wgrad_input", "wgrad_grad_output")
        if name in rounded and not (name in SCALED_ROLES and _has_one_scale(rounded[name]))
    ]
    if wrong or not any(name in rounded for name in SCALED_ROLES):
        raise ValueError(
            "Recipe: scaling gives input, weight and grad_output one fp32 scale a tensor and every "
            f"product the same codes, got {', '.join(wrong) or 'none of them rounded'}; use one "
            "scale a tensor, such as 'tensor_e4m3', or leave scaling away"
        )


def _has_one_scale(quantizer: Quantizer) -> bool:
    fmt = quantizer.fmt
    if not isinstance(fmt, BlockFormat) or quantizer.hadamard is not None:
        return False
    return fmt.block_size == "tensor" and fmt.scale == "fp32" and fmt.rule == "nearest"
