"""One parameter of a model, with what is kept of it between steps; the general path of its step, by
any optimizer in float32, which unpacks master and states, steps and packs them again."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lpkernels.functional.seeds import derived_seed
from lpkernels.techniques.loss_scaling.masters.codec import (
    Layout,
    Purpose,
    code_bits,
    here,
    is_codes,
    is_values,
    rounded,
    state_key,
    whole,
)
from lpkernels.techniques.loss_scaling.masters.formats import (
    COMPENSATION,
    COUNTS,
    MASTER,
    OWN,
    WeightFormats,
)
from lpkernels.techniques.loss_scaling.masters.stepping import GroupSteps, Options


@dataclass(eq=False)
class Master:
    """A parameter, its formats, and its state between steps.

    name: the optimizer's name of the parameter, or the number.  number: in the keys of draws.
    state: the wrapper's state of the parameter: codes or values of its master and compensation,
        its counts, and the states of the optimizer, by name.
    dtype: of the parameter when it was wrapped.
    """

    parameter: Tensor
    name: str
    number: int
    formats: WeightFormats

    def __post_init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.dtype = self.parameter.dtype

    @property
    def layout(self) -> Layout:
        return Layout(self.parameter)

    def format_of(self, name: str) -> Any:
        """The format of a tensor of the state; None for counts and numbers."""
        return self.formats.format_of(name, self.state[name])

    def seed(self, seed: Tensor, step: Tensor) -> Tensor | None:
        """The seed of the draws in a step, from the optimizer's seed; None where nothing draws."""
        if not self.formats.draws:
            return None
        of_step = derived_seed(derived_seed(seed, step + 1), self.number + 1)
        return of_step.to(self.parameter.device)

    def begin(self, states: Mapping[str, Any], seed: Tensor | None) -> None:
        """Makes the master of the parameter, which becomes its working copy, and takes over states
        that the optimizer has; counts go on."""
        clash = sorted(set(states) & set(OWN))
        if clash:
            raise NotImplementedError(
                f"MasterWeights: the optimizer has states {', '.join(clash)}, names that are used "
                "here"
            )
        layout, formats, parameter = self.layout, self.formats, self.parameter
        values = layout.whole(here(parameter))
        # A float64 value is rounded once, straight to the format.
        values = values if values.dtype == torch.float64 else values.float()
        master = rounded(values, formats.master, seed, Purpose.MASTER).float()
        working = rounded(master, formats.weight, seed, Purpose.WEIGHT)
        new: dict[str, Any] = {}
        if not formats.working_is_master:
            # Codes of float32 may be the parameter's own memory.
            with self._named(MASTER):
                new[MASTER] = layout.encoded(master, formats.master.fmt).clone()
        if formats.compensation is not None:
            nothing = torch.zeros_like(layout.part(master))
            new[COMPENSATION] = layout.encoded_part(nothing, formats.compensation.fmt)
        if COUNTS not in self.state:
            new[COUNTS] = torch.zeros(2, dtype=torch.int64, device=parameter.device)
        here(parameter).copy_(layout.part(working))
        for name, value in states.items():
            # Bare optimizers keep states in the parameter's dtype.
            value = whole(value).float() if is_values(name, value) else value
            new[name] = self._encoded(name, value, seed)
        self.state.update(new)

    def values(self) -> Tensor:
        """The whole master in float32, perhaps the memory that is kept itself; all processes must
        call this."""
        if self.formats.working_is_master:
            return self.layout.whole(here(self.parameter).float())
        return self.layout.decoded(self.state[MASTER], self.formats.master.fmt)

    def check_step(self) -> None:
        """Raises: TypeError, RuntimeError: the gradient is sparse, or the parameter is not as it
        was when it was wrapped."""
        gradient, device = self.parameter.grad, self.state[COUNTS].device
        if gradient is not None and gradient.layout is not torch.strided:
            raise TypeError(
                f"step: the gradient of parameter {self.name!r} is {gradient.layout}, and masters "
                "take dense ones; use sparse=False, or p.grad.to_dense()"
            )
        if (self.parameter.device, self.parameter.dtype) != (device, self.dtype):
            raise RuntimeError(
                f"step: parameter {self.name!r} was {self.dtype} on {device} when it was wrapped, "
                f"and is {self.parameter.dtype} on {self.parameter.device}; convert and move the "
                "model before the optimizer is made"
            )

    def step(self, steps: GroupSteps, group: Options, seed: Tensor | None, scale: Any) -> None:
        """The gradient is unscaled and rounded, the optimizer steps on the master, the master is
        rounded, the states are rounded, and the working copy is rounded from the master.

        scale: the number that the gradient is still multiplied by, on its device, or None.
        Raises: ValueError: a value has no code in its format; nothing is changed.
        """
        assert self.parameter.grad is not None
        gradient = whole(self.parameter.grad.detach()).float()
        gradient = gradient if scale is None else gradient / scale
        gradient = rounded(gradient, self.formats.grad, seed, Purpose.GRAD)
        asked = gradient != 0
        before = self.values()
        after = before.clone()
        states = steps.step(group, after, gradient, self._states())
        asked |= after != before
        del gradient
        master, stayed, new = self._rounded(before, after, seed)
        count = torch.stack([torch.count_nonzero(asked), torch.count_nonzero(asked & stayed)])
        new[COUNTS] = self.state[COUNTS] + count
        for name, value in states.items():
            with self._named(name):
                new[name] = self._encoded(name, value, seed)
        working = rounded(master, self.formats.weight, seed, Purpose.WEIGHT)
        here(self.parameter).copy_(self.layout.part(working))
        for name, value in new.items():
            old = self.state.get(name)
            if isinstance(value, Tensor) and isinstance(old, Tensor) and value.shape == old.shape:
                here(old).copy_(here(value))
            else:
                self.state[name] = value

    def _rounded(
        self, before: Tensor, after: Tensor, seed: Tensor | None
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """The master in its format, the elements that did not change, and both tensors to keep.

        With a compensation it is Kahan's sum, as Zamirai et al. 2020 (arXiv 2010.06192) use it for
        updates: the part that earlier updates left is added to the next. Differs: only the two
        results are rounded to formats, all else is float32.
        """
        layout, formats, new = self.layout, self.formats, dict[str, Any]()
        if formats.compensation is None:
            master = rounded(after, formats.master, seed, Purpose.MASTER)
            stayed = master == before
        else:
            lost = layout.decoded(self.state[COMPENSATION], formats.compensation.fmt)
            wanted = after - before + lost
            master = rounded(before + wanted, formats.master, seed, Purpose.MASTER)
            left = wanted - (master - before)
            left = rounded(left, formats.compensation, seed, Purpose.COMPENSATION)
            stayed = (master == before) & (left == lost)
            new[COMPENSATION] = layout.encoded(left, formats.compensation.fmt)
        if not formats.working_is_master:
            with self._named(MASTER):
                new[MASTER] = layout.encoded(master, formats.master.fmt)
        return master, stayed, new

    def _states(self) -> dict[str, Any]:
        """The optimizer's states as the optimizer knows them, whole, and never the memory that is
        kept."""
        states = {name: value for name, value in self.state.items() if name not in OWN}
        for name, value in states.items():
            if isinstance(value, Tensor):
                fmt = self.format_of(name)
                values = whole(value) if fmt is None else self.layout.decoded(value, fmt)
                states[name] = values.clone() if values is value else values
        return states

    def _encoded(self, name: str, value: Any, seed: Tensor | None) -> Any:
        """A state as it is kept: rounded, and as codes and in parts where it has the parameter's
        shape."""
        quantizer = self.formats.of_state(name)
        if not is_values(name, value):
            if is_codes(value, quantizer.fmt):
                raise NotImplementedError(
                    f"MasterWeights: state {name!r} of the optimizer is made of bytes, which "
                    f"cannot be told from codes of {quantizer.fmt}; keep it in fp32"
                )
            return value
        values = rounded(value, quantizer, seed, state_key(name))
        layout = self.layout
        return layout.encoded(values, quantizer.fmt) if value.shape == layout.shape else values

    def save(self) -> dict[str, Any]:
        """What is kept, as whole tensors, for a state_dict; all processes must call this."""
        return {name: self.layout.saved(x, self.format_of(name)) for name, x in self.state.items()}

    def read(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """What `save` returned, copied, after a file and a loader.

        Raises: ValueError: it lacks the counts, or a tensor has another shape.
        """
        if COUNTS not in saved:
            raise ValueError(f"load_state_dict: the state_dict lacks what it kept of {self.name!r}")
        # Some loaders place what has a parameter's shape as the parameter is placed.
        values = {
            name: whole(value) if isinstance(value, Tensor) else copy.deepcopy(value)
            for name, value in saved.items()
        }
        for name, value in values.items():
            fmt = self.formats.format_of(name, value)
            shape = self.parameter.shape if name in (MASTER, COMPENSATION) else None
            if fmt is not None and is_codes(value, fmt):
                shape = torch.Size([(code_bits(fmt, self.parameter.shape) + 7) // 8])
            if shape is not None and value.shape != shape:
                raise ValueError(
                    f"load_state_dict: {name} of parameter {self.name!r} must have shape "
                    f"{tuple(shape)} in {fmt}, got {tuple(value.shape)}; load it into the model it "
                    "was made with"
                )
        return values

    def load(self, values: Mapping[str, Any], on_device: bool) -> None:
        """Keeps this process's part of the values of `read`, where it is kept.

        on_device: whether counts of steps are where the parameter is, else on the host, where torch
            keeps them unless asked otherwise.
        """
        self.state.clear()
        for name, value in values.items():
            if isinstance(value, Tensor):
                fmt = self.formats.format_of(name, value)
                is_count = fmt is None and name != COUNTS and not value.dim()
                device = value.device if is_count and not on_device else self.parameter.device
                value = value.to(device, copy=True)
                value = value if is_count else self.layout.loaded(value, fmt)
            self.state[name] = value

    def lend(self) -> Tensor:
        """Puts the master into the parameter; returns the parameter's old tensor."""
        parameter, master = self.parameter, self.layout.part(self.values())
        if parameter.dtype == torch.float32:
            working = here(parameter).clone()
            here(parameter).copy_(master)
            return working
        working = parameter.data
        parameter.data = master.clone()
        return working

    def take_back(self, working: Tensor) -> None:
        """Ends `lend`, which returned the tensor."""
        if self.parameter.dtype == working.dtype:
            here(self.parameter).copy_(working)
        else:
            self.parameter.data = working

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """A block whose errors name the parameter."""
        try:
            yield
        except ValueError as error:
            raise ValueError(
                f"MasterWeights: {what} of parameter {self.name!r}: {error}; a loss scaler skips "
                "steps whose gradients are not finite, and a format that saturates or has "
                "infinities takes all others"
            ) from error
