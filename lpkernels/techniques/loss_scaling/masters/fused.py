"""The fused pass: which updates it takes, and the steps of many parameters in one call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from lpkernels import arithmetic
from lpkernels.arithmetic import Keyed, UpdateRounding
from lpkernels.formats import FP32, FloatFormat
from lpkernels.functional.seeds import derived_seed
from lpkernels.functional.unchecked import UpdateTensors, update
from lpkernels.techniques.loss_scaling.masters.codec import (
    COUNTS,
    MASTER,
    Layout,
    WeightFormats,
    draw_key,
    has_every_code,
    here,
    is_placed,
)
from lpkernels.techniques.loss_scaling.masters.master import Master

Options = Mapping[str, Any]

_STATES: dict[type[Optimizer], tuple[str, ...]] = {
    SGD: ("momentum_buffer",),
    Adam: ("exp_avg", "exp_avg_sq"),
    AdamW: ("exp_avg", "exp_avg_sq"),
}
_STEP = "step"
_NUMBERS = ("lr", "weight_decay", "momentum", "dampening", "betas", "eps")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _group_reasons(kind: type[Optimizer], group: Options, formats: WeightFormats) -> Iterator[str]:
    """Why the pass cannot step a group with these options and formats."""
    if kind not in _STATES:
        yield f"it steps as SGD, Adam and AdamW of torch do, not as {kind.__name__}"
    if group.get("amsgrad"):
        yield "it keeps no maximum of second moments: leave amsgrad out"
    for name in _NUMBERS:
        value = group.get(name, 0.0)
        if any(isinstance(x, Tensor) for x in (value if isinstance(value, tuple) else (value,))):
            yield f"it takes {name} as a number, not as a tensor, which it would wait for"
    states = _STATES.get(kind, ())
    # The general path names the states that there are.
    if kind in _STATES and formats.states.difference(_names(kind, group)):
        yield f"{kind.__name__} lacks one of the states {', '.join(sorted(formats.states))}"
    for name in ("grad", "weight", MASTER, *states):
        if not isinstance(formats[name].fmt, FloatFormat):
            yield f"it rounds to float formats, and {name} is {formats[name].fmt}"
    for name in states if formats.working_is_master else (MASTER, *states):
        fmt = formats[name].fmt
        assert isinstance(fmt, FloatFormat)
        if fmt.bits not in (8, 16, 32):
            yield f"it keeps codes of 8, 16 or 32 bits, and {name}={fmt} has {fmt.bits}"
        if not has_every_code(fmt):
            yield f"{name}={fmt} has no code for infinity or NaN, which it does not look for"


def _parameter_reasons(parameter: Tensor) -> Iterator[str]:
    """Why the pass cannot step a parameter with its present gradient."""
    gradient = parameter if parameter.grad is None else parameter.grad
    if is_placed(parameter) or is_placed(gradient):
        layout = Layout(parameter)
        if layout.span() is None:
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


def split(
    kind: type[Optimizer], group: Options, masters: Sequence[Master], fused: bool | None
) -> tuple[list[Master], list[Master]]:
    """The masters of a group that the pass steps, and the others.

    Raises: ValueError: `fused` is true, and the pass cannot step one of them.
    """
    if fused is False or not masters:
        return [], list(masters)
    of_group = next(_group_reasons(kind, group, masters[0].formats), "")
    passed, others = list[Master](), list[Master]()
    for master in masters:
        reason = of_group or next(_parameter_reasons(master.parameter), "")
        if reason and fused:
            raise ValueError(
                f"MasterWeights: fused=True, but not for parameter {master.name!r}: {reason}; or "
                "leave fused out, which takes the general path there"
            )
        (others if reason else passed).append(master)
    return passed, others


def step_fused(
    kind: type[Optimizer],
    updates: Sequence[tuple[Options, Master]],
    seed: Tensor,
    number: Tensor,
    skips: Tensor | None,
    scale: Any,
) -> None:
    """The updates of masters that `split` chose, in one call for each group, device and kind of
    dtypes; where parameters are sharded all processes must call this.

    seed: the wrapper's.  number: the number of this step.  skips: 0-d bool, whether nothing must
    change.  scale: the number that gradients are still multiplied by.
    """
    batches: dict[tuple[Any, ...], tuple[Options, WeightFormats, list[tuple[Any, ...]]]] = {}
    with _counts_of_all([master for _, master in updates]):
        for group, master in updates:
            new = has_no_states(kind, group, master)
            if kind is not SGD:
                # The pass reads the count of steps where the parameter is.
                count, device = master.state.get(_STEP, 0.0), master.parameter.device
                master.state[_STEP] = torch.as_tensor(count, dtype=torch.float32, device=device)
            gradient, weight, *_ = row = _row(kind, group, master)
            key = (id(group), new, gradient.dtype, weight.dtype, weight.device)
            batches.setdefault(key, (group, master.formats, []))[2].append(row)
        for (_, begins, *_, device), (group, formats, rows) in batches.items():
            *tensors, positions, origins = zip(*rows, strict=True)
            if scale is not None:
                scale = torch.as_tensor(scale, dtype=torch.float32, device=device).reshape(())
            update(
                UpdateTensors(*([x for x in of_kind if x is not None] for of_kind in tensors)),
                _step_of(kind, group),
                _rounding_of(formats, _names(kind, group)),
                list(positions),
                list(origins),
                begins=begins,
                seed=derived_seed(seed, number + 1).to(device) if formats.draws else None,
                skips=None if skips is None else skips.to(device),
                scale=scale,
            )


def _row(kind: type[Optimizer], group: Options, master: Master) -> tuple[Any, ...]:
    """This process's part of the `UpdateTensors`, None where it has no such tensor, the parameter's
    number in the keys of draws, and where the part begins in the whole parameter."""
    parameter, state = master.parameter, master.state
    assert parameter.grad is not None
    # A small parameter takes less time to step than to find its layout.
    span = master.layout.span() if is_placed(parameter) else None
    local = here if span is not None else lambda tensor: tensor
    first, second = [*(local(_state(master, name)) for name in _names(kind, group)), None, None][:2]
    return (
        local(parameter.grad).contiguous(),
        local(parameter),
        None if master.formats.working_is_master else local(state[MASTER]),
        first,
        second,
        None if kind is SGD else state[_STEP],
        state[COUNTS],
        master.number,
        0 if span is None else span[1],
    )


@contextmanager
def _counts_of_all(masters: Iterable[Master]) -> Iterator[None]:
    """A block after which the parts that several processes count are added up, in one message for
    each group of processes."""
    by_group: dict[Any, list[Tensor]] = {}
    for master in masters:
        span = master.layout.span() if is_placed(master.parameter) else None
        if span is not None and span[0] is not None:
            by_group.setdefault(span[0], []).append(master.state[COUNTS])
    before = {group: torch.stack(counts) for group, counts in by_group.items()}
    yield
    for group, counts in by_group.items():
        own = torch.stack(counts) - before[group]
        dist.all_reduce(own, group=group)
        torch._foreach_copy_(counts, list(before[group] + own))


def _names(kind: type[Optimizer], group: Options) -> tuple[str, ...]:
    """The states of elements that a step with these options has."""
    return _STATES[kind] if kind is not SGD or group["momentum"] else ()


def has_no_states(kind: type[Optimizer], group: Options, master: Master) -> bool:
    """Whether this step is the first that has the states of these options."""
    return not {*_names(kind, group)} <= master.state.keys()


def _state(master: Master, name: str) -> Tensor:
    """A state as it is kept; zeros at first."""
    if name not in master.state:
        zeros = torch.zeros_like(here(master.parameter), dtype=torch.float32)
        master.state[name] = master.layout.encoded_part(zeros, master.formats[name].fmt)
    state: Tensor = master.state[name]
    return state


def _step_of(kind: type[Optimizer], group: Options) -> arithmetic.Step:
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
    """The quantizers of an update, with the keys that draws have on the general path; none for
    float32, which values are already in."""

    def keyed(name: str) -> Keyed:
        is_float32 = formats[name].fmt == FP32
        return Keyed(None if is_float32 else formats[name], draw_key(name))

    first, second = [*map(keyed, names), Keyed(), Keyed()][:2]
    weight = Keyed() if formats.working_is_master else keyed("weight")
    return UpdateRounding(keyed("grad"), keyed(MASTER), (first, second), weight)
