"""The loss scaler: it has torch.amp.GradScaler's methods, and some that GradScaler lacks."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from lpkernels.techniques.loss_scaling._gradients import (
    NotFinite,
    OptimizerCopy,
    Outcome,
    StepRecord,
    any_of,
    checked,
    first_bad,
    gradients,
    is_watched,
    names_of,
    over_ranks,
)
from lpkernels.techniques.loss_scaling._scale import (
    Scale,
    ScaleSettings,
    SkippedInARow,
    no_positional,
    skipped_text,
)

T = TypeVar("T")


class _Stage(Enum):
    """How far an optimizer has come since the last update()."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


@dataclass(eq=False)
class _Progress:
    """An optimizer since the last update().

    flags: the flags found with this scale, all on its device.  outcome: of its step.
    """

    stage: _Stage = _Stage.READY
    flags: list[Tensor] = field(default_factory=list)
    empty: bool = True
    outcome: Outcome | None = None


class LossScaler(ScaleSettings):
    """Multiplies a loss, divides its gradients, and skips an update that is not finite.

    It is used as torch.amp.GradScaler, with its defaults and its bits: scale(loss).backward(),
    step(optimizer), update(), with unscale_(optimizer) before clipping. By the dynamic rule an
    update in which a gradient was infinite or NaN multiplies the scale by `backoff_factor`;
    `growth_interval` other updates in a row multiply it by `growth_factor`, unless it would be
    infinite. A scale that is a power of two rounds nothing, except at under- and overflow.

    Only these wait for the device: the step of an optimizer that cannot skip by itself (all but
    torch's fused ones), or that accelerate wraps, once, as with GradScaler; a step with a closure,
    once an evaluation; get_scale, state_dict and last_step; update with at_floor="raise". One pass
    over the gradients checks and unscales them (torch._amp_foreach_non_finite_check_and_unscale_).

    In a torch.distributed job every rank makes the same calls, and a gradient that is not finite on
    one rank counts on all. Each rank looks at its own shard of a DTensor (FSDP2).

    Args:
        positional: there is none; every argument has its name.
        static: a constant scale. Updates that are not finite are skipped, and the scale stays; ten
            in a row, as at a floor, warn once. A scale that is no power of two divides the
            gradients in a second pass, correctly rounded.
        init_scale, growth_factor, backoff_factor, growth_interval, enabled: as GradScaler's.
        floor: the scale does not fall below it; with None, as in torch, it may fall below 1.
        ceiling: the scale does not rise above it.
        hysteresis: n updates that are not finite lower the scale once: each of the first n - 1
            takes one from a counter that starts at n, and the scale stays; at 1 each lowers it. The
            counter is n again after growth_interval other updates in a row, when the scale grows.
        consecutive: the counter is n again after every finite update.
        at_floor: "raise" makes it an error where the scale would fall below the floor; "stay" skips
            updates there for as long as they are not finite.
        named_parameters: as a model's; last_step and errors give these names.
        reduce: False leaves every rank its own flag and scale.
        group: the ranks that step together; None: all of them.
    Raises:
        TypeError: an argument of another type, or without its name.
        ValueError: a scale that is not positive and finite, a factor out of range, a first scale
            outside floor and ceiling.
    Reference: Micikevicius et al. 2017, arXiv 1710.03740, section 3.2; the numbers of the rule are
        torch's. Mellempudi et al. 2019, arXiv 1905.12334, describe for FP8 a minimum of the scale.
        hysteresis, consecutive and at_floor are DeepSpeed's delayed_shift, consecutive_hysteresis
        and raise_error_at_min_scale (deepspeed/runtime/fp16/loss_scaler.py), whose scale may grow
        to infinity.
    Differs from GradScaler: its AssertionErrors are RuntimeErrors and ValueErrors, the scale is on
        the device of the first output scaled, and no optimizer's step is given a grad_scaler.

    >>> scaler = lp.techniques.loss_scaling.LossScaler(init_scale=8.0)
    >>> scaler.scale(torch.tensor(0.5))
    tensor(4.)
    """

    def __init__(
        self,
        *positional: Any,
        static: float | None = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        floor: float | None = None,
        ceiling: float | None = None,
        hysteresis: int = 1,
        consecutive: bool = False,
        at_floor: str = "stay",
        named_parameters: Iterable[tuple[str, Tensor]] | None = None,
        reduce: bool = True,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        no_positional(positional)
        given = (floor, ceiling, at_floor, hysteresis, consecutive)
        if static is not None and given != (None, None, "stay", 1, False):
            raise ValueError(
                f"LossScaler: a static scale has no floor and no ceiling, got static={static} with "
                "floor, ceiling, at_floor, hysteresis, consecutive of "
                f"{', '.join(map(repr, given))}; leave static or these out"
            )
        self._scale = Scale(
            *(("init_scale", init_scale) if static is None else ("static", static)),
            static=static is not None,
            growth=growth_factor,
            backoff=backoff_factor,
            interval=growth_interval,
            floor=floor,
            ceiling=ceiling,
            hysteresis=hysteresis,
            consecutive=consecutive,
            at_floor=at_floor,
        )
        self._enabled, self._reduce, self._group = enabled, reduce, group
        self._names = names_of(named_parameters or ())
        self._progress: dict[torch.optim.Optimizer, _Progress] = {}
        self._last: Outcome | None = None
        self._skipped = SkippedInARow()
        self._calls = 0

    def scale(self, outputs: T) -> T:
        """A tensor, or the tensors of a (nested) iterable, times the scale, in their own dtypes."""
        if not self._enabled:
            return outputs
        self._calls += 1
        return self._times(outputs)

    def _times(self, outputs: Any) -> Any:
        if isinstance(outputs, Tensor):
            factor = self._scale.on(outputs.device)
            return outputs * factor.to(outputs.device, non_blocking=True)
        if isinstance(outputs, str | Mapping) or not isinstance(outputs, Iterable):
            raise ValueError(
                "outputs must be a Tensor or an iterable of Tensors, got "
                f"{type(outputs).__name__}; scale the losses themselves"
            )
        scaled = map(self._times, outputs)
        if isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
            return type(outputs)(*scaled)
        return type(outputs)(scaled) if isinstance(outputs, list | tuple) else scaled

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides the gradients of an optimizer by the scale, in place; `step` does it otherwise.

        Raises:
            RuntimeError: a second time since update(), after step, or before scale.
            ValueError: a gradient is float16, where unscaled values would underflow again.
        """
        if not self._enabled:
            return
        progress = self._of(optimizer)
        if progress.stage is _Stage.UNSCALED:
            raise RuntimeError(
                "unscale_() has already been called on this optimizer since the last update()."
            )
        if progress.stage is _Stage.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        progress.flags.append(self._check(optimizer, progress, unscale=True))
        progress.stage = _Stage.UNSCALED

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        closure: Callable[[], Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Calls optimizer.step(...), unless a gradient is not finite; returns its result, or None
        where the step is skipped.

        A closure is written as without scaling, except that it calls scale(loss).backward(); it
        returns the loss as it is. Its gradients are unscaled after each evaluation (it may clip,
        after it has called unscale_ itself). At the first gradient that is not finite the step
        ends, and weights, state and settings of the optimizer become what they were, to the bit: a
        copy of all of them is made for the step. Gradients that were there before the step count
        only after unscale_, as for an optimizer that starts from them (SAM). Changes that a forward
        pass makes in the model, such as running statistics, stay.

        Raises: RuntimeError: stepped since update(), before scale, no gradient, or a closure in
            which scale is not called.
        """
        if not self._enabled:
            given = args if closure is None else (closure, *args)
            return optimizer.step(*given, **kwargs)
        progress = self._of(optimizer, used=closure is None)
        if progress.stage is _Stage.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        if closure is not None:
            return self._evaluating(optimizer, progress, closure, args, kwargs)
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            return self._fused(optimizer, progress, args, kwargs)
        if progress.stage is _Stage.READY:
            self.unscale_(optimizer)
        found = progress.flags[-1]
        if progress.empty:
            raise RuntimeError(
                "No inf checks were recorded for this optimizer: none of its parameters has a "
                "gradient; call scale(loss).backward() first"
            )
        ran = not found.item()
        result = optimizer.step(*args, **kwargs) if ran else None
        self._finish(optimizer, progress, found, ran)
        return result

    def _fused(
        self, optimizer: Any, progress: _Progress, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The step of an optimizer that unscales and skips on the device."""
        own = getattr(optimizer, "grad_scale", None)
        if progress.stage is _Stage.READY:
            progress.flags.append(self._check(optimizer, progress, unscale=False))
            own = self._scale.tensor if own is None else self._scale.tensor * own
        found = progress.flags[-1]
        if is_watched(optimizer) and found.item():
            self._finish(optimizer, progress, found, ran=False)
            return None
        optimizer.grad_scale, optimizer.found_inf = own, found
        try:
            result = optimizer.step(*args, **kwargs)
        finally:
            del optimizer.grad_scale, optimizer.found_inf
        self._finish(optimizer, progress, found, ran=None)
        return result

    def _evaluating(
        self,
        optimizer: torch.optim.Optimizer,
        progress: _Progress,
        closure: Callable[[], Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        before, result, ran = OptimizerCopy(optimizer), None, True
        try:
            if progress.flags and progress.flags[-1].item():
                raise NotFinite
            evaluate = partial(self._evaluate, optimizer, progress, closure)
            result = optimizer.step(evaluate, *args, **kwargs)
        except NotFinite:
            before.restore()
            ran = False
        if not progress.flags:
            raise RuntimeError(
                "No inf checks were recorded: the optimizer never called its closure"
            )
        self._finish(optimizer, progress, progress.flags[-1], ran)
        return result

    def _evaluate(
        self,
        optimizer: torch.optim.Optimizer,
        progress: _Progress,
        closure: Callable[[], Any],
    ) -> Any:
        """One call of a closure, whose gradients are unscaled; NotFinite ends the step."""
        progress.stage, calls = _Stage.READY, self._calls
        with torch.enable_grad():
            loss = closure()
        if calls == self._calls:
            raise RuntimeError(
                "step: the closure computed gradients without scaler.scale; call "
                "scaler.scale(loss).backward() in it and return the loss"
            )
        if progress.stage is _Stage.READY:
            self.unscale_(optimizer)
        if progress.flags[-1].item():
            raise NotFinite
        return loss

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Sets the scale of the next iteration; call it once an iteration, after the step of every
        optimizer.

        Args: new_scale: the scale itself, a number or a tensor of one element, which is copied.
        Raises:
            RuntimeError: there was neither unscale_ nor step since the last update().
            FloatingPointError: with at_floor="raise", a gradient was not finite, and the scale
                cannot fall further. Nothing is changed then.
        """
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale.fill(new_scale)
        else:
            flags = [flag for progress in self._progress.values() for flag in progress.flags]
            if not flags:
                raise RuntimeError(
                    "No inf checks were recorded prior to update: call step(optimizer) first"
                )
            found = any_of(flags, self._scale.tensor.device)
            if self._scale.is_exhausted(found):
                raise FloatingPointError(
                    f"update: the gradient {self._bad_gradient()} is not finite although the loss "
                    f"scale is at its floor {self.get_scale()}; look for the infinity in the model "
                    "or the data, or lower the floor"
                )
            self._scale.update(found)
            if self._skipped.are_too_many(self._scale.is_stuck(found)):
                warnings.warn(skipped_text(self._scale, self._bad_gradient()), stacklevel=2)
        self._progress = {}

    def _bad_gradient(self) -> str:
        return first_bad(progress.outcome for progress in self._progress.values())

    def _of(self, optimizer: torch.optim.Optimizer, *, used: bool = True) -> _Progress:
        """Where an optimizer is; a RuntimeError if `used` and there is no scale yet."""
        if used and not self._scale.made:
            raise RuntimeError(
                "the scale was not used yet: call scaler.scale(loss) earlier in the iteration"
            )
        return self._progress.setdefault(optimizer, _Progress())

    def _check(
        self, optimizer: torch.optim.Optimizer, progress: _Progress, *, unscale: bool
    ) -> Tensor:
        """One pass over the gradients; their flag, the same on all ranks."""
        tensors = gradients(optimizer, halves=not unscale)
        progress.empty = not tensors
        flag = checked(tensors, self._scale, unscale=unscale)
        return over_ranks(flag, self._group) if self._reduce else flag

    def _finish(
        self,
        optimizer: torch.optim.Optimizer,
        progress: _Progress,
        found: Tensor,
        ran: bool | None,
    ) -> None:
        progress.stage = _Stage.STEPPED
        self._last = progress.outcome = Outcome(optimizer, found, self._names)
        if ran is False:
            self._last.look()

    @property
    def ran(self) -> Tensor | None:
        """Whether the last step changed the weights: a 0-d bool tensor on the device of the scale,
        which nothing waits for. None before the first step."""
        return None if self._last is None else self._last.found == 0

    @property
    def last_step(self) -> StepRecord | None:
        """The outcome of the last step; it waits for the device. None before the first step.

        A fused optimizer skips a step unseen, so its gradients are looked at now: read this before
        they are zeroed or computed anew, else the parameter is None.
        """
        return None if self._last is None else self._last.record()

    def __getstate__(self) -> dict[str, Any]:
        if self._progress:
            raise RuntimeError(
                "a LossScaler may be copied or pickled at the beginning of an iteration or after "
                "update(), got it in between"
            )
        # The names belong to parameters, and a copy would hold other parameters.
        return {**self.__dict__, "_last": None, "_names": {}}
