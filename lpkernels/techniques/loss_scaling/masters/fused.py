"""The fused pass: which updates it takes, and the steps of many parameters in one call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from lpkernels import arithmetic
from lpkernels.arithmetic import Keyed, Quantizer, UpdateRounding
from lpkernels.formats import FP32, FloatFormat
from lpkernels.formats.integers import has_every_float_code
from lpkernels.functional.seeds import derived_seed
from lpkernels.functional.unchecked import UpdateTensors, update
from lpkernels.techniques.loss_scaling.masters.codec import (
    Layout,
    Purpose,
    here,
    is_placed,
    state_key,
)
from lpkernels.techniques.loss_scaling.masters.formats import COUNTS, MASTER, WeightFormats
from lpkernels.techniques.loss_scaling.masters.master import Master

_STATES: dict[type[Optimizer], tuple[str, ...]] = {
    SGD: ("momentum_buffer",),
    Adam: ("exp_avg", "exp_avg_sq"),
    AdamW: ("exp_avg", "exp_avg_sq"),
}
_STEP = "step"
_NUMBERS = ("lr", "weight_decay", "momentum", "dampening", "betas", "eps")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _group_reasons(
    kind: type[Optimizer], group: Mapping[str, Any], formats: WeightFormats
) -> Iterator[str]:
    """Why the pass cannot step a group with these options and formats."""
    if kind not in _STATES:
        yield f"it steps as SGD, Adam and AdamW of torch do, not as {kind.__name__}"
    if group.get("amsgrad"):
        yield "it keeps no maximum of second moments: leave amsgrad out"
    for name in _NUMBERS:
        value = group.get(name, 0.0)
        if any(isinstance(x, Tensor) for x in (value if isinstance(value, tuple) else (value,))):
            yield f"it takes {name} as a number, not as a tensor, which it would wait for"
    if formats.compensation is not None:
        yield "it keeps no compensation"
    kept = {} if formats.working_is_master else {"master": formats.master}
    kept |= {name: formats.of_state(name) for name in _STATES.get(kind, ())}
    rounded = {"grad": formats.grad, "weight": formats.weight, "master": formats.master, **kept}
    for name, quantizer in rounded.items():
        if quantizer is not None and not isinstance(quantizer.fmt, FloatFormat):
            yield f"it rounds to float formats, and {name} is {quantizer.fmt}"
    for name, fmt in ((name, quantizer.fmt) for name, quantizer in kept.items()):
        assert isinstance(fmt, FloatFormat)
        if fmt.bits not in (8, 16, 32):
            yield f"it keeps codes of 8, 16 or 32 bits, and {name}={fmt} has {fmt.bits}"
        if not has_every_float_code(fmt.to_ints()):
            yield f"{name}={fmt} has no code for infinity or NaN, which it does not look for"


def _parameter_reasons(parameter: Tensor) -> Iterator[str]:
    """Why the pass cannot step a parameter with its present gradient."""
    gradient = parameter if parameter.grad is None else parameter.grad
    if is_placed(parameter) or is_placed(gradient):
        layout = Layout(parameter)
        if not layout.is_range:
            yield f"it steps rows of a sharded parameter, and this one lies as {layout.placements}"
        if Layout(gradient).placements != layout.placements:
            yield "its gradient is sharded in another way than itself"
        if not here(parameter).is_contiguous():
            yield "it takes parts that are contiguous in memory"
    if parameter.dtype not in _DTYPES or gradient.dtype not in _DTYPES:
        yield (
            f"it takes float32, float16 and bfloat16, not {parameter.dtype} with {gradient.dtype} "
            "gradients"
        )
    if not parameter.is_contiguous():
        yield "it takes contiguous parameters: use p.data = p.data.contiguous()"


class _Batch(NamedTuple):
    """Parameters that one call steps; they share a group, a device and dtypes.

    names: of the states that the step has.  begins: whether the states begin in this step.
    rows: for each parameter this process's part of the `UpdateTensors`, None where it has no such
        tensor, its number in the draws' keys, and where the part begins in the whole parameter.
    """

    step: arithmetic.Step
    formats: WeightFormats
    names: tuple[str, ...]
    begins: bool
    rows: list[tuple[Any, ...]]


class Batches:
    """The fused updates of one step of an optimizer: chooses, collects and makes them."""

    def __init__(self, optimizer: Optimizer, fused: bool | None) -> None:
        if fused not in (None, True, False):
            raise TypeError(f"MasterWeights: fused must be True, False or None, got {fused!r}")
        self._fused, self._kind = fused, type(optimizer)
        # By the id of a group: why its options or formats keep it from the pass, or "".
        self._reasons: dict[int, str] = {}
        self._batches: dict[tuple[Any, ...], _Batch] = {}
        # For parameters that several processes hold in parts: by group, the counts of
        # all processes and those of this process.
        self._counts: dict[Any, list[tuple[Tensor, Tensor]]] = {}

    def takes(self, group: Mapping[str, Any], master: Master) -> bool:
        """Whether the pass makes this update. Raises ValueError where it must and cannot."""
        if self._fused is False:
            return False
        reason = self._reasons.get(id(group))
        if reason is None:
            reason = next(_group_reasons(self._kind, group, master.formats), "")
            self._reasons[id(group)] = reason
        reason = reason or next(_parameter_reasons(master.parameter), "")
        if reason and self._fused:
            raise ValueError(
                f"MasterWeights: fused=True, but not for parameter {master.name!r}: {reason}; or "
                "leave fused out, which takes the general path there"
            )
        return not reason

    def add(self, group: Mapping[str, Any], master: Master) -> list[str]:
        """Adds a parameter that has a gradient; returns the names of the states that begin now."""
        parameter, formats, state = master.parameter, master.formats, master.state
        gradient = parameter.grad
        assert gradient is not None
        # A small parameter takes less time to step than to find its layout.
        layout = master.layout if is_placed(parameter) else None
        local = here if layout is not None else lambda tensor: tensor
        names = _STATES[self._kind] if self._kind is not SGD or group["momentum"] else ()
        begun = [name for name in names if name not in state]
        for name in begun:
            zeros = torch.zeros_like(here(parameter), dtype=torch.float32)
            state[name] = master.layout.encoded_part(zeros, formats.of_state(name).fmt)
        if self._kind is not SGD:
            begun += [] if _STEP in state else [_STEP]
            # The pass reads the count of steps where the parameter is.
            count = state.get(_STEP, 0.0)
            state[_STEP] = torch.as_tensor(count, dtype=torch.float32, device=parameter.device)
        key = (id(group), bool(begun), parameter.dtype, gradient.dtype, parameter.device)
        batch = self._batches.get(key)
        if batch is None:
            step = _step_of(self._kind, group)
            batch = self._batches[key] = _Batch(step, formats, names, bool(begun), [])
        counts = state[COUNTS]
        if layout is not None and layout.group is not None:
            counts = torch.zeros_like(counts)
            self._counts.setdefault(layout.group, []).append((state[COUNTS], counts))
        first, second = [*(local(state[name]) for name in names), None, None][:2]
        batch.rows.append(
            (
                local(gradient).contiguous(),
                local(parameter),
                None if formats.working_is_master else local(state[MASTER]),
                first,
                second,
                None if self._kind is SGD else state[_STEP],
                counts,
                master.number,
                0 if layout is None else layout.origin,
            )
        )
        return begun

    def run(self, seed: Tensor, number: Tensor, found: Tensor | None, scale: Any) -> None:
        """Makes the updates; where parameters are sharded all processes must call this.

        seed: the optimizer's. number: the number of this step. found: 0-d bool, whether nothing
        must change. scale: the number that gradients are still multiplied by.
        """
        for batch in self._batches.values():
            *tensors, positions, origins = zip(*batch.rows, strict=True)
            device = batch.rows[0][0].device
            if scale is not None:
                scale = torch.as_tensor(scale, dtype=torch.float32, device=device).reshape(())
            update(
                UpdateTensors(*([x for x in kind if x is not None] for kind in tensors)),
                batch.step,
                _rounding_of(batch.formats, batch.names),
                list(positions),
                list(origins),
                begins=batch.begins,
                seed=derived_seed(seed, number + 1).to(device) if batch.formats.draws else None,
                skips=None if found is None else found.to(device),
                scale=scale,
            )
        for group, counts in self._counts.items():
            totals, own = zip(*counts, strict=True)
            sums = torch.stack(own)
            dist.all_reduce(sums, group=group)
            torch._foreach_add_(list(totals), list(sums))


def _step_of(kind: type[Optimizer], group: Mapping[str, Any]) -> arithmetic.Step:
    """The step that the options of a group describe now."""
    lr, decay, maximize = float(group["lr"]), float(group["weight_decay"]), group.get("maximize")
    if kind is SGD:
        momentum, dampening = float(group["momentum"]), float(group["dampening"])
        nesterov = bool(group["nesterov"])
        return arithmetic.Sgd(lr, decay, momentum, dampening, nesterov, bool(maximize))
    decoupled = bool(group.get("decoupled_weight_decay", kind is AdamW))
    beta1, beta2 = map(float, group["betas"])
    eps = float(group["eps"])
    return arithmetic.Adam(lr, beta1, beta2, eps, decay, decoupled, bool(maximize))


def _rounding_of(formats: WeightFormats, names: tuple[str, ...]) -> UpdateRounding:
    """The quantizers of an update, with the keys that draws have on the general path."""
    states = [_keyed(formats.of_state(name), state_key(name)) for name in names]
    first, second = [*states, Keyed(), Keyed()][:2]
    return UpdateRounding(
        _keyed(formats.grad, Purpose.GRAD),
        _keyed(formats.master, Purpose.MASTER),
        (first, second),
        _keyed(None if formats.working_is_master else formats.weight, Purpose.WEIGHT),
    )


def _keyed(quantizer: Quantizer | None, key: int) -> Keyed:
    """A quantizer with the key of its draws; none for float32, which values are already in."""
    rounds = quantizer is not None and quantizer.fmt != FP32
    return Keyed(quantizer if rounds else None, int(key))
