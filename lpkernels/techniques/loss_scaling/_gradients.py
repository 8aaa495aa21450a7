"""The gradients of an optimizer, checked and unscaled in one pass, and the outcome of its step."""

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.weak import TensorWeakRef

from lpkernels.techniques.loss_scaling._scale import Scale


def parameters(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """The parameters of an optimizer, in its order."""
    for group in optimizer.param_groups:
        yield from group["params"]


def values(gradient: Tensor) -> Tensor:
    """The memory of a gradient's elements in this process: the shard of a DTensor, the values of a
    sparse tensor."""
    if hasattr(gradient, "to_local"):
        gradient = gradient.to_local()
    return gradient._values() if gradient.is_sparse else gradient


def gradients(optimizer: torch.optim.Optimizer, *, halves: bool) -> list[Tensor]:
    """The values of all gradients; a float16 one is a ValueError unless `halves`."""
    found = []
    for parameter in parameters(optimizer):
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.dtype == torch.float16:
            if not halves:
                raise ValueError(
                    "Attempting to unscale FP16 gradients: expected float32 (or bfloat16) "
                    "parameters, got float16; keep the model in float32 and run it under autocast"
                )
            if gradient.is_sparse:
                # Elements of one index may overflow when they are added.
                gradient = parameter.grad = gradient.coalesce()
        found.append(values(gradient))
    return found


@torch.no_grad()
def checked(tensors: Sequence[Tensor], scale: Scale, *, unscale: bool) -> Tensor:
    """A 0-d float32 flag on the scale's device: 1 if an element of `tensors` is not finite, else 0.

    unscale: each element becomes element / scale in the same pass, by multiplication with the
    inverse of the scale, rounded to float32. A constant scale that is no power of two is the
    exception: a second pass divides by it.
    """
    divisor = scale.divisor if unscale else None
    home = scale.tensor.device
    once = unscale and divisor is None
    factor = scale.inverse() if once else torch.ones((), dtype=torch.float32, device=home)
    groups: dict[torch.device, dict[torch.dtype, list[Tensor]]] = defaultdict(dict)
    for tensor in tensors:
        # torch has no such pass for complex numbers.
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        groups[real.device].setdefault(real.dtype, []).append(real)
    flags = []
    for device, kinds in groups.items():
        flag = torch.zeros((), dtype=torch.float32, device=device)
        there = factor.to(device, non_blocking=True)
        for kind in kinds.values():
            torch._amp_foreach_non_finite_check_and_unscale_(kind, flag, there)
            if divisor is not None:
                torch._foreach_div_(kind, divisor)
        flags.append(flag.to(home, non_blocking=True))
    return any_of(flags, home)


def any_of(flags: Sequence[Tensor], device: torch.device) -> Tensor:
    """1 if one of the 0-d flags is 1, else 0."""
    if not flags:
        return torch.zeros((), dtype=torch.float32, device=device)
    return flags[0] if len(flags) == 1 else torch.stack(list(flags)).amax()


def over_ranks(flag: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The flag of all ranks of `group` (None: of the world): 1 if it is 1 on one of them. All these
    ranks must call it."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1:
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
    return flag


def names_of(pairs: Iterable[tuple[str, Tensor]]) -> dict[Tensor, str]:
    """The names of parameters, by parameter."""
    found: dict[Tensor, str] = {}
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[1], Tensor):
            raise TypeError(
                "named_parameters: expected pairs (name, parameter) as of "
                f"model.named_parameters(), got {type(pair).__name__}"
            )
        found[pair[1]] = pair[0]
    return found


@dataclass(frozen=True)
class StepRecord:
    """One call of LossScaler.step.

    ran: whether the optimizer changed the weights.
    parameter: the first parameter, in the optimizer's order, whose gradient was not finite: its
        name if the scaler knows it, else its position. None if the step ran, if the gradients of
        this process were finite (another rank's were not), or if they are gone.
    """

    ran: bool
    parameter: str | int | None = None


class Outcome:
    """A step whose flag is on the device; it keeps no gradient alive.

    found: 0-d, not 0 if the step was skipped.  names: the parameters' names.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, found: Tensor, names: Mapping[Tensor, str]
    ) -> None:
        self.found = found
        self._labels: list[str | int] = []
        self._gradients: list[tuple[TensorWeakRef, int]] = []
        self._finite: Tensor | None = None
        for position, parameter in enumerate(parameters(optimizer)):
            if parameter.grad is not None:
                self._labels.append(names.get(parameter, position))
                gradient = parameter.grad
                self._gradients.append((TensorWeakRef(gradient), gradient._version))

    def look(self) -> None:
        """Notes on the device which gradients are finite, before anything changes them."""
        here = [reference() for reference, _ in self._gradients]
        same = [
            gradient is not None and gradient._version == version
            for gradient, (_, version) in zip(here, self._gradients, strict=True)
        ]
        if all(same):
            flags = [
                torch.isfinite(values(gradient)).all().to(self.found.device, non_blocking=True)
                for gradient in here
            ]
            self._finite = torch.stack(flags) if flags else None
        self._gradients = []

    def record(self) -> StepRecord:
        """The record of the step; it waits for the device."""
        if not self.found.item():
            return StepRecord(ran=True)
        if self._finite is None:
            self.look()
        finite = [] if self._finite is None else self._finite.tolist()
        bad = [label for label, fine in zip(self._labels, finite, strict=False) if not fine]
        return StepRecord(ran=False, parameter=bad[0] if bad else None)


def first_bad(outcomes: Iterable[Outcome | None]) -> str:
    """The first parameter whose gradient was not finite, in the words of an error; it waits for the
    device."""
    for outcome in outcomes:
        found = None if outcome is None else outcome.record().parameter
        if found is not None:
            return f"of parameter {found!r}"
    return "of another process, or one that is gone,"


def is_watched(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a function stands in the place of the optimizer's own step, as accelerate's that
    notes whether it is called. That of a schedule of torch counts calls, and may be called."""
    step = vars(optimizer).get("step")
    own = getattr(step, "__func__", None) is type(optimizer).step
    return not (step is None or own or hasattr(step, "_wrapped_by_lr_sched"))


class NotFinite(Exception):
    """Says that an evaluation had a gradient that is not finite; it ends the optimizer's step."""


class OptimizerCopy:
    """The weights, the state and the settings of an optimizer as they are now, copied."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._weights = [p.detach().clone() for p in parameters(optimizer)]
        self._state = {p: copy.deepcopy(state) for p, state in optimizer.state.items()}
        self._settings = [
            {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Puts everything back as it was, to the bit."""
        for parameter, weight in zip(parameters(self._optimizer), self._weights, strict=True):
            parameter.copy_(weight)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)
        for group, settings in zip(self._optimizer.param_groups, self._settings, strict=True):
            for name in set(group) - set(settings) - {"params"}:
                del group[name]
            for name, value in settings.items():
                group[name] = _put(group.get(name), value)


def _put(present: Any, value: Any) -> Any:
    """`value`; if `present` is a tensor, `present` with this value, because others may hold the
    same tensor, such as a learning rate."""
    if isinstance(present, Tensor) and isinstance(value, Tensor):
        return present.copy_(value)
    return value
