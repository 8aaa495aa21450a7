"""The parameters of an optimizer with what is kept of them between steps, and the general path of a
step: the optimizer's own in float32, between unpacking masters and states and packing them."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer, SparseAdam

from lpkernels.functional.seeds import derived_seed
from lpkernels.functional.unchecked import packed_bytes
from lpkernels.techniques.loss_scaling.masters.codec import (
    COUNTS,
    MASTER,
    OWN,
    Layout,
    WeightFormats,
    here,
    is_codes,
    is_values,
    whole,
)

_NO_PARAMETER = "it keeps states of no parameter"
# So many elements are unpacked together: a call of the optimizer for each small parameter is slow.
_FEW = 2**20


@dataclass(eq=False)
class Master:
    """A parameter, its formats, and its state between steps.

    name: the optimizer's name of the parameter, or the number.  number: in the keys of draws.
    state: the wrapper's state of the parameter: codes or values of its master, its counts, and the
        states of the optimizer, by name.
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
        values = self.layout.whole(here(self.parameter)).clone()
        # A float64 value is rounded once, straight to the format.
        values = values if values.dtype == torch.float64 else values.float()
        working, new = self._encoded(self.formats.rounded(MASTER, values, seed), states, seed)
        self.keep(working, new)
        device = self.parameter.device
        self.state.setdefault(COUNTS, torch.zeros(2, dtype=torch.int64, device=device))

    def values(self) -> Tensor:
        """The whole master in float32, perhaps the memory that is kept itself; all processes must
        call this."""
        if self.formats.working_is_master:
            return self.layout.whole(here(self.parameter).float())
        return self.layout.decoded(self.state[MASTER], self.formats[MASTER].fmt)

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

    def stand_in(self, seed: Tensor | None, scale: Any) -> tuple[nn.Parameter, Tensor]:
        """The whole master as a float32 parameter of its own, with its gradient, unscaled and
        rounded; and where the gradient is not 0.

        scale: the number that the gradient is still multiplied by, or None.
        """
        assert self.parameter.grad is not None
        gradient = whole(self.parameter.grad.detach()).float()
        if scale is not None:
            on_device = scale.to(gradient.device) if isinstance(scale, Tensor) else scale
            gradient = gradient / on_device
        gradient = self.formats.rounded("grad", gradient, seed)
        stand_in = nn.Parameter(self.values().clone())
        stand_in.grad = gradient
        # Some optimizers change gradients.
        return stand_in, gradient != 0

    def packed(
        self, after: Tensor, asked: Tensor, states: Mapping[str, Any], seed: Tensor | None
    ) -> tuple[Tensor, dict[str, Any]]:
        """This process's part of the working copy, and the state to keep, after an optimizer's
        step. asked: where the gradient was not 0.

        Raises: ValueError: a value has no code in its format.
        """
        before = self.values()
        master = self.formats.rounded(MASTER, after, seed)
        asked = asked | (after != before)
        unchanged = asked & (master == before)
        working, new = self._encoded(master, states, seed)
        count = torch.stack([torch.count_nonzero(asked), torch.count_nonzero(unchanged)])
        return working, {**new, COUNTS: self.state[COUNTS] + count}

    def keep(self, working: Tensor, new: Mapping[str, Any]) -> None:
        """Takes over what `packed` returned, into the memory that there is."""
        here(self.parameter).copy_(working)
        for name, value in new.items():
            old = self.state.get(name)
            if isinstance(value, Tensor) and isinstance(old, Tensor) and value.shape == old.shape:
                here(old).copy_(here(value))
            else:
                self.state[name] = value

    def _encoded(
        self, master: Tensor, states: Mapping[str, Any], seed: Tensor | None
    ) -> tuple[Tensor, dict[str, Any]]:
        """This process's part of the working copy, and the master and the states to keep.

        master: rounded.  states: as the optimizer has them; float values are rounded here, and kept
        as codes and in parts where they have the parameter's shape.
        """
        new = {} if self.formats.working_is_master else {MASTER: self._codes(MASTER, master)}
        for name, value in states.items():
            if name in OWN or is_codes(value, self.formats[name].fmt):
                raise NotImplementedError(
                    f"MasterWeights: state {name!r} of the optimizer has a name that is used here, "
                    "or is of bytes, which look like codes; rename it, or keep bytes in fp32"
                )
            if is_values(name, value):
                # Bare optimizers keep states in the parameter's dtype.
                value = self.formats.rounded(name, whole(value).float(), seed)
                value = self._codes(name, value) if value.shape == self.layout.shape else value
            new[name] = value
        return self.layout.part(self.formats.rounded("weight", master, seed)), new

    def states(self) -> dict[str, Any]:
        """The optimizer's states as the optimizer knows them, whole, and never the memory that is
        kept."""
        states = {name: value for name, value in self.state.items() if name not in OWN}
        for name, value in states.items():
            if isinstance(value, Tensor):
                fmt = self.format_of(name)
                values = whole(value) if fmt is None else self.layout.decoded(value, fmt)
                states[name] = values.clone() if values is value else values
        return states

    def _codes(self, name: str, values: Tensor) -> Tensor:
        """Whole values in the format of a name as they are kept.

        Raises: ValueError: a value without a code; the message names the parameter.
        """
        try:
            return self.layout.encoded(values, self.formats[name].fmt)
        except ValueError as error:
            raise ValueError(
                f"MasterWeights: {name} of parameter {self.name!r}: {error}; a loss scaler skips "
                "steps whose gradients are not finite, and a format that saturates or has "
                "infinities takes all others"
            ) from error

    def save(self) -> dict[str, Any]:
        """What is kept, as whole tensors, for a state_dict; all processes must call this."""
        return {name: self.layout.saved(x, self.format_of(name)) for name, x in self.state.items()}

    def loaded(self, saved: Mapping[str, Any], on_device: bool) -> dict[str, Any]:
        """What `save` returned, after a file and a loader, as this process keeps it, copied.

        on_device: whether counts of steps are where the parameter is, else on the host, where torch
            keeps them unless asked otherwise.
        Raises: ValueError: the counts are missing, or a tensor has another shape.
        """
        if COUNTS not in saved:
            raise ValueError(f"load_state_dict: the state_dict has no counts of {self.name!r}")
        state = dict[str, Any]()
        for name, value in saved.items():
            if not isinstance(value, Tensor):
                state[name] = copy.deepcopy(value)
                continue
            # Some loaders place what has a parameter's shape as the parameter is placed.
            value = whole(value)
            fmt = self.formats.format_of(name, value)
            shape = self.parameter.shape if name == MASTER else value.shape
            if fmt is not None and is_codes(value, fmt):
                shape = torch.Size([packed_bytes(fmt.to_ints(), self.parameter.shape)])
            if value.shape != shape:
                raise ValueError(
                    f"load_state_dict: {name} of parameter {self.name!r} must have shape "
                    f"{tuple(shape)} in {fmt}, got {tuple(value.shape)}; load it into the model it "
                    "was made with"
                )
            is_count = fmt is None and name != COUNTS and not value.dim()
            device = value.device if is_count and not on_device else self.parameter.device
            value = value.to(device, copy=True)
            state[name] = value if is_count else self.layout.loaded(value, fmt)
        return state

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


def check_optimizer(optimizer: Any) -> None:
    """Checks that an optimizer can be wrapped.

    Raises: TypeError: it is no optimizer.  NotImplementedError: its step does not go with masters.
        ValueError: it is wrapped already.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            "MasterWeights: optimizer must be a torch.optim.Optimizer, got "
            f"{type(optimizer).__name__}; make it first: "
            "MasterWeights(torch.optim.SGD(model.parameters(), lr=0.1), weight='fp16')"
        )
    kind = type(optimizer).__name__
    # A wrapper has its optimizer under this name.
    inner = getattr(optimizer, "optimizer", optimizer)
    if getattr(inner.step, "__func__", None) is _refuse_step:
        raise ValueError(
            f"MasterWeights: optimizer: this {kind} is wrapped already; make another one, or use "
            "the wrapper"
        )
    refusals = [
        (isinstance(optimizer, LBFGS), "it evaluates the loss again within a step"),
        (isinstance(optimizer, SparseAdam), "it takes sparse gradients"),
        (any(not isinstance(key, Tensor) for key in optimizer.state), _NO_PARAMETER),
        (
            any(group.get("differentiable") for group in optimizer.param_groups),
            "rounding has no gradient here; leave differentiable=True out",
        ),
    ]
    for is_refused, reason in refusals:
        if is_refused:
            raise NotImplementedError(f"MasterWeights: {kind} cannot be wrapped: {reason}")


def guard(optimizer: Optimizer) -> None:
    """Makes the optimizer's own step an error from now on."""
    setattr(optimizer, "step", MethodType(_refuse_step, optimizer))  # noqa: B010


def _refuse_step(optimizer: Optimizer, closure: Any = None) -> None:
    raise RuntimeError(
        f"MasterWeights: the step of the wrapped {type(optimizer).__name__} was called, which "
        "would change the working copies and no master; call the wrapper's step"
    )


def step_masters(
    optimizer: Optimizer, masters: Sequence[Master], seed: Tensor, number: Tensor, scale: Any
) -> None:
    """One step of the optimizer in float32, as if these masters were its parameters with gradients:
    gradients are unscaled and rounded, masters and states are unpacked, and afterwards masters,
    states and working copies are rounded.

    An optimizer of torch steps each parameter by itself: one parameter at a time is unpacked, or
    several small ones. All are, where the optimizer is another, or where a value may have no code.

    seed: the wrapper's.  number: the number of this step.  scale: the number that gradients are
    still multiplied by, or None.
    Raises:
        ValueError: a value has no code in its format, or a format is for a state that there is not.
        NotImplementedError: the step keeps states of no parameter.
        Weights, masters and states are as before then.
    """
    is_torch = type(optimizer).__module__.startswith("torch.optim.")
    apart = is_torch and all(master.formats.keeps_every_value for master in masters)
    for batch in _batches(masters) if apart else [masters]:
        _step_together(optimizer, batch, [m.seed(seed, number) for m in batch], scale)


def _batches(masters: Iterable[Master]) -> Iterator[list[Master]]:
    """The masters, each alone or with others of few elements."""
    batch, elements = list[Master](), 0
    for master in masters:
        elements += master.parameter.numel()
        if batch and elements > _FEW:
            yield batch
            batch, elements = [], master.parameter.numel()
        batch.append(master)
    yield batch


def _step_together(
    optimizer: Optimizer, masters: Sequence[Master], seeds: Sequence[Tensor | None], scale: Any
) -> None:
    """The step of some masters, which are unpacked together."""
    inputs = [
        (master, *master.stand_in(seed, scale), seed)
        for master, seed in zip(masters, seeds, strict=True)
    ]
    by_parameter = {master.parameter: stand_in for master, stand_in, *_ in inputs}
    # A parameter without a gradient takes the place of all others.
    other = nn.Parameter(torch.zeros(0, dtype=torch.float32, device="cpu"))
    groups = [
        {**group, "params": [by_parameter.get(p, other) for p in group["params"]]}
        for group in optimizer.param_groups
    ]
    before = {stand_in: master.states() for master, stand_in, *_ in inputs}
    states = _stepped(optimizer, groups, before)
    if any(not isinstance(key, Tensor) for key in states):
        raise NotImplementedError(
            f"MasterWeights: the step of {type(optimizer).__name__}: {_NO_PARAMETER}, which would "
            "not be saved; use an optimizer that keeps them in its groups"
        )
    packed = [
        (master, *master.packed(stand_in.detach(), asked, states.get(stand_in, {}), seed))
        for master, stand_in, asked, seed in inputs
    ]
    for master, _, new in packed:
        if missing := sorted(master.formats.states - new.keys()):
            raise ValueError(
                f"MasterWeights: state: {type(optimizer).__name__} has no state "
                f"{', '.join(missing)} with these options; it keeps "
                f"{', '.join(name for name in new if name not in OWN) or 'none'}"
            )
    for master, working, new in packed:
        master.keep(working, new)
    for group, changed in zip(optimizer.param_groups, groups, strict=True):
        group.update({name: x for name, x in changed.items() if name != "params"})


def _stepped(
    optimizer: Optimizer, groups: list[dict[str, Any]], states: Mapping[Any, dict[str, Any]]
) -> Mapping[Any, dict[str, Any]]:
    """The states after the optimizer's step, without its hooks, with other groups and states."""
    before = optimizer.param_groups, optimizer.state
    optimizer.param_groups, optimizer.state = groups, defaultdict(dict, states)
    step: Any = type(optimizer).step
    # torch wraps each class's step in a function that calls the hooks.
    unhooked = step.__wrapped__ if getattr(step, "hooked", False) else step
    try:
        with torch.no_grad():
            unhooked(optimizer)
        return optimizer.state
    finally:
        optimizer.param_groups, optimizer.state = before
