"""The loss scaler: torch.amp.GradScaler with floor, hysteresis and one decision of all ranks."""

import itertools
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp.grad_scaler import OptState

from lpkernels.formats.checks import checked_bool
from lpkernels.techniques import checks

# The names of torch.amp.GradScaler's state; a LossScaler's has three more.
_KEYS = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
# Smaller scales have an inverse beyond float32.
_LEAST = 2.0**-126
# Counters are int32 on the device.
_MOST = 2**31 - 1
# So many updates in a row that are skipped at a scale which cannot fall warn once.
_SKIPPED = 10


def scale(label: str, value: Any) -> float:
    """A scale as float32 holds it: positive and finite, with an inverse that is finite too."""
    with np.errstate(over="ignore"):
        rounded = float(np.float32(checks.real(label, value)))
    if not _LEAST <= rounded < math.inf:
        raise ValueError(
            f"{label}: expected a positive finite scale, from 2**-126 to float32's largest number, "
            f"got {value}; powers of two such as 2.0**16 round nothing"
        )
    return rounded


@dataclass(frozen=True)
class StepRecord:
    """One call of LossScaler.step.

    ran: whether the optimizer changed the weights.
    parameter: the first one, in the optimizer's order, whose gradient was not finite: its name if
        the optimizer was made with names, else its position. None if the step ran, or if the
        gradients of this process were finite, or are gone.
    """

    ran: bool
    parameter: str | int | None = None


class _Step:
    """A step whose result is on the device; nonfinite: 0-d, not 0 if a gradient was not finite."""

    def __init__(self, optimizer: torch.optim.Optimizer, nonfinite: Tensor) -> None:
        self.ran = nonfinite == 0
        self._parameters = list(_parameters(optimizer))
        self._finite: dict[str | int, Tensor] = {}

    def look(self) -> None:
        """Notes on the device which gradients are finite, before anything changes them."""
        gradients = {name: p.grad for name, p in self._parameters if p.grad is not None}
        self._finite = {name: local_values(g).isfinite().all() for name, g in gradients.items()}

    def record(self) -> StepRecord:
        """The record of the step; it waits for the device."""
        if self.ran.item():
            return StepRecord(ran=True)
        if not self._finite:
            self.look()
        broken = (name for name, finite in self._finite.items() if not finite)
        return StepRecord(ran=False, parameter=next(broken, None))


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str | int, Tensor]]:
    """The parameters of an optimizer with their names in its groups, or else their positions."""
    position = 0
    for group in optimizer.param_groups:
        names = group.get("param_names") or itertools.count(position)
        yield from zip(names, group["params"], strict=False)
        position += len(group["params"])


def local_values(gradient: Tensor) -> Tensor:
    """The memory of a gradient's elements in this process: the shard of a DTensor, the values of a
    sparse tensor."""
    if hasattr(gradient, "to_local"):
        gradient = gradient.to_local()
    return gradient._values() if gradient.is_sparse else gradient


def _is_watched(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a function stands in the place of the optimizer's step that must not be called where
    a step is skipped, as accelerate's; that of torch's schedulers may be called."""
    step = vars(optimizer).get("step")
    own = getattr(step, "__func__", None) is type(optimizer).step
    return not (step is None or own or hasattr(step, "_wrapped_by_lr_sched"))


def _bounds(
    static: float | None, init_scale: float, floor: float | None
) -> tuple[float, float, float]:
    """The first, the least and the largest scale; a static scale is all three."""
    label, first = ("init_scale", init_scale) if static is None else ("static", static)
    start = scale(label, first)
    if static is not None:
        if floor is not None:
            raise ValueError(
                f"LossScaler: a static scale has no floor, got static={static} with floor={floor}; "
                "leave one of them out"
            )
        return start, start, start
    least = 0.0 if floor is None else scale("floor", floor)
    if start < least:
        raise ValueError(f"init_scale: expected at least the floor {floor}, got {start}")
    return start, least, math.inf


class LossScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler on the device of the first loss, with a floor and a record of each step.

    It has GradScaler's methods, errors, defaults and bits. GradScaler's state loads here, and the
    reverse. Only these wait for the device: the step of an optimizer that cannot skip by itself
    (all but torch's fused ones and MasterWeights), or that accelerate wraps; get_scale, state_dict
    and last_step. In a torch.distributed job every rank makes the same calls, and a gradient that
    is not finite on one rank counts on all.

    Args:
        static: a constant scale; ten skipped updates in a row, as at a floor, warn once. A scale
            that is no power of two divides the gradients in a second pass, correctly rounded.
        init_scale, growth_factor, backoff_factor, growth_interval, enabled: as GradScaler's.
        floor: the scale does not fall below it; with None, as in torch, it may fall below 1.
        hysteresis: n updates that are not finite lower the scale once: each of the first n - 1
            takes one from a counter that starts at n. The counter is n again when the scale grows.
        group: the ranks that step together; None: all of them; a group of one rank has a flag and
            a scale of its own.
    Raises:
        TypeError: an argument of another type.
        ValueError: a scale that is not positive and finite, a factor out of range, a first scale
            below the floor.
    Reference: Micikevicius et al. 2017, arXiv 1710.03740, section 3.2; the rule and its numbers are
        torch's. The floor is that of Mellempudi et al. 2019, arXiv 1905.12334; hysteresis is
        DeepSpeed's delayed_shift (deepspeed/runtime/fp16/loss_scaler.py).

    >>> scaler = lp.techniques.loss_scaling.LossScaler(init_scale=8.0)
    >>> scaler.scale(torch.tensor(0.5))
    tensor(4.)
    """

    def __init__(
        self,
        *,
        static: float | None = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        floor: float | None = None,
        hysteresis: int = 1,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._static = static is not None
        start, self._floor, self._most = _bounds(static, init_scale, floor)
        factors = (
            checks.number("growth_factor", growth_factor, above=1),
            checks.number("backoff_factor", backoff_factor, above=0, below=1),
        )
        interval = checks.whole("growth_interval", growth_interval, 1)
        # "cuda" switches a GradScaler off where there is none; the first loss has the device.
        checked_bool("LossScaler", "enabled", enabled)
        if group is not None and not (dist.is_available() and isinstance(group, dist.ProcessGroup)):
            raise TypeError(
                f"group: expected a torch.distributed.ProcessGroup or None, got {group!r}"
            )
        super().__init__("cpu", start, *factors, interval, enabled)
        self._hysteresis = checks.whole("hysteresis", hysteresis, 1, _MOST)
        self._left = torch.full((), self._hysteresis, dtype=torch.int32, device="cpu")
        self._group = group
        self._last: _Step | None = None
        # Updates in a row that were skipped at a scale that cannot fall: a count on the device, and
        # its copy on the host, which nothing waits for.
        self._skipped: tuple[Tensor, Tensor] | None = None
        self._warned = False

    def _lazy_init_scale_growth_tracker(self, dev: torch.device) -> None:
        super()._lazy_init_scale_growth_tracker(dev)
        self._device = dev.type
        self._left = self._left.to(dev)

    @torch.no_grad()
    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: Tensor,
        found_inf: Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, Tensor]:
        """One flag, the same on all devices and ranks."""
        # Where float16 is allowed torch only checks, and inv_scale is 1.
        divides = self._static and not allow_fp16 and math.frexp(self._floor)[0] != 0.5
        factor = torch.ones_like(inv_scale) if divides else inv_scale
        flags = super()._unscale_grads_(optimizer, factor, found_inf, allow_fp16)
        if divides:
            gradients = [p.grad for _, p in _parameters(optimizer) if p.grad is not None]
            torch._foreach_div_(list(map(local_values, gradients)), self._floor)
        for flag in flags.values():
            own = flag.to(found_inf.device, non_blocking=True)
            torch.maximum(found_inf, own, out=found_inf)
        several = dist.is_available() and dist.is_initialized()
        if several and dist.get_world_size(self._group) > 1:
            dist.all_reduce(found_inf, dist.ReduceOp.MAX, group=self._group)
        elif not flags:
            return {}
        return {found_inf.device: found_inf}

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """As torch.amp.GradScaler.step: optimizer.step(...), unless a gradient is not finite."""
        if not self._enabled:
            return super().step(optimizer, *args, **kwargs)
        if "closure" in kwargs or any(map(callable, args)):
            raise RuntimeError(
                "LossScaler.step: expected no closure, got one, whose gradients would not be "
                "unscaled; call scale(loss).backward() before step"
            )
        skips_alone = getattr(optimizer, "_step_supports_amp_scaling", False)
        if not skips_alone or _is_watched(optimizer):
            self._check_scale_growth_tracker("step")
            state = self._per_optimizer_states[id(optimizer)]
            if state["stage"] is OptState.READY:
                check = self._check_inf_per_device if skips_alone else self.unscale_
                check(optimizer)
            flags = state["found_inf_per_device"].values()
            if state["stage"] is not OptState.STEPPED and any(flag.item() for flag in flags):
                state["stage"] = OptState.STEPPED
                self._note(optimizer).look()
                return None
        result = super().step(optimizer, *args, **kwargs)
        self._note(optimizer)
        return result

    def _note(self, optimizer: torch.optim.Optimizer) -> _Step:
        flags = list(self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values())
        nonfinite = flags[0] if flags else torch.zeros((), dtype=torch.float32, device="cpu")
        self._last = _Step(optimizer, nonfinite)
        return self._last

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Sets the scale of the next iteration; call it once an iteration, after the step of every
        optimizer.

        Args: new_scale: the scale itself, a number or a 0-d tensor, which is copied.
        Raises: as torch.amp.GradScaler.update.  ValueError: another scale for a static scaler.
        """
        if not self._enabled:
            return
        if new_scale is None:
            self._follow_rule()
        elif self._static:
            raise ValueError(
                f"update: a static scale stays {self._floor}, got new_scale={new_scale}; make "
                "another LossScaler, without static="
            )
        else:
            is_tensor = isinstance(new_scale, Tensor)
            super().update(new_scale if is_tensor else scale("update: new_scale", new_scale))

    def _follow_rule(self) -> None:
        """torch's rule, then hysteresis and floor."""
        value, tracker = self._check_scale_growth_tracker("update")
        states = self._per_optimizer_states.values()
        flags = [flag for state in states for flag in state["found_inf_per_device"].values()]
        bad = torch.stack(flags).amax() != 0 if flags else torch.zeros_like(value, dtype=torch.bool)
        left, before = self._left, value.clone()
        super().update()
        if self._hysteresis > 1:
            value.copy_(torch.where(bad & (left > 1), before, value))
            fewer = torch.where(bad, (left - 1).clamp_(min=1), left)
            # The tracker is 0 after a good update exactly where the scale's turn to grow has come.
            left.copy_(torch.where(~bad & (tracker == 0), self._hysteresis, fewer))
        value.clamp_(self._floor, self._most)
        if not self._warned:
            self._count_skipped(bad & (value <= max(self._floor, _LEAST)))

    def _count_skipped(self, stuck: Tensor) -> None:
        """Counts an update, and warns of too many in a row, perhaps some updates later."""
        if self._skipped is None:
            zero = partial(torch.zeros, (), dtype=torch.int32)
            self._skipped = zero(device=stuck.device), zero(device="cpu", pin_memory=stuck.is_cuda)
        count, on_host = self._skipped
        on_host.copy_(count.add_(1).mul_(stuck), non_blocking=True)
        if int(on_host.numpy()) < _SKIPPED:
            return
        self._warned = True
        record = self.last_step
        parameter = None if record is None else record.parameter
        name = "elsewhere" if parameter is None else f"of parameter {parameter!r}"
        smaller = "give a smaller static=, or leave it out: the scale then falls by itself"
        warnings.warn(
            f"LossScaler: {_SKIPPED} updates in a row were skipped at the scale "
            f"{self.get_scale()}, which cannot fall: a gradient {name} is not finite; "
            f"{smaller if self._static else 'lower the floor'}. If the loss itself is not "
            "finite, no scale helps: look for the infinity in the model or the data",
            stacklevel=4,
        )

    @property
    def ran(self) -> Tensor | None:
        """Whether the last step changed the weights: a 0-d bool tensor on the device of the scale;
        None before the first step."""
        return None if self._last is None else self._last.ran

    @property
    def last_step(self) -> StepRecord | None:
        """The outcome of the last step; it waits for the device. None before the first step.

        A fused optimizer skips a step unseen, so its gradients are looked at now: read this before
        they are zeroed or computed anew.
        """
        return None if self._last is None else self._last.record()

    def state_dict(self) -> dict[str, Any]:
        """Plain values, to be taken after update(): GradScaler's five, `static`, `hysteresis` and
        its counter; none if the scaler is not enabled."""
        if not self._enabled:
            return {}
        own = {"static": self._static, "hysteresis": self._hysteresis}
        return {**super().state_dict(), **own, "_hysteresis_left": int(self._left)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over the state of a LossScaler or of a torch.amp.GradScaler; all or nothing.

        Where the state has no hysteresis, this scaler's stays, and its counter is full.

        Raises:
            RuntimeError: the state of a scaler that is not enabled.
            TypeError, ValueError: another state, or the scale is static in one and not in the
                other.
        """
        if not self._enabled:
            return
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"load_state_dict: expected a dict, got {type(state_dict).__name__}")
        missing = [key for key in _KEYS if key not in state_dict] if state_dict else []
        if missing:
            raise ValueError(
                "load_state_dict: expected the state of a LossScaler or of torch.amp.GradScaler, "
                f"got one without {', '.join(missing)}; its keys are "
                f"{', '.join(map(str, state_dict))}"
            )
        state = self._checked(state_dict) if state_dict else {}
        super().load_state_dict(state)
        self._hysteresis = state["hysteresis"]
        self._left.fill_(state["_hysteresis_left"])

    def _checked(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """The saved state as that of a scaler of these settings."""
        start, static = scale("load_state_dict: scale", saved["scale"]), saved.get("static", False)
        if static != self._static or (static and start != self._floor):
            wanted = f"static scale of {self._floor}" if self._static else "dynamic scale"
            raise ValueError(
                f"load_state_dict: expected the state of a {wanted}, got that of a "
                f"{'static' if static else 'dynamic'} one of {start}; make the scaler as the saved "
                "one was"
            )
        rule = {"hysteresis": self._hysteresis, **saved}
        rule = {name: rule[name] for name in (*_KEYS[1:4], "hysteresis")}
        state = {**LossScaler(init_scale=start, **rule).state_dict(), "static": static}
        full, tracker = state["hysteresis"], saved["_growth_tracker"]
        left = checks.whole("_hysteresis_left", saved.get("_hysteresis_left", full), 1, full)
        tracker = checks.whole("_growth_tracker", tracker, 0, _MOST)
        return {**state, "_growth_tracker": tracker, "_hysteresis_left": left}

    def __getstate__(self) -> dict[str, Any]:
        # Steps hold the parameters of this scaler's optimizers, and a copy has others.
        state = {**super().__getstate__(), "_left": self._left.cpu().clone()}
        return state | {"_last": None, "_skipped": None}
