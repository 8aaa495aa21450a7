"""An optimizer's update of a parameter, element by element: what the fused kernels compute.

Every operation below is one IEEE operation of float32, rounded to nearest even, in the order in
which it is written; nothing is contracted. c(x) is an option, a float64 number, rounded to float32
once. The order is that of torch's single-tensor implementations (torch/optim/sgd.py, adam.py, torch
2.13), with two exceptions. Where torch calls a kernel that multiplies and adds at once (lerp, add
with alpha), this rounds twice. And the root of v is multiplied by a reciprocal, as torch itself
does on CUDA for a division by a number: division takes longest of all here. So results differ from
torch's in the last places, as torch's own foreach and fused implementations do from each other.

    g = round(gradient / scale);  g = -g if maximize

    SGD     g = g + c(wd) w                                             if wd != 0
            b = g                                                       the first time
            b = c(momentum) b + c(1 - dampening) g                      else
            g = g + c(momentum) b (nesterov), g = b (else)              if momentum != 0
            w = w + c(-lr) g

    Adam    w = w c(1 - lr wd) (AdamW), g = g + c(wd) w (Adam)          if wd != 0
            m = m + c(1 - beta1) (g - m)                                if c(1 - beta1) < 1/2
            m = g + (c(1 - beta1) - 1) (g - m)                          else
            v = v c(beta2) + (c(1 - beta2) g) g
            d = sqrt(v) c(1 / sqrt(1 - beta2^t)) + c(eps)
            w = w + (c(-(lr / (1 - beta1^t))) m) / d

t is the number of this step. The corrections are float64: beta^t is `power`, whose products every
backend can make, not the library's pow. Then w is rounded to the master's format, each state to its
own format, and the working copy is rounded from the master. Every NaN result is 0x7fc00000.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lpkernels.arithmetic import Adam, Keyed, Sgd, Step, UpdateRounding
from lpkernels.reference.quantize import quantize
from lpkernels.reference.values import Float32, Float64, narrow, widen
from lpkernels.rng import derive_seed


@dataclass(frozen=True)
class Updated:
    """The results of an update: float32 arrays of the parameter's shape, one for each state.

    asked: elements that were to change: the gradient is not 0, or the step moved the master before
        it was rounded. unchanged: elements among the asked that have the same master as before.
    """

    master: Float32
    working: Float32
    states: tuple[Float32, ...]
    asked: int
    unchanged: int


def update(
    step: Step,
    rounding: UpdateRounding,
    gradient: Float32,
    master: Float32,
    states: tuple[Float32, ...] | None,
    *,
    number: int = 1,
    scale: float | None = None,
    seed: int = 0,
    origin: int = 0,
) -> Updated:
    """One step of one parameter.

    Args:
        gradient, master: float32, of one shape.
        states: as many as the step has, of that shape; None: the step begins them.
        number: of this step, from 1 on; Adam's corrections need it.
        scale: the number to divide the gradient by, a float32 number; None: 1.
        seed: of the parameter in this step; a rounding draws from ``derive_seed(seed, key)`` with
            the row-major index.
        origin: the index of the first element, if these are a part of a larger tensor.
    """

    def rounded(values: Float32, how: Keyed) -> Float32:
        if how.quantizer is None:
            return narrow(widen(values))
        return quantize(values, how.quantizer, seed=derive_seed(seed, how.key), origin=origin)

    begins = states is None
    old = (np.zeros_like(master),) * step.states if states is None else states
    with np.errstate(all="ignore"):
        values = gradient if scale is None else (_Single(gradient) / scale).x
        values = rounded(values, rounding.grad)
        rule = _sgd if isinstance(step, Sgd) else _adam
        after, new_states = rule(step, _Single(values), _Single(master), old, begins, number)  # type: ignore[arg-type]
        before = widen(master)
        asked = (widen(values) != 0) | ~(widen(after.x) == before)
        result = rounded(after.x, rounding.master)
        unchanged = asked & (widen(result) == before)
    pairs = zip(new_states, rounding.states, strict=False)
    rounded_states = tuple(rounded(state.x, how) for state, how in pairs)
    working = rounded(result, rounding.weight)
    return Updated(result, working, rounded_states, int(asked.sum()), int(unchanged.sum()))


def power(base: float, exponent: int) -> float:
    """base^exponent in float64 by squaring, from the exponent's last bit on."""
    result = 1.0
    while exponent > 0:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def corrections(step: Adam, number: int) -> tuple[float, float]:
    """The corrections of Adam's step of this number: -lr / (1 - beta1^t), and 1 / sqrt(1 -
    beta2^t), in float64."""
    with np.errstate(all="ignore"):
        size = -(np.float64(step.lr) / np.float64(1.0 - power(step.beta1, number)))
        return float(size), float(1.0 / np.sqrt(np.float64(1.0 - power(step.beta2, number))))


class _Single:
    """float32 values whose operations are rounded once, whatever mode the process is in.

    float64 has more than twice the digits of float32 and two more: an operation on float32 values
    that is rounded to float64 and then to float32 gives what float32 itself would.
    """

    def __init__(self, x: Float32) -> None:
        self.x = x

    def __add__(self, other: _Single | float) -> _Single:
        return _Single(narrow(widen(self.x) + _operand(other)))

    def __sub__(self, other: _Single) -> _Single:
        return _Single(narrow(widen(self.x) - _operand(other)))

    def __mul__(self, other: _Single | float) -> _Single:
        return _Single(narrow(widen(self.x) * _operand(other)))

    def __truediv__(self, other: _Single | float) -> _Single:
        return _Single(narrow(widen(self.x) / _operand(other)))

    def sqrt(self) -> _Single:
        return _Single(narrow(np.sqrt(widen(self.x))))


_NewValues = tuple[_Single, tuple[_Single, ...]]


def _sgd(
    step: Sgd, g: _Single, w: _Single, states: tuple[Float32, ...], begins: bool, number: int
) -> _NewValues:
    g = _Single(-g.x) if step.maximize else g
    if step.weight_decay != 0:
        g = g + w * step.weight_decay
    if step.momentum == 0:
        return w + g * -step.lr, ()
    buffer = g
    if not begins:
        buffer = _Single(states[0]) * step.momentum + g * (1 - step.dampening)
    g = g + buffer * step.momentum if step.nesterov else buffer
    return w + g * -step.lr, (buffer,)


def _adam(
    step: Adam, g: _Single, w: _Single, states: tuple[Float32, ...], begins: bool, number: int
) -> _NewValues:
    size, scale = corrections(step, number)
    g = _Single(-g.x) if step.maximize else g
    if step.weight_decay != 0 and step.decoupled:
        w = w * (1 - step.lr * step.weight_decay)
    elif step.weight_decay != 0:
        g = g + w * step.weight_decay
    m, v = (_Single(state) for state in states)
    weight = np.float32(1 - step.beta1)
    apart = g - m
    if weight < np.float32(0.5):
        m = m + apart * float(weight)
    else:
        m = g + apart * float(weight - np.float32(1.0))
    v = v * step.beta2 + (g * (1 - step.beta2)) * g
    denominator = v.sqrt() * scale + step.eps
    return w + (m * size) / denominator, (m, v)


def _operand(x: _Single | float) -> Float64:
    """Values of float32, or an option, rounded to float32 once."""
    return widen(x.x if isinstance(x, _Single) else narrow(np.array(x, dtype=np.float64)))
