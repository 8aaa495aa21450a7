"""An optimizer's update of a parameter in one pass: its step, and the formats of its results."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from lpkernels.arithmetic._quantizer import Quantizer, quantizer_from_ints
from lpkernels.formats import FP32

STATES = 2
#: The integers of one rounding: its key, whether it has a Quantizer, the Quantizer's integers.
ROUNDING_INTS = 14
_FLOAT32 = Quantizer(FP32)
_SGD, _ADAM = 0.0, 1.0


class Sgd(NamedTuple):
    """The options of torch.optim.SGD, for an update in one pass; momentum 0 has no state.

    Attributes:
        lr, weight_decay, momentum, dampening, nesterov, maximize: numbers and flags, as there:
            https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html.
    """

    lr: float
    weight_decay: float = 0.0
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    maximize: bool = False

    @property
    def states(self) -> int:
        """How many states an element has."""
        return int(self.momentum != 0)

    def to_numbers(self) -> tuple[float, ...]:
        """Eight numbers, as the kernels take them."""
        own = (self.lr, self.weight_decay, self.momentum, self.dampening, 0.0)
        return (_SGD, *own, float(self.maximize), float(self.nesterov))


class Adam(NamedTuple):
    """The options of torch.optim.Adam and AdamW, for an update in one pass.

    Attributes:
        lr, eps, weight_decay, maximize: numbers and a flag, as there:
            https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html.
        beta1, beta2: the two numbers of its `betas`.
        decoupled: whether weight_decay is AdamW's, which does not enter the moments.
    """

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    maximize: bool = False

    @property
    def states(self) -> int:
        """How many states an element has."""
        return STATES

    def to_numbers(self) -> tuple[float, ...]:
        """Eight numbers, as the kernels take them."""
        own = (self.lr, self.weight_decay, self.beta1, self.beta2, self.eps)
        return (_ADAM, *own, float(self.maximize), float(self.decoupled))


Step: TypeAlias = Sgd | Adam


def step_from_numbers(numbers: tuple[float, ...]) -> Step:
    """The Sgd or Adam of the eight `numbers` that its ``to_numbers`` gives."""
    algorithm, lr, weight_decay, first, second, eps, maximize, way = numbers
    if algorithm == _SGD:
        return Sgd(lr, weight_decay, first, second, bool(way), bool(maximize))
    return Adam(lr, first, second, eps, weight_decay, bool(way), bool(maximize))


class Keyed(NamedTuple):
    """A rounding and the key of its draws.

    Attributes:
        quantizer: how values are rounded; None: they stay as they are, in float32.
        key: the purpose of the rounding as a whole number, by which its draws differ from others.
    """

    quantizer: Quantizer | None = None
    key: int = 0


_AS_IT_IS = Keyed()


class UpdateRounding(NamedTuple):
    """The roundings of an update.

    Attributes:
        grad, master, weight: of the gradient as it enters, the master, and the working copy.
        states: of the optimizer's states, in the order of the step; Sgd has one or none.
    """

    grad: Keyed = _AS_IT_IS
    master: Keyed = _AS_IT_IS
    states: tuple[Keyed, Keyed] = (_AS_IT_IS, _AS_IT_IS)
    weight: Keyed = _AS_IT_IS

    def to_ints(self) -> tuple[int, ...]:
        """Each rounding's key, whether it has a Quantizer, and the Quantizer's twelve integers."""
        ints: tuple[int, ...] = ()
        for quantizer, key in (self.grad, self.master, *self.states, self.weight):
            ints += (key, int(quantizer is not None), *(quantizer or _FLOAT32).to_ints())
        return ints


def update_rounding_from_ints(ints: tuple[int, ...]) -> UpdateRounding:
    """The UpdateRounding of the integers `ints` that ``UpdateRounding.to_ints`` gives."""
    parts = [ints[i : i + ROUNDING_INTS] for i in range(0, len(ints), ROUNDING_INTS)]
    grad, master, first, second, weight = (
        Keyed(quantizer_from_ints(part[2:]) if part[1] else None, part[0]) for part in parts
    )
    return UpdateRounding(grad, master, (first, second), weight)
